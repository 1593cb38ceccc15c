// Package app wires the billing service.
package app

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"waitlist.internal/libs/claims"
	"waitlist.internal/libs/httpapi"
	"waitlist.internal/libs/kafka"
	"waitlist.internal/libs/service"
	accountv1 "waitlist.internal/proto/gen/waitlist/account/v1"
	"waitlist.internal/services/billing"
	"waitlist.internal/services/billing/grpc"
	billinghttp "waitlist.internal/services/billing/http"
	billingkafka "waitlist.internal/services/billing/kafka"
	"waitlist.internal/services/billing/postgres"
	"waitlist.internal/services/billing/stripe"
)

// otherConns is how many connections the default pool has in addition to those that
// hold an account's lock.
const otherConns = 6

// Config is the service's environment.
type Config struct {
	service.Config

	// Stripe's secret key.
	StripeSecretKey string `env:"STRIPE_SECRET_KEY" run:"the simulator's" deployed:"required"`
	// Secrets that sign Stripe's events: two while one replaces the other.
	StripeWebhookSecrets []string `env:"STRIPE_WEBHOOK_SECRETS" run:"made in DATA_DIR/keys" deployed:"required"`
	// Replaces the address of Stripe's API, for a simulator.
	StripeURL string `env:"STRIPE_URL"`
	// `tier.interval=price`, for each plan; see above.
	StripePrices []string `env:"STRIPE_PRICES" run:"the simulator's" deployed:"required"`
	// How long each of the two attempts at a call may take, from 1s to 10s.
	StripeTimeout time.Duration `env:"STRIPE_TIMEOUT" envDefault:"8s"`

	// The page about billing: the customer portal leads back there, the checkout to /success and /canceled below it.
	SiteURL string `env:"BILLING_URL" run:"PUBLIC_FORM_URL/billing" deployed:"required"`

	// Output takes the output of the command reconcile. Only code can set it; nil means
	// standard output.
	Output io.Writer `env:"-"`
}

// parsed holds the settings that only billing has, in parsed form.
type parsed struct {
	prices  billing.Prices
	webhook *stripe.Webhook
}

// parse checks and parses the settings that only billing has. It returns all problems.
func (c Config) parse() (p parsed, problems []error) {
	var err error
	add := func(variable string, err error) {
		if err != nil {
			problems = append(problems, fmt.Errorf("%s: %w", variable, err))
		}
	}
	if c.StripeSecretKey == "" {
		problems = append(problems, errors.New("Set STRIPE_SECRET_KEY.")) //nolint:staticcheck // an instruction
	}
	p.webhook, err = stripe.NewWebhook(c.StripeWebhookSecrets)
	add("STRIPE_WEBHOOK_SECRETS", err)
	p.prices, err = billing.ParsePrices(c.StripePrices)
	add("STRIPE_PRICES", err)
	add("BILLING_URL", absolute(c.SiteURL))
	if c.StripeURL != "" {
		add("STRIPE_URL", absolute(c.StripeURL))
	}
	if c.StripeTimeout < time.Second || c.StripeTimeout > 10*time.Second {
		problems = append(problems, errors.New("Set STRIPE_TIMEOUT to a duration from 1s to 10s.")) //nolint:staticcheck // an instruction
	}
	return p, problems
}

func absolute(address string) error {
	u, err := url.Parse(address)
	if err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" {
		return errors.New("not an absolute http(s) URL")
	}
	return nil
}

// parts are shared by the service and the reconcile command.
type parts struct {
	rt       *service.Runtime
	svc      *billing.Billing
	store    *postgres.Store
	accounts accountv1.AccountServiceClient
	webhook  *stripe.Webhook
}

// concurrency is how many accounts a process works on at a time, each with a connection to
// PostgreSQL.
const concurrency = 8

// reconcileEvery is the pause between two comparisons with the provider, and reconcileRate
// how many accounts one looks at in a second: a tenth of the requests that it allows.
const (
	reconcileEvery = 24 * time.Hour
	reconcileRate  = 10
)

func definition() service.Definition {
	return service.Definition{
		Name: billing.Name, Migrations: postgres.Migrations,
		Options: service.Options{
			HTTP: true, Kafka: true, Calls: true, RateLimitExempt: billinghttp.Exempt,
			Long: []httpapi.Route{ // the provider's client bounds them
				{Method: http.MethodPost, Path: "/v1/billing/checkout"},
				{Method: http.MethodPost, Path: "/v1/billing/preview"},
				{Method: http.MethodPost, Path: "/v1/billing/start-trial"},
				{Method: http.MethodPost, Path: "/v1/billing/cancel"},
				{Method: http.MethodPost, Path: "/v1/billing/portal"},
				{Method: http.MethodGet, Path: "/v1/billing/info"},
			},
		},
	}
}

// Migrate brings the schema and the topics up to date; see service.Migrate.
func Migrate(ctx context.Context, cfg service.Config) error { return definition().Migrate(ctx, cfg) }

// open opens d's connections and billing's own, and passes them to wire.
func open(ctx context.Context, cfg Config, d service.Definition, wire func(p *parts) error) (*App, error) {
	in, problems := cfg.parse()
	cfg.PostgresMaxConns = cmp.Or(cfg.PostgresMaxConns, concurrency+otherConns)
	if cfg.PostgresMaxConns <= concurrency {
		problems = append(problems, errors.New("Set POSTGRES_MAX_CONNS to more than 8.")) //nolint:staticcheck // an instruction
	}
	site := strings.TrimRight(cfg.SiteURL, "/")
	return d.Open(ctx, cfg.Config, problems, func(rt *service.Runtime) error {
		conn, err := rt.Dial("account")
		if err != nil {
			return err
		}
		provider, err := stripe.New(stripe.Config{
			SecretKey: cfg.StripeSecretKey, URL: cfg.StripeURL, Timeout: cfg.StripeTimeout,
			Log: rt.Log, Tracers: rt.Telemetry.Tracers, Registerer: rt.Telemetry.Registerer,
		})
		if err != nil {
			return fmt.Errorf("configuration: %w", err)
		}
		rt.OnClose("payment provider", func(context.Context) error { provider.Close(); return nil })
		p := &parts{
			rt: rt, store: postgres.New(rt.Pool, rt.Direct, concurrency), accounts: accountv1.NewAccountServiceClient(conn), webhook: in.webhook,
		}
		p.svc = billing.New(billing.Config{
			Store: p.store, Accounts: grpc.Accounts{Client: p.accounts}, Provider: provider, Prices: in.prices,
			URLs:           billing.URLs{Success: site + "/success", Cancel: site + "/canceled", Portal: site},
			ReconcileEvery: reconcileEvery, ReconcileRate: reconcileRate, Log: rt.Log, Now: time.Now,
		})
		return wire(p)
	})
}

// App is the service.
type App = service.Runtime

// New opens the service's connections and registers its routes.
func New(ctx context.Context, cfg Config) (*App, error) {
	return open(ctx, cfg, definition(), func(p *parts) error {
		if err := p.rt.Consume("consumer", kafka.ConsumerConfig{
			Topics: []string{kafka.AccountsTopic}, Handler: billingkafka.Handler(p.store), Wants: billingkafka.Wants,
			Confirm: claims.Owners{Accounts: p.accounts}.Confirm,
		}); err != nil {
			return err
		}
		p.rt.Singleton("pushes", p.svc.RunPushes)
		p.rt.Singleton("checks", p.svc.RunChecks)
		p.rt.Singleton("deletions", p.svc.RunDeletions)
		p.rt.Singleton("sweep", p.svc.RunSweep)
		p.rt.Singleton("reconciliations", p.svc.RunReconciliations)
		billinghttp.Routes(p.rt.Engine, p.svc, p.accounts, p.webhook)
		return nil
	})
}
