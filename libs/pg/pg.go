// Package pg connects services to Postgres: one pool per schema, one way to run a
// transaction, one way to migrate.
//
// A migration waits for a lock for at most lockTimeout: while it waits, later
// statements on the same table queue behind it, so that one long transaction would
// stop all traffic. After the timeout it is rolled back and tried again a few
// times; see Migrate.
package pg

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	pgxuuid "github.com/vgarvardt/pgx-google-uuid/v5"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"waitlist.internal/libs/telemetry"
)

const (
	// statementTimeout and lockTimeout let callers get an answer within five seconds
	// even if the database is unreachable or blocked.
	statementTimeout = "4500ms"
	lockTimeout      = "4000ms"
	// idleTxTimeout ends transactions whose client has gone; they would hold row
	// locks and old snapshots.
	idleTxTimeout  = "30s"
	connectTimeout = 4 * time.Second
	// txRetries bounds how often InTx runs a transaction that conflicts with others.
	txRetries = 5
)

// Open returns a pool whose connections have schema as their search path. It
// connects on first use. maxConns 0 means the default of pgxpool.
func Open(ctx context.Context, url, schema string, maxConns int32) (*pgxpool.Pool, error) {
	cfg, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, fmt.Errorf("parse Postgres URL: %w", err)
	}
	if maxConns > 0 {
		cfg.MaxConns = maxConns
	}
	cfg.ConnConfig.ConnectTimeout = connectTimeout
	cfg.ConnConfig.Tracer = newTracer()
	// Without this, pgx makes a text of each UUID and parses that again.
	cfg.AfterConnect = func(_ context.Context, conn *pgx.Conn) error {
		pgxuuid.Register(conn.TypeMap())
		return nil
	}
	params := cfg.ConnConfig.RuntimeParams
	params["search_path"] = schema
	params["timezone"] = "UTC"
	for k, v := range map[string]string{
		"application_name":                    schema,
		"statement_timeout":                   statementTimeout,
		"lock_timeout":                        lockTimeout,
		"idle_in_transaction_session_timeout": idleTxTimeout,
		// Prepared statements keep their plans. A plan made while its table was small
		// would scan the whole table for a minute or more after a rush has made it
		// large; every statement here has an index. JIT compilation does not pay for
		// statements this short, and the higher cost estimates would trigger it.
		"enable_seqscan": "off",
		"jit":            "off",
	} {
		if params[k] == "" {
			params[k] = v
		}
	}
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("open Postgres pool: %w", err)
	}
	return pool, nil
}

// InTx runs fn in a transaction and commits it. It returns the error of a failed
// commit. After a serialization failure or deadlock it runs fn again, up to
// txRetries times in all, so fn must have no effect outside the transaction. It
// rolls back even when ctx is done.
func InTx(ctx context.Context, pool *pgxpool.Pool, fn func(pgx.Tx) error) error {
	for attempt := 1; ; attempt++ {
		err := inTx(ctx, pool, fn)
		if err == nil || attempt == txRetries || !Retryable(err) {
			return err
		}
	}
}

func inTx(ctx context.Context, pool *pgxpool.Pool, fn func(pgx.Tx) error) (err error) {
	tx, err := pool.Begin(ctx)
	if err != nil {
		return fmt.Errorf("begin: %w", err)
	}
	defer func() {
		// This does nothing after a commit; after a panic in fn it frees the locks.
		rb, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_ = tx.Rollback(rb)
	}()
	if err := fn(tx); err != nil {
		return err
	}
	if err := tx.Commit(ctx); err != nil {
		return fmt.Errorf("commit: %w", err)
	}
	return nil
}

// Retryable reports whether Postgres aborted a transaction because of a conflict
// with another: a serialization failure or a deadlock.
func Retryable(err error) bool {
	code := SQLState(err)
	return code == "40001" || code == "40P01"
}

// SQLState returns the SQLSTATE within err, or "".
func SQLState(err error) string {
	if pe, ok := errors.AsType[*pgconn.PgError](err); ok {
		return pe.Code
	}
	return ""
}

// IsUnique reports whether err is a violation of the named unique constraint.
func IsUnique(err error, constraint string) bool {
	pe, ok := errors.AsType[*pgconn.PgError](err)
	return ok && pe.Code == "23505" && pe.ConstraintName == constraint
}

// CopyIn runs the COPY … FROM STDIN statement sql with rows in its format. It makes
// a span itself, since the pool's tracer covers only pgx's own CopyFrom, which is
// much slower.
func CopyIn(ctx context.Context, tx pgx.Tx, sql string, rows []byte) error {
	ctx, span := telemetry.Tracer(nil, scope).Start(ctx, summary(sql), trace.WithSpanKind(trace.SpanKindClient),
		trace.WithAttributes(attribute.String("db.system.name", "postgresql"), attribute.String("db.query.summary", summary(sql))))
	defer span.End()
	_, err := tx.Conn().PgConn().CopyFrom(ctx, bytes.NewReader(rows), sql)
	if err != nil {
		span.SetStatus(codes.Error, "copy failed")
		span.SetAttributes(attribute.String("error.type", SQLState(err)))
	}
	return err
}
