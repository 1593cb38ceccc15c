package postgres

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"waitlist.internal/services/signup/postgres/db"
	"waitlist.internal/services/signup/queue"
)

// hashes returns the forms in which an address may be stored after it has left a
// waitlist: one for each key, the one to store first.
func (s *Signups) hashes(waitlistID, email string) [][]byte { return s.hash(waitlistID + ":" + email) }

// forgetDeparted forgets an address and returns the number for Removed.Offboarded.
func forgetDeparted(ctx context.Context, q *db.Queries, waitlistID string, hashes [][]byte) (offboarded int64, err error) {
	rows, err := q.ForgetDeparted(ctx, waitlistID, hashes)
	if err != nil {
		return 0, fmt.Errorf("forget that an address had left: %w", err)
	}
	for _, number := range rows {
		offboarded = max(offboarded, number)
	}
	return offboarded, nil
}

// rememberDeparted stores d, unless there is nothing to keep.
func rememberDeparted(ctx context.Context, q *db.Queries, waitlistID string, hashes [][]byte, d queue.Departed) error {
	if d.OptOutAt.IsZero() && d.Offboarded == 0 {
		return nil
	}
	err := q.InsertDeparted(ctx, db.InsertDepartedParams{
		WaitlistID: waitlistID, Hash: hashes[0], OptOutAt: nullable(d.OptOutAt, !d.OptOutAt.IsZero()), Offboarded: d.Offboarded,
	})
	if err != nil {
		return fmt.Errorf("remember that an address has left: %w", err)
	}
	return nil
}

// batchOptOutReads adds to b a read of when the rows' addresses opted out before they left.
// emails maps the hashes of the rows to their addresses.
func batchOptOutReads(b *pgx.Batch, waitlistID string, emails map[string]string, optedOut map[string]time.Time) {
	hashes := make([][]byte, 0, len(emails))
	for h := range emails {
		hashes = append(hashes, []byte(h))
	}
	b.Queue(db.OptedOutDeparted, hashes, waitlistID).Query(func(found pgx.Rows) error {
		var (
			hash []byte
			at   time.Time
		)
		_, err := pgx.ForEachRow(found, []any{&hash, &at}, func() error {
			optedOut[emails[string(hash)]] = at.UTC()
			return nil
		})
		return err
	})
}

// Offboarded implements join.Store.
func (s *Signups) Offboarded(ctx context.Context, waitlistID, email string) (number int64, err error) {
	number, err = s.db.Offboarded(ctx, waitlistID, s.hashes(waitlistID, email))
	if errors.Is(err, pgx.ErrNoRows) {
		return 0, queue.ErrNoSignup()
	}
	if err != nil {
		return 0, fmt.Errorf("look for an offboarded address: %w", err)
	}
	return number, nil
}

// OptOutOffboarded implements join.Store.
func (s *Signups) OptOutOffboarded(ctx context.Context, waitlistID, email string, at time.Time) error {
	err := s.db.OptOutDeparted(ctx, db.OptOutDepartedParams{At: at, WaitlistID: waitlistID, Hashes: s.hashes(waitlistID, email)})
	if err != nil {
		return fmt.Errorf("opt an offboarded address out: %w", err)
	}
	return nil
}
