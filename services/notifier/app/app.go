// Package app wires the notifier service.
package app

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/net/http/httpproxy"

	"waitlist.internal/libs/claims"
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

// Config is the service's environment. Go itself also reads HTTPS_PROXY, NO_PROXY and
// SSL_CERT_FILE.
type Config struct {
	service.Config

	// Networks, such as 127.0.0.0/8, that notifications may go to although they are not public. Everybody who may set a
	// webhook can reach them.
	AllowedNetworks []string `env:"NOTIFIER_ALLOWED_NETWORKS"`

	// HTTP says how to reach targets. Only code can set it; the environment fills its
	// zero fields.
	HTTP notifierhttp.Config `env:"-"`
}

func definition() service.Definition {
	return service.Definition{
		Name: notifier.Name, Migrations: postgres.Migrations,
		Options: service.Options{Kafka: true, Calls: true},
	}
}

// concurrency is how many notifications are under way at a time in one process.
const concurrency = 512

// Migrate brings the schema and the topics up to date; see service.Migrate.
func Migrate(ctx context.Context, cfg service.Config) error { return definition().Migrate(ctx, cfg) }

// App is the service.
type App = service.Runtime

// New opens the service's connections.
func New(ctx context.Context, cfg Config) (*App, error) {
	var problems []error
	allowed, err := netguard.ParseNetworks(cfg.AllowedNetworks)
	if err != nil {
		problems = append(problems, fmt.Errorf("NOTIFIER_ALLOWED_NETWORKS: %w", err))
	}
	cfg.HTTP.Allowed = append(cfg.HTTP.Allowed, allowed...)
	if cfg.HTTP.Proxy == nil {
		cfg.HTTP.Proxy = httpproxy.FromEnvironment().ProxyFunc()
	}
	return definition().Open(ctx, cfg.Config, problems, func(rt *service.Runtime) error {
		signups, err := rt.Dial("signup")
		if err != nil {
			return err
		}
		poster := notifierhttp.New(cfg.HTTP)
		rt.OnClose("connections to owners", func(context.Context) error { poster.Close(); return nil })
		deliveries := postgres.New(rt.Pool)
		dispatcher := notifier.New(notifier.Config{
			Deliveries: deliveries, Source: grpc.NewSource(signupv1.NewSignupServiceClient(signups)), Poster: poster,
			Limits: notifier.Limits{Running: concurrency}, Log: rt.Log, Now: time.Now,
			Registerer: rt.Telemetry.Registerer, Tracers: rt.Telemetry.Tracers,
		})
		if err := rt.Consume("consumer", kafka.ConsumerConfig{
			Topics: []string{kafka.SignupsTopic}, Handler: notifierkafka.Handler(deliveries, dispatcher.Stage),
			Wants:   notifierkafka.Wants,
			Confirm: claims.Owners{Waitlists: signupv1.NewSignupServiceClient(signups)}.Confirm, AfterCommit: dispatcher.Commit,
		}); err != nil {
			return err
		}
		rt.Go("dispatcher", dispatcher.Run)
		rt.Singleton("retention of deliveries", dispatcher.Prune)
		return nil
	})
}
