package billing_test

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"waitlist.internal/libs/access"
	"waitlist.internal/libs/apierr"
	"waitlist.internal/libs/pg"
	"waitlist.internal/libs/testenv"
	"waitlist.internal/services/billing"
	"waitlist.internal/services/billing/postgres"
	"waitlist.internal/services/billing/providertest"
)

func TestMain(m *testing.M) { testenv.Main(m) }

func away(answered bool) error {
	return &billing.ProviderError{Reason: billing.Away, Answered: answered, Call: "x"}
}

// accounts is a fake of the account service.
type accounts struct {
	mu       sync.Mutex
	now      func() time.Time
	has      map[string]access.Entitlement
	history  map[string][]access.Status
	customer map[string]string
	usedUp   map[string]bool
	away     bool
	pushes   int
}

func (a *accounts) SetEntitlement(_ context.Context, id string, e access.Entitlement) (access.Entitlement, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.away {
		return access.Entitlement{}, context.DeadlineExceeded
	}
	had, ok := a.has[id]
	if !ok {
		return access.Entitlement{}, apierr.NotFoundf("There is no such account.")
	}
	a.pushes++
	if e.Version <= had.Version {
		return had, nil
	}
	a.has[id], a.history[id] = e, append(a.history[id], e.Status)
	return e, nil
}

func (a *accounts) SetPaymentCustomer(_ context.Context, id, customer string) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.away {
		return context.DeadlineExceeded
	}
	if _, ok := a.has[id]; !ok {
		return apierr.NotFoundf("There is no such account.")
	}
	a.customer[id] = customer
	return nil
}

func (a *accounts) StartTrial(_ context.Context, id string) (access.Entitlement, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	had := a.has[id]
	if a.usedUp[id] || had.At(a.now()).Status != access.Inactive {
		return access.Entitlement{}, apierr.New(apierr.Conflict, "no")
	}
	a.usedUp[id] = true
	e := access.Entitlement{
		Tier: access.Pro, Status: access.Trialing, Trial: true, ValidUntil: a.now().AddDate(0, 0, 7),
		Version: had.Version + 1,
	}
	a.has[id] = e
	return e, nil
}

const (
	ann = "0197f0c4-6d0e-7cc1-a2a3-00000000000a"
	bob = "0197f0c4-6d0e-7cc1-a2a3-00000000000b"
)

// env is billing with one or two replicas and their own database.
type env struct {
	t        *testing.T
	pool     *pgxpool.Pool
	store    *postgres.Store
	bank     *providertest.Provider
	accounts *accounts
	svc      *billing.Billing
	other    *billing.Billing
	mu       sync.Mutex
	clock    time.Time
	events   int
}

func newEnv(t *testing.T) *env {
	t.Helper()
	e := &env{t: t, pool: testenv.Migrated(t, billing.Name, 12, postgres.Migrations), clock: time.Now().UTC().Truncate(time.Millisecond)}
	e.store = postgres.New(e.pool, e.pool, 4)
	e.bank = providertest.New(e.now)
	e.accounts = &accounts{
		now: e.now, has: map[string]access.Entitlement{}, history: map[string][]access.Status{}, customer: map[string]string{},
		usedUp: map[string]bool{},
	}
	prices, err := billing.ParsePrices([]string{
		"basic.monthly=p_bm", "basic.yearly=p_by", "advanced.monthly=p_am", "advanced.yearly=p_ay", "pro.monthly=p_pm",
		"pro.yearly=p_py", "pro.monthly=p_old",
	})
	if err != nil {
		t.Fatal(err)
	}
	cfg := billing.Config{
		Store: e.store, Accounts: e.accounts, Provider: e.bank, Prices: prices, ReconcileEvery: time.Hour, ReconcileRate: 1000,
		Log: slog.New(slog.NewTextHandler(t.Output(), nil)), Now: e.now,
	}
	e.svc = billing.New(cfg)
	cfg.Store = postgres.New(e.pool, e.pool, 4)
	e.other = billing.New(cfg)
	e.account(ann, access.Trialing)
	e.account(bob, access.Inactive)
	return e
}

func (e *env) now() time.Time {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.clock
}

func (e *env) pass(d time.Duration) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.clock = e.clock.Add(d)
}

// account creates an account during or after its trial.
func (e *env) account(id string, status access.Status) {
	ends := e.now().AddDate(0, 0, 7)
	if status == access.Inactive {
		ends = e.now().AddDate(0, 0, -1)
	}
	e.accounts.has[id] = access.Entitlement{Tier: access.Pro, Status: access.Trialing, Trial: true, ValidUntil: ends, Version: 1}
	e.accounts.usedUp[id] = true
}

// actor returns an account's actor as the account service authorizes it now.
func (e *env) actor(id string) access.Actor {
	e.accounts.mu.Lock()
	defer e.accounts.mu.Unlock()
	return access.Actor{AccountID: id, Email: "x@example.com", Grants: []access.Grant{{
		OwnerID: id, Role: access.Owner,
		Entitlement: e.accounts.has[id],
	}}}
}

func plan(tier access.Tier) billing.Plan { return billing.Plan{Tier: tier, Interval: billing.Monthly} }

func (e *env) checkout(id string, p billing.Plan) billing.Checkout {
	e.t.Helper()
	out, err := e.svc.Checkout(e.t.Context(), e.actor(id), p)
	if err != nil {
		e.t.Fatal(err)
	}
	return out
}

// event delivers a new event about a customer.
func (e *env) event(customerID string) {
	e.t.Helper()
	e.events++
	if err := e.svc.Take(e.t.Context(), billing.Event{ID: fmt.Sprintf("evt_%d", e.events), CustomerID: customerID}); err != nil {
		e.t.Fatal(err)
	}
}

// subscribed pays for a plan and delivers the provider's event.
func (e *env) subscribed(id string, p billing.Plan) billing.Subscription {
	e.t.Helper()
	sub := e.bank.Pay(e.t, e.checkout(id, p).URL)
	e.event(sub.CustomerID)
	e.want(id, p.Tier, access.Active)
	return sub
}

// want checks the account's current entitlement.
func (e *env) want(id string, tier access.Tier, status access.Status) {
	e.t.Helper()
	e.accounts.mu.Lock()
	defer e.accounts.mu.Unlock()
	if got := e.accounts.has[id].At(e.now()); got.Tier != tier || got.Status != status {
		e.t.Fatalf("%s %s, want %s %s", got.Tier, got.Status, tier, status)
	}
}

func (e *env) wantCode(err error, code apierr.Code) {
	e.t.Helper()
	if !apierr.Is(err, code) {
		e.t.Fatalf("%v, want %s", err, code)
	}
}

// run runs a worker until done returns true.
func (e *env) run(worker func(context.Context) error, done func() bool) {
	e.t.Helper()
	ctx, stop := context.WithCancel(e.t.Context())
	ended := make(chan error, 1)
	go func() { ended <- worker(ctx) }()
	for deadline := time.Now().Add(time.Minute); !done(); {
		if time.Now().After(deadline) {
			stop()
			e.t.Fatal("the worker did not finish in time")
		}
	}
	stop()
	if err := <-ended; err != nil {
		e.t.Error(err)
	}
}

// lastKey returns the idempotency key of the last call of a name.
func (e *env) lastKey(name string) string {
	keys := e.bank.Keys(name)
	return keys[len(keys)-1]
}

func (e *env) count(sql string, args ...any) (n int) {
	e.t.Helper()
	if err := e.pool.QueryRow(e.t.Context(), sql, args...).Scan(&n); err != nil {
		e.t.Fatal(err)
	}
	return n
}

// remove delivers the deletion of an account.
func (e *env) remove(id string) {
	e.t.Helper()
	e.removeAt(id, e.now())
}

// removeAt is remove with the time of the deletion.
func (e *env) removeAt(id string, at time.Time) {
	e.t.Helper()
	e.accounts.mu.Lock()
	delete(e.accounts.has, id)
	e.accounts.mu.Unlock()
	if err := pg.InTx(e.t.Context(), e.pool, func(tx pgx.Tx) error { return e.store.InsertDeletion(e.t.Context(), tx, id, at) }); err != nil {
		e.t.Fatal(err)
	}
}
