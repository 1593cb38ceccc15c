// Package billing is the domain of paid subscriptions. It fetches subscriptions
// from the payment provider, derives entitlements and pushes them to account.
//
//	sync.go        fetch subscriptions → entitlement → push to account
//	checkout.go    subscribing and changing the plan
//	cancel.go      canceling a subscription or a trial
//	trial.go       starting the single trial
//	preview.go     the cost of a change
//	info.go        invoices, the payment method, the provider's portal
//	event.go       webhook events, each of which triggers a sync
//	operation.go   provider calls with an effect, each made once
//	deletion.go    deleted accounts
//	reconcile.go   comparing all accounts with the provider
//	worker.go      background work
//	prices.go money.go   plans, prices, amounts
//	provider.go    the Provider interface and its errors
//
// One Postgres lock per account serializes all changes to its subscription across
// replicas. The holder of the lock fetches first and then decides.
//
//	request ─┐                 ┌─ fetch subscriptions ── provider
//	event ───┼─ lock(account) ─┼─ decide → entitlement, version + 1 ── Postgres
//	worker ──┘                 └─ SetEntitlement ── account (retried if away)
//
// A crash at any point leaves the provider's state intact, and the next sync of the
// account reads it. Every push to account is in Postgres before it is made.
package billing

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"waitlist.internal/libs/access"
	"waitlist.internal/libs/apierr"
)

// Name is the service's name in identities, logs and metrics, and the name of its
// schema and consumer group.
const Name = "billing"

const (
	// lockPatience bounds the wait for an account's lock.
	lockPatience = 10 * time.Second
	// workTime bounds the work under the lock, which makes several provider calls.
	workTime = 20 * time.Second
	// pushLease keeps the worker from repeating a push that a request is making.
	pushLease = 10 * time.Second
)

// Subscriber is the stored state of one account.
type Subscriber struct {
	AccountID string
	// CustomerID is the account's customer at the provider; empty if there is none.
	CustomerID string
	// Subscription is the subscription that counts, as last fetched. Its ID is empty
	// if there is none.
	Subscription Subscription
	SyncedAt     time.Time
	// Entitlement is the last one decided here. Its version is 0 if there is none.
	Entitlement access.Entitlement
	// PushEntitlement and PushCustomer are set while account does not have the
	// value yet. A worker pushes them at PushAt.
	PushEntitlement, PushCustomer bool
	PushAt                        time.Time
	// CheckAt is when a worker syncs the account without an event; zero for never.
	CheckAt time.Time
}

// Deletion is a deleted account.
type Deletion struct {
	// AccountID is a hash of the account's id once the deletion is complete. Lock and
	// operations accept the hash too.
	AccountID, CustomerID string
	DeletedAt             time.Time
}

// Locked accesses the rows of an account whose lock is held. Each method is one
// short transaction.
type Locked interface {
	// Subscriber returns the account's row, or only the account's id if there is none.
	Subscriber(ctx context.Context) (Subscriber, error)
	// Save stores sub and the ids of processed events and of fetched subscriptions.
	Save(ctx context.Context, sub Subscriber, events, seen []string) error
	// Deletion returns ErrNotFound if the account is not deleted.
	Deletion(ctx context.Context) (Deletion, error)
	// Seen returns the ids of subscriptions that Save first stored at or before until.
	Seen(ctx context.Context, until time.Time) ([]string, error)
	// EventSeen reports whether an event was processed.
	EventSeen(ctx context.Context, eventID string) (bool, error)
	// RecordEvents marks events as processed.
	RecordEvents(ctx context.Context, eventIDs []string, now time.Time) error
	// Begin records an operation before its provider call and returns its epoch: the
	// previous attempt's if that had the same request, began after oldest and has an
	// unknown outcome, else a new one.
	Begin(ctx context.Context, name, request string, now, oldest time.Time) (epoch int64, err error)
	// End records that the outcome of an operation is known.
	End(ctx context.Context, name string, now time.Time) error
	// HeardOf reports whether the account has any row.
	HeardOf(ctx context.Context) (bool, error)
	// Bury completes a deletion: it deletes every row of the account except the
	// deletion, the customer's id and the processed events.
	Bury(ctx context.Context, customerID string, events []string, now time.Time) error
}

var (
	// ErrNotFound means that the Store has no such row.
	ErrNotFound = errors.New("billing: not found")
	// ErrBusy means that the wait for an account's lock took too long.
	ErrBusy = errors.New("billing: account is busy")
)

// Store persists subscribers. Each statement uses an index.
type Store interface {
	// Lock runs fn while it holds the account's lock, which excludes all other
	// processes. It returns ErrBusy after waiting for patience.
	Lock(ctx context.Context, accountID string, patience time.Duration, fn func(ctx context.Context, l Locked) error) error
	// Subscriber reads without the lock. It returns only the account's id if there is
	// no row.
	Subscriber(ctx context.Context, accountID string) (Subscriber, error)
	// AccountOf returns the account that has or, if deleted, had a customer. It
	// returns ErrNotFound for unknown customers.
	AccountOf(ctx context.Context, customerID string) (accountID string, err error)
	// EventSeen and RecordEvent need no lock: an event's account may not be known yet, or not exist.
	EventSeen(ctx context.Context, eventID string) (bool, error)
	RecordEvent(ctx context.Context, eventID string, now time.Time) error

	// TakePush, TakeCheck and TakeDeletion claim due work until retryAt. They return
	// ErrNotFound if nothing is due.
	TakePush(ctx context.Context, now, retryAt time.Time) (accountID string, err error)
	TakeCheck(ctx context.Context, now, retryAt time.Time) (accountID string, err error)
	TakeDeletion(ctx context.Context, now, retryAt time.Time) (accountID string, err error)
	// Customers returns a page of the accounts with a customer, in order of id.
	Customers(ctx context.Context, after string, limit int) ([]Subscriber, error)
	// Deletions returns a page of the complete deletions of accounts deleted after
	// since, in order of id.
	Deletions(ctx context.Context, after string, since time.Time, limit int) ([]Deletion, error)
	// TakeReconciliation claims a run if the last one began at or before due.
	TakeReconciliation(ctx context.Context, now, due time.Time) (bool, error)
	// RetryReconciliation sets the start of the last run, so that the next one is due earlier.
	RetryReconciliation(ctx context.Context, began time.Time) error
	// Sweep deletes a bounded number of outdated rows and reports whether more may
	// remain.
	Sweep(ctx context.Context, until Retention) (more bool, err error)
}

// Accounts is the service that holds entitlements.
type Accounts interface {
	// SetEntitlement stores e if its version is higher than the stored one. It
	// returns the entitlement in force afterwards.
	SetEntitlement(ctx context.Context, accountID string, e access.Entitlement) (access.Entitlement, error)
	// SetPaymentCustomer stores an account's customer at the provider.
	SetPaymentCustomer(ctx context.Context, accountID, customerID string) error
	// StartTrial returns CONFLICT if the trial was used or an entitlement is in
	// force.
	StartTrial(ctx context.Context, accountID string) (access.Entitlement, error)
}

// URLs are the addresses to which the provider's pages return.
type URLs struct{ Success, Cancel, Portal string }

// Config configures a Billing.
type Config struct {
	Store    Store
	Accounts Accounts
	Provider Provider
	Prices   Prices
	URLs     URLs
	// ReconcileEvery is the interval of reconciliations. ReconcileRate bounds the
	// accounts compared per second.
	ReconcileEvery time.Duration
	ReconcileRate  float64
	Log            *slog.Logger
	// Now is the clock.
	Now func() time.Time
}

// Billing implements the use cases. It is safe for concurrent use.
type Billing struct{ Config }

// New returns a Billing.
func New(cfg Config) *Billing { return &Billing{cfg} }

// now returns the time in UTC, truncated to milliseconds.
func (b *Billing) now() time.Time { return b.Now().UTC().Truncate(time.Millisecond) }

// withActiveAccount runs fn with the lock and the row of an account that is not deleted. It
// continues if the caller hangs up, because the caller may already have paid.
func (b *Billing) withActiveAccount(
	ctx context.Context, accountID string, fn func(ctx context.Context, l Locked, sub *Subscriber) error,
) error {
	return b.withAccountLock(ctx, accountID, func(ctx context.Context, l Locked) error {
		switch _, err := l.Deletion(ctx); {
		case err == nil:
			return errGone
		case !errors.Is(err, ErrNotFound):
			return err
		}
		sub, err := l.Subscriber(ctx)
		if err != nil {
			return err
		}
		return fn(ctx, l, &sub)
	})
}

// errGone means that the account was deleted after the caller was authenticated.
var errGone = apierr.New(apierr.AuthenticationRequired, "Credentials are missing or invalid.")

// withAccountLock runs fn with the lock of an account that may be deleted.
func (b *Billing) withAccountLock(ctx context.Context, accountID string, fn func(ctx context.Context, l Locked) error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lockPatience+workTime)
	defer cancel()
	return b.Store.Lock(ctx, accountID, lockPatience, func(ctx context.Context, l Locked) error {
		ctx, cancel := context.WithTimeout(ctx, workTime)
		defer cancel()
		return fn(ctx, l)
	})
}

// present returns the entitlement in force: the newer of the one that account
// returned when it authorized the caller and the one last decided here.
func (b *Billing) present(actor access.Actor, sub Subscriber) access.Entitlement {
	e := sub.Entitlement
	if g, ok := actor.Grant(actor.AccountID); ok && g.Entitlement.Version > e.Version {
		e = g.Entitlement
	}
	return e.At(b.now())
}
