// Package postgres implements billing.Store. The account lock is in lock.go, the
// statements are in queries.go.
package postgres

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype/zeronull"
	"github.com/jackc/pgx/v5/pgxpool"

	"waitlist.internal/services/billing"
)

// Schema is the service's schema.
const Schema = "billing"

// statementTime bounds one statement or short transaction, including the network.
const statementTime = 4 * time.Second

//go:embed migrations/*.sql
var files embed.FS

// Migrations returns the goose migrations of Schema.
func Migrations() (fs.FS, error) { return fs.Sub(files, "migrations") }

// Store implements billing.Store.
type Store struct {
	pool  *pgxpool.Pool
	locks *locks
	// slots bounds the connections that hold an account's lock.
	slots chan struct{}
}

// New returns a Store on a pool whose search path is Schema. It locks at most
// concurrent accounts at a time. Each lock takes a connection, so the pool needs
// more connections than that.
func New(pool *pgxpool.Pool, concurrent int) *Store {
	return &Store{pool: pool, locks: &locks{held: map[string]*turn{}}, slots: make(chan struct{}, concurrent)}
}

// db is a pool or a connection.
type db interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

// Subscriber implements billing.Store.
func (s *Store) Subscriber(ctx context.Context, accountID string) (billing.Subscriber, error) {
	return subscriberOf(ctx, s.pool, accountID)
}

func subscriberOf(ctx context.Context, on db, accountID string) (billing.Subscriber, error) {
	ctx, cancel := context.WithTimeout(ctx, statementTime)
	defer cancel()
	sub, err := scanSubscriber(on.QueryRow(ctx, subscriber, accountID))
	if errors.Is(err, pgx.ErrNoRows) {
		return billing.Subscriber{AccountID: accountID}, nil
	}
	if err != nil {
		return billing.Subscriber{}, fmt.Errorf("read a subscriber: %w", err)
	}
	return sub, nil
}

// scanSubscriber reads subscriberColumns.
func scanSubscriber(row pgx.Row) (s billing.Subscriber, err error) {
	err = row.Scan(&s.AccountID, (*zeronull.Text)(&s.CustomerID),
		&s.Subscription.ID, &s.Subscription.Status, &s.Subscription.PriceID, &s.Subscription.CancelAtPeriodEnd,
		(*zeronull.Timestamptz)(&s.Subscription.CurrentPeriodEnd), (*zeronull.Timestamptz)(&s.SyncedAt),
		&s.Entitlement.Tier, &s.Entitlement.Status, (*zeronull.Timestamptz)(&s.Entitlement.ValidUntil), &s.Entitlement.Trial,
		&s.Entitlement.Version,
		&s.PushEntitlement, &s.PushCustomer, (*zeronull.Timestamptz)(&s.PushAt), (*zeronull.Timestamptz)(&s.CheckAt))
	s.Subscription.CustomerID = s.CustomerID
	return s, err
}

// AccountOf implements billing.Store.
func (s *Store) AccountOf(ctx context.Context, customerID string) (string, error) {
	return one[string](ctx, s.pool, "find a customer's account", accountOf, customerID)
}

// EventSeen implements billing.Store.
func (s *Store) EventSeen(ctx context.Context, eventID string) (bool, error) {
	return one[bool](ctx, s.pool, "look for an event", eventSeen, eventID)
}

// RecordEvent implements billing.Store.
func (s *Store) RecordEvent(ctx context.Context, eventID string, now time.Time) error {
	return exec(ctx, s.pool, "record an event", recordEvents, []string{eventID}, now)
}

// TakePush implements billing.Store.
func (s *Store) TakePush(ctx context.Context, now, retryAt time.Time) (string, error) {
	return one[string](ctx, s.pool, "take a push", takePush, now, retryAt)
}

// TakeCheck implements billing.Store.
func (s *Store) TakeCheck(ctx context.Context, now, retryAt time.Time) (string, error) {
	return one[string](ctx, s.pool, "take a check", takeCheck, now, retryAt)
}

// TakeDeletion implements billing.Store.
func (s *Store) TakeDeletion(ctx context.Context, now, retryAt time.Time) (string, error) {
	return one[string](ctx, s.pool, "take a deletion", takeDeletion, now, retryAt)
}

// Customers implements billing.Store.
func (s *Store) Customers(ctx context.Context, after string, limit int) ([]billing.Subscriber, error) {
	scan := func(row pgx.CollectableRow) (billing.Subscriber, error) { return scanSubscriber(row) }
	return all(ctx, s.pool, "list customers", scan, customers, after, limit)
}

// Deletions implements billing.Store.
func (s *Store) Deletions(ctx context.Context, after string, since time.Time, limit int) ([]billing.Deletion, error) {
	return all(ctx, s.pool, "list deletions", scanDeletion, deletions, after, since, limit)
}

func scanDeletion(row pgx.CollectableRow) (d billing.Deletion, err error) {
	err = row.Scan(&d.AccountID, (*zeronull.Text)(&d.CustomerID), &d.DeletedAt)
	return d, err
}

// TakeReconciliation implements billing.Store.
func (s *Store) TakeReconciliation(ctx context.Context, now, due time.Time) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, statementTime)
	defer cancel()
	tag, err := s.pool.Exec(ctx, takeReconciliation, now, due)
	if err != nil {
		return false, fmt.Errorf("take a reconciliation: %w", err)
	}
	return tag.RowsAffected() == 1, nil
}

// RetryReconciliation implements billing.Store.
func (s *Store) RetryReconciliation(ctx context.Context, began time.Time) error {
	return exec(ctx, s.pool, "retry a reconciliation", retryReconciliation, began)
}

// sweepRows bounds the rows that one statement of a sweep deletes.
const sweepRows = 1000

// Sweep implements billing.Store.
func (s *Store) Sweep(ctx context.Context, until billing.Retention) (more bool, err error) {
	for _, q := range []struct {
		sql   string
		until time.Time
	}{{sweepEvents, until.Events}, {sweepOperations, until.Operations}, {sweepDeletions, until.Deletions}} {
		ctx, cancel := context.WithTimeout(ctx, statementTime)
		tag, err := s.pool.Exec(ctx, q.sql, q.until, sweepRows)
		cancel()
		if err != nil {
			return false, fmt.Errorf("sweep: %w", err)
		}
		more = more || tag.RowsAffected() >= sweepRows
	}
	return more, nil
}

// InsertDeletion records in tx that an account was deleted, together with its
// customer. It is idempotent.
func (s *Store) InsertDeletion(ctx context.Context, tx pgx.Tx, accountID string, at time.Time) error {
	if _, err := tx.Exec(ctx, insertDeletion, accountID, at); err != nil {
		return fmt.Errorf("insert a deletion: %w", err)
	}
	return nil
}

// one runs a statement that returns one value. It returns ErrNotFound if there is no
// row.
func one[T any](ctx context.Context, on db, what, sql string, args ...any) (v T, err error) {
	ctx, cancel := context.WithTimeout(ctx, statementTime)
	defer cancel()
	err = on.QueryRow(ctx, sql, args...).Scan(&v)
	if errors.Is(err, pgx.ErrNoRows) {
		return v, billing.ErrNotFound
	}
	if err != nil {
		return v, fmt.Errorf("%s: %w", what, err)
	}
	return v, nil
}

// all runs a statement that returns rows.
func all[T any](ctx context.Context, on db, what string, scan pgx.RowToFunc[T], sql string, args ...any) ([]T, error) {
	ctx, cancel := context.WithTimeout(ctx, statementTime)
	defer cancel()
	rows, err := on.Query(ctx, sql, args...)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	list, err := pgx.CollectRows(rows, scan)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	return list, nil
}

// exec runs a statement that returns nothing.
func exec(ctx context.Context, on db, what, sql string, args ...any) error {
	ctx, cancel := context.WithTimeout(ctx, statementTime)
	defer cancel()
	if _, err := on.Exec(ctx, sql, args...); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}
