// Package app puts the admin-analytics service together.
package app

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"waitlist.internal/libs/kafka"
	"waitlist.internal/libs/service"
	accountv1 "waitlist.internal/proto/gen/waitlist/account/v1"
	messagingv1 "waitlist.internal/proto/gen/waitlist/messaging/v1"
	signupv1 "waitlist.internal/proto/gen/waitlist/signup/v1"
	adminanalytics "waitlist.internal/services/admin-analytics"
	ownershttp "waitlist.internal/services/admin-analytics/http"
	analyticskafka "waitlist.internal/services/admin-analytics/kafka"
	"waitlist.internal/services/admin-analytics/postgres"
)

// Config is the service's environment.
type Config struct {
	service.Config

	// AccountTarget, SignupTarget and MessagingTarget are where the services' gRPC
	// is: host:port, or a gRPC URL.
	AccountTarget   string `env:"ACCOUNT_GRPC" envDefault:"account:9090"`
	SignupTarget    string `env:"SIGNUP_GRPC" envDefault:"signup:9090"`
	MessagingTarget string `env:"MESSAGING_GRPC" envDefault:"messaging:9090"`

	// PurgeEvery is how often the sums of deleted waitlists are looked for.
	PurgeEvery time.Duration `env:"PURGE_EVERY" envDefault:"1m"`
}

// options are what the service uses.
func options() (service.Options, error) {
	migrations, err := postgres.Migrations()
	if err != nil {
		return service.Options{}, fmt.Errorf("migrations: %w", err)
	}
	return service.Options{
		Schema: postgres.Schema, Migrations: migrations, HTTP: true, Kafka: true, Calls: true,
	}, nil
}

// Migrate brings the schema and the topics up to date; see service.Migrate.
func Migrate(ctx context.Context, cfg service.Config) error {
	o, err := options()
	if err != nil {
		return err
	}
	return service.Migrate(ctx, adminanalytics.Service, cfg, o)
}

// App is the service.
type App struct{ rt *service.Runtime }

// New opens what the service uses and registers its routes.
func New(ctx context.Context, cfg Config) (_ *App, err error) {
	o, err := options()
	if err != nil {
		return nil, err
	}
	rt, err := service.New(ctx, adminanalytics.Service, cfg.Config, o)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			_ = rt.Close(context.WithoutCancel(ctx))
		}
	}()
	accounts, err := rt.Dial(cfg.AccountTarget, "account")
	if err != nil {
		return nil, err
	}
	signups, err := rt.Dial(cfg.SignupTarget, "signup")
	if err != nil {
		return nil, err
	}
	messaging, err := rt.Dial(cfg.MessagingTarget, "messaging")
	if err != nil {
		return nil, err
	}
	counts := postgres.New(rt.Pool)
	consumer, err := kafka.NewConsumer(kafka.ConsumerConfig{
		Config: rt.Kafka, Group: postgres.Consumer, Topics: []string{kafka.SignupsTopic}, Pool: rt.Pool,
		Handler: analyticskafka.Handler(counts), Logger: rt.Log,
	})
	if err != nil {
		return nil, fmt.Errorf("consumer metrics: %w", err)
	}
	rt.Go("consumer", consumer.Run)
	rt.Go("fold", func(ctx context.Context) error { return counts.Folding(ctx, rt.Log) })
	rt.Go("purge", func(ctx context.Context) error { return counts.Purge(ctx, cfg.PurgeEvery, rt.Log) })
	ownershttp.Routes(rt.Engine, ownershttp.Backends{
		Accounts:  accountv1.NewAccountServiceClient(accounts),
		Waitlists: signupv1.NewWaitlistServiceClient(signups),
		Signups:   signupv1.NewAdminServiceClient(signups),
		Analytics: adminanalytics.NewAnalytics(counts, time.Now),
		Messaging: messagingv1.NewMessagingServiceClient(messaging),
	})
	return &App{rt}, nil
}

// Run serves until ctx ends, then drains.
func (a *App) Run(ctx context.Context) error { return a.rt.Run(ctx) }

// Handler is the public interface.
func (a *App) Handler() http.Handler { return a.rt.Handler() }

// Ready returns nil while the service can do its work.
func (a *App) Ready(ctx context.Context) error { return a.rt.Ready(ctx) }

// Close closes what New opened, for an app that never runs.
func (a *App) Close(ctx context.Context) error { return a.rt.Close(ctx) }
