package service

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/jackc/pgx/v5/pgxpool"

	"waitlist.internal/libs/kafka"
	"waitlist.internal/libs/pg"
	"waitlist.internal/libs/telemetry"
)

// Migrate does before a rollout what New does without MIGRATE=false: it brings
// the schema of o up to date, and where o asks for Kafka also creates the topics
// that are missing. It needs POSTGRES_URL and KAFKA_* alone, of cfg and of o. It
// waits a minute for each server.
func Migrate(ctx context.Context, name string, cfg Config, o Options) (err error) {
	var p problems
	p.check(cfg.PostgresURL != "", "Set POSTGRES_URL.")
	_, bad := pgxpool.ParseConfig(cfg.PostgresURL)
	p.check(bad == nil, "POSTGRES_URL is not a valid connection string.")
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
		t, err = telemetry.New(ctx, telemetry.Options{Service: name, Output: cfg.output(), Level: cfg.LogLevel})
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, t.Close(context.WithoutCancel(ctx))) }()
	}
	pool, err := pg.Open(ctx, cfg.PostgresURL, o.Schema, 2)
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

// migrateTopics creates the topics that are missing. Existing ones stay as they
// are: more partitions would take the order from the keys of those there.
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
			level = slog.LevelWarn // it loses more with a broker, or is slower, than was wanted
		}
		log.LogAttrs(ctx, level, "topic is there", slog.String("topic", t.Name), slog.Int("partitions", t.Partitions), slog.Int("replication", t.Replication),
			slog.Int("wanted_partitions", cfg.Partitions), slog.Int("wanted_replication", cfg.Replication))
	}
	return nil
}
