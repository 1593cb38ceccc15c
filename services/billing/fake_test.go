package billing_test

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
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
)

func TestMain(m *testing.M) { testenv.Main(m) }

// call is a call that changed something or tried to.
type call struct{ name, key string }

// bank is a payment provider in memory. before and after, if set, may make a call
// fail before or after its effect.
type bank struct {
	mu        sync.Mutex
	now       func() time.Time
	number    int
	customers []billing.Customer
	deleted   map[string]bool
	subs      []billing.Subscription
	sessions  map[string]*billing.Session
	owner     map[string]string // session → customer
	refunded  []string
	keys      map[string]string // key → id that it made
	calls     []call
	declines  bool
	credit    int64 // of every customer
	before    func(name string) error
	after     func(name string) error
	fetches   int
}

func newBank(now func() time.Time) *bank {
	return &bank{
		now: now, deleted: map[string]bool{}, sessions: map[string]*billing.Session{}, owner: map[string]string{},
		keys: map[string]string{},
	}
}

func (b *bank) id(prefix string) string {
	b.number++
	return fmt.Sprintf("%s_%04d", prefix, b.number)
}

// do makes a call that may fail before or after its effect.
func (b *bank) do(name, key string, effect func() error) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if key != "" {
		b.calls = append(b.calls, call{name, key})
	}
	if b.before != nil {
		if err := b.before(name); err != nil {
			return err
		}
	}
	if err := effect(); err != nil {
		return err
	}
	if b.after != nil {
		return b.after(name)
	}
	return nil
}

func missing(name string) error { return &billing.ProviderError{Reason: billing.Missing, Call: name} }

func (b *bank) there(customerID string) bool {
	return !b.deleted[customerID] && slices.ContainsFunc(b.customers, func(c billing.Customer) bool { return c.ID == customerID })
}

func (b *bank) CreateCustomer(_ context.Context, key, accountID, _ string) (id string, err error) {
	err = b.do("customer", key, func() error {
		if id = b.keys[key]; id == "" {
			id = b.id("cus")
			b.keys[key] = id
			b.customers = append(b.customers, billing.Customer{ID: id, AccountID: accountID})
		}
		return nil
	})
	return id, err
}

func (b *bank) Customer(_ context.Context, id string) (c billing.Customer, err error) {
	err = b.do("get customer", "", func() error {
		if !b.there(id) {
			return missing("customer")
		}
		c = b.customers[slices.IndexFunc(b.customers, func(c billing.Customer) bool { return c.ID == id })]
		return nil
	})
	return c, err
}

func (b *bank) DeleteCustomer(_ context.Context, key, id string) error {
	return b.do("forget", key, func() error {
		if !b.there(id) {
			return missing("forget")
		}
		b.deleted[id] = true
		for i := range b.subs {
			if b.subs[i].CustomerID == id {
				b.subs[i].Status = "canceled"
			}
		}
		return nil
	})
}

func (b *bank) Customers(_ context.Context, after string) (page []billing.Customer, more bool, err error) {
	err = b.do("customers", "", func() error {
		i := 0
		if after != "" {
			i = 1 + slices.IndexFunc(b.customers, func(c billing.Customer) bool { return c.ID == after })
		}
		for ; i < len(b.customers) && len(page) < 2; i++ {
			if !b.deleted[b.customers[i].ID] {
				page = append(page, b.customers[i])
			}
		}
		more = i < len(b.customers)
		return nil
	})
	return page, more, err
}

func (b *bank) Subscriptions(_ context.Context, customerID string) (list []billing.Subscription, err error) {
	err = b.do("fetch", "", func() error {
		b.fetches++
		for _, s := range b.subs {
			if s.CustomerID == customerID {
				list = append(list, s)
			}
		}
		return nil
	})
	return list, err
}

func (b *bank) change(name, key, id string, f func(s *billing.Subscription)) error {
	return b.do(name, key, func() error {
		i := slices.IndexFunc(b.subs, func(s billing.Subscription) bool { return s.ID == id })
		if i < 0 || b.subs[i].Status == "canceled" {
			return missing(name)
		}
		if _, again := b.keys[key]; !again {
			b.keys[key] = id
			f(&b.subs[i])
		}
		return nil
	})
}

func (b *bank) ChangePlan(_ context.Context, key string, sub billing.Subscription, priceID string) error {
	if b.declines {
		return b.do("plan", key, func() error { return &billing.ProviderError{Reason: billing.Card, Call: "plan"} })
	}
	return b.change("plan", key, sub.ID, func(s *billing.Subscription) { s.PriceID, s.CancelAtPeriodEnd = priceID, false })
}

func (b *bank) SetCanceling(_ context.Context, key string, sub billing.Subscription, yes bool) error {
	return b.change("canceling", key, sub.ID, func(s *billing.Subscription) { s.CancelAtPeriodEnd = yes })
}

func (b *bank) Cancel(_ context.Context, key, id string) error {
	return b.change("cancel", key, id, func(s *billing.Subscription) { s.Status = "canceled" })
}

func (b *bank) Refund(_ context.Context, key, id string) error {
	return b.do("refund", key, func() error {
		if !slices.Contains(b.refunded, id) {
			b.refunded = append(b.refunded, id)
		}
		return nil
	})
}

func (b *bank) OpenSessions(_ context.Context, customerID string) (list []billing.Session, err error) {
	err = b.do("sessions", "", func() error {
		for id, s := range b.sessions {
			if b.owner[id] == customerID {
				list = append(list, *s)
			}
		}
		slices.SortFunc(list, func(x, y billing.Session) int { return strings.Compare(y.ID, x.ID) })
		return nil
	})
	return list, err
}

func (b *bank) CreateSession(_ context.Context, key string, n billing.NewSession) (s billing.Session, err error) {
	err = b.do("session", key, func() error {
		if !b.there(n.CustomerID) {
			return missing("session")
		}
		id := b.keys[key]
		if id == "" {
			id = b.id("cs")
			b.keys[key] = id
			b.sessions[id] = &billing.Session{ID: id, URL: "https://pay.example/" + id, PriceID: n.PriceID, ExpiresAt: b.now().Add(24 * time.Hour)}
			b.owner[id] = n.CustomerID
		}
		if open := b.sessions[id]; open != nil {
			s = *open
		}
		return nil
	})
	return s, err
}

func (b *bank) ExpireSession(_ context.Context, key, id string) error {
	return b.do("expire", key, func() error {
		if b.sessions[id] == nil {
			return &billing.ProviderError{Reason: billing.Refused, Call: "expire"}
		}
		delete(b.sessions, id)
		return nil
	})
}

func (b *bank) Quote(_ context.Context, sub billing.Subscription, priceID string) (q billing.Quote, err error) {
	err = b.do("quote", "", func() error {
		q = billing.Quote{Amount: amounts[priceID] - amounts[sub.PriceID], Currency: "usd"}
		q.Due = max(0, q.Amount-b.credit)
		return nil
	})
	return q, err
}

var amounts = map[string]int64{"p_bm": 300, "p_by": 3000, "p_am": 1000, "p_ay": 10000, "p_pm": 5000, "p_py": 50000}

func (b *bank) Price(_ context.Context, id string) (p billing.Price, err error) {
	err = b.do("price", "", func() error { p = billing.Price{ID: id, Amount: amounts[id], Currency: "usd"}; return nil })
	return p, err
}

func (b *bank) Invoices(_ context.Context, _ string, limit int) (list []billing.Invoice, err error) {
	err = b.do("invoices", "", func() error {
		list = []billing.Invoice{{ID: "in_1", Amount: 300, Currency: "usd"}}[:min(1, limit)]
		return nil
	})
	return list, err
}

func (b *bank) PaymentMethod(context.Context, string) (*billing.PaymentMethod, error) {
	return &billing.PaymentMethod{Brand: "visa", Last4: "4242"}, nil
}

func (b *bank) Portal(_ context.Context, key, customerID, _ string) (url string, err error) {
	err = b.do("portal", key, func() error {
		if !b.there(customerID) {
			return missing("portal")
		}
		url = "https://portal.example/" + customerID
		return nil
	})
	return url, err
}

// pay completes a checkout, as its page does.
func (b *bank) pay(t *testing.T, url string) billing.Subscription {
	t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	for id, s := range b.sessions {
		if s.URL != url {
			continue
		}
		delete(b.sessions, id)
		return b.subscribe(b.owner[id], s.PriceID)
	}
	t.Fatalf("no open checkout at %s", url)
	return billing.Subscription{}
}

// subscribe starts a subscription. The caller holds the lock.
func (b *bank) subscribe(customerID, priceID string) billing.Subscription {
	now := b.now().Truncate(time.Second)
	sub := billing.Subscription{
		ID: b.id("sub"), CustomerID: customerID, Status: "active", PriceID: priceID, ItemID: "si",
		CreatedAt: now.Add(time.Duration(b.number) * time.Second), CurrentPeriodEnd: now.AddDate(0, 1, 0),
	}
	b.subs = append(b.subs, sub)
	return sub
}

// set changes a subscription at the provider without telling billing.
func (b *bank) set(id string, f func(s *billing.Subscription)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for i := range b.subs {
		if b.subs[i].ID == id {
			f(&b.subs[i])
		}
	}
}

func (b *bank) count(name string) (n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, c := range b.calls {
		if c.name == name {
			n++
		}
	}
	return n
}

func (b *bank) last(name string) string {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, c := range slices.Backward(b.calls) {
		if c.name == name {
			return c.key
		}
	}
	return ""
}

// fail makes one call fail, before or after its effect, until the test calls end.
func (b *bank) fail(name string, after bool, err error) (end func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	hook := func(n string) error {
		if n == name || name == "" {
			return err
		}
		return nil
	}
	if after {
		b.after = hook
	} else {
		b.before = hook
	}
	return func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.before, b.after = nil, nil
	}
}

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
	bank     *bank
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
	e.bank = newBank(e.now)
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
	sub := e.bank.pay(e.t, e.checkout(id, p).URL)
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
