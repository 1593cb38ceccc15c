package postgres

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype/zeronull"
	"github.com/jackc/pgx/v5/pgxpool"

	"waitlist.internal/libs/pg"
	"waitlist.internal/services/billing"
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
	return fn(ctx, &locked{conn: conn, accountID: accountID})
}

// acquire returns a connection that holds the account's advisory lock.
func (s *Store) acquire(ctx context.Context, accountID string) (*pgxpool.Conn, error) {
	// Do not spend the whole patience on an unreachable database.
	first, cancel := context.WithTimeout(ctx, statementTime)
	defer cancel()
	conn, err := s.pool.Acquire(first)
	if err != nil {
		return nil, fmt.Errorf("connect for an account's lock: %w", err)
	}
	for {
		attempt, cancel := context.WithTimeout(ctx, statementTime+time.Second)
		_, err := conn.Exec(attempt, lockAccount, accountID)
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
	if _, err := conn.Exec(ctx, unlockAccount, accountID); err != nil {
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
	conn      *pgxpool.Conn
	accountID string
}

func (l *locked) inTx(ctx context.Context, what string, fn func(ctx context.Context, tx pgx.Tx) error) error {
	ctx, cancel := context.WithTimeout(ctx, statementTime)
	defer cancel()
	err := pgx.BeginFunc(ctx, l.conn, func(tx pgx.Tx) error { return fn(ctx, tx) })
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}

// Subscriber implements billing.Locked.
func (l *locked) Subscriber(ctx context.Context) (billing.Subscriber, error) {
	return subscriberOf(ctx, l.conn, l.accountID)
}

// Save implements billing.Locked.
func (l *locked) Save(ctx context.Context, s billing.Subscriber, events, seen []string) error {
	return l.inTx(ctx, "save a subscriber", func(ctx context.Context, tx pgx.Tx) error {
		var b pgx.Batch
		b.Queue(saveSubscriber, l.accountID, zeronull.Text(s.CustomerID),
			s.Subscription.ID, s.Subscription.Status, s.Subscription.PriceID, s.Subscription.CancelAtPeriodEnd,
			zeronull.Timestamptz(s.Subscription.CurrentPeriodEnd), zeronull.Timestamptz(s.SyncedAt),
			s.Entitlement.Tier, s.Entitlement.Status, zeronull.Timestamptz(s.Entitlement.ValidUntil), s.Entitlement.Trial, s.Entitlement.Version,
			s.PushEntitlement, s.PushCustomer, zeronull.Timestamptz(s.PushAt), zeronull.Timestamptz(s.CheckAt))
		if len(events) > 0 {
			b.Queue(recordEvents, events, s.SyncedAt)
		}
		if len(seen) > 0 {
			b.Queue(saveSeen, l.accountID, seen, s.SyncedAt)
		}
		return tx.SendBatch(ctx, &b).Close()
	})
}

// Deletion implements billing.Locked.
func (l *locked) Deletion(ctx context.Context) (billing.Deletion, error) {
	list, err := all(ctx, l.conn, "read a deletion", scanDeletion, deletion, l.accountID)
	if err == nil && len(list) == 0 {
		return billing.Deletion{}, billing.ErrNotFound
	}
	if err != nil {
		return billing.Deletion{}, err
	}
	return list[0], nil
}

// Seen implements billing.Locked.
func (l *locked) Seen(ctx context.Context, until time.Time) ([]string, error) {
	return all(ctx, l.conn, "read known subscriptions", pgx.RowTo[string], seenSubscriptions, l.accountID, until)
}

// HeardOf implements billing.Locked.
func (l *locked) HeardOf(ctx context.Context) (bool, error) {
	return one[bool](ctx, l.conn, "look for an account", heardOf, l.accountID)
}

// EventSeen implements billing.Locked.
func (l *locked) EventSeen(ctx context.Context, eventID string) (bool, error) {
	return one[bool](ctx, l.conn, "look for an event", eventSeen, eventID)
}

// RecordEvents implements billing.Locked.
func (l *locked) RecordEvents(ctx context.Context, eventIDs []string, now time.Time) error {
	return exec(ctx, l.conn, "record events", recordEvents, eventIDs, now)
}

// Begin implements billing.Locked.
func (l *locked) Begin(ctx context.Context, name, wish string, now, oldest time.Time) (int64, error) {
	return one[int64](ctx, l.conn, "begin an operation", beginOperation, l.accountID, name, wish, now, oldest)
}

// End implements billing.Locked.
func (l *locked) End(ctx context.Context, name string, now time.Time) error {
	return exec(ctx, l.conn, "end an operation", endOperation, l.accountID, name, now)
}

// Bury implements billing.Locked.
func (l *locked) Bury(ctx context.Context, customerID string, events []string, now time.Time) error {
	return l.inTx(ctx, "bury a deleted account", func(ctx context.Context, tx pgx.Tx) error {
		var b pgx.Batch
		b.Queue(deleteSubscriber, l.accountID)
		b.Queue(deleteOperations, l.accountID)
		b.Queue(endDeletion, l.accountID, zeronull.Text(customerID))
		if len(events) > 0 {
			b.Queue(recordEvents, events, now)
		}
		return tx.SendBatch(ctx, &b).Close()
	})
}
