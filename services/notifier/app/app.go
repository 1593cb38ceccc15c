// Package app puts the notifier service together.
package app

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"golang.org/x/net/http/httpproxy"

	"waitlist.internal/libs/kafka"
	"waitlist.internal/libs/netguard"
	"waitlist.internal/libs/service"
	signupv1 "waitlist.internal/proto/gen/waitlist/signup/v1"
	"waitlist.internal/services/notifier"
	"waitlist.internal/services/notifier/grpc"
	notifierhttp "waitlist.internal/services/notifier/http"
	notifierkafka "waitlist.internal/services/notifier/kafka"
	"waitlist.internal/services/notifier/postgres"
)

// Config is the service's environment, beside HTTPS_PROXY, NO_PROXY and
// SSL_CERT_FILE, which are Go's own.
type Config struct {
	service.Config

	// SignupTarget is where signup's gRPC is: host:port, or a gRPC URL.
	SignupTarget string `env:"SIGNUP_GRPC" envDefault:"signup:9090"`
	// AllowedNetworks are networks and addresses that notifications may go to
	// although they are not public, as 127.0.0.0/8 or 10.1.2.3. Whoever may set a
	// webhook reaches them then.
	AllowedNetworks []string `env:"NOTIFIER_ALLOWED_NETWORKS"`
	// Concurrency is how many notifications are under way at a time.
	Concurrency int `env:"NOTIFIER_CONCURRENCY" envDefault:"512"`

	// HTTP can be given in code only: how targets are reached. Its zero fields are
	// filled from the environment.
	HTTP notifierhttp.Config `env:"-"`
}

// options are what the service uses.
func options() (service.Options, error) {
	migrations, err := postgres.Migrations()
	if err != nil {
		return service.Options{}, fmt.Errorf("migrations: %w", err)
	}
	return service.Options{
		Schema: postgres.Schema, Migrations: migrations, Kafka: true, Calls: true,
	}, nil
}

// Migrate brings the schema and the topics up to date; see service.Migrate.
func Migrate(ctx context.Context, cfg service.Config) error {
	o, err := options()
	if err != nil {
		return err
	}
	return service.Migrate(ctx, notifier.Service, cfg, o)
}

// App is the service.
type App struct{ rt *service.Runtime }

// New opens what the service uses.
func New(ctx context.Context, cfg Config) (_ *App, err error) {
	allowed, err := netguard.ParseNetworks(cfg.AllowedNetworks)
	if err != nil {
		return nil, fmt.Errorf("configuration: NOTIFIER_ALLOWED_NETWORKS: %w", err)
	}
	if cfg.Concurrency < 1 {
		return nil, fmt.Errorf("configuration: NOTIFIER_CONCURRENCY must be above 0")
	}
	cfg.HTTP.Allowed = append(cfg.HTTP.Allowed, allowed...)
	if cfg.HTTP.Proxy == nil {
		cfg.HTTP.Proxy = httpproxy.FromEnvironment().ProxyFunc()
	}
	o, err := options()
	if err != nil {
		return nil, err
	}
	rt, err := service.New(ctx, notifier.Service, cfg.Config, o)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			_ = rt.Close(context.WithoutCancel(ctx))
		}
	}()
	signups, err := rt.Dial(cfg.SignupTarget, "signup")
	if err != nil {
		return nil, err
	}
	poster := notifierhttp.New(cfg.HTTP)
	rt.OnClose("connections to owners", func(context.Context) error { poster.Close(); return nil })
	ledger := postgres.New(rt.Pool)
	dispatcher, err := notifier.New(notifier.Config{
		Ledger: ledger, Source: grpc.NewSource(signupv1.NewSignupServiceClient(signups)), Poster: poster,
		Limits: notifier.Limits{Running: cfg.Concurrency}, Log: rt.Log, Now: time.Now,
	})
	if err != nil {
		return nil, fmt.Errorf("metrics: %w", err)
	}
	consumer, err := kafka.NewConsumer(kafka.ConsumerConfig{
		Config: rt.Kafka, Group: rt.Name, Topics: []string{kafka.SignupsTopic}, Pool: rt.Pool,
		Handler: notifierkafka.Handler(ledger, dispatcher.Stage), Logger: rt.Log, AfterCommit: dispatcher.Commit,
	})
	if err != nil {
		return nil, fmt.Errorf("consumer metrics: %w", err)
	}
	rt.Go("dispatcher", dispatcher.Run)
	rt.Go("consumer", consumer.Run)
	return &App{rt}, nil
}

// Run works until ctx ends.
func (a *App) Run(ctx context.Context) error { return a.rt.Run(ctx) }

// Handler is the public interface: none.
func (a *App) Handler() http.Handler { return a.rt.Handler() }

// Ready returns nil while the service can do its work.
func (a *App) Ready(ctx context.Context) error { return a.rt.Ready(ctx) }

// Close closes what New opened, for an app that never runs.
func (a *App) Close(ctx context.Context) error { return a.rt.Close(ctx) }
