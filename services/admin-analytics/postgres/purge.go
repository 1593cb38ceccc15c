package postgres

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"waitlist.internal/libs/loop"
	"waitlist.internal/libs/pg"
	"waitlist.internal/services/admin-analytics/postgres/db"
)

const (
	// purgeChunk bounds the rows, and so a transaction to tens of milliseconds.
	purgeChunk = 5000
	// tombstoneKept exceeds the time in which an event can arrive again: dead letters
	// are kept for 30 days.
	tombstoneKept = 35 * 24 * time.Hour
)

// purgedTables returns the tables with a waitlist's sums.
func purgedTables() []string { return []string{"day", "utm_value", "utm_total"} }

// Purge calls PurgeOnce at the interval every until ctx is done. It logs failures
// and tries again.
func (s *Store) Purge(ctx context.Context, every time.Duration, log *slog.Logger) error {
	return loop.Job{Name: "purge of analytics", Every: every, Log: log, Do: loop.Whole(s.PurgeOnce)}.Run(ctx)
}

// PurgeOnce deletes the sums of every deleted waitlist. The waitlist's own row goes
// last, so the next purge resumes one that stopped midway. Replicas may purge at
// the same time.
func (s *Store) PurgeOnce(ctx context.Context) error {
	var failed []error
	last := db.NextDeletedRow{WaitlistID: uuid.Nil.String()}
	for {
		next, err := s.db.NextDeleted(ctx, last.DeletedAt, last.WaitlistID)
		if errors.Is(err, pgx.ErrNoRows) {
			break
		}
		if err != nil {
			return errors.Join(append(failed, fmt.Errorf("look for deleted waitlists: %w", err))...)
		}
		// The loop goes on after a waitlist whose purge fails.
		if err := s.purge(ctx, next.WaitlistID); err != nil {
			failed = append(failed, fmt.Errorf("purge waitlist %s: %w", next.WaitlistID, err))
		}
		last = next
	}
	if err := s.db.DeleteTombstones(ctx, tombstoneKept); err != nil {
		failed = append(failed, fmt.Errorf("purge tombstones: %w", err))
	}
	return errors.Join(failed...)
}

// purge deletes everything about a waitlist and keeps the hash of its id.
func (s *Store) purge(ctx context.Context, id string) error {
	for _, table := range purgedTables() {
		for more := true; more; {
			err := pg.InTx(ctx, s.pool, func(tx pgx.Tx) (err error) {
				more, err = deleteSome(ctx, tx, table, id)
				return err
			})
			if err != nil {
				return err
			}
		}
	}
	// A fold that began before the deletion may have added rows since. No fold runs
	// while this transaction has the lock, and the next one sees the deletion.
	return pg.InTx(ctx, s.pool, func(tx pgx.Tx) error {
		q := s.db.WithTx(tx)
		if err := q.LockSums(ctx); err != nil {
			return fmt.Errorf("lock sums: %w", err)
		}
		for _, table := range purgedTables() {
			for more := true; more; {
				var err error
				if more, err = deleteSome(ctx, tx, table, id); err != nil {
					return err
				}
			}
		}
		if err := errors.Join(q.AddTombstone(ctx, id), q.DeleteWaitlist(ctx, id)); err != nil {
			return fmt.Errorf("delete waitlist: %w", err)
		}
		return nil
	})
}

// deleteSome deletes up to purgeChunk rows of a waitlist from a table and
// reports whether there may be more.
func deleteSome(ctx context.Context, tx pgx.Tx, table, id string) (more bool, err error) {
	table = pgx.Identifier{table}.Sanitize()
	tag, err := tx.Exec(ctx, `
		DELETE FROM `+table+` WHERE waitlist_id = $1 AND ctid = ANY (ARRAY(
			SELECT ctid FROM `+table+` WHERE waitlist_id = $1 LIMIT $2))`, id, purgeChunk)
	if err != nil {
		return false, fmt.Errorf("delete from %s: %w", table, err)
	}
	return tag.RowsAffected() == purgeChunk, nil
}
