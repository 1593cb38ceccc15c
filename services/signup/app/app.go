// Package app puts the signup service together.
package app

import (
	"context"
	"errors"
	"time"
	_ "time/tzdata" // IANA names are checked on machines without a zone database

	"github.com/prometheus/client_golang/prometheus"

	"waitlist.internal/libs/loop"
	"waitlist.internal/libs/service"
	"waitlist.internal/services/signup"
	signuphttp "waitlist.internal/services/signup/http"
	"waitlist.internal/services/signup/postgres"
	"waitlist.internal/services/signup/redis"
)

// Service is the service's name, and that of its schema.
const Service = "signup"

// Config is the service's environment.
type Config struct {
	service.Config

	// MessagingTarget is where messaging's gRPC is: host:port, or a gRPC URL.
	MessagingTarget string `env:"MESSAGING_GRPC" envDefault:"messaging:9090"`

	// BatchWorkers is how many batches of signups are committed at a time.
	BatchWorkers int `env:"SIGNUP_BATCH_WORKERS" envDefault:"4"`
	// BatchSize is the most signups in one transaction.
	BatchSize int `env:"SIGNUP_BATCH_SIZE" envDefault:"256"`
	// QueueSize is how many signups may wait for one waitlist.
	QueueSize int `env:"SIGNUP_QUEUE_SIZE" envDefault:"4096"`
	// PrivacyPolicyVersion is stored with every consent.
	PrivacyPolicyVersion string `env:"PRIVACY_POLICY_VERSION"`
	// PageViews says whether views of forms are counted; without, analytics show
	// none.
	PageViews bool `env:"PAGE_VIEWS" envDefault:"true"`
	// PurgeEvery is the pause between looks for rows of what was deleted.
	PurgeEvery time.Duration `env:"PURGE_EVERY" envDefault:"1m"`
	// TombstoneKept is how long the ids of deleted waitlists and accounts stay,
	// for what was under way at their end. It is longer than a rebuild of an index.
	TombstoneKept time.Duration `env:"TOMBSTONE_KEPT" envDefault:"1h"`
}

func definition() service.Definition {
	return service.Definition{
		Name: Service, Migrations: postgres.Migrations,
		Options: service.Options{HTTP: true, GRPC: true, Calls: true, Redis: true, Kafka: true, Tokens: true, Seal: true},
	}
}

// Migrate brings the schema and the topics up to date; see service.Migrate.
func Migrate(ctx context.Context, cfg service.Config) error { return definition().Migrate(ctx, cfg) }

// App is the service.
type App = service.Runtime

// readerConns is how many connections there are, where nothing else is set,
// beside one for each batch: a full queue of signups must not hold up reads, nor
// must downloads, of which there are four at a time.
const readerConns = 16

// trimEvery is the pause between deletions from the change log, trimRows the
// most rows of one.
const (
	trimEvery = 10 * time.Second
	trimRows  = 10_000
)

// New opens what the service uses and registers its routes.
func New(ctx context.Context, cfg Config) (*App, error) {
	if cfg.PurgeEvery <= 0 || cfg.TombstoneKept < 0 {
		return nil, errors.New("configuration: PURGE_EVERY must be above 0, TOMBSTONE_KEPT not below")
	}
	if cfg.PostgresMaxConns == 0 {
		cfg.PostgresMaxConns = int32(cfg.BatchWorkers) + readerConns
	}
	return definition().Open(ctx, cfg.Config, func(rt *service.Runtime) error {
		wake, err := rt.Outbox()
		if err != nil {
			return err
		}
		store := postgres.NewSignups(rt.Pool, wake, time.Now)
		index := signup.NewIndex(redis.NewIndex(rt.Redis), store, rt.Log)
		svc := signup.New(signup.Config{
			Workers: cfg.BatchWorkers, MaxBatch: cfg.BatchSize, MaxQueue: cfg.QueueSize, PrivacyPolicyVersion: cfg.PrivacyPolicyVersion,
		}, store, index, rt.Tokens, time.Now, rt.Log, metrics(rt.Telemetry.Registerer))
		rt.Go("signup batches", svc.Run)
		rt.Go("change log retention", func(ctx context.Context) error { return trim(ctx, store, rt) })
		var views *signup.Views
		if cfg.PageViews {
			views = signup.NewViews(store, time.Now, rt.Log)
			rt.Go("page views", views.Run)
		}
		signuphttp.Routes(rt.Engine, svc, views)
		return wire(rt, cfg, store, svc, wake)
	})
}

// trim keeps the change log and its shifts short until ctx ends.
func trim(ctx context.Context, store *postgres.Signups, rt *service.Runtime) error {
	for range loop.Every(ctx, trimEvery) {
		for _, trim := range []func(context.Context, int) (int64, error){store.TrimChanges, store.TrimShifts} {
			for {
				n, err := trim(ctx, trimRows)
				if err != nil {
					rt.Log.WarnContext(ctx, "change log not trimmed", "error", err)
				}
				if err != nil || n < trimRows {
					break
				}
			}
		}
	}
	return nil
}

func metrics(reg prometheus.Registerer) signup.Metrics {
	size := prometheus.NewHistogram(prometheus.HistogramOpts{
		Name: "signup_batch_size", Help: "Signups committed in one transaction.",
		Buckets: prometheus.ExponentialBuckets(1, 2, 9),
	})
	took := prometheus.NewHistogram(prometheus.HistogramOpts{
		Name: "signup_batch_duration_seconds", Help: "Time from taking a batch to its commit.",
		Buckets: prometheus.ExponentialBuckets(0.0005, 2, 14),
	})
	reg.MustRegister(size, took)
	return signup.Metrics{Batch: func(n int, d time.Duration) {
		size.Observe(float64(n))
		took.Observe(d.Seconds())
	}}
}
