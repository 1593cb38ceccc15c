package postgres

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"waitlist.internal/libs/pg"
	adminanalytics "waitlist.internal/services/admin-analytics"
	"waitlist.internal/services/admin-analytics/postgres/db"
)

// withSumsLock runs fn in a transaction that holds the lock on the sums.
func withSumsLock(ctx context.Context, conn interface {
	Begin(ctx context.Context) (pgx.Tx, error)
}, fn func(pgx.Tx) error,
) error {
	return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		// A rebuild reads whole waitlists and waits for the signup service meanwhile. It waits
		// for the lock no longer than a fold or another rebuild holds it.
		if err := pg.NoTimeouts(ctx, tx); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, "SET LOCAL lock_timeout = 0"); err != nil {
			return fmt.Errorf("lift timeouts: %w", err)
		}
		if err := db.New(tx).LockSums(ctx); err != nil {
			return fmt.Errorf("lock sums: %w", err)
		}
		return fn(tx)
	})
}

// RebuildSignups implements adminanalytics.RebuildStore. The tally begins while
// the lock is held, so it includes all that the sums include. A later fold knows
// from a signup's number whether the tally includes it.
func (s *Store) RebuildSignups(ctx context.Context, waitlistID string, tally func(next func(adminanalytics.Tally) error) error) error {
	err := withSumsLock(ctx, s.pool, func(tx pgx.Tx) error {
		q := s.db.WithTx(tx)
		takes, err := q.TakesCounts(ctx, waitlistID)
		if err != nil {
			return fmt.Errorf("look for waitlist: %w", err)
		}
		if !takes {
			return nil
		}
		for _, clear := range []func(context.Context, string) error{q.ClearSignups, q.DeleteValues, q.DeleteTotals} {
			if err := clear(ctx, waitlistID); err != nil {
				return fmt.Errorf("clear counts: %w", err)
			}
		}
		var builtTo int64
		if err := tally(func(t adminanalytics.Tally) error {
			builtTo = max(builtTo, t.LastNumber)
			return store(ctx, q, waitlistID, t)
		}); err != nil {
			return err
		}
		for _, finish := range []func(context.Context, string) error{q.DeleteEmptyDays, q.AddUpTotals} {
			if err := finish(ctx, waitlistID); err != nil {
				return fmt.Errorf("finish counts: %w", err)
			}
		}
		if err := q.SetBuiltTo(ctx, waitlistID, builtTo); err != nil {
			return fmt.Errorf("record the last number of the rebuild: %w", err)
		}
		return nil
	})
	if adminanalytics.Gone(err) {
		return pg.InTx(ctx, s.pool, func(tx pgx.Tx) error { return s.Forget(ctx, tx, waitlistID) })
	}
	return err
}

// store adds a piece of a tally.
func store(ctx context.Context, q *db.Queries, waitlistID string, t adminanalytics.Tally) (err error) {
	days := make([]db.SetSignupsParams, len(t.Days))
	for i, d := range t.Days {
		days[i] = db.SetSignupsParams{WaitlistID: waitlistID, Day: d.Day, Signups: d.Signups, ReferralSignups: d.ReferralSignups}
	}
	q.SetSignups(ctx, days).Exec(func(_ int, failed error) { err = cmp.Or(err, failed) })
	if err != nil {
		return fmt.Errorf("store days: %w", err)
	}
	values := make([]db.CopyValuesParams, len(t.Values))
	for i, v := range t.Values {
		values[i] = db.CopyValuesParams{
			WaitlistID: waitlistID, Field: v.Field, Value: v.Value, Count: v.Count, LastNumber: v.LastNumber,
		}
	}
	if _, err := q.CopyValues(ctx, values); err != nil {
		return fmt.Errorf("store origins: %w", err)
	}
	return nil
}

// WaitlistIDs implements adminanalytics.RebuildStore. A waitlist has many rows, so
// each query jumps to the index entry of the next waitlist.
func (s *Store) WaitlistIDs(ctx context.Context, next func(string) error) error {
	for _, table := range purgedTables() {
		for id := uuid.Nil.String(); ; {
			err := s.pool.QueryRow(ctx, `
				SELECT waitlist_id::text FROM `+pgx.Identifier{table}.Sanitize()+`
				WHERE waitlist_id > $1::uuid ORDER BY waitlist_id LIMIT 1`, id).Scan(&id)
			if errors.Is(err, pgx.ErrNoRows) {
				break
			}
			if err != nil {
				return fmt.Errorf("list waitlists: %w", err)
			}
			if err := next(id); err != nil {
				return err
			}
		}
	}
	return nil
}

// RebuildViews implements adminanalytics.RebuildStore. It reads the log without the
// lock, and then, under the lock, only what arrived meanwhile. By then it has read
// every event that the sums include.
func (s *Store) RebuildViews(
	ctx context.Context, waitlistID string, log adminanalytics.ViewLog, full func(since time.Time) time.Time,
) error {
	conn, err := s.pool.Acquire(ctx)
	if err != nil {
		return fmt.Errorf("acquire connection: %w", err)
	}
	// Closing the connection drops its temporary table.
	defer func() { _ = conn.Hijack().Close(context.WithoutCancel(ctx)) }()
	if _, err := conn.Exec(ctx, `CREATE TEMPORARY TABLE held (event_id uuid, waitlist_id uuid, day date, views bigint)`); err != nil {
		return fmt.Errorf("prepare page views: %w", err)
	}
	read := func() error {
		return log.Read(ctx, func(events []adminanalytics.ViewEvent) error { return hold(ctx, conn, waitlistID, events) })
	}
	if err := read(); err != nil {
		return err
	}
	return withSumsLock(ctx, conn, func(tx pgx.Tx) error {
		if err := read(); err != nil {
			return err
		}
		// A day that the log holds completely gets the log's views. Other days keep the
		// higher figure: the log holds only a part of them, never more than was counted.
		// The statements read whole tables.
		var b pgx.Batch
		const these = ` AND day >= $2 AND ($1 = '' OR waitlist_id = nullif($1, '')::uuid)`
		first := full(log.Since())
		b.Queue(`UPDATE day SET views = 0 WHERE true`+these, waitlistID, first)
		b.Queue(`
			INSERT INTO day AS d (waitlist_id, day, views, signups, referral_signups)
			SELECT h.waitlist_id, h.day, sum(h.views), 0, 0
			FROM (SELECT DISTINCT event_id, waitlist_id, day, views FROM held) h
			WHERE EXISTS (SELECT FROM inbox WHERE consumer = $1 AND event_id = h.event_id)
			  AND NOT EXISTS (SELECT FROM arrival WHERE event_id = h.event_id) -- not folded yet
			  AND takes_counts(h.waitlist_id)
			GROUP BY h.waitlist_id, h.day
			ON CONFLICT (waitlist_id, day) DO UPDATE SET views = greatest(d.views, excluded.views)`, adminanalytics.Name)
		b.Queue(`DELETE FROM day WHERE views = 0 AND signups = 0`+these, waitlistID, first)
		if err := tx.SendBatch(ctx, &b).Close(); err != nil {
			return fmt.Errorf("replace page views: %w", err)
		}
		return nil
	})
}

// hold copies the page views of one waitlist (of all for "") to the table held.
func hold(ctx context.Context, conn *pgxpool.Conn, waitlistID string, events []adminanalytics.ViewEvent) error {
	rows := make([][]any, 0, len(events))
	for _, e := range events {
		if waitlistID == "" || e.WaitlistID == waitlistID {
			rows = append(rows, []any{e.ID, e.WaitlistID, e.Day, e.Views})
		}
	}
	_, err := conn.CopyFrom(ctx, pgx.Identifier{"held"}, []string{"event_id", "waitlist_id", "day", "views"}, pgx.CopyFromRows(rows))
	if err != nil {
		return fmt.Errorf("hold page views: %w", err)
	}
	return nil
}
