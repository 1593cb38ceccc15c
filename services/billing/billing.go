// Package billing is the domain of paid subscriptions. The payment provider
// knows what was paid; this package fetches that and makes account say so.
//
//	sync.go        what the provider says → the account's entitlement, pushed to account
//	checkout.go    subscribing, and changing the plan
//	cancel.go      ending a subscription or a trial
//	trial.go       starting the one trial
//	preview.go     what a change would cost
//	info.go        invoices, the payment method, the provider's portal
//	event.go       the provider's events, each of which only asks for a sync
//	operation.go   calls that change something there, each once
//	deletion.go    the end of an account
//	reconcile.go   comparing everybody with the provider
//	worker.go      what is done without a request
//	prices.go money.go   plans, prices, amounts
//	provider.go    what the package needs of the provider, and its errors
//
// One lock per account, held in Postgres, orders all that changes an account's
// subscription, over all replicas. Whoever has it first fetches, then decides.
//
//	request ─┐                 ┌─ fetch subscriptions ── provider
//	event ───┼─ lock(account) ─┼─ decide → entitlement, version + 1 ── Postgres
//	worker ──┘                 └─ SetEntitlement ── account (again later if away)
//
// A crash at any point leaves the provider's state as it is; the next sync of the
// account finds it. What was to be told to account is in Postgres before.
package billing

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"waitlist.internal/libs/access"
	"waitlist.internal/libs/apierr"
)

// Service is the service's name: in routes, identities, logs and metrics.
const Service = "billing"

const (
	// lockPatience bounds the wait for an account's lock.
	lockPatience = 10 * time.Second
	// workTime bounds what is done under it: several calls of the provider.
	workTime = 20 * time.Second
	// pushLease keeps the worker away from what a request is just telling account.
	pushLease = 10 * time.Second
)

// Subscriber is what is kept of one account.
type Subscriber struct {
	AccountID string
	// CustomerID is who the account is at the provider; empty: nobody yet.
	CustomerID string
	// Subscription is the one that counts, as last fetched; without ID: none.
	Subscription Subscription
	SyncedAt     time.Time
	// Entitlement is the one last decided here; version 0: none was.
	Entitlement access.Entitlement
	// PushEntitlement and PushCustomer say what account is still to be told,
	// PushAt when a worker tries it next.
	PushEntitlement, PushCustomer bool
	PushAt                        time.Time
	// CheckAt is when to look at the provider without being told to; zero: never.
	CheckAt time.Time
}

// Deletion is an account that was deleted.
type Deletion struct {
	// AccountID is a hash of the account's id when the work is done. Either names the
	// account to Lock and in operations.
	AccountID, CustomerID string
	DeletedAt             time.Time
}

// Locked is an account's rows while nobody else works on the account. Each method
// is one short transaction.
type Locked interface {
	// Subscriber returns the account's row, an empty one where there is none.
	Subscriber(ctx context.Context) (Subscriber, error)
	// Save stores it, together with ids of events that had their effect, and of
	// subscriptions that were seen.
	Save(ctx context.Context, sub Subscriber, events, seen []string) error
	// Deletion returns ErrNotFound while the account lives.
	Deletion(ctx context.Context) (Deletion, error)
	// Seen returns the ids of subscriptions that were first saved as seen until then.
	Seen(ctx context.Context, until time.Time) ([]string, error)
	// EventSeen reports whether an event had its effect.
	EventSeen(ctx context.Context, eventID string) (bool, error)
	// RecordEvents notes events that have none.
	RecordEvents(ctx context.Context, eventIDs []string, now time.Time) error
	// Begin writes down that a call is about to be made, and returns its epoch. It
	// is that of the last one as long as nobody knows what became of that: same
	// wish, begun after oldest.
	Begin(ctx context.Context, name, wish string, now, oldest time.Time) (epoch int64, err error)
	// End says that the outcome is known.
	End(ctx context.Context, name string, now time.Time) error
	// HeardOf reports whether the account has any row here.
	HeardOf(ctx context.Context) (bool, error)
	// Bury removes all of a deleted account but the deletion, which is then done.
	// It keeps the customer's id and events that had their effect.
	Bury(ctx context.Context, customerID string, events []string, now time.Time) error
}

var (
	// ErrNotFound is what a Store answers where there is no such row.
	ErrNotFound = errors.New("billing: not found")
	// ErrBusy is what it answers to who waited too long for an account's turn.
	ErrBusy = errors.New("billing: too much is under way")
)

// Store keeps subscribers. Each statement finds its rows by an index.
type Store interface {
	// Lock runs fn while nobody else, in any process, works on the account. It
	// waits for its turn as long as patience; then it is ErrBusy.
	Lock(ctx context.Context, accountID string, patience time.Duration, fn func(ctx context.Context, l Locked) error) error
	// Subscriber reads without the lock; an empty one where there is none.
	Subscriber(ctx context.Context, accountID string) (Subscriber, error)
	// AccountOf returns whose customer this is or, deleted, was; else ErrNotFound.
	AccountOf(ctx context.Context, customerID string) (accountID string, err error)
	// EventSeen and RecordEvent are for events that concern nobody.
	EventSeen(ctx context.Context, eventID string) (bool, error)
	RecordEvent(ctx context.Context, eventID string, now time.Time) error

	// TakePush, TakeCheck and TakeDeletion claim what is due, until retryAt.
	// ErrNotFound: nothing is.
	TakePush(ctx context.Context, now, retryAt time.Time) (accountID string, err error)
	TakeCheck(ctx context.Context, now, retryAt time.Time) (accountID string, err error)
	TakeDeletion(ctx context.Context, now, retryAt time.Time) (accountID string, err error)
	// Customers returns accounts with a customer after an id, in order of id.
	Customers(ctx context.Context, after string, limit int) ([]Subscriber, error)
	// Deletions returns accounts deleted after since whose work is done, in order of
	// id after an id.
	Deletions(ctx context.Context, after string, since time.Time, limit int) ([]Deletion, error)
	// TakeReconciliation claims the next run where the last began before due.
	TakeReconciliation(ctx context.Context, now, due time.Time) (bool, error)
	// RetryReconciliation has the next run be due at that time.
	RetryReconciliation(ctx context.Context, at time.Time, every time.Duration) error
	// Sweep deletes what is too old to matter, a bounded number of rows, and reports
	// whether there may be more.
	Sweep(ctx context.Context, now time.Time) (more bool, err error)
}

// Accounts is the service that everybody asks what an account may use.
type Accounts interface {
	// SetEntitlement stores e if its version is above the stored one and returns
	// what is in force afterwards.
	SetEntitlement(ctx context.Context, accountID string, e access.Entitlement) (access.Entitlement, error)
	// SetPaymentCustomer stores who the account is at the provider.
	SetPaymentCustomer(ctx context.Context, accountID, customerID string) error
	// StartTrial is CONFLICT where the trial was used or something is in force.
	StartTrial(ctx context.Context, accountID string) (access.Entitlement, error)
}

// URLs are where the provider's pages lead back to.
type URLs struct{ Success, Cancel, Portal string }

// Config is what a Billing is made of.
type Config struct {
	Store    Store
	Accounts Accounts
	Provider Provider
	Prices   Prices
	URLs     URLs
	// ReconcileEvery is the pause between two comparisons with the provider,
	// ReconcileRate how many accounts it looks at in a second.
	ReconcileEvery time.Duration
	ReconcileRate  float64
	Log            *slog.Logger
	// Now is the clock.
	Now func() time.Time
}

// Billing is every use case. It is safe for concurrent use.
type Billing struct{ Config }

// New returns a Billing.
func New(cfg Config) *Billing { return &Billing{cfg} }

// now is the clock in UTC.
func (b *Billing) now() time.Time { return b.Now().UTC().Truncate(time.Millisecond) }

// locked runs fn for an account that lives, with its row. What is begun is
// finished when the caller hangs up: it may have been paid by then.
func (b *Billing) locked(ctx context.Context, accountID string, fn func(ctx context.Context, l Locked, sub *Subscriber) error) error {
	return b.alone(ctx, accountID, func(ctx context.Context, l Locked) error {
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

// errGone: the account was deleted since the caller was authenticated.
var errGone = apierr.New(apierr.AuthenticationRequired, "Credentials are missing or invalid.")

// alone runs fn for an account that may have been deleted.
func (b *Billing) alone(ctx context.Context, accountID string, fn func(ctx context.Context, l Locked) error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lockPatience+workTime)
	defer cancel()
	return b.Store.Lock(ctx, accountID, lockPatience, func(ctx context.Context, l Locked) error {
		ctx, cancel := context.WithTimeout(ctx, workTime)
		defer cancel()
		return fn(ctx, l)
	})
}

// present is the entitlement in force: the newer of what account said when it
// authorized the caller, and what was decided here since.
func (b *Billing) present(actor access.Actor, sub Subscriber) access.Entitlement {
	e := sub.Entitlement
	if g, ok := actor.Grant(actor.AccountID); ok && g.Entitlement.Version > e.Version {
		e = g.Entitlement
	}
	return e.At(b.now())
}
