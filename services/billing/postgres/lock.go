package postgres

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgtype/zeronull"
	"github.com/jackc/pgx/v5/pgxpool"

	"waitlist.internal/libs/pg"
	"waitlist.internal/services/billing"
	"waitlist.internal/services/billing/postgres/db"
)

// Lock implements billing.Store. Within the process, requests for one account queue
// without a connection. Across processes, an advisory lock of the connection excludes
// others. Postgres releases it when the process dies. After the connection breaks,
// the former holder can store nothing, because it writes through that connection.
func (s *Store) Lock(
	ctx context.Context, accountID string, patience time.Duration, fn func(ctx context.Context, l billing.Locked) error,
) error {
	waiting, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if err := s.locks.lock(waiting, accountID); err != nil {
		return err
	}
	defer s.locks.unlock(accountID)
	select {
	case s.slots <- struct{}{}:
	case <-waiting.Done():
		return fmt.Errorf("wait for a slot: %w", billing.ErrBusy)
	}
	defer func() { <-s.slots }()
	conn, err := s.acquire(waiting, accountID)
	if err != nil {
		return err
	}
	defer release(ctx, conn, accountID)
	return fn(ctx, &locked{db: db.New(conn), accountID: accountID})
}

// acquire returns a connection that holds the account's advisory lock.
func (s *Store) acquire(ctx context.Context, accountID string) (*pgxpool.Conn, error) {
	// Do not spend the whole patience on an unreachable database.
	first, cancel := context.WithTimeout(ctx, statementTime)
	defer cancel()
	conn, err := s.sessions.Acquire(first)
	if err != nil {
		return nil, fmt.Errorf("connect for an account's lock: %w", err)
	}
	for {
		attempt, cancel := context.WithTimeout(ctx, statementTime+time.Second)
		err := db.New(conn).LockAccount(attempt, accountID)
		cancel()
		switch {
		case err == nil:
			return conn, nil
		case pg.SQLState(err) == lockNotAvailable && ctx.Err() == nil:
			continue // another process holds the lock
		case ctx.Err() != nil:
			err = billing.ErrBusy
		}
		conn.Release()
		return nil, fmt.Errorf("lock an account: %w", err)
	}
}

// lockNotAvailable is the SQLSTATE of a lock timeout.
const lockNotAvailable = "55P03"

// release releases the lock. If that fails, it closes the connection, which releases
// the lock too.
func release(ctx context.Context, conn *pgxpool.Conn, accountID string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), statementTime)
	defer cancel()
	if err := db.New(conn).UnlockAccount(ctx, accountID); err != nil {
		_ = conn.Conn().Close(ctx)
	}
	conn.Release()
}

// locks are the accounts that this process has locked or waits for.
type locks struct {
	mu   sync.Mutex
	held map[string]*turn
}

// turn is a mutex whose Lock can time out. A value in taken means that it is locked.
type turn struct {
	taken   chan struct{}
	waiting int
}

func (l *locks) lock(ctx context.Context, accountID string) error {
	l.mu.Lock()
	t := l.held[accountID]
	if t == nil {
		t = &turn{taken: make(chan struct{}, 1)}
		l.held[accountID] = t
	}
	t.waiting++
	l.mu.Unlock()
	select {
	case t.taken <- struct{}{}:
		return nil
	case <-ctx.Done():
		l.leave(accountID, t)
		return fmt.Errorf("wait for the account: %w", billing.ErrBusy)
	}
}

func (l *locks) unlock(accountID string) {
	l.mu.Lock()
	t := l.held[accountID]
	l.mu.Unlock()
	<-t.taken
	l.leave(accountID, t)
}

func (l *locks) leave(accountID string, t *turn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if t.waiting--; t.waiting == 0 {
		delete(l.held, accountID)
	}
}

// locked implements billing.Locked on the connection that holds the lock.
type locked struct {
	db        *db.Queries
	accountID string
}

// Subscriber implements billing.Locked.
func (l *locked) Subscriber(ctx context.Context) (billing.Subscriber, error) {
	return subscriberOf(ctx, l.db, l.accountID)
}

// Save implements billing.Locked.
func (l *locked) Save(ctx context.Context, s billing.Subscriber, events, seen []string) error {
	return exec(ctx, "save a subscriber", func(ctx context.Context) error {
		return l.db.SaveSubscriber(ctx, db.SaveSubscriberParams{
			AccountID: l.accountID, CustomerID: zeronull.Text(s.CustomerID), SubscriptionID: s.Subscription.ID,
			SubscriptionStatus: s.Subscription.Status, PriceID: s.Subscription.PriceID, CancelAtPeriodEnd: s.Subscription.CancelAtPeriodEnd,
			CurrentPeriodEnd: zeronull.Timestamptz(s.Subscription.CurrentPeriodEnd), SyncedAt: zeronull.Timestamptz(s.SyncedAt),
			Tier: s.Entitlement.Tier, Status: s.Entitlement.Status, ValidUntil: zeronull.Timestamptz(s.Entitlement.ValidUntil),
			Trial: s.Entitlement.Trial, Version: s.Entitlement.Version, PushEntitlement: s.PushEntitlement, PushCustomer: s.PushCustomer,
			PushAt: zeronull.Timestamptz(s.PushAt), CheckAt: zeronull.Timestamptz(s.CheckAt),
			Events: events, Now: s.SyncedAt, Grave: grave(l.accountID), Seen: seen,
		})
	})
}

// Deletion implements billing.Locked.
func (l *locked) Deletion(ctx context.Context) (billing.Deletion, error) {
	row, err := do(ctx, "read a deletion", func(ctx context.Context) (db.GetDeletionRow, error) {
		return l.db.GetDeletion(ctx, graves(l.accountID))
	})
	return deletion(db.DeletionsRow(row)), err
}

// Seen implements billing.Locked.
func (l *locked) Seen(ctx context.Context, until time.Time) ([]string, error) {
	return do(ctx, "read known subscriptions", func(ctx context.Context) ([]string, error) {
		return l.db.SeenSubscriptions(ctx, graves(l.accountID), until)
	})
}

// HeardOf implements billing.Locked.
func (l *locked) HeardOf(ctx context.Context) (bool, error) {
	return do(ctx, "look for an account", func(ctx context.Context) (bool, error) {
		return l.db.HeardOf(ctx, l.accountID, graves(l.accountID))
	})
}

// EventSeen implements billing.Locked.
func (l *locked) EventSeen(ctx context.Context, eventID string) (bool, error) {
	return do(ctx, "look for an event", func(ctx context.Context) (bool, error) { return l.db.EventSeen(ctx, eventID) })
}

// RecordEvents implements billing.Locked.
func (l *locked) RecordEvents(ctx context.Context, eventIDs []string, now time.Time) error {
	return exec(ctx, "record events", func(ctx context.Context) error { return l.db.RecordEvents(ctx, eventIDs, now) })
}

// Begin implements billing.Locked.
func (l *locked) Begin(ctx context.Context, name, request string, now, oldest time.Time) (int64, error) {
	return do(ctx, "begin an operation", func(ctx context.Context) (int64, error) {
		return l.db.BeginOperation(ctx, db.BeginOperationParams{
			AccountID: l.accountID, Name: name, Wish: request, StartedAt: now, Oldest: oldest,
		})
	})
}

// End implements billing.Locked.
func (l *locked) End(ctx context.Context, name string, now time.Time) error {
	return exec(ctx, "end an operation", func(ctx context.Context) error {
		return l.db.EndOperation(ctx, db.EndOperationParams{AccountID: l.accountID, Name: name, Now: now})
	})
}

// Bury implements billing.Locked.
func (l *locked) Bury(ctx context.Context, customerID string, events []string, now time.Time) error {
	return exec(ctx, "bury a deleted account", func(ctx context.Context) error {
		return l.db.Bury(ctx, db.BuryParams{
			CustomerID: zeronull.Text(customerID), Graves: graves(l.accountID), AccountID: l.accountID, Events: events, Now: now,
		})
	})
}
