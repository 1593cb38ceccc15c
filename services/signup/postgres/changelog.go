package postgres

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"waitlist.internal/libs/pg"
	"waitlist.internal/services/signup/index"
	"waitlist.internal/services/signup/postgres/db"
	"waitlist.internal/services/signup/queue"
)

// maxChanges bounds the changes that one catch-up reads.
const maxChanges = 10_000

// chunk is how many keys a rebuild reads at a time.
const chunk = 5_000

// sinceSQL reads, in one snapshot, the newest mark and the present keys of the signups
// that the changes after $2 touched. A removed signup has no key.
const sinceSQL = `
WITH tail AS MATERIALIZED (
    SELECT no, nonce, live, first_number, last_number, touched FROM change
    WHERE waitlist_id = $1 AND no >= $2
    ORDER BY no
    LIMIT $3
), newest AS (
    SELECT no, nonce, live, total FROM change WHERE waitlist_id = $1 ORDER BY no DESC LIMIT 1
), members AS (
    SELECT DISTINCT number FROM (
        SELECT generate_series(first_number, last_number) AS number FROM tail WHERE no > $2
        UNION ALL
        SELECT unnest(touched) FROM tail WHERE no > $2
    ) m
    LIMIT $4
)
SELECT (SELECT nonce FROM tail WHERE no = $2), (SELECT count(*) FROM tail),
       newest.no, newest.nonce, newest.live, newest.total, m.number, s.queue_key
FROM newest
LEFT JOIN members m ON true
-- One lookup per signup: a plain join may be planned to read the whole waitlist.
LEFT JOIN LATERAL (SELECT queue_key FROM signup WHERE waitlist_id = $1 AND number = m.number LIMIT 1) s ON true`

// Since implements index.ChangeLog.
func (s *Signups) Since(ctx context.Context, waitlistID string, from index.Mark, most int) (index.Delta, error) {
	rows, err := s.pool.Query(ctx, sinceSQL, waitlistID, from.Change, maxChanges, most+1)
	if err != nil {
		return index.Delta{}, fmt.Errorf("read change log: %w", err)
	}
	var (
		d           index.Delta
		nonce       *int64
		tail        int64
		number, key *int64
		found       bool
	)
	_, err = pgx.ForEachRow(rows, []any{&nonce, &tail, &d.To.Change, &d.To.Nonce, &d.To.Live, &d.To.Total, &number, &key}, func() error {
		found = true
		switch {
		case number == nil:
		case key == nil:
			d.Remove = append(d.Remove, *number)
		default:
			d.Put = append(d.Put, index.Key{Number: *number, Key: *key})
		}
		return nil
	})
	if err != nil {
		return index.Delta{}, fmt.Errorf("read change log: %w", err)
	}
	switch {
	case !found && from.Change == 0:
		return index.Delta{}, nil // a waitlist without changes, an index without members
	case !found, d.To.Change < from.Change, len(d.Put)+len(d.Remove) > most:
		return index.Delta{}, index.ErrStale
	case from.Change > 0 && (nonce == nil || *nonce != from.Nonce):
		return index.Delta{}, index.ErrStale
	// The log must hold every change in between. Its retention may have deleted the
	// first ones, or there are too many.
	case from.Change > 0 && tail != d.To.Change-from.Change+1, from.Change == 0 && tail != d.To.Change:
		return index.Delta{}, index.ErrStale
	}
	return d, nil
}

// Holds implements index.ChangeLog.
func (s *Signups) Holds(ctx context.Context, waitlistID string, m index.Mark, seen []*queue.Signup) (bool, map[int64]bool, error) {
	p := db.HasChangeParams{WaitlistID: waitlistID, No: m.Change, Nonce: m.Nonce}
	for _, s := range seen {
		p.Numbers, p.Referrals = append(p.Numbers, s.Number), append(p.Referrals, s.ReferralCount)
	}
	row, err := s.db.HasChange(ctx, p)
	if err != nil {
		return false, nil, fmt.Errorf("find change: %w", err)
	}
	same := make(map[int64]bool, len(row.Same))
	for _, number := range row.Same {
		same[number] = true
	}
	return row.Held, same, nil
}

// All implements index.ChangeLog.
func (s *Signups) All(ctx context.Context, waitlistID string, put func([]index.Key) error) (index.Mark, error) {
	var m index.Mark
	err := pgx.BeginTxFunc(ctx, s.pool, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		// Reading the whole queue takes longer than a request may.
		if err := pg.NoTimeouts(ctx, tx); err != nil {
			return err
		}
		err := tx.QueryRow(ctx, `
			SELECT no, nonce, live, total FROM change WHERE waitlist_id = $1 ORDER BY no DESC LIMIT 1`, waitlistID).
			Scan(&m.Change, &m.Nonce, &m.Live, &m.Total)
		if errors.Is(err, pgx.ErrNoRows) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read mark: %w", err)
		}
		rows, err := tx.Query(ctx, `SELECT number, queue_key FROM signup WHERE waitlist_id = $1 ORDER BY queue_key`, waitlistID)
		if err != nil {
			return fmt.Errorf("read queue: %w", err)
		}
		keys := make([]index.Key, 0, chunk)
		var k index.Key
		_, err = pgx.ForEachRow(rows, []any{&k.Number, &k.Key}, func() error {
			keys = append(keys, k)
			if len(keys) < chunk {
				return nil
			}
			err := put(keys)
			keys = keys[:0]
			return err
		})
		if err != nil {
			return fmt.Errorf("read queue: %w", err)
		}
		if len(keys) > 0 {
			return put(keys)
		}
		return nil
	})
	return m, err
}

// TrimChanges deletes changes that are older than an hour, except each waitlist's newest
// one, which holds its counters. A rebuild of an index takes less than an hour.
// It returns how many rows it deleted, at most limit.
func (s *Signups) TrimChanges(ctx context.Context, limit int) (int64, error) {
	tag, err := s.pool.Exec(ctx, `
		WITH old AS MATERIALIZED (
			SELECT c.ctid, c.waitlist_id, c.no FROM change c
			WHERE c.created_at < now() - interval '1 hour'
			  AND EXISTS (SELECT FROM change n WHERE n.waitlist_id = c.waitlist_id AND n.no > c.no)
			LIMIT $1)
		DELETE FROM change
		WHERE ctid = ANY (ARRAY(SELECT ctid FROM old)) AND (waitlist_id, no) IN (SELECT waitlist_id, no FROM old)`, limit)
	if err != nil {
		return 0, fmt.Errorf("trim change log: %w", err)
	}
	return tag.RowsAffected(), nil
}
