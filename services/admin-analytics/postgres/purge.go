package postgres

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"

	"waitlist.internal/libs/loop"
	"waitlist.internal/libs/pg"
)

const (
	// purgeChunk bounds the rows of one transaction: tens of milliseconds.
	purgeChunk = 5000
	// tombstoneKept is longer than any event can come again: dead letters are
	// kept for 30 days.
	tombstoneKept = 35 * 24 * time.Hour
)

// purgedTables are what a waitlist has, beside its own row.
func purgedTables() []string { return []string{"day", "utm_value", "utm_total"} }

// Purge deletes the sums of deleted waitlists, every so often until ctx is done.
// Failures are logged and tried again.
func (s *Store) Purge(ctx context.Context, every time.Duration, log *slog.Logger) error {
	return loop.Job{Name: "purge of analytics", Every: every, Log: log, Do: loop.Whole(s.PurgeOnce)}.Run(ctx)
}

// PurgeOnce deletes all there is to delete. The row of a waitlist goes last, so
// that what stopped midway goes on where it was; replicas may purge together.
func (s *Store) PurgeOnce(ctx context.Context) error {
	// One failing waitlist does not keep the others: the next look begins behind it.
	var failed []error
	var (
		at time.Time
		id = "00000000-0000-0000-0000-000000000000"
	)
	for {
		err := s.pool.QueryRow(ctx, `
			SELECT deleted_at, waitlist_id::text FROM waitlist
			WHERE deleted_at IS NOT NULL AND (deleted_at, waitlist_id) > ($1, $2::uuid)
			ORDER BY deleted_at, waitlist_id LIMIT 1`, at, id).Scan(&at, &id)
		if errors.Is(err, pgx.ErrNoRows) {
			break
		}
		if err != nil {
			return errors.Join(append(failed, fmt.Errorf("look for deleted waitlists: %w", err))...)
		}
		if err := s.purge(ctx, id); err != nil {
			failed = append(failed, fmt.Errorf("purge waitlist %s: %w", id, err))
		}
	}
	if _, err := s.pool.Exec(ctx, `DELETE FROM tombstone WHERE created_at < now() - $1::interval`, tombstoneKept); err != nil {
		failed = append(failed, fmt.Errorf("purge tombstones: %w", err))
	}
	return errors.Join(failed...)
}

// purge deletes everything of one waitlist but the hash of its id.
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
	// A fold that found the waitlist there before it was deleted may have added to
	// it since. Behind the lock there is none left, and the next one finds the
	// waitlist deleted.
	return pg.InTx(ctx, s.pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, lockAlone); err != nil {
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
		var b pgx.Batch
		b.Queue(`INSERT INTO tombstone (hash) VALUES (sha256(uuid_send($1::uuid))) ON CONFLICT DO NOTHING`, id)
		b.Queue(`DELETE FROM waitlist WHERE waitlist_id = $1`, id)
		if err := tx.SendBatch(ctx, &b).Close(); err != nil {
			return fmt.Errorf("bury waitlist: %w", err)
		}
		return nil
	})
}

// deleteSome deletes up to purgeChunk rows of a waitlist from a table and
// reports whether there may be more.
func deleteSome(ctx context.Context, tx pgx.Tx, table, id string) (more bool, err error) {
	table = pgx.Identifier{table}.Sanitize()
	tag, err := tx.Exec(ctx, `
		DELETE FROM `+table+` WHERE ctid = ANY (ARRAY(
			SELECT ctid FROM `+table+` WHERE waitlist_id = $1 LIMIT $2))`, id, purgeChunk)
	if err != nil {
		return false, fmt.Errorf("delete from %s: %w", table, err)
	}
	return tag.RowsAffected() == purgeChunk, nil
}
