// Package postgres stores waitlists, signups and their order. Every transaction that
// changes the order locks the waitlist's row first and appends one row to the change
// log. See migrations for the tables and the arithmetic of the queue.
package postgres

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"waitlist.internal/libs/audit"
	"waitlist.internal/libs/kafka"
	"waitlist.internal/libs/outbox"
	"waitlist.internal/libs/pg"
	"waitlist.internal/libs/token"
	eventv1 "waitlist.internal/proto/gen/waitlist/event/v1"
	"waitlist.internal/services/signup/postgres/db"
	"waitlist.internal/services/signup/queue"
	"waitlist.internal/services/signup/waitlist"
)

// Signups is the store of signups. It implements join.Store and
// index.ChangeLog.
type Signups struct {
	pool *pgxpool.Pool
	db   *db.Queries
	// hash returns the keyed hashes of a waitlist's address; see departed.go.
	hash func(waitlistAndEmail string) [][]byte
	// wake is called after each commit that wrote events.
	wake func()
	now  func() time.Time
	// Changed, if set, is called after each commit with what it changed: signup, credit,
	// opt_out or verification, and how many.
	Changed func(change string, n int)
}

func (s *Signups) changed(change string, n int) {
	if s.Changed != nil && n > 0 {
		s.Changed(change, n)
	}
}

// NewSignups returns a store on pool. keys hash the addresses of people who left. wake is
// called after each commit that wrote events to the outbox.
func NewSignups(pool *pgxpool.Pool, keys *token.Ring, wake func(), now func() time.Time) *Signups {
	return &Signups{pool: pool, db: db.New(pool), hash: keys.Hasher(token.Departed), wake: wake, now: now}
}

const stateSQL = `
SELECT no, live, total, credited, last_number FROM change
WHERE waitlist_id = $1
ORDER BY no DESC
LIMIT 1`

func scanState(row pgx.Row) (st queue.State, err error) {
	err = row.Scan(&st.Change, &st.Live, &st.Total, &st.Credited, &st.LastNumber)
	if errors.Is(err, pgx.ErrNoRows) {
		return queue.State{}, nil
	}
	return st, err
}

// changeSQL appends a change. The caller completes it with touched: an array, or a
// call of a function that changes keys and returns the numbers.
const changeSQL = `
INSERT INTO change (waitlist_id, no, nonce, live, total, credited, last_number, first_number, touched)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, `

func changeArgs(waitlistID string, st queue.State, firstNumber int64) []any {
	nonce := rand.Int64() //nolint:gosec // tells histories apart, no secret
	return []any{waitlistID, st.Change, nonce, st.Live, st.Total, st.Credited, st.LastNumber, firstNumber}
}

const lockSQL = `
SELECT w.version, coalesce(o.version, 0)
FROM waitlist w LEFT JOIN owner o ON o.id = w.owner_id
WHERE w.id = $1 AND w.deleted_at IS NULL
FOR NO KEY UPDATE OF w`

// locked runs fn in a transaction that holds the waitlist's lock. fn gets the
// state before the change.
func (s *Signups) locked(ctx context.Context, waitlistID string, fn func(pgx.Tx, queue.State) error) error {
	return pg.InTx(ctx, s.pool, func(tx pgx.Tx) error {
		var version, ownerVersion int64
		err := tx.QueryRow(ctx, lockSQL, waitlistID).Scan(&version, &ownerVersion)
		if errors.Is(err, pgx.ErrNoRows) {
			return waitlist.ErrNotFound()
		}
		if err != nil {
			return fmt.Errorf("lock waitlist: %w", err)
		}
		// This is a statement of its own so that it sees what the previous holder of the
		// lock committed.
		st, err := scanState(tx.QueryRow(ctx, stateSQL, waitlistID))
		if err != nil {
			return fmt.Errorf("read state: %w", err)
		}
		return fn(tx, st)
	})
}

// publish writes an event to the outbox.
func publish(ctx context.Context, tx pgx.Tx, waitlistID string, ev *eventv1.Event) error {
	return outbox.Insert(ctx, tx, message(waitlistID, ev))
}

func message(waitlistID string, events ...*eventv1.Event) outbox.Message {
	return outbox.Message{Topic: kafka.SignupsTopic, Key: waitlistID, Events: events}
}

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
		queueRemoved(&b, w.ID, number, created, referred, utm[0], utm[1], utm[2])
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

const signupColumns = `s.number, s.queue_key, s.email, s.first_name, s.last_name, s.phone, s.token,
       s.referral_count, s.created_at, s.email_verified_at, s.email_opt_out_at,
       s.referrer_token IS NOT NULL AND s.referrer_number IS NULL`

const viewSQL = `
SELECT w.version, coalesce(o.version, 0), coalesce(c.no, 0), coalesce(c.nonce, 0), coalesce(c.live, 0), coalesce(c.total, 0),
       ` + signupColumns + `,
       CASE WHEN s.number IS NOT NULL AND c.live <= $3 THEN queue_rank(w.id, s.queue_key) END
FROM waitlist w
LEFT JOIN owner o ON o.id = w.owner_id
LEFT JOIN LATERAL (
    SELECT no, nonce, live, total FROM change WHERE waitlist_id = w.id ORDER BY no DESC LIMIT 1
) c ON true
LEFT JOIN signup s ON s.waitlist_id = w.id AND s.`

// View implements join.Store.
func (s *Signups) View(ctx context.Context, waitlistID, email string, rankUpTo int64) (queue.View, error) {
	return s.view(ctx, viewSQL+`email = $2
WHERE w.id = $1 AND w.deleted_at IS NULL`, waitlistID, email, rankUpTo)
}

// Numbered implements lists.MessageStore. It uses waitlist_pkey, signup_pkey and
// change_pkey, and to rank also signup_queue_key and queue_bucket_pkey.
func (s *Signups) Numbered(ctx context.Context, waitlistID string, number, rankUpTo int64) (queue.View, error) {
	return s.view(ctx, viewSQL+`number = $2
WHERE w.id = $1 AND w.deleted_at IS NULL`, waitlistID, number, rankUpTo)
}

func (s *Signups) view(ctx context.Context, sql, waitlistID string, arg any, rankUpTo int64) (queue.View, error) {
	var (
		v                               queue.View
		number, key, referrals, rank    *int64
		email, first, last, phone       *string
		token                           *uuid.UUID
		createdAt, verifiedAt, optOutAt *time.Time
		uncredited                      bool
	)
	err := s.pool.QueryRow(ctx, sql, waitlistID, arg, rankUpTo).Scan(
		&v.SettingsVersion, &v.OwnerVersion, &v.Change, &v.Nonce, &v.Live, &v.Total,
		&number, &key, &email, &first, &last, &phone, &token, &referrals, &createdAt, &verifiedAt, &optOutAt, &uncredited,
		&rank)
	if errors.Is(err, pgx.ErrNoRows) {
		return v, waitlist.ErrNotFound()
	}
	if err != nil {
		return v, fmt.Errorf("read waitlist and signup: %w", err)
	}
	if number == nil {
		return v, nil
	}
	v.Signup = &queue.Signup{
		Number: *number, QueueKey: *key, Email: *email, FirstName: *first, LastName: *last, Phone: *phone,
		Token: queue.Token(*token), ReferralCount: *referrals, CreatedAt: createdAt.UTC(),
		EmailVerifiedAt: moment(verifiedAt), EmailOptOutAt: moment(optOutAt),
		Uncredited: uncredited,
	}
	if rank != nil {
		v.Rank = *rank
	}
	return v, nil
}

func moment(t *time.Time) time.Time {
	if t == nil {
		return time.Time{}
	}
	return t.UTC()
}

// Leaderboard implements join.Store.
func (s *Signups) Leaderboard(ctx context.Context, waitlistID string, limit int) ([]int64, error) {
	counts, err := s.db.Leaderboard(ctx, waitlistID, int32(limit))
	if err != nil {
		return nil, fmt.Errorf("read leaderboard: %w", err)
	}
	return counts, nil
}

// Waitlist implements join.Store.
func (s *Signups) Waitlist(ctx context.Context, id string) (*waitlist.Waitlist, error) {
	return getWaitlist(ctx, s.db, id)
}
