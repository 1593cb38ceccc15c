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

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

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

func moment(t *time.Time) time.Time {
	if t == nil {
		return time.Time{}
	}
	return t.UTC()
}

func nullable[T any](v T, ok bool) *T {
	if !ok {
		return nil
	}
	return &v
}

// creditSQL completes changeSQL: it credits and moves referrers one after the other, and
// makes room where there is none.
const creditSQL = `queue_credit($1, $9, $10, $11, $12))`
