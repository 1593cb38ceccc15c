package audit

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"waitlist.internal/libs/access"
	"waitlist.internal/libs/loop"
	"waitlist.internal/libs/telemetry"
)

// Schema creates the table of the package, for the migrations of each service with a
// trail. Nothing updates a row.
const Schema = `
CREATE TABLE audit (
    owner_id   uuid        NOT NULL,
    id         uuid        NOT NULL,
    at         timestamptz NOT NULL,
    actor      uuid,
    credential text        NOT NULL,
    role       text        NOT NULL,
    action     text        COLLATE "C" NOT NULL,
    target     text        NOT NULL,
    request_id text        NOT NULL,
    PRIMARY KEY (owner_id, id)
);
CREATE INDEX audit_action ON audit (owner_id, action, id);
CREATE INDEX audit_at ON audit (at);
`

const (
	// pruneRows bounds the rows that one statement deletes, pruneEvery is the pause between
	// two looks for old ones.
	pruneRows  = 5000
	pruneEvery = time.Hour
	// newest is above every id.
	newest = "ffffffff-ffff-ffff-ffff-ffffffffffff"
)

// Insert writes an entry in tx, the transaction of its effect. Call it last in the
// transaction: the entry's time is the time of this call. The request id comes from ctx.
// The zero Entry is not written: what people do with their own data is in nobody's
// trail.
func Insert(ctx context.Context, tx pgx.Tx, e Entry) error {
	if e.OwnerID == "" {
		return nil
	}
	id, err := uuid.NewV7()
	if err != nil {
		return fmt.Errorf("make an audit entry's id: %w", err)
	}
	_, err = tx.Exec(ctx, `
		INSERT INTO audit (owner_id, id, at, actor, credential, role, action, target, request_id)
		VALUES ($1, $2, $3, nullif($4, '')::uuid, $5, $6, $7, $8, $9)`,
		e.OwnerID, id, time.Unix(id.Time().UnixTime()), e.Actor, e.Credential, role(e.Role), e.Action, e.Target, telemetry.RequestID(ctx))
	if err != nil {
		return fmt.Errorf("write an audit entry: %w", err)
	}
	return nil
}

// role returns the stored form of a role: its word, or empty for none.
func role(r access.Role) string {
	if r == 0 {
		return ""
	}
	return r.String()
}

// Table is the trail in the schema of Pool.
type Table struct{ Pool *pgxpool.Pool }

// Entries implements Trail. Indexes: audit_pkey, audit_action.
func (t *Table) Entries(ctx context.Context, q Query) ([]Entry, error) {
	const columns = `SELECT id, at, coalesce(actor::text, ''), credential, role, action, target, request_id FROM audit `
	sql, args := columns+`WHERE owner_id = $1 AND id < $2 ORDER BY id DESC LIMIT $3`, []any{q.OwnerID, cmp.Or(q.Before, newest), q.Limit}
	if q.Action != "" {
		sql, args = columns+`WHERE owner_id = $1 AND id < $2 AND action = $4 ORDER BY id DESC LIMIT $3`, append(args, q.Action)
	}
	rows, _ := t.Pool.Query(ctx, sql, args...)
	entries, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (Entry, error) {
		e, word := Entry{OwnerID: q.OwnerID}, ""
		err := row.Scan(&e.ID, &e.At, &e.Actor, &e.Credential, &word, &e.Action, &e.Target, &e.RequestID)
		e.Role = access.ParseRole(word)
		return e, err
	})
	if err != nil {
		return nil, fmt.Errorf("read the audit trail: %w", err)
	}
	return entries, nil
}

// Run deletes entries that are older than retention, until ctx is done. Several replicas
// may run it.
func (t *Table) Run(ctx context.Context, retention time.Duration, log *slog.Logger) error {
	return loop.Job{Name: "audit retention", Every: pruneEvery, Log: log, Do: func(ctx context.Context) (bool, error) {
		return t.Prune(ctx, time.Now().Add(-retention))
	}}.Run(ctx)
}

// Prune deletes some entries from before a time, and reports whether there may be more.
// Indexes: audit_at, audit_pkey.
func (t *Table) Prune(ctx context.Context, before time.Time) (more bool, err error) {
	return t.delete(ctx, "prune the audit trail", `
		DELETE FROM audit WHERE (owner_id, id) IN (
			SELECT owner_id, id FROM audit WHERE at < $1 ORDER BY at LIMIT $2 FOR UPDATE SKIP LOCKED)`, before)
}

// Forget deletes the whole trail of a deleted account. Index: audit_pkey.
func (t *Table) Forget(ctx context.Context, ownerID string) error {
	for {
		more, err := t.delete(ctx, "delete an account's audit trail", `
			DELETE FROM audit WHERE owner_id = $1 AND id IN (SELECT id FROM audit WHERE owner_id = $1 LIMIT $2)`, ownerID)
		if err != nil || !more {
			return err
		}
	}
}

func (t *Table) delete(ctx context.Context, what, sql string, of any) (more bool, err error) {
	tag, err := t.Pool.Exec(ctx, sql, of, pruneRows)
	if err != nil {
		return false, fmt.Errorf("%s: %w", what, err)
	}
	return tag.RowsAffected() == pruneRows, nil
}
