// Package postgres keeps the sums that analytics show.
//
//	event ─► arrival (appended) ─► Fold ─► day, utm_value, utm_total
//
// Whoever changes sums (a fold, a rebuild, the end of a purge) holds the one
// advisory lock until the commit. Events never wait for it.
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

// The lock of the package comment.
const (
	lockAlone = `SELECT pg_advisory_xact_lock(hashtextextended('admin_analytics.sums', 0))`
	tryLock   = `SELECT pg_try_advisory_xact_lock(hashtextextended('admin_analytics.sums', 0))`
)

const countSQL = `
INSERT INTO arrival (event_id, waitlist_id, day, views, signups, referral_signups, number, source, medium, campaign)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)`

// Count takes in tx what an event adds to a waitlist's sums. It is in them after
// the next Fold, unless the waitlist was deleted or a rebuild has counted these
// signups.
func (*Store) Count(ctx context.Context, tx pgx.Tx, eventID string, c adminanalytics.Count) error {
	var number *int64
	if c.Number != 0 {
		number = &c.Number
	}
	if _, err := tx.Exec(ctx, countSQL, eventID, c.WaitlistID, c.Day, c.Views, c.Signups, c.ReferralSignups, number, c.Source, c.Medium, c.Campaign); err != nil {
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

// originsSQL reads the first rows of utm_value_top for each field, in their
// order, and its row of utm_total. A value that has the name of the rest is part
// of the rest.
const originsSQL = `
SELECT t.field, t.count, v.names, v.counts
FROM utm_total t, LATERAL (
    SELECT array_agg(value) AS names, array_agg(count) AS counts
    FROM (
        SELECT value, count FROM utm_value
        WHERE waitlist_id = $1 AND field = t.field AND value <> $2
        ORDER BY count DESC, last_number
        LIMIT $3
    ) o
) v
WHERE t.waitlist_id = $1`

// Origins implements adminanalytics.Store.
func (s *Store) Origins(ctx context.Context, waitlistID string, limit int) (adminanalytics.Origins, error) {
	var o adminanalytics.Origins
	fields := map[string]*[]adminanalytics.Origin{"utm_source": &o.Sources, "utm_medium": &o.Mediums, "utm_campaign": &o.Campaigns}
	rows, err := s.pool.Query(ctx, originsSQL, waitlistID, adminanalytics.OtherOrigins, limit)
	if err != nil {
		return o, fmt.Errorf("read origins: %w", err)
	}
	var (
		field  string
		rest   int64
		names  []string
		counts []int64
	)
	_, err = pgx.ForEachRow(rows, []any{&field, &rest, &names, &counts}, func() error {
		list := make([]adminanalytics.Origin, len(names), len(names)+1)
		for i, name := range names {
			list[i] = adminanalytics.Origin{Value: name, Count: counts[i]}
			rest -= counts[i]
		}
		if rest > 0 {
			list = append(list, adminanalytics.Origin{Value: adminanalytics.OtherOrigins, Count: rest})
		}
		*fields[field] = list
		return nil
	})
	if err != nil {
		return o, fmt.Errorf("read origins: %w", err)
	}
	return o, nil
}
