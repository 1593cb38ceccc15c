package service

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"waitlist.internal/libs/kafka"
	"waitlist.internal/libs/pg"
	"waitlist.internal/libs/telemetry"
)

// Migrate prepares a rollout whose services run with MIGRATE=false: it updates o.Schema
// and, if o.Kafka is set, creates missing topics. Of cfg, it needs only POSTGRES_*
// and KAFKA_*. It waits up to a minute for each server.
func Migrate(ctx context.Context, name string, cfg Config, o Options) (err error) {
	var p problems
	p.checkPostgres(&cfg)
	var topics kafka.Config
	if o.Kafka {
		topics, err = cfg.Kafka()
		p.add(err)
	}
	if err := p.err(); err != nil {
		return err
	}
	t := cfg.Telemetry
	if t == nil {
		t, err = telemetry.New(ctx, telemetry.Options{Service: name, Output: cfg.output(), Level: cfg.LogLevel, Format: cfg.LogFormat})
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, t.Close(context.WithoutCancel(ctx))) }()
	}
	pool, err := pg.Open(ctx, cfg.directURL(), o.Schema, 2)
	if err != nil {
		return err
	}
	defer pool.Close()
	if err := awaitPostgres(ctx, pool, t.Log); err != nil {
		return err
	}
	if err := pg.Migrate(ctx, pool, o.Schema, o.Migrations, t.Log); err != nil {
		return err
	}
	if o.Kafka {
		if err := migrateTopics(ctx, topics, t.Log); err != nil {
			return err
		}
	}
	t.Log.LogAttrs(ctx, slog.LevelInfo, "up to date", slog.String("schema", o.Schema))
	return nil
}

// migrateTopics creates missing topics. It does not change existing ones: more
// partitions would break the order of the keys in them.
func migrateTopics(ctx context.Context, cfg kafka.Config, log *slog.Logger) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	if err := kafka.EnsureTopics(ctx, cfg); err != nil {
		return err
	}
	topics, err := kafka.Describe(ctx, cfg)
	if err != nil {
		return fmt.Errorf("check Kafka topics: %w", err)
	}
	for _, t := range topics {
		level := slog.LevelInfo
		if t.Replication < cfg.Replication || t.Partitions < cfg.Partitions {
			level = slog.LevelWarn // less durable or slower than configured
		}
		log.LogAttrs(ctx, level, "topic exists", slog.String("topic", t.Name),
			slog.Int("partitions", t.Partitions), slog.Int("replication", t.Replication),
			slog.Int("wanted_partitions", cfg.Partitions), slog.Int("wanted_replication", cfg.Replication))
	}
	return nil
}
