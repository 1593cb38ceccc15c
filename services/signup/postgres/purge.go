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

// purgeChunk bounds the rows of one transaction: tens of milliseconds.
const purgeChunk = 5000

// purgedTables are what a waitlist owns, beside its own row.
func purgedTables() []string {
	return []string{"signup", "queue_bucket", "queue_shift", "change", "removed_day", "removed_value"}
}

// Purge deletes what deleted waitlists and closed owners leave behind, and old
// idempotency keys:
//
//	first look    everything but the ids
//	after Kept    the ids too, with whatever was still made meanwhile
//
// It keeps no state but the tables: the row of a waitlist or owner goes last, so
// that a purge that stopped midway goes on where it was. Replicas may run it
// together.
type Purge struct {
	Pool *pgxpool.Pool
	// Forget removes what a waitlist has outside of Postgres; it is called more
	// than once.
	Forget func(ctx context.Context, waitlistID string) error
	// Every is how often the purge looks for work. What it deletes has been
	// invisible all the time.
	Every time.Duration
	// Kept is how long the ids stay: requests that were authorized before the end
	// find the owner closed, and indexes of a queue that were being built then are
	// there to be forgotten, too.
	Kept time.Duration
	Log  *slog.Logger
}

// Run purges until ctx is done. Failures are logged and tried again.
func (p *Purge) Run(ctx context.Context) error {
	return loop.Job{Name: "purge", Every: p.Every, Log: p.Log, Do: loop.Whole(p.Once)}.Run(ctx)
}

// Once deletes all there is to delete.
func (p *Purge) Once(ctx context.Context) error {
	// One failing waitlist does not keep the others: the next look begins behind it.
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

// purgeCursor is a place in the order in which waitlists were deleted.
type purgeCursor struct {
	at time.Time
	id string
}

// next returns the next waitlist with something to do: one that has not been
// emptied yet, or whose time has come. By waitlist_deleted.
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

// waitlist deletes everything of one deleted waitlist, its row at the end of its
// time; until then the row has an id but no name.
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
	// Now that there are no rows, nothing derived is built from them any more.
	// What was read before may still be on its way; hence the second time.
	if err := p.Forget(ctx, id); err != nil {
		return err
	}
	tag, err := p.Pool.Exec(ctx, `DELETE FROM waitlist WHERE id = $1 AND deleted_at < now() - $2::interval`, id, p.Kept)
	if err == nil && tag.RowsAffected() == 0 {
		_, err = p.Pool.Exec(ctx, `UPDATE waitlist SET name = '', settings = '{}' WHERE id = $1 AND deleted_at IS NOT NULL`, id)
	}
	return err
}

// keys deletes the idempotency keys of closed owners. By owner_closed and
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

// chunk deletes up to purgeChunk rows of a waitlist from a table.
func (p *Purge) chunk(ctx context.Context, table, id string) (n int64, err error) {
	err = pg.InTx(ctx, p.Pool, func(tx pgx.Tx) error {
		// A statement under way when the waitlist was deleted has its row's lock;
		// replicas that purge the same waitlist take turns by it, too.
		if _, err := tx.Exec(ctx, `SELECT FROM waitlist WHERE id = $1 FOR NO KEY UPDATE`, id); err != nil {
			return err
		}
		table := pgx.Identifier{table}.Sanitize()
		tag, err := tx.Exec(ctx, `
			DELETE FROM `+table+` WHERE ctid = ANY (ARRAY(
				SELECT ctid FROM `+table+` WHERE waitlist_id = $1 LIMIT $2))`, id, purgeChunk)
		n = tag.RowsAffected()
		return err
	})
	return n, err
}
