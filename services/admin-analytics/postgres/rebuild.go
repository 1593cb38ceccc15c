package postgres

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"waitlist.internal/libs/pg"
	adminanalytics "waitlist.internal/services/admin-analytics"
)

// Consumer is the name under which the inbox knows events.
const Consumer = adminanalytics.Service

// patient lifts the time-outs of requests: a rebuild reads whole waitlists and
// waits for signup meanwhile. Its wait for the lock is bounded by folds and by
// other rebuilds.
const patient = `
SET LOCAL statement_timeout = 0;
SET LOCAL idle_in_transaction_session_timeout = 0;
SET LOCAL lock_timeout = 0`

// alone runs fn in a transaction beside which no sum changes.
func alone(ctx context.Context, db interface {
	Begin(ctx context.Context) (pgx.Tx, error)
}, fn func(pgx.Tx) error,
) error {
	return pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error {
		for _, sql := range []string{patient, lockAlone} {
			if _, err := tx.Exec(ctx, sql); err != nil {
				return fmt.Errorf("lock sums: %w", err)
			}
		}
		return fn(tx)
	})
}

// RebuildSignups implements adminanalytics.RebuildStore. The tally begins under
// the lock: all that is in the sums is in it, and what is folded later has a
// number by which it is known whether the tally had it.
func (s *Store) RebuildSignups(ctx context.Context, waitlistID string, tally func(next func(adminanalytics.Tally) error) error) error {
	err := alone(ctx, s.pool, func(tx pgx.Tx) error {
		var takes bool
		if err := tx.QueryRow(ctx, `SELECT takes_counts($1)`, waitlistID).Scan(&takes); err != nil {
			return fmt.Errorf("look for waitlist: %w", err)
		}
		if !takes {
			return nil
		}
		for _, sql := range []string{
			`UPDATE day SET signups = 0, referral_signups = 0 WHERE waitlist_id = $1`,
			`DELETE FROM utm_value WHERE waitlist_id = $1`,
			`DELETE FROM utm_total WHERE waitlist_id = $1`,
		} {
			if _, err := tx.Exec(ctx, sql, waitlistID); err != nil {
				return fmt.Errorf("clear counts: %w", err)
			}
		}
		var builtTo int64
		if err := tally(func(t adminanalytics.Tally) error {
			builtTo = max(builtTo, t.LastNumber)
			return store(ctx, tx, waitlistID, t)
		}); err != nil {
			return err
		}
		var b pgx.Batch
		b.Queue(`DELETE FROM day WHERE waitlist_id = $1 AND views = 0 AND signups = 0`, waitlistID)
		b.Queue(`
			INSERT INTO utm_total (waitlist_id, field, count)
			SELECT waitlist_id, field, sum(count) FROM utm_value WHERE waitlist_id = $1 GROUP BY waitlist_id, field`, waitlistID)
		b.Queue(`
			INSERT INTO waitlist (waitlist_id, built_to) VALUES ($1, $2)
			ON CONFLICT (waitlist_id) DO UPDATE SET built_to = excluded.built_to`, waitlistID, builtTo)
		if err := tx.SendBatch(ctx, &b).Close(); err != nil {
			return fmt.Errorf("finish counts: %w", err)
		}
		return nil
	})
	if adminanalytics.Gone(err) {
		return pg.InTx(ctx, s.pool, func(tx pgx.Tx) error { return s.Forget(ctx, tx, waitlistID) })
	}
	return err
}

// store adds a piece of a tally.
func store(ctx context.Context, tx pgx.Tx, waitlistID string, t adminanalytics.Tally) error {
	var b pgx.Batch
	for _, d := range t.Days {
		b.Queue(`
			INSERT INTO day (waitlist_id, day, views, signups, referral_signups) VALUES ($1, $2, 0, $3, $4)
			ON CONFLICT (waitlist_id, day) DO UPDATE SET signups = excluded.signups, referral_signups = excluded.referral_signups`,
			waitlistID, d.Day, d.Signups, d.ReferralSignups)
	}
	if err := tx.SendBatch(ctx, &b).Close(); err != nil {
		return fmt.Errorf("store days: %w", err)
	}
	_, err := tx.CopyFrom(ctx, pgx.Identifier{"utm_value"}, []string{"waitlist_id", "field", "value", "count", "last_number"},
		pgx.CopyFromSlice(len(t.Values), func(i int) ([]any, error) {
			v := t.Values[i]
			return []any{waitlistID, v.Field, v.Value, v.Count, v.LastNumber}, nil
		}))
	if err != nil {
		return fmt.Errorf("store origins: %w", err)
	}
	return nil
}

// WaitlistIDs implements adminanalytics.RebuildStore: from index to index entry,
// since a waitlist has many.
func (s *Store) WaitlistIDs(ctx context.Context, next func(string) error) error {
	for _, table := range purgedTables() {
		for id := "00000000-0000-0000-0000-000000000000"; ; {
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

// RebuildViews implements adminanalytics.RebuildStore. The log is read before
// anybody has to wait, and under the lock only what came meanwhile: then
// everything that is in the sums has been read.
func (s *Store) RebuildViews(ctx context.Context, waitlistID string, log adminanalytics.ViewLog, full func(since time.Time) time.Time) error {
	conn, err := s.pool.Acquire(ctx)
	if err != nil {
		return fmt.Errorf("acquire connection: %w", err)
	}
	// With its temporary table.
	defer func() { _ = conn.Hijack().Close(context.WithoutCancel(ctx)) }()
	for _, sql := range []string{
		`SET statement_timeout = 0`,
		`CREATE TEMPORARY TABLE held (event_id uuid, waitlist_id uuid, day date, views bigint)`,
	} {
		if _, err := conn.Exec(ctx, sql); err != nil {
			return fmt.Errorf("prepare page views: %w", err)
		}
	}
	read := func() error {
		return log.Read(ctx, func(events []adminanalytics.ViewEvent) error { return hold(ctx, conn, waitlistID, events) })
	}
	if err := read(); err != nil {
		return err
	}
	return alone(ctx, conn, func(tx pgx.Tx) error {
		if err := read(); err != nil {
			return err
		}
		// Days that the log holds wholly become what it says. Of the others it
		// holds a part, which is no more than what was counted, if that is still
		// there. Tables are read as a whole.
		var b pgx.Batch
		const these = ` AND day >= $2 AND ($1 = '' OR waitlist_id = nullif($1, '')::uuid)`
		first := full(log.Since())
		b.Queue(`UPDATE day SET views = 0 WHERE true`+these, waitlistID, first)
		b.Queue(`
			INSERT INTO day AS d (waitlist_id, day, views, signups, referral_signups)
			SELECT h.waitlist_id, h.day, sum(h.views), 0, 0
			FROM (SELECT DISTINCT event_id, waitlist_id, day, views FROM held) h
			WHERE EXISTS (SELECT FROM inbox WHERE consumer = $1 AND event_id = h.event_id)
			  AND NOT EXISTS (SELECT FROM arrival WHERE event_id = h.event_id) -- to be folded yet
			  AND takes_counts(h.waitlist_id)
			GROUP BY h.waitlist_id, h.day
			ON CONFLICT (waitlist_id, day) DO UPDATE SET views = greatest(d.views, excluded.views)`, Consumer)
		b.Queue(`DELETE FROM day WHERE views = 0 AND signups = 0`+these, waitlistID, first)
		if err := tx.SendBatch(ctx, &b).Close(); err != nil {
			return fmt.Errorf("replace page views: %w", err)
		}
		return nil
	})
}

// hold keeps page views of one waitlist, or of all for "".
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
