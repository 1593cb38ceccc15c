// Package postgres keeps the sums that analytics show.
//
//	event ─► arrival (appended) ─► Fold ─► day, utm_value, utm_total
//
// A transaction that changes sums (a fold, a rebuild, the end of a purge) holds
// one advisory lock until it commits. Events never wait for the lock.
package postgres

import (
	"context"
	"embed"
	"fmt"
	"io/fs"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"waitlist.internal/libs/loop"
	adminanalytics "waitlist.internal/services/admin-analytics"
	"waitlist.internal/services/admin-analytics/postgres/db"
)

// Schema is the service's schema.
const Schema = "admin_analytics"

//go:embed migrations/*.sql
var files embed.FS

// Migrations returns the goose migrations of Schema.
func Migrations() (fs.FS, error) { return fs.Sub(files, "migrations") }

// Store implements adminanalytics.Store and adminanalytics.RebuildStore, and
// changes the sums in the transaction of an event.
type Store struct {
	pool *pgxpool.Pool
	db   *db.Queries
	// arrived wakes Folding.
	arrived loop.Signal
}

// New returns the Store of a pool whose search path is Schema.
func New(pool *pgxpool.Pool) *Store { return &Store{pool, db.New(pool), loop.NewSignal()} }

// Count records in tx what events add to the sums of their waitlists. The next Fold adds
// it, unless the waitlist is deleted or a rebuild has already counted these signups.
func (s *Store) Count(ctx context.Context, tx pgx.Tx, counts ...adminanalytics.Count) error {
	var p db.CountEventsParams
	for _, c := range counts {
		p.EventIDs, p.WaitlistIDs, p.Days = append(p.EventIDs, c.EventID), append(p.WaitlistIDs, c.WaitlistID), append(p.Days, c.Day)
		p.Views, p.Signups = append(p.Views, c.Views), append(p.Signups, c.Signups)
		p.ReferralSignups, p.Numbers = append(p.ReferralSignups, c.ReferralSignups), append(p.Numbers, c.Number)
		p.Sources, p.Mediums = append(p.Sources, c.Source), append(p.Mediums, c.Medium)
		p.Campaigns = append(p.Campaigns, c.Campaign)
	}
	if err := s.db.WithTx(tx).CountEvents(ctx, p); err != nil {
		return fmt.Errorf("count events: %w", err)
	}
	return nil
}

// Forget marks a waitlist as deleted in tx: nothing more is counted for it, and
// the purge deletes its sums. A repetition changes nothing.
func (s *Store) Forget(ctx context.Context, tx pgx.Tx, waitlistID string) error {
	if err := s.db.WithTx(tx).ForgetWaitlist(ctx, waitlistID); err != nil {
		return fmt.Errorf("forget waitlist: %w", err)
	}
	return nil
}

// Days implements adminanalytics.Store.
func (s *Store) Days(ctx context.Context, waitlistID string, first time.Time) ([]adminanalytics.Day, error) {
	rows, err := s.db.Days(ctx, waitlistID, first)
	if err != nil {
		return nil, fmt.Errorf("read days: %w", err)
	}
	days := make([]adminanalytics.Day, len(rows))
	for i, r := range rows {
		days[i] = adminanalytics.Day(r)
	}
	return days, nil
}

// Origins implements adminanalytics.Store.
func (s *Store) Origins(ctx context.Context, waitlistID string, limit int) (adminanalytics.Origins, error) {
	var o adminanalytics.Origins
	fields := map[string]*[]adminanalytics.Origin{"utm_source": &o.Sources, "utm_medium": &o.Mediums, "utm_campaign": &o.Campaigns}
	rows, err := s.db.GetOrigins(ctx, db.GetOriginsParams{WaitlistID: waitlistID, Other: adminanalytics.OtherOrigins, Most: int32(limit)})
	if err != nil {
		return o, fmt.Errorf("read origins: %w", err)
	}
	for _, r := range rows {
		list := make([]adminanalytics.Origin, len(r.Names), len(r.Names)+1)
		rest := r.Count
		for i, name := range r.Names {
			list[i] = adminanalytics.Origin{Value: name, Count: r.Counts[i]}
			rest -= r.Counts[i]
		}
		if rest > 0 {
			list = append(list, adminanalytics.Origin{Value: adminanalytics.OtherOrigins, Count: rest})
		}
		*fields[r.Field] = list
	}
	return o, nil
}
