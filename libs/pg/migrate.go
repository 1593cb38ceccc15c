package pg

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/lock"

	"waitlist.internal/libs/loop"
	"waitlist.internal/libs/telemetry"
)

const (
	// lockTries bounds the attempts of a migration that does not get its locks; lockPause
	// lets the statements pass that queued behind it. With lockTimeout, all attempts take
	// about a minute.
	lockTries = 10
	lockPause = 2 * time.Second
)

// Migrate creates schema if it is missing and applies migrations (files
// 00001_name.sql in goose's format at the root of the file system), logging each.
// Processes that start together wait for each other, by a lock of the session: no
// pooler of transactions may stand between.
//
// Each file is a transaction. A file that does not get a lock within lock_timeout
// is rolled back and tried again, up to lockTries times in all; files before it
// stay applied. A file marked NO TRANSACTION must be safe to repeat.
//
// The first file is the baseline: it makes everything that the files up to its number
// once made one after the other. A schema that is older than it is an error.
func Migrate(ctx context.Context, pool *pgxpool.Pool, schema string, migrations fs.FS, log *slog.Logger) error {
	if err := createSchema(ctx, pool, schema); err != nil {
		return fmt.Errorf("create schema %s: %w", schema, err)
	}
	p, db, err := provider(pool, schema, migrations)
	if err != nil {
		return err
	}
	defer func() { _ = db.Close() }()
	if _, err := appliedTo(ctx, db, schema, p); err != nil {
		return err
	}
	for try := 1; ; try++ {
		applied, err := p.Up(ctx)
		if partial, ok := errors.AsType[*goose.PartialError](err); ok {
			applied = partial.Applied
		}
		for _, m := range applied {
			log.LogAttrs(ctx, slog.LevelInfo, "migration applied", slog.String("schema", schema),
				slog.String("file", m.Source.Path), slog.Duration("took", m.Duration))
		}
		if err == nil {
			return nil
		}
		if SQLState(err) != "55P03" || try == lockTries {
			return fmt.Errorf("migrate %s: %w", schema, err)
		}
		log.LogAttrs(ctx, slog.LevelWarn, "migration did not get its locks; trying again", slog.String("schema", schema),
			slog.Int("try", try), telemetry.Err(err))
		if !loop.Wait(ctx, lockPause) {
			return fmt.Errorf("migrate %s: %w", schema, err)
		}
	}
}

// createSchema creates schema if it is missing. It looks first, since CREATE SCHEMA
// IF NOT EXISTS requires the right to create schemas, which a role does not need
// when an operator made the schema.
func createSchema(ctx context.Context, pool *pgxpool.Pool, schema string) error {
	var there bool
	err := pool.QueryRow(ctx, "SELECT EXISTS (SELECT FROM pg_namespace WHERE nspname = $1)", schema).Scan(&there)
	if err != nil || there {
		return err
	}
	_, err = pool.Exec(ctx, "CREATE SCHEMA IF NOT EXISTS "+pgx.Identifier{schema}.Sanitize())
	// If two sessions both find it missing, one gets an error that it exists.
	if code := SQLState(err); code == "23505" || code == "42P06" {
		return nil
	}
	return err
}

// CheckMigrated returns an error that names the migrations that schema lacks.
// Newer migrations in the database are fine: each works with the previous release.
func CheckMigrated(ctx context.Context, pool *pgxpool.Pool, schema string, migrations fs.FS) error {
	p, db, err := provider(pool, schema, migrations)
	if err != nil {
		return err
	}
	defer func() { _ = db.Close() }()
	applied, err := appliedTo(ctx, db, schema, p)
	if err != nil {
		return err
	}
	var missing []string
	for _, m := range p.ListSources() {
		if !slices.Contains(applied, m.Version) {
			missing = append(missing, m.Path)
		}
	}
	if len(missing) > 0 {
		return fmt.Errorf("schema %s lacks %s: run this program with the argument \"migrate\" first", schema, strings.Join(missing, ", "))
	}
	return nil
}

// appliedTo returns the numbers of the migrations that schema has. It is an error if
// the schema is older than the first one of p.
func appliedTo(ctx context.Context, db *sql.DB, schema string, p *goose.Provider) ([]int64, error) {
	var applied []int64
	// Of a table that is missing, the metrics of the pool would count an error.
	err := db.QueryRowContext(ctx, "SELECT array_agg(version_id) FROM "+pgx.Identifier{schema, goose.DefaultTablename}.Sanitize()+
		" WHERE is_applied AND version_id > 0").Scan(pgtype.NewMap().SQLScanner(&applied))
	// If the table or the schema is missing, no migration was ever applied.
	if code := SQLState(err); err != nil && code != "42P01" && code != "3F000" {
		return nil, fmt.Errorf("read the migrations of %s: %w", schema, err)
	}
	if baseline := p.ListSources()[0]; len(applied) > 0 && slices.Max(applied) < baseline.Version {
		return nil, fmt.Errorf("schema %s is at migration %d, which this version can't update: it begins with %s. Start the version before the "+
			"baseline first (CHANGELOG.md names it), or on a development machine remove .data", schema, slices.Max(applied), baseline.Path)
	}
	return applied, nil
}

// provider reads migrations. The caller closes db, a pool of its own.
func provider(pool *pgxpool.Pool, schema string, migrations fs.FS) (p *goose.Provider, db *sql.DB, err error) {
	cfg := pool.Config().ConnConfig.Copy()
	cfg.Tracer = nil
	// A migration may take longer than a request.
	Set(cfg, map[string]string{"statement_timeout": "0"})
	id := fnv.New64a()
	_, _ = id.Write([]byte("migrate/" + schema))
	// Each schema has its own lock: services do not wait for each other's migrations.
	locker, err := lock.NewPostgresSessionLocker(lock.WithLockID(int64(id.Sum64())), lock.WithLockTimeout(1, 300))
	if err != nil {
		return nil, nil, fmt.Errorf("migration lock: %w", err)
	}
	db = stdlib.OpenDB(*cfg)
	p, err = goose.NewProvider(goose.DialectPostgres, db, migrations, goose.WithSessionLocker(locker))
	if err != nil {
		return nil, nil, errors.Join(fmt.Errorf("read migrations of %s: %w", schema, err), db.Close())
	}
	return p, db, nil
}
