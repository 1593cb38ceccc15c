// Package postgres keeps the sums that analytics show.
//
// Whoever counts holds a shared advisory lock until the commit; a rebuild and
// the end of a purge hold it alone, and so see either all of a transaction of
// events or nothing.
package postgres

import (
	"context"
	"embed"
	"fmt"
	"io/fs"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	adminanalytics "waitlist.internal/services/admin-analytics"
)

// Schema is the service's schema.
const Schema = "admin_analytics"

//go:embed migrations/*.sql
var files embed.FS

// Migrations returns the goose migrations of Schema.
func Migrations() (fs.FS, error) { return fs.Sub(files, "migrations") }

// Store implements adminanalytics.Store, and what happens to the sums in the
// transaction of an event.
type Store struct{ pool *pgxpool.Pool }

// New returns the Store of a pool whose search path is Schema.
func New(pool *pgxpool.Pool) *Store { return &Store{pool} }

// The lock of the package comment. A wait for it that takes longer than
// lock_timeout is an outage to the consumer, and so is waited out.
const (
	lockShared = `SELECT pg_advisory_xact_lock_shared(hashtextextended('admin_analytics.counts', 0))`
	lockAlone  = `SELECT pg_advisory_xact_lock(hashtextextended('admin_analytics.counts', 0))`
)

const (
	// Primary key of day.
	countDaySQL = `
INSERT INTO day AS d (waitlist_id, day, views, signups, referral_signups)
SELECT $1, $2, $3, $4, $5 WHERE takes_counts($1, $6)
ON CONFLICT (waitlist_id, day) DO UPDATE
SET views = d.views + excluded.views, signups = d.signups + excluded.signups,
    referral_signups = d.referral_signups + excluded.referral_signups`

	// Primary keys of utm_value and utm_total. A statement that fills both has
	// one snapshot, so both or neither count.
	countOriginsSQL = `
WITH origin AS (
    SELECT u.field, u.value
    FROM (VALUES ('utm_source', $4::text), ('utm_medium', $5::text), ('utm_campaign', $6::text)) AS u (field, value)
    WHERE u.value <> '' AND takes_counts($1, $2)
), total AS (
    INSERT INTO utm_total AS t (waitlist_id, field, count)
    SELECT $1, field, $3 FROM origin
    ON CONFLICT (waitlist_id, field) DO UPDATE SET count = t.count + excluded.count
)
INSERT INTO utm_value AS v (waitlist_id, field, value, count, last_number)
SELECT $1, field, value, $3, $2 FROM origin
ON CONFLICT (waitlist_id, field, value) DO UPDATE
SET count = v.count + excluded.count, last_number = greatest(v.last_number, excluded.last_number)`
)

// Count adds to a waitlist's sums in tx, unless it was deleted or a rebuild has
// counted these signups.
func (*Store) Count(ctx context.Context, tx pgx.Tx, c adminanalytics.Count) error {
	var number *int64
	if c.Number != 0 {
		number = &c.Number
	}
	var b pgx.Batch
	b.Queue(lockShared)
	b.Queue(countDaySQL, c.WaitlistID, c.Day, c.Views, c.Signups, c.ReferralSignups, number)
	if c.Source != "" || c.Medium != "" || c.Campaign != "" {
		b.Queue(countOriginsSQL, c.WaitlistID, number, c.Signups, c.Source, c.Medium, c.Campaign)
	}
	if err := tx.SendBatch(ctx, &b).Close(); err != nil {
		return fmt.Errorf("count: %w", err)
	}
	return nil
}

// Forget ends a waitlist in tx: nothing is counted for it any more, and the
// purge takes what there is. Again is harmless.
func (*Store) Forget(ctx context.Context, tx pgx.Tx, waitlistID string) error {
	if _, err := tx.Exec(ctx, `
		INSERT INTO waitlist AS w (waitlist_id, deleted_at)
		SELECT $1, now() WHERE NOT EXISTS (SELECT FROM tombstone WHERE hash = sha256(uuid_send($1::uuid)))
		ON CONFLICT (waitlist_id) DO UPDATE SET deleted_at = coalesce(w.deleted_at, excluded.deleted_at)`, waitlistID); err != nil {
		return fmt.Errorf("forget waitlist: %w", err)
	}
	return nil
}

// Primary key of day.
const daysSQL = `
SELECT day, views, signups, referral_signups FROM day
WHERE waitlist_id = $1 AND day >= $2`

// Days implements adminanalytics.Store.
func (s *Store) Days(ctx context.Context, waitlistID string, first time.Time) ([]adminanalytics.Day, error) {
	rows, err := s.pool.Query(ctx, daysSQL, waitlistID, first)
	if err != nil {
		return nil, fmt.Errorf("read days: %w", err)
	}
	days, err := pgx.CollectRows(rows, pgx.RowToStructByPos[adminanalytics.Day])
	if err != nil {
		return nil, fmt.Errorf("read days: %w", err)
	}
	return days, nil
}

// originsSQL reads the first rows of utm_value_top for each field, and its row
// of utm_total. A value that has the name of the rest is part of the rest.
const originsSQL = `
SELECT t.field, t.count, v.value, v.count
FROM utm_total t
LEFT JOIN LATERAL (
    SELECT value, count, last_number FROM utm_value
    WHERE waitlist_id = $1 AND field = t.field AND value <> $2
    ORDER BY count DESC, last_number
    LIMIT $3
) v ON true
WHERE t.waitlist_id = $1
ORDER BY t.field, v.count DESC, v.last_number`

// Origins implements adminanalytics.Store.
func (s *Store) Origins(ctx context.Context, waitlistID string, limit int) (adminanalytics.Origins, error) {
	var o adminanalytics.Origins
	rest := map[string]int64{}
	fields := map[string]*[]adminanalytics.Origin{"utm_source": &o.Sources, "utm_medium": &o.Mediums, "utm_campaign": &o.Campaigns}
	rows, err := s.pool.Query(ctx, originsSQL, waitlistID, adminanalytics.OtherOrigins, limit)
	if err != nil {
		return o, fmt.Errorf("read origins: %w", err)
	}
	var (
		field string
		total int64
		value *string
		count *int64
	)
	_, err = pgx.ForEachRow(rows, []any{&field, &total, &value, &count}, func() error {
		if _, ok := rest[field]; !ok {
			rest[field] = total
		}
		if value != nil {
			*fields[field] = append(*fields[field], adminanalytics.Origin{Value: *value, Count: *count})
			rest[field] -= *count
		}
		return nil
	})
	if err != nil {
		return o, fmt.Errorf("read origins: %w", err)
	}
	for field, n := range rest {
		if n > 0 {
			*fields[field] = append(*fields[field], adminanalytics.Origin{Value: adminanalytics.OtherOrigins, Count: n})
		}
	}
	return o, nil
}
