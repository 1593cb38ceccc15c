package service

import (
	"cmp"
	"context"
	"fmt"
	"io/fs"

	"waitlist.internal/libs/audit"
	"waitlist.internal/libs/kafka"
	"waitlist.internal/libs/outbox"
	auditv1 "waitlist.internal/proto/gen/waitlist/audit/v1"
)

// Definition declares a service's name and what it uses. An app package wires a service
// in three declarations:
//
//	func definition() service.Definition {
//		return service.Definition{Name: "greeter", Migrations: postgres.Migrations, Options: service.Options{HTTP: true}}
//	}
//
//	func New(ctx context.Context, cfg Config) (*service.Runtime, error) {
//		return definition().Open(ctx, cfg.Config, nil, func(rt *service.Runtime) error {
//			greeterhttp.Routes(rt.Engine, greeter.New(postgres.New(rt.Pool)))
//			return nil
//		})
//	}
//
//	func Migrate(ctx context.Context, cfg service.Config) error { return definition().Migrate(ctx, cfg) }
type Definition struct {
	// Name is the service's name in traces, in calls between services and in Kafka. It is
	// also the default of Options.Schema.
	Name string
	// Migrations returns the schema's migrations. It is nil if the service keeps nothing.
	Migrations func() (fs.FS, error)
	// Options lists what else the service uses. Open and Migrate set its Migrations.
	Options Options
}

func (d Definition) options() (Options, error) {
	o := d.Options
	if d.Migrations == nil {
		return o, nil
	}
	o.Schema = cmp.Or(o.Schema, d.Name)
	var err error
	if o.Migrations, err = d.Migrations(); err != nil {
		return Options{}, fmt.Errorf("read migrations: %w", err)
	}
	return o, nil
}

// Open calls New with the definition's options, then wire. If wire fails, Open closes
// what it opened. problems are those of the service's own settings; Open reports them
// together with the problems of cfg.
func (d Definition) Open(ctx context.Context, cfg Config, problems []error, wire func(rt *Runtime) error) (*Runtime, error) {
	o, err := d.options()
	if err != nil {
		return nil, err
	}
	o.Problems = problems
	rt, err := New(ctx, d.Name, cfg, o)
	if err != nil {
		return nil, err
	}
	if err := wire(rt); err != nil {
		_ = rt.Close(context.WithoutCancel(ctx))
		return nil, err
	}
	return rt, nil
}

// Migrate updates the schema and creates missing topics; see the function Migrate.
func (d Definition) Migrate(ctx context.Context, cfg Config) error {
	o, err := d.options()
	if err != nil {
		return err
	}
	return Migrate(ctx, d.Name, cfg, o)
}

// Outbox registers a relay that publishes the outbox in the service's schema. Call wake
// after a commit that wrote to the outbox. A candidate publishes nothing; it wakes the
// relay that does.
func (r *Runtime) Outbox() (wake func(), err error) {
	writer := kafka.NewWriter(r.Kafka)
	r.OnClose("kafka writer", func(context.Context) error { return writer.Close() })
	relay := outbox.NewRelay(r.Direct, writer, r.Name, r.Log, r.Telemetry.Registerer)
	if r.Config.Candidate {
		r.Go("outbox wake-ups", relay.Forward)
	}
	r.Singleton("outbox relay", func(ctx context.Context) error {
		if err := kafka.EnsureTopics(ctx, r.Kafka); err != nil {
			return err
		}
		return relay.Run(ctx)
	})
	return relay.Wake, nil
}

// Audit keeps the audit trail in the service's schema as long as the configuration says,
// and serves it to the account service.
func (r *Runtime) Audit() *audit.Table {
	trail := &audit.Table{Pool: r.Pool}
	auditv1.RegisterAuditServiceServer(r.GRPC, audit.NewServer(trail))
	r.Singleton("audit retention", func(ctx context.Context) error { return trail.Run(ctx, r.Config.AuditRetention, r.Log) })
	return trail
}

// Consume registers the service's consumer of events. It sets c's cluster, pool, logger
// and group.
func (r *Runtime) Consume(goroutine string, c kafka.ConsumerConfig) error {
	c.Config, c.Pool, c.Logger, c.Group = r.Kafka, r.Pool, r.Log, r.Name
	r.breakConsumer(&c)
	consumer := kafka.NewConsumer(c)
	r.Go(goroutine, consumer.Run)
	r.Singleton("inbox retention of "+c.Group, consumer.Prune)
	return nil
}
