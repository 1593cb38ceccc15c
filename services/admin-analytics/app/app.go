// Package app wires the admin-analytics service.
package app

import (
	"context"
	"time"

	"waitlist.internal/libs/claims"
	"waitlist.internal/libs/kafka"
	"waitlist.internal/libs/service"
	analyticsv1 "waitlist.internal/proto/gen/waitlist/analytics/v1"
	signupv1 "waitlist.internal/proto/gen/waitlist/signup/v1"
	adminanalytics "waitlist.internal/services/admin-analytics"
	"waitlist.internal/services/admin-analytics/grpc"
	analyticskafka "waitlist.internal/services/admin-analytics/kafka"
	"waitlist.internal/services/admin-analytics/postgres"
)

// Config is the service's environment.
type Config struct{ service.Config }

func definition() service.Definition {
	return service.Definition{
		Name: adminanalytics.Name, Migrations: postgres.Migrations,
		Options: service.Options{Schema: postgres.Schema, GRPC: true, Kafka: true, Calls: true},
	}
}

// Migrate brings the schema and the topics up to date; see service.Migrate.
func Migrate(ctx context.Context, cfg service.Config) error { return definition().Migrate(ctx, cfg) }

// App is the service.
type App = service.Runtime

// New opens the service's connections and registers its routes.
func New(ctx context.Context, cfg Config) (*App, error) {
	return definition().Open(ctx, cfg.Config, nil, func(rt *service.Runtime) error {
		signups, err := rt.Dial("signup")
		if err != nil {
			return err
		}
		counts := postgres.New(rt.Pool)
		if err := rt.Consume("consumer", kafka.ConsumerConfig{
			Topics: []string{kafka.SignupsTopic}, Batch: analyticskafka.Handler(counts), Wants: analyticskafka.Wants,
			Confirm:     claims.Owners{Waitlists: signupv1.NewSignupServiceClient(signups)}.Confirm,
			AfterCommit: counts.Wake,
		}); err != nil {
			return err
		}
		rt.Singleton("fold", func(ctx context.Context) error { return counts.Folding(ctx, rt.Log) })
		rt.Singleton("purge", func(ctx context.Context) error { return counts.Purge(ctx, cfg.PurgeEvery, rt.Log) })
		analyticsv1.RegisterAnalyticsServiceServer(rt.GRPC, grpc.NewAnalytics(adminanalytics.NewAnalytics(counts, time.Now)))
		return nil
	})
}
