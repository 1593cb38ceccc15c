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
	"waitlist.internal/libs/pg"
)

const (
	// purgeEvery is how often the purge looks for work. What it deletes has been
	// invisible all the time.
	purgeEvery = time.Minute
	// purgeChunk bounds the rows of one transaction: tens of milliseconds.
	purgeChunk = 5000
	// closedOwnerKept is how long a closed owner's row outlives its waitlists, so
	// that requests which were authorized before the end find it.
	closedOwnerKept = time.Hour
)

// purgedTables are what a waitlist owns, beside its own row.
func purgedTables() []string { return []string{"signup", "queue_bucket", "change"} }

// Purge deletes the rows of deleted waitlists, closed owners and old
// idempotency keys. It keeps no state but the tables: a waitlist's row goes
// last, so that a purge that stopped midway goes on where it was. Replicas may
// run it together.
type Purge struct {
	pool *pgxpool.Pool
	// forget removes what a waitlist has outside of Postgres.
	forget func(ctx context.Context, waitlistID string) error
	log    *slog.Logger
}

// NewPurge returns a purge of the schema of pool. forget removes what a
// waitlist has outside of Postgres; it may be called again for the same one.
func NewPurge(pool *pgxpool.Pool, forget func(ctx context.Context, waitlistID string) error, log *slog.Logger) *Purge {
	return &Purge{pool: pool, forget: forget, log: log}
}

// Run purges until ctx is done. Failures are logged and tried again.
func (p *Purge) Run(ctx context.Context) error {
	tick := time.NewTicker(purgeEvery)
	defer tick.Stop()
	for {
		if err := p.Once(ctx); err != nil && ctx.Err() == nil {
			p.log.ErrorContext(ctx, "purge failed", "error", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
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
	_, err := p.pool.Exec(ctx, `
		DELETE FROM owner o WHERE closed_at < now() - $1::interval
		AND NOT EXISTS (SELECT FROM waitlist w WHERE w.owner_id = o.id)`, closedOwnerKept)
	if err != nil {
		failed = append(failed, fmt.Errorf("purge owners: %w", err))
	}
	if _, err := idempotency.Prune(ctx, p.pool); err != nil {
		failed = append(failed, err)
	}
	return errors.Join(failed...)
}

// purgeCursor is a place in the order in which waitlists were deleted.
type purgeCursor struct {
	at time.Time
	id string
}

func (p *Purge) next(ctx context.Context, after purgeCursor) (c purgeCursor, err error) {
	if after.id == "" {
		after.id = "00000000-0000-0000-0000-000000000000"
	}
	err = p.pool.QueryRow(ctx, `
		SELECT deleted_at, id FROM waitlist
		WHERE deleted_at IS NOT NULL AND (deleted_at, id) > ($1, $2)
		ORDER BY deleted_at, id LIMIT 1`, after.at, after.id).Scan(&c.at, &c.id)
	return c, err
}

// waitlist deletes everything of one deleted waitlist.
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
	if err := p.forget(ctx, id); err != nil {
		return err
	}
	_, err := p.pool.Exec(ctx, `DELETE FROM waitlist WHERE id = $1 AND deleted_at IS NOT NULL`, id)
	return err
}

// chunk deletes up to purgeChunk rows of a waitlist from a table.
func (p *Purge) chunk(ctx context.Context, table, id string) (n int64, err error) {
	err = pg.InTx(ctx, p.pool, func(tx pgx.Tx) error {
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
