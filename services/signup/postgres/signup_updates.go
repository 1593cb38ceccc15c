package postgres

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"waitlist.internal/libs/audit"
	"waitlist.internal/libs/pg"
	eventv1 "waitlist.internal/proto/gen/waitlist/event/v1"
	"waitlist.internal/services/signup/postgres/db"
	"waitlist.internal/services/signup/queue"
	"waitlist.internal/services/signup/waitlist"
)

// Remove implements join.Store.
func (s *Signups) Remove(ctx context.Context, w *waitlist.Waitlist, number int64, why queue.Removal, by audit.Entry) error {
	err := s.locked(ctx, w.ID, func(tx pgx.Tx, st queue.State) error {
		var (
			key     int64
			gone    = queue.Removed{Number: number}
			created time.Time
			optOut  *time.Time
			utm     [3]string
			// referred also holds for a referral without a credit.
			referred bool
		)
		err := tx.QueryRow(ctx, `
			DELETE FROM signup WHERE waitlist_id = $1 AND number = $2
			RETURNING queue_key, referrer_number IS NOT NULL, referrer_token IS NOT NULL, email, first_name, last_name,
				created_at, email_opt_out_at, utm_source, utm_medium, utm_campaign`, w.ID, number).
			Scan(&key, &gone.Referred, &referred, &gone.Email, &gone.FirstName, &gone.LastName, &created, &optOut, &utm[0], &utm[1], &utm[2])
		if errors.Is(err, pgx.ErrNoRows) {
			return queue.ErrNoSignup()
		}
		if err != nil {
			return fmt.Errorf("delete signup: %w", err)
		}
		gone.OptOutAt = moment(optOut)
		hashes := s.hashes(w.ID, gone.Email)
		if gone.Offboarded, err = forgetDeparted(ctx, s.db.WithTx(tx), w.ID, hashes); err != nil {
			return err
		}
		// w may be older than the lock.
		current, err := getWaitlist(ctx, s.db.WithTx(tx), w.ID)
		if err != nil {
			return err
		}
		st, kept, ev := queue.DecideRemoval(st, current, gone, why, s.now())
		if err := rememberDeparted(ctx, s.db.WithTx(tx), w.ID, hashes, kept); err != nil {
			return err
		}
		var b pgx.Batch
		b.Queue(`SELECT queue_leave($1, $2)`, w.ID, key)
		b.Queue(db.DeleteFlagged, w.ID, number)
		b.Queue(changeSQL+`ARRAY[$9::bigint])`, append(changeArgs(w.ID, st, st.LastNumber+1), number)...)
		batchRemovalWrites(&b, w.ID, number, created, referred, utm[0], utm[1], utm[2])
		if err := tx.SendBatch(ctx, &b).Close(); err != nil {
			return fmt.Errorf("log removal: %w", err)
		}
		if err := publish(ctx, tx, w.ID, ev); err != nil {
			return err
		}
		return audit.Insert(ctx, tx, by)
	})
	if err == nil {
		s.wake()
	}
	return err
}

// Move implements join.Store.
func (s *Signups) Move(ctx context.Context, w *waitlist.Waitlist, number, position int64, by audit.Entry) (int64, error) {
	var rank int64
	err := s.locked(ctx, w.ID, func(tx pgx.Tx, st queue.State) error {
		here, err := s.db.WithTx(tx).HasSignup(ctx, w.ID, number)
		if err != nil {
			return fmt.Errorf("find signup: %w", err)
		}
		if !here {
			return queue.ErrNoSignup()
		}
		st.Change++
		var b pgx.Batch
		b.Queue(changeSQL+`queue_move($1, $9, $10, $4))`, append(changeArgs(w.ID, st, st.LastNumber+1), number, position)...)
		b.Queue(`SELECT queue_rank($1, queue_key) FROM signup WHERE waitlist_id = $1 AND number = $2`, w.ID, number)
		res := tx.SendBatch(ctx, &b)
		if _, err := res.Exec(); err != nil {
			_ = res.Close()
			return fmt.Errorf("move signup: %w", err)
		}
		if err := res.QueryRow().Scan(&rank); err != nil {
			_ = res.Close()
			return fmt.Errorf("rank moved signup: %w", err)
		}
		if err := res.Close(); err != nil {
			return err
		}
		return audit.Insert(ctx, tx, by)
	})
	return rank, err
}

// Verify implements join.Store.
func (s *Signups) Verify(ctx context.Context, w *waitlist.Waitlist, number int64, at time.Time, credit bool) (first bool, err error) {
	verify := func(q *db.Queries) (int64, error) {
		return q.VerifySignup(ctx, db.VerifySignupParams{At: at, WaitlistID: w.ID, Number: number})
	}
	if !credit {
		if first, err = s.mark(ctx, w.ID, queue.Verified(w, number, s.now()), verify); err == nil && first {
			s.changed("verification", 1)
		}
		return first, err
	}
	var credited queue.Credited
	err = s.locked(ctx, w.ID, func(tx pgx.Tx, st queue.State) error {
		n, err := verify(s.db.WithTx(tx))
		if err != nil {
			return fmt.Errorf("mark signup: %w", err)
		}
		if first = n > 0; !first {
			return nil
		}
		if err := publish(ctx, tx, w.ID, queue.Verified(w, number, s.now())); err != nil {
			return err
		}
		credited, err = s.credit(ctx, tx, st, w.ID, number)
		return err
	})
	if err == nil && first {
		s.wake()
		s.changed("verification", 1)
		if credited == queue.CreditGiven {
			s.changed("credit", 1)
		}
	}
	return first, err
}

// OptOut implements join.Store.
func (s *Signups) OptOut(ctx context.Context, w *waitlist.Waitlist, number int64, at time.Time) error {
	first, err := s.mark(ctx, w.ID, queue.OptedOut(w, number, s.now()), func(q *db.Queries) (int64, error) {
		return q.OptOutSignup(ctx, db.OptOutSignupParams{At: at, WaitlistID: w.ID, Number: number})
	})
	if err == nil && first {
		s.changed("opt_out", 1)
	}
	return err
}

// RequestLink implements join.Store.
func (s *Signups) RequestLink(ctx context.Context, w *waitlist.Waitlist, number int64) error {
	err := pg.InTx(ctx, s.pool, func(tx pgx.Tx) error {
		return publish(ctx, tx, w.ID, queue.LinkRequested(w, number, s.now()))
	})
	if err == nil {
		s.wake()
	}
	return err
}

// mark sets a timestamp of one signup unless it is set, and then publishes ev. set
// returns how many rows it changed. The queue does not change, so this needs no lock on
// the waitlist.
func (s *Signups) mark(
	ctx context.Context, waitlistID string, ev *eventv1.Event, set func(*db.Queries) (int64, error),
) (first bool, err error) {
	err = pg.InTx(ctx, s.pool, func(tx pgx.Tx) error {
		n, err := set(s.db.WithTx(tx))
		if err != nil {
			return fmt.Errorf("mark signup: %w", err)
		}
		if first = n > 0; !first {
			return nil
		}
		return publish(ctx, tx, waitlistID, ev)
	})
	if err == nil && first {
		s.wake()
	}
	return first, err
}
