// Package postgres implements billing.Store. The account lock is in lock.go. The
// statements are in queries/, from which sqlc generates package db.
package postgres

import (
	"context"
	"crypto/sha256"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"waitlist.internal/libs/access"
	"waitlist.internal/services/billing"
	"waitlist.internal/services/billing/postgres/db"
)

// statementTime bounds one statement or short transaction, including the network.
const statementTime = 4 * time.Second

//go:embed migrations/*.sql
var files embed.FS

// Migrations returns the goose migrations of the service's schema.
func Migrations() (fs.FS, error) { return fs.Sub(files, "migrations") }

// Store implements billing.Store.
type Store struct {
	// sessions has the connections that hold accounts' locks.
	sessions *pgxpool.Pool
	db       *db.Queries
	locks    *locks
	// slots bounds the connections that hold an account's lock.
	slots chan struct{}
}

// New returns a Store on pools whose search path is the schema. It locks at most
// concurrent accounts at a time. Each lock takes a connection of sessions, which may be
// the same pool as pool and needs more connections than that.
func New(pool, sessions *pgxpool.Pool, concurrent int) *Store {
	return &Store{sessions: sessions, db: db.New(pool), locks: &locks{held: map[string]*turn{}}, slots: make(chan struct{}, concurrent)}
}

// grave returns the hash that replaces an account's id after its deletion: the first
// half of the SHA-256 of the id. A text that is not a UUID is returned unchanged.
func grave(accountID string) string {
	id, err := uuid.Parse(accountID)
	if err != nil {
		return accountID
	}
	sum := sha256.Sum256(id[:])
	return uuid.UUID(sum[:16]).String()
}

// graves returns the graves that an id can stand for: its hash, or the id itself if it
// is already a hash.
func graves(id string) []string { return []string{id, grave(id)} }

// Subscriber implements billing.Store.
func (s *Store) Subscriber(ctx context.Context, accountID string) (billing.Subscriber, error) {
	return subscriberOf(ctx, s.db, accountID)
}

func subscriberOf(ctx context.Context, q *db.Queries, accountID string) (billing.Subscriber, error) {
	row, err := do(ctx, "read a subscriber", func(ctx context.Context) (db.Subscriber, error) { return q.GetSubscriber(ctx, accountID) })
	if errors.Is(err, billing.ErrNotFound) {
		return billing.Subscriber{AccountID: accountID}, nil
	}
	return subscriber(row), err
}

func subscriber(r db.Subscriber) billing.Subscriber {
	return billing.Subscriber{
		AccountID: r.AccountID, CustomerID: string(r.CustomerID), SyncedAt: time.Time(r.SyncedAt),
		Subscription: billing.Subscription{
			ID: r.SubscriptionID, CustomerID: string(r.CustomerID), Status: r.SubscriptionStatus, PriceID: r.PriceID,
			CancelAtPeriodEnd: r.CancelAtPeriodEnd, CurrentPeriodEnd: time.Time(r.CurrentPeriodEnd),
		},
		Entitlement: access.Entitlement{
			Tier: r.Tier, Status: r.Status, ValidUntil: time.Time(r.ValidUntil), Trial: r.Trial, Version: r.Version,
		},
		PushEntitlement: r.PushEntitlement, PushCustomer: r.PushCustomer, PushAt: time.Time(r.PushAt), CheckAt: time.Time(r.CheckAt),
	}
}

// AccountOf implements billing.Store.
func (s *Store) AccountOf(ctx context.Context, customerID string) (string, error) {
	return do(ctx, "find a customer's account", func(ctx context.Context) (string, error) { return s.db.AccountOf(ctx, customerID) })
}

// EventSeen implements billing.Store.
func (s *Store) EventSeen(ctx context.Context, eventID string) (bool, error) {
	return do(ctx, "look for an event", func(ctx context.Context) (bool, error) { return s.db.EventSeen(ctx, eventID) })
}

// RecordEvent implements billing.Store.
func (s *Store) RecordEvent(ctx context.Context, eventID string, now time.Time) error {
	return exec(ctx, "record an event", func(ctx context.Context) error { return s.db.RecordEvents(ctx, []string{eventID}, now) })
}

// TakePush implements billing.Store.
func (s *Store) TakePush(ctx context.Context, now, retryAt time.Time) (string, error) {
	return do(ctx, "take a push", func(ctx context.Context) (string, error) { return s.db.TakePush(ctx, retryAt, now) })
}

// TakeCheck implements billing.Store.
func (s *Store) TakeCheck(ctx context.Context, now, retryAt time.Time) (string, error) {
	return do(ctx, "take a check", func(ctx context.Context) (string, error) { return s.db.TakeCheck(ctx, retryAt, now) })
}

// TakeDeletion implements billing.Store.
func (s *Store) TakeDeletion(ctx context.Context, now, retryAt time.Time) (string, error) {
	return do(ctx, "take a deletion", func(ctx context.Context) (string, error) { return s.db.TakeDeletion(ctx, retryAt, now) })
}

// Customers implements billing.Store.
func (s *Store) Customers(ctx context.Context, after string, limit int) ([]billing.Subscriber, error) {
	return all(ctx, "list customers", subscriber, func(ctx context.Context) ([]db.Subscriber, error) {
		return s.db.Customers(ctx, after, int64(limit))
	})
}

// Deletions implements billing.Store.
func (s *Store) Deletions(ctx context.Context, after string, since time.Time, limit int) ([]billing.Deletion, error) {
	return all(ctx, "list deletions", deletion, func(ctx context.Context) ([]db.DeletionsRow, error) {
		return s.db.Deletions(ctx, db.DeletionsParams{After: after, Since: since, Most: int64(limit)})
	})
}

func deletion(r db.DeletionsRow) billing.Deletion {
	return billing.Deletion{AccountID: r.AccountID, CustomerID: string(r.CustomerID), DeletedAt: r.DeletedAt}
}

// TakeReconciliation implements billing.Store.
func (s *Store) TakeReconciliation(ctx context.Context, now, due time.Time) (bool, error) {
	n, err := do(ctx, "take a reconciliation", func(ctx context.Context) (int64, error) { return s.db.TakeReconciliation(ctx, now, due) })
	return n == 1, err
}

// RetryReconciliation implements billing.Store.
func (s *Store) RetryReconciliation(ctx context.Context, began time.Time) error {
	return exec(ctx, "retry a reconciliation", func(ctx context.Context) error { return s.db.RetryReconciliation(ctx, began) })
}

// sweepRows bounds the rows that one statement of a sweep deletes.
const sweepRows = 1000

// Sweep implements billing.Store.
func (s *Store) Sweep(ctx context.Context, until billing.Retention) (more bool, err error) {
	for _, q := range []struct {
		sweep func(ctx context.Context, until time.Time, most int64) (int64, error)
		until time.Time
	}{{s.db.SweepEvents, until.Events}, {s.db.SweepOperations, until.Operations}, {s.db.SweepDeletions, until.Deletions}} {
		n, err := do(ctx, "sweep", func(ctx context.Context) (int64, error) { return q.sweep(ctx, q.until, sweepRows) })
		if err != nil {
			return false, err
		}
		more = more || n >= sweepRows
	}
	return more, nil
}

// InsertDeletion records in tx that an account was deleted, together with its
// customer. It is idempotent.
func (s *Store) InsertDeletion(ctx context.Context, tx pgx.Tx, accountID string, at time.Time) error {
	err := s.db.WithTx(tx).InsertDeletion(ctx, db.InsertDeletionParams{Grave: grave(accountID), AccountID: accountID, DeletedAt: at})
	if err != nil {
		return fmt.Errorf("insert a deletion: %w", err)
	}
	return nil
}

// do runs a statement within statementTime. It returns ErrNotFound if a statement for
// one row finds none.
func do[T any](ctx context.Context, what string, statement func(ctx context.Context) (T, error)) (v T, err error) {
	ctx, cancel := context.WithTimeout(ctx, statementTime)
	defer cancel()
	v, err = statement(ctx)
	if errors.Is(err, pgx.ErrNoRows) {
		return v, billing.ErrNotFound
	}
	if err != nil {
		return v, fmt.Errorf("%s: %w", what, err)
	}
	return v, nil
}

// exec is do for a statement without a result.
func exec(ctx context.Context, what string, statement func(ctx context.Context) error) error {
	_, err := do(ctx, what, func(ctx context.Context) (struct{}, error) { return struct{}{}, statement(ctx) })
	return err
}

// all is do for a statement whose rows are converted.
func all[R, T any](ctx context.Context, what string, convert func(R) T, statement func(ctx context.Context) ([]R, error)) ([]T, error) {
	rows, err := do(ctx, what, statement)
	list := make([]T, len(rows))
	for i, r := range rows {
		list[i] = convert(r)
	}
	return list, err
}
