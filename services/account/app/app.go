// Package app wires the account service.
package app

import (
	"cmp"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"runtime"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"waitlist.internal/libs/audit"
	"waitlist.internal/libs/httpapi"
	"waitlist.internal/libs/loop"
	"waitlist.internal/libs/service"
	accountv1 "waitlist.internal/proto/gen/waitlist/account/v1"
	auditv1 "waitlist.internal/proto/gen/waitlist/audit/v1"
	signupv1 "waitlist.internal/proto/gen/waitlist/signup/v1"
	"waitlist.internal/services/account"
	accountgrpc "waitlist.internal/services/account/grpc"
	accounthttp "waitlist.internal/services/account/http"
	"waitlist.internal/services/account/postgres"
)

// hashPatience is how long a login waits for its turn to hash. It leaves time for the
// rest of the request.
const hashPatience = 3500 * time.Millisecond

// Config is the service's environment.
type Config struct {
	service.Config

	// P-256 keys that sign JWTs: PEM, or base64 of scalars. The first signs.
	JWTKeys string `env:"JWT_KEYS" run:"made in DATA_DIR/keys" deployed:"required"`
	// Lifetime of a JWT.
	IDTokenTTL time.Duration `env:"ID_TOKEN_TTL" envDefault:"1h"`
	// Lifetime of a session without a refresh.
	RefreshTokenTTL time.Duration `env:"REFRESH_TOKEN_TTL" envDefault:"720h"`
	// Length of the Pro trial that starts with a registration. A mail announces its end a day before if it lasts two days or
	// more.
	TrialDuration time.Duration `env:"TRIAL_DURATION" envDefault:"168h"`
	// Whether addresses that differ in their plus part, or in dots where the provider ignores them, share one trial.
	TrialPerPerson bool `env:"TRIAL_PER_PERSON" envDefault:"false"`
	// Whether to refuse new passwords that are the address or one of the 10,000 most common.
	RefuseCommonPasswords bool `env:"REFUSE_COMMON_PASSWORDS" envDefault:"false"`
	// Base64 of at least 32 bytes: key of the hashes that remain of deleted addresses. Never change it.
	AddressKey string `env:"ADDRESS_KEY" run:"made in DATA_DIR/keys" deployed:"required"`
	// Passwords hashed at once, 19 MiB each. 0: one per processor, of the node if the container has no CPU limit.
	PasswordConcurrency int `env:"PASSWORD_CONCURRENCY" envDefault:"0"`
}

// parse checks and parses the settings that only account has. It returns all problems.
func (c Config) parse() (keys *account.Keys, addressKey []byte, problems []error) {
	keys, err := account.ParseKeys(c.JWTKeys)
	if err != nil {
		problems = append(problems, fmt.Errorf("JWT_KEYS: %w", err))
	}
	addressKey, err = base64.StdEncoding.DecodeString(c.AddressKey)
	if err != nil || len(addressKey) < 32 {
		problems = append(problems, errors.New("Set ADDRESS_KEY to base64 of at least 32 bytes.")) //nolint:staticcheck // an instruction
	}
	for name, d := range map[string]time.Duration{
		"ID_TOKEN_TTL": c.IDTokenTTL, "REFRESH_TOKEN_TTL": c.RefreshTokenTTL, "TRIAL_DURATION": c.TrialDuration,
	} {
		if d < time.Second {
			problems = append(problems, fmt.Errorf("Set %s to at least 1s.", name)) //nolint:staticcheck // an instruction
		}
	}
	if len(c.TrustedProxies) == 0 {
		//nolint:staticcheck // an instruction
		problems = append(problems, errors.New("Set TRUSTED_PROXIES to the gateway's networks, or to none if clients connect directly: "+
			"failed logins count by the client's address, and behind a gateway, all clients would share its own."))
	}
	if c.PasswordConcurrency < 0 {
		problems = append(problems, errors.New("Set PASSWORD_CONCURRENCY to 0 or more.")) //nolint:staticcheck // an instruction
	}
	return keys, addressKey, problems
}

// issuer and audience are claims of JWTs. Deployments differ in their keys.
const (
	issuer   = "waitlist"
	audience = "waitlist-api"
)

// maxMembers bounds a team. Each request of a member reads the member's teams.
const maxMembers = 100

func definition() service.Definition {
	return service.Definition{
		Name: account.Name, Migrations: postgres.Migrations,
		Options: service.Options{
			HTTP: true, GRPC: true, Calls: true, Kafka: true, AccountTokens: true,
			Long: []httpapi.Route{ // PASSWORD_CONCURRENCY bounds them
				{Method: http.MethodPost, Path: "/v1/auth/register"},
				{Method: http.MethodPost, Path: "/v1/auth/login"},
				{Method: http.MethodPost, Path: "/v1/auth/reset-password"},
				{Method: http.MethodPost, Path: "/v1/auth/change-password"},
			},
		},
	}
}

// Migrate brings the schema and the topics up to date; see service.Migrate.
func Migrate(ctx context.Context, cfg service.Config) error { return definition().Migrate(ctx, cfg) }

// App is the service.
type App = service.Runtime

// New opens the service's connections and registers its routes.
func New(ctx context.Context, cfg Config) (*App, error) {
	keys, addressKey, problems := cfg.parse()
	return definition().Open(ctx, cfg.Config, problems, func(rt *service.Runtime) error {
		signups, err := rt.Dial("signup")
		if err != nil {
			return err
		}
		messaging, err := rt.Dial("messaging")
		if err != nil {
			return err
		}
		wake, err := rt.Outbox()
		if err != nil {
			return err
		}
		svc := account.New(account.Config{
			Store: postgres.New(rt.Pool, wake), Owner: accountgrpc.OwnerCloser{Waitlists: signupv1.NewWaitlistServiceClient(signups)},
			Trails: []audit.Trail{
				rt.Audit(),
				audit.Remote{Client: auditv1.NewAuditServiceClient(signups)},
				audit.Remote{Client: auditv1.NewAuditServiceClient(messaging)},
			},
			Tokens: rt.AccountTokens, Keys: keys, Issuer: issuer, Audience: audience,
			IDTokenTTL: cfg.IDTokenTTL, RefreshTokenTTL: cfg.RefreshTokenTTL, TrialDuration: cfg.TrialDuration,
			EnforceVerification: cfg.EnforceEmailVerification, TrialPerPerson: cfg.TrialPerPerson,
			RefuseCommonPasswords: cfg.RefuseCommonPasswords, MaxMembers: maxMembers,
			AddressKey: addressKey, HashConcurrency: cmp.Or(cfg.PasswordConcurrency, runtime.GOMAXPROCS(0)), HashPatience: hashPatience,
			Logger: rt.Log, Checked: checked(rt.Telemetry.Registerer), Now: time.Now, Wait: loop.Wait,
		})
		rt.Go("password resets", svc.RunResets)
		rt.Singleton("closings", svc.RunClosings)
		rt.Singleton("sweep", svc.RunSweep)
		rt.Singleton("trials that end", svc.RunTrialEndings)
		accounthttp.Routes(rt.Engine, svc)
		accountv1.RegisterAccountServiceServer(rt.GRPC, accountgrpc.New(svc))
		return nil
	})
}

// checked returns a function that counts checks of passwords.
func checked(reg prometheus.Registerer) func(outcome string) {
	checks := promauto.With(reg).NewCounterVec(prometheus.CounterOpts{
		Name: "account_password_checks_total", Help: "Checks of a password, by outcome: accepted, refused, locked, busy.",
	}, []string{"outcome"})
	for _, outcome := range []string{"accepted", "refused", "locked", "busy"} {
		checks.WithLabelValues(outcome)
	}
	return func(outcome string) { checks.WithLabelValues(outcome).Inc() }
}
