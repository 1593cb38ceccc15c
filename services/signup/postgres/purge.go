package postgres

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"waitlist.internal/libs/idempotency"
	"waitlist.internal/libs/loop"
	"waitlist.internal/libs/pg"
)

// purgeChunk bounds the rows of one transaction, which takes tens of milliseconds.
const purgeChunk = 5000

// purgedTables lists the tables with rows of a waitlist, except waitlist itself.
func purgedTables() []string {
	return []string{"signup", "queue_bucket", "queue_shift", "change", "removed_day", "removed_value", "departed", "flagged", "referral_seen"}
}

// Purge deletes the rows of deleted waitlists and closed owners, with the audit trails of
// the latter, and old idempotency keys:
//
//	first run     everything but the ids
//	after Kept    the ids, and rows that were created meanwhile
//
// Its only state is in the tables. It deletes the row of a waitlist or owner last, so an
// interrupted purge resumes where it stopped. Several replicas may run it.
type Purge struct {
	Pool *pgxpool.Pool
	// Forget removes the data of a waitlist outside Postgres. It is called more than
	// once.
	Forget func(ctx context.Context, waitlistID string) error
	// Every is how often the purge looks for work. The rows that it deletes are already
	// invisible.
	Every time.Duration
	// Kept is how long the ids stay. Until then, requests that were authorized before
	// the deletion find the owner closed, and rebuilds of the index come to their end.
	Kept time.Duration
	Log  *slog.Logger
}

// Run purges until ctx is done. It logs failures and tries again.
func (p *Purge) Run(ctx context.Context) error {
	return loop.Job{Name: "purge", Every: p.Every, Log: p.Log, Do: loop.Whole(p.Once)}.Run(ctx)
}

// Once deletes everything that is due.
func (p *Purge) Once(ctx context.Context) error {
	// A failing waitlist does not block the others; the next read begins behind it.
	var failed []error
	for after := (purgeCursor{}); ; {
		next, err := p.next(ctx, after)
		if errors.Is(err, pgx.ErrNoRows) {
			break
		}
		if err != nil {
			return errors.Join(append(failed, err)...)
		}
		if err := p.waitlist(ctx, next.id); err != nil {
			failed = append(failed, fmt.Errorf("purge waitlist %s: %w", next.id, err))
		}
		after = next
	}
	if err := p.keys(ctx); err != nil {
		failed = append(failed, fmt.Errorf("purge idempotency keys: %w", err))
	}
	if err := p.trails(ctx); err != nil {
		failed = append(failed, fmt.Errorf("purge audit trails: %w", err))
	}
	_, err := p.Pool.Exec(ctx, `
		DELETE FROM owner o WHERE closed_at < now() - $1::interval
		AND NOT EXISTS (SELECT FROM waitlist w WHERE w.owner_id = o.id)`, p.Kept)
	if err != nil {
		failed = append(failed, fmt.Errorf("purge owners: %w", err))
	}
	if _, err := idempotency.Prune(ctx, p.Pool); err != nil {
		failed = append(failed, err)
	}
	return errors.Join(failed...)
}

// purgeCursor is a place in the order of deletion.
type purgeCursor struct {
	at time.Time
	id string
}

// next returns the next waitlist that still has rows, or whose id is due. It uses
// waitlist_deleted.
func (p *Purge) next(ctx context.Context, after purgeCursor) (c purgeCursor, err error) {
	if after.id == "" {
		after.id = "00000000-0000-0000-0000-000000000000"
	}
	err = p.Pool.QueryRow(ctx, `
		SELECT deleted_at, id FROM waitlist
		WHERE deleted_at IS NOT NULL AND (deleted_at, id) > ($1, $2)
		AND (name <> '' OR deleted_at < now() - $3::interval)
		ORDER BY deleted_at, id LIMIT 1`, after.at, after.id, p.Kept).Scan(&c.at, &c.id)
	return c, err
}

// waitlist deletes the rows of one deleted waitlist. It deletes the waitlist's own row
// once that is due, and until then clears its name and settings.
func (p *Purge) waitlist(ctx context.Context, id string) error {
	for _, table := range purgedTables() {
		for {
			n, err := p.chunk(ctx, table, id)
			if err != nil {
				return err
			}
			if n < purgeChunk {
				break
			}
		}
	}
	// Nothing new is derived from the deleted rows. A rebuild that read them earlier may
	// still be running, so Forget is called again when the id is due.
	if err := p.Forget(ctx, id); err != nil {
		return err
	}
	tag, err := p.Pool.Exec(ctx, `DELETE FROM waitlist WHERE id = $1 AND deleted_at < now() - $2::interval`, id, p.Kept)
	if err == nil && tag.RowsAffected() == 0 {
		_, err = p.Pool.Exec(ctx, `UPDATE waitlist SET name = '', settings = '{}' WHERE id = $1 AND deleted_at IS NOT NULL`, id)
	}
	return err
}

// keys deletes the idempotency keys of closed owners. It uses owner_closed and
// idempotency_key_pkey.
func (p *Purge) keys(ctx context.Context) error {
	for {
		tag, err := p.Pool.Exec(ctx, `
			DELETE FROM idempotency_key WHERE (account_id, scope, key) IN (
				SELECT k.account_id, k.scope, k.key FROM owner o JOIN idempotency_key k ON k.account_id = o.id
				WHERE o.closed_at IS NOT NULL LIMIT $1 FOR UPDATE OF k SKIP LOCKED)`, purgeChunk)
		if err != nil || tag.RowsAffected() < purgeChunk {
			return err
		}
	}
}

// trails deletes the audit trails of closed owners. It uses owner_closed and audit_pkey.
func (p *Purge) trails(ctx context.Context) error {
	for {
		tag, err := p.Pool.Exec(ctx, `
			DELETE FROM audit WHERE (owner_id, id) IN (
				SELECT a.owner_id, a.id FROM owner o JOIN audit a ON a.owner_id = o.id
				WHERE o.closed_at IS NOT NULL LIMIT $1 FOR UPDATE OF a SKIP LOCKED)`, purgeChunk)
		if err != nil || tag.RowsAffected() < purgeChunk {
			return err
		}
	}
}

// chunk deletes up to purgeChunk rows of a waitlist from a table.
func (p *Purge) chunk(ctx context.Context, table, id string) (n int64, err error) {
	err = pg.InTx(ctx, p.Pool, func(tx pgx.Tx) error {
		// Wait for writers that have not yet seen the deletion. Replicas that purge the
		// same waitlist take turns by this lock, too.
		if _, err := tx.Exec(ctx, `SELECT FROM waitlist WHERE id = $1 FOR NO KEY UPDATE`, id); err != nil {
			return err
		}
		table := pgx.Identifier{table}.Sanitize()
		tag, err := tx.Exec(ctx, `
			DELETE FROM `+table+` WHERE waitlist_id = $1 AND ctid = ANY (ARRAY(
				SELECT ctid FROM `+table+` WHERE waitlist_id = $1 LIMIT $2))`, id, purgeChunk)
		n = tag.RowsAffected()
		return err
	})
	return n, err
}
