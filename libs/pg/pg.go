// Package pg connects services to Postgres: one pool per schema, one way to run a
// transaction, one way to migrate.
//
// A connection's settings are made after it is open, since poolers refuse most startup
// parameters. A pooler of transactions keeps no settings: there the role has them.
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
	"strings"
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
	// connLife, connLifeJitter and connIdle bound how long a connection stays with a
	// server that its name no longer stands for. The jitter spreads the new connections.
	connLife       = 10 * time.Minute
	connLifeJitter = 5 * time.Minute
	connIdle       = 5 * time.Minute
	// txRetries bounds how often InTx runs a transaction that conflicts with others.
	txRetries = 5
)

// Open returns a pool whose connections have schema as their search path and whose
// server takes writes: the first such of the hosts in url. It connects on first use.
// maxConns 0 means the default of pgxpool. Settings in url, such as lock_timeout, take
// precedence over those of this package.
//
// If url leads to a pooler of transactions (see Pooled), the role or the database must have
// the settings, and connecting fails where they differ.
func Open(ctx context.Context, url, schema string, maxConns int32) (*pgxpool.Pool, error) {
	cfg, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, fmt.Errorf("parse Postgres URL: %w", err)
	}
	if maxConns > 0 {
		cfg.MaxConns = maxConns
	}
	cfg.MaxConnLifetime, cfg.MaxConnLifetimeJitter, cfg.MaxConnIdleTime = connLife, connLifeJitter, connIdle
	// Without this, pgx makes a text of each UUID and parses that again.
	cfg.AfterConnect = func(_ context.Context, conn *pgx.Conn) error {
		pgxuuid.Register(conn.TypeMap())
		return nil
	}
	conn := cfg.ConnConfig
	conn.ConnectTimeout = connectTimeout
	conn.DialFunc = dial(conn.DialFunc)
	cfg.PrepareConn = func(_ context.Context, conn *pgx.Conn) (bool, error) {
		lift(conn, false)
		return true, nil
	}
	conn.Tracer = newTracer()
	conn.ValidateConnect = pgconn.ValidateConnectTargetSessionAttrsReadWrite
	pooled, err := Pooled(url)
	if err != nil {
		return nil, err
	}
	if want := settings(conn.RuntimeParams, schema); pooled {
		conn.AfterConnect = func(ctx context.Context, conn *pgconn.PgConn) error { return require(ctx, conn, want) }
	} else {
		Set(conn, want)
	}
	var pool *pgxpool.Pool
	fatal := conn.OnPgError
	conn.OnPgError = func(conn *pgconn.PgConn, err *pgconn.PgError) bool {
		if err.Code == readOnly {
			// The server was demoted, and the other connections lead to it, too. A new
			// connection is one to a server that takes writes.
			pool.Reset()
			return false
		}
		return fatal(conn, err)
	}
	if pool, err = pgxpool.NewWithConfig(ctx, cfg); err != nil {
		return nil, fmt.Errorf("open Postgres pool: %w", err)
	}
	return pool, nil
}

// readOnly is the SQLSTATE of a write to a server, or in a session, that takes none.
const readOnly = "25006"

// Pooled reports whether url leads to a pooler of transactions, whose connections keep
// nothing from one transaction to the next: no settings, prepared statements, advisory
// locks, temporary tables or LISTEN. url says so by default_query_exec_mode=cache_describe.
// Other modes are an error: they prepare statements, or know too little of their types.
func Pooled(url string) (bool, error) {
	cfg, err := pgx.ParseConfig(url)
	if err != nil {
		return false, fmt.Errorf("parse Postgres URL: %w", err)
	}
	switch cfg.DefaultQueryExecMode { // see above
	case pgx.QueryExecModeCacheStatement:
		return false, nil
	case pgx.QueryExecModeCacheDescribe:
		return true, nil
	}
	return false, errors.New("default_query_exec_mode may only be cache_describe, for a pooler of transactions")
}

// settings returns what the sessions of schema have. It takes the settings of the URL out
// of params and leaves those that poolers accept as startup parameters.
func settings(params map[string]string, schema string) map[string]string {
	if params["application_name"] == "" {
		params["application_name"] = schema
	}
	out := map[string]string{
		"statement_timeout":                   statementTimeout,
		"lock_timeout":                        lockTimeout,
		"idle_in_transaction_session_timeout": idleTxTimeout,
		// Prepared statements keep their plans. A plan made while its table was small
		// would scan the whole table for a minute or more after a rush has made it
		// large; every statement here has an index. JIT compilation does not pay for
		// statements this short, and the higher cost estimates would trigger it.
		"enable_seqscan": "off",
		"jit":            "off",
	}
	for name, value := range params {
		switch strings.ToLower(name) {
		case "application_name", "client_encoding", "options":
		default:
			out[name] = value
			delete(params, name)
		}
	}
	out["search_path"], out["timezone"] = schema, "UTC"
	return out
}

// Set makes connections of cfg have the given settings, after those that they have already.
func Set(cfg *pgx.ConnConfig, settings map[string]string) {
	before := cfg.AfterConnect
	cfg.AfterConnect = func(ctx context.Context, conn *pgconn.PgConn) error {
		if before != nil {
			if err := before(ctx, conn); err != nil {
				return err
			}
		}
		_, err := onSettings(ctx, conn, "SELECT set_config(name, value, false) FROM (VALUES %s) s (name, value)", settings)
		return err
	}
}

// require returns an error unless the session of a pooler has the given settings.
func require(ctx context.Context, conn *pgconn.PgConn, settings map[string]string) error {
	// What set_config returns is written as current_setting writes it.
	rows, err := onSettings(ctx, conn, `
		SELECT name FROM (
			SELECT name, current_setting(name) AS had, set_config(name, value, true) AS want FROM (VALUES %s) s (name, value)
		) s WHERE had <> want ORDER BY name`, settings)
	if err != nil || len(rows) == 0 {
		return err
	}
	var names []string
	for _, row := range rows {
		names = append(names, string(row[0]))
	}
	return fmt.Errorf("behind a pooler of transactions the role needs other settings (%s): "+
		"run k8s/postgres/roles.sql, and let the pooler connect anew", strings.Join(names, ", "))
}

// onSettings runs sql with settings as the rows of its VALUES, and bounds the silence of conn
// by the timeout of its statements.
func onSettings(ctx context.Context, conn *pgconn.PgConn, sql string, settings map[string]string) ([][][]byte, error) {
	var rows []string
	for name, value := range settings {
		quoted, err := conn.EscapeString(value)
		if err != nil {
			return nil, fmt.Errorf("setting %s: %w", name, err)
		}
		rows = append(rows, fmt.Sprintf("('%s', '%s')", name, quoted))
	}
	results, err := conn.Exec(ctx, fmt.Sprintf(sql, strings.Join(rows, ", "))+
		"; SELECT extract(epoch FROM current_setting('statement_timeout')::interval)").ReadAll()
	if err != nil {
		return nil, fmt.Errorf("settings of a session: %w", err)
	}
	return results[0].Rows, expect(conn, string(results[1].Rows[0][0]))
}

// Ready returns an error unless a connection of pool answers and takes writes. If it takes
// none, all connections are replaced.
func Ready(ctx context.Context, pool *pgxpool.Pool, conn *pgxpool.Conn) error {
	err := pgconn.ValidateConnectTargetSessionAttrsReadWrite(ctx, conn.Conn().PgConn())
	if errors.Is(err, pgconn.ErrReadOnlyConnection) {
		pool.Reset()
	}
	return err // the caller knows what it asked
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
