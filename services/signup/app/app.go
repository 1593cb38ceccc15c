// Package app wires the signup service.
package app

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"waitlist.internal/libs/httpapi"
	"waitlist.internal/libs/loop"
	"waitlist.internal/libs/service"
	"waitlist.internal/libs/telemetry"
	"waitlist.internal/libs/views"
	"waitlist.internal/services/signup"
	signuphttp "waitlist.internal/services/signup/http"
	"waitlist.internal/services/signup/index"
	"waitlist.internal/services/signup/join"
	"waitlist.internal/services/signup/postgres"
)

// Config is the service's environment.
type Config struct {
	service.Config

	// Signups that may wait for one waitlist; beyond it 429.
	QueueSize int `env:"SIGNUP_QUEUE_SIZE" envDefault:"4096"`
	// How long the signups that wait for one waitlist may take; beyond it, and beyond one batch, 429. 0: no bound but
	// `SIGNUP_QUEUE_SIZE`.
	MaxWait time.Duration `env:"SIGNUP_MAX_WAIT" envDefault:"0s" deployed:"100ms"`
	// Waitlists that an account can have; beyond it 409. 0: no bound.
	MaxWaitlists int64 `env:"MAX_WAITLISTS" envDefault:"0" deployed:"1000"`
	// Bytes of all settings of a waitlist together; beyond it 400. 0: no bound but that of the request.
	MaxSettingsBytes int `env:"MAX_SETTINGS_BYTES" envDefault:"0" deployed:"262144"`
	// Version of the privacy policy, stored with every consent.
	PrivacyPolicyVersion string `env:"PRIVACY_POLICY_VERSION"`
	// The pages as people reach them. The unsubscribe address of a mail sends browsers there; empty: they get 404.
	PublicFormURL string `env:"PUBLIC_FORM_URL" run:"the standalone's"`
	// How long the ids of deleted waitlists and owners stay for requests under way: longer than an index takes to rebuild.
	TombstoneKept time.Duration `env:"TOMBSTONE_KEPT" envDefault:"1h"`
}

// problems returns all problems of the settings that only signup has.
func (c Config) problems() (all []error) {
	if c.TombstoneKept < 0 {
		all = append(all, errors.New("Set TOMBSTONE_KEPT to 0 or longer.")) //nolint:staticcheck // an instruction
	}
	if c.MaxWait < 0 {
		all = append(all, errors.New("Set SIGNUP_MAX_WAIT to 0 or longer.")) //nolint:staticcheck // an instruction
	}
	if c.MaxWaitlists < 0 {
		all = append(all, errors.New("Set MAX_WAITLISTS to 0 or more.")) //nolint:staticcheck // an instruction
	}
	if c.MaxSettingsBytes < 0 {
		all = append(all, errors.New("Set MAX_SETTINGS_BYTES to 0 or more.")) //nolint:staticcheck // an instruction
	}
	if c.QueueSize < 1 {
		all = append(all, errors.New("Set SIGNUP_QUEUE_SIZE to 1 or more.")) //nolint:staticcheck // an instruction
	}
	return all
}

func definition() service.Definition {
	return service.Definition{
		Name: signup.Name, Migrations: postgres.Migrations,
		Options: service.Options{
			HTTP: true, GRPC: true, Calls: true, Redis: true, Kafka: true, Tokens: true, Seal: true,
			Long: []httpapi.Route{ // these have bounds of their own
				{Method: http.MethodPost, Path: "/v1/waitlists/:waitlist_id/blasts"},
				{Method: http.MethodPost, Path: "/v1/waitlists/:waitlist_id/import"},
				{Method: http.MethodGet, Path: "/v1/waitlists/:waitlist_id/export"},
			},
		},
	}
}

// Migrate brings the schema and the topics up to date; see service.Migrate.
func Migrate(ctx context.Context, cfg service.Config) error { return definition().Migrate(ctx, cfg) }

// App is the service.
type App = service.Runtime

// batchWorkers is how many batches of signups commit at a time, over all waitlists, and
// batchSize the most signups of one. Larger ones hold the list's lock longer, more workers
// wait for the same disk.
const (
	batchWorkers = 4
	batchSize    = 256
)

// readerConns is how many connections the default pool has in addition to one for each
// batch. Neither a full queue of signups nor downloads, at most four at a time, may
// delay reads.
const readerConns = 16

// trimEvery is the interval between deletions from the change log. trimRows is the
// most rows that one statement deletes.
const (
	trimEvery = 10 * time.Second
	trimRows  = 10_000
)

// New opens the service's connections and registers its routes.
func New(ctx context.Context, cfg Config) (*App, error) {
	cfg.PostgresMaxConns = cmp.Or(cfg.PostgresMaxConns, batchWorkers+readerConns)
	return definition().Open(ctx, cfg.Config, cfg.problems(), func(rt *service.Runtime) error {
		wake, err := rt.Outbox()
		if err != nil {
			return err
		}
		measured := newMetrics(rt.Telemetry.Registerer)
		store := postgres.NewSignups(rt.Pool, rt.Tokens, wake, time.Now)
		store.Changed = measured.changed
		places := index.New(index.NewRedis(rt.Redis), store, rt.Log)
		places.Measured = measured.caughtUp
		svc := join.New(join.Config{
			Store: store, Index: places, Tokens: rt.Tokens, Now: time.Now, Log: rt.Log,
			Committed: measured.committed, Waited: func(d time.Duration) { measured.wait.Observe(d.Seconds()) },
			Grouped: func(n int) { measured.grouped.Observe(float64(n)) },
			Workers: batchWorkers, MaxBatch: batchSize, MaxQueue: cfg.QueueSize, MaxWait: cfg.MaxWait,
			PrivacyPolicyVersion: cfg.PrivacyPolicyVersion,
		})
		promauto.With(rt.Telemetry.Registerer).NewGaugeFunc(prometheus.GaugeOpts{
			Name: "signup_queue_length", Help: "Signups that wait for a commit, in the lanes of all waitlists.",
		}, func() float64 { return float64(svc.QueueDepth()) })
		rt.Go("signup batches", svc.Run)
		rt.Singleton("change log retention", func(ctx context.Context) error { return trim(ctx, store, rt) })
		shown := views.New(store, time.Now, rt.Log)
		rt.Go("page views", shown.Run)
		signuphttp.Routes(rt.Engine, svc, shown, strings.TrimRight(cfg.PublicFormURL, "/"))
		return wire(rt, cfg, store, svc, wake)
	})
}

// trim deletes old changes, shifts and referrals of the guard until ctx ends.
func trim(ctx context.Context, store *postgres.Signups, rt *service.Runtime) error {
	for range loop.Every(ctx, trimEvery) {
		for _, trim := range []func(context.Context, int) (int64, error){store.TrimChanges, store.TrimShifts, store.TrimReferrals} {
			for {
				n, err := trim(ctx, trimRows)
				if err != nil {
					rt.Log.WarnContext(ctx, "trimming the change log failed", telemetry.Err(err))
				}
				if err != nil || n < trimRows {
					break
				}
			}
		}
	}
	return nil
}
