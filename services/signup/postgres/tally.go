package postgres

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"waitlist.internal/libs/kafka"
	"waitlist.internal/libs/outbox"
	"waitlist.internal/libs/pg"
	"waitlist.internal/libs/views"
	"waitlist.internal/services/signup/owners"
	"waitlist.internal/services/signup/waitlist"
)

// tallyPiece bounds the rows of one piece of a tally, and the ids of one piece of the
// list of waitlists. With 255 characters a value, a piece is well below 1 MiB.
const tallyPiece = 500

// TopReferrers implements owners.TallyStore.
func (s *Signups) TopReferrers(ctx context.Context, waitlistID string, limit int) ([]owners.Referrer, error) {
	rows, err := s.db.TopReferrers(ctx, waitlistID, int32(limit))
	if err != nil {
		return nil, fmt.Errorf("read top referrers: %w", err)
	}
	top := make([]owners.Referrer, len(rows))
	for i, row := range rows {
		top[i] = owners.Referrer(row)
	}
	return top, nil
}

// removedDaySQL and removedValueSQL add a removed signup to the sums of removed signups.
const (
	removedDaySQL = `
INSERT INTO removed_day AS d (waitlist_id, day, signups, referral_signups)
VALUES ($1, ($2::timestamptz AT TIME ZONE 'UTC')::date, 1, $3::boolean::int)
ON CONFLICT (waitlist_id, day) DO UPDATE
SET signups = d.signups + 1, referral_signups = d.referral_signups + excluded.referral_signups`

	removedValueSQL = `
INSERT INTO removed_value AS v (waitlist_id, field, value, count, last_number)
SELECT $1, u.field, u.value, 1, $2
FROM (VALUES ('utm_source', $3::text), ('utm_medium', $4::text), ('utm_campaign', $5::text)) AS u (field, value)
WHERE u.value <> ''
ON CONFLICT (waitlist_id, field, value) DO UPDATE
SET count = v.count + 1, last_number = greatest(v.last_number, excluded.last_number)`
)

// batchRemovalWrites adds to b the statements that count a removed signup.
func batchRemovalWrites(
	b *pgx.Batch, waitlistID string, number int64, createdAt time.Time, referred bool, source, medium, campaign string,
) {
	b.Queue(removedDaySQL, waitlistID, createdAt, referred)
	if source != "" || medium != "" || campaign != "" {
		b.Queue(removedValueSQL, waitlistID, number, source, medium, campaign)
	}
}

// WaitlistIDs implements owners.TallyStore.
func (s *Signups) WaitlistIDs(ctx context.Context, next func([]string) error) error {
	for after := "00000000-0000-0000-0000-000000000000"; ; {
		ids, err := s.db.ListWaitlistIDs(ctx, after, tallyPiece)
		if err != nil {
			return fmt.Errorf("list waitlists: %w", err)
		}
		if len(ids) == 0 {
			return nil
		}
		if err := next(ids); err != nil {
			return err
		}
		after = ids[len(ids)-1]
	}
}

// The tally reads all rows of the waitlist, once for each statement.
const (
	dayTallySQL = `
SELECT day, sum(signups)::bigint, sum(referrals)::bigint FROM (
    SELECT (created_at AT TIME ZONE 'UTC')::date AS day, count(*) AS signups, count(referrer_token) AS referrals
    FROM signup WHERE waitlist_id = $1 GROUP BY 1
    UNION ALL
    SELECT day, signups, referral_signups FROM removed_day WHERE waitlist_id = $1
) d
GROUP BY day
ORDER BY day`

	valueTallySQL = `
SELECT field, value, sum(count)::bigint, max(last_number) FROM (
    SELECT u.field, u.value, count(*) AS count, max(s.number) AS last_number
    FROM signup s, LATERAL (VALUES
        ('utm_source', s.utm_source), ('utm_medium', s.utm_medium), ('utm_campaign', s.utm_campaign)) AS u (field, value)
    WHERE s.waitlist_id = $1 AND u.value <> ''
    GROUP BY u.field, u.value
    UNION ALL
    SELECT field, value, count, last_number FROM removed_value WHERE waitlist_id = $1
) v
GROUP BY field, value`
)

// Tally implements owners.TallyStore.
func (s *Signups) Tally(ctx context.Context, waitlistID string, next func(owners.Tally) error) error {
	return pgx.BeginTxFunc(ctx, s.pool, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		// Reading the whole list takes longer than a request may.
		if err := pg.NoTimeouts(ctx, tx); err != nil {
			return err
		}
		var first owners.Tally
		err := tx.QueryRow(ctx, `
			SELECT coalesce((SELECT last_number FROM change WHERE waitlist_id = w.id ORDER BY no DESC LIMIT 1), 0)
			FROM waitlist w WHERE id = $1 AND deleted_at IS NULL`, waitlistID).Scan(&first.LastNumber)
		if errors.Is(err, pgx.ErrNoRows) {
			return waitlist.ErrNotFound()
		}
		if err != nil {
			return fmt.Errorf("read waitlist: %w", err)
		}
		if err := next(first); err != nil {
			return err
		}
		if err := pieces(ctx, tx, dayTallySQL, waitlistID, func(days []owners.DayTally) error {
			return next(owners.Tally{Days: days})
		}); err != nil {
			return fmt.Errorf("tally days: %w", err)
		}
		if err := pieces(ctx, tx, valueTallySQL, waitlistID, func(values []owners.ValueTally) error {
			return next(owners.Tally{Values: values})
		}); err != nil {
			return fmt.Errorf("tally values: %w", err)
		}
		return nil
	})
}

// pieces passes a query's rows to next, tallyPiece at a time. A piece is valid only
// during the call.
func pieces[T any](ctx context.Context, tx pgx.Tx, sql, waitlistID string, next func([]T) error) error {
	rows, err := tx.Query(ctx, sql, waitlistID)
	if err != nil {
		return err
	}
	defer rows.Close()
	piece := make([]T, 0, tallyPiece)
	for rows.Next() {
		row, err := pgx.RowToStructByPos[T](rows)
		if err != nil {
			return err
		}
		if piece = append(piece, row); len(piece) == tallyPiece {
			if err := next(piece); err != nil {
				return err
			}
			piece = piece[:0]
		}
	}
	if err := rows.Err(); err != nil || len(piece) == 0 {
		return err
	}
	return next(piece)
}

// countViewsSQL inserts one row per count. The order of views does not matter.
const countViewsSQL = `
INSERT INTO outbox (topic, key, payloads, traceparent)
SELECT $1, v.key, ARRAY[v.payload], '' FROM unnest($2::text[], $3::bytea[]) AS v (key, payload)`

// CountViews implements views.Store.
func (s *Signups) CountViews(ctx context.Context, counts []views.Count) error {
	keys, payloads := make([]string, len(counts)), make([][]byte, len(counts))
	for i, c := range counts {
		_, key, events, _, err := outbox.Row(ctx, message(c.WaitlistID, owners.ViewsEvent(c)))
		if err != nil {
			return err
		}
		keys[i], payloads[i] = key, events[0]
	}
	if _, err := s.pool.Exec(ctx, countViewsSQL, kafka.SignupsTopic, keys, payloads); err != nil {
		return fmt.Errorf("insert page views: %w", err)
	}
	s.wake()
	return nil
}
