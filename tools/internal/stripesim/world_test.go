package stripesim_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"waitlist.internal/libs/access"
	"waitlist.internal/libs/httpapi"
	"waitlist.internal/libs/pg"
	"waitlist.internal/libs/testenv"
	"waitlist.internal/services/billing"
	billinggrpc "waitlist.internal/services/billing/grpc"
	billinghttp "waitlist.internal/services/billing/http"
	billingpostgres "waitlist.internal/services/billing/postgres"
	billingstripe "waitlist.internal/services/billing/stripe"
	"waitlist.internal/tools/internal/stripesim"
)

// world is billing with its database, the simulator and account, on the test's clock. One goroutine drives it, so that the
// seed repeats everything.
type world struct {
	*testing.T
	random   *rand.Rand
	sim      *sim
	pool     *pgxpool.Pool
	store    *billingpostgres.Store
	accounts *accounts
	worker   *billing.Billing // its workers stop when nothing is due
	stores   *stepStore
	engine   http.Handler
	people   []*person
	// strict: what account is told must be what the provider has at this moment.
	strict bool
	// faulty: the current step may fail because of injected faults.
	faulty bool
	// lossy: events may be lost.
	lossy    bool
	happened map[string]int
	log      []string
}

// person is an account and its owner.
type person struct {
	id        string
	pages     []string // checkouts that the owner was sent to
	portals   []string
	trialOver bool // ended by a checkout or a cancellation
	deletedAt time.Time
	buried    bool            // billing has heard of the deletion
	seen      map[string]bool // subscriptions that billing reported to account
}

// stepStore is a store that stops billing's workers when nothing is due.
type stepStore struct {
	billing.Store
	stop context.CancelFunc
}

func (s *stepStore) take(id string, err error) (string, error) {
	if errors.Is(err, billing.ErrNotFound) {
		s.stop()
	}
	return id, err
}

func (s *stepStore) TakePush(ctx context.Context, now, retry time.Time) (string, error) {
	return s.take(s.Store.TakePush(ctx, now, retry))
}

func (s *stepStore) TakeCheck(ctx context.Context, now, retry time.Time) (string, error) {
	return s.take(s.Store.TakeCheck(ctx, now, retry))
}

func (s *stepStore) TakeDeletion(ctx context.Context, now, retry time.Time) (string, error) {
	return s.take(s.Store.TakeDeletion(ctx, now, retry))
}

var priceList = []string{
	"basic.monthly=price_basic_monthly", "basic.yearly=price_basic_yearly",
	"advanced.monthly=price_advanced_monthly", "advanced.yearly=price_advanced_yearly",
	"pro.monthly=price_pro_monthly", "pro.yearly=price_pro_yearly",
}

// asked lists the event types that billing subscribes to.
var asked = []string{
	"checkout.session.completed", "customer.created", "customer.deleted", "customer.subscription.created",
	"customer.subscription.updated", "customer.subscription.deleted", "invoice.paid", "invoice.payment_failed",
}

func newWorld(t *testing.T, seed uint64, people int) *world {
	t.Helper()
	w := &world{T: t, random: rand.New(rand.NewPCG(seed, 0)), strict: true, happened: map[string]int{}}
	var serve http.Handler
	hook := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) { serve.ServeHTTP(rw, r) }))
	t.Cleanup(hook.Close)
	ids := 0
	w.sim = start(t, func(c *stripesim.Config) {
		c.WebhookURL, c.SignedAt = hook.URL+"/v1/billing/webhook", time.Now
		c.WebhookEvents = asked
		c.ID = func(prefix string) string { ids++; return fmt.Sprintf("%s%d", prefix, ids) } // safe: one goroutine at a time
	})
	w.sim.SetChaos(stripesim.Chaos{Hold: true})
	w.accounts = newAccounts(w.sim.clock.now)
	w.accounts.shown = w.judge
	url := testenv.PostgresFrom(t, billing.Name, func(ctx context.Context, url string) error {
		files, err := billingpostgres.Migrations()
		if err != nil {
			return err
		}
		pool, err := pg.Open(ctx, url, billing.Name, 2)
		if err != nil {
			return err
		}
		defer pool.Close()
		return pg.Migrate(ctx, pool, billing.Name, files, slog.New(slog.DiscardHandler))
	})
	var err error
	if w.pool, err = pg.Open(t.Context(), url, billing.Name, 6); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.pool.Close)
	w.store = billingpostgres.New(w.pool, w.pool, 2)
	log := slog.New(slog.DiscardHandler)
	provider, err := billingstripe.New(billingstripe.Config{SecretKey: "sk_test_1", URL: w.sim.url, Timeout: 5 * time.Second, Log: log})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(provider.Close)
	prices, err := billing.ParsePrices(priceList)
	if err != nil {
		t.Fatal(err)
	}
	webhook, err := billingstripe.NewWebhook([]string{secret})
	if err != nil {
		t.Fatal(err)
	}
	cfg := billing.Config{
		Store: w.store, Accounts: billinggrpc.Accounts{Client: near{accounts: w.accounts}}, Provider: provider, Prices: prices,
		URLs:           billing.URLs{Success: "https://example.com/ok", Cancel: "https://example.com/no", Portal: "https://example.com/me"},
		ReconcileEvery: 24 * time.Hour, ReconcileRate: 1e6, Log: log, Now: w.sim.clock.now,
	}
	engine, err := httpapi.NewEngine(httpapi.Config{Log: log, Timeout: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	billinghttp.Routes(engine, billing.New(cfg), near{accounts: w.accounts}, webhook)
	serve, w.engine = engine, engine
	w.stores = &stepStore{Store: w.store}
	cfg.Store = w.stores
	w.worker = billing.New(cfg)
	for i := range people {
		p := &person{id: uuid.NewSHA1(uuid.Nil, fmt.Appendf(nil, "%d/%d", seed, i)).String(), seen: map[string]bool{}}
		e := access.Entitlement{
			Tier: access.Pro, Status: access.Trialing, ValidUntil: w.now().Add(7 * 24 * time.Hour), Trial: true, Version: 1,
		}
		switch w.random.IntN(3) {
		case 0: // newly registered, in the trial
			w.accounts.add(p.id, e, true)
		case 1: // the trial has run out
			e.ValidUntil = w.now().Add(-time.Hour)
			w.accounts.add(p.id, e, true)
		case 2: // may still start a trial
			w.accounts.add(p.id, access.Entitlement{Tier: access.Basic, Status: access.Inactive, Version: 1}, false)
		}
		w.people = append(w.people, p)
	}
	return w
}

func (w *world) now() time.Time { return w.sim.clock.now() }

// note records what happened, to help explain a failure.
func (w *world) note(format string, args ...any) {
	w.log = append(w.log, w.now().Format("01-02 15:04:05 ")+fmt.Sprintf(format, args...))
}

// call sends a request to billing.
func (w *world) call(p *person, method, path, body string) (int, map[string]any) {
	r := httptest.NewRequest(method, "/v1/billing"+path, bytes.NewReader([]byte(body)))
	r.Header.Set("X-Api-Key", p.id)
	rec := httptest.NewRecorder()
	w.engine.ServeHTTP(rec, r)
	out := map[string]any{}
	if err := json.Unmarshal(rec.Body.Bytes(), &out); err != nil {
		w.Errorf("%s: %d %s", path, rec.Code, rec.Body)
	}
	w.note("%s: %s %s → %d %s", p.id[:4], path, body, rec.Code, strings.TrimSpace(rec.Body.String()))
	return rec.Code, out
}

// subscriptions returns the present state of all subscriptions that an account ever had.
func (w *world) subscriptions(id string) []stripesim.State {
	var out []stripesim.State
	for _, c := range w.sim.Find("account_id", id) {
		out = append(out, w.sim.Current(c)...)
	}
	return out
}

// entitling reports whether a state entitles to anything, following the API's table of states.
func entitling(s stripesim.State) bool {
	return slices.Contains([]string{"active", "past_due", "trialing"}, s.Status)
}

// live returns the subscriptions of an account that entitle to something.
func (w *world) live(id string) []stripesim.State {
	return slices.DeleteFunc(w.subscriptions(id), func(s stripesim.State) bool { return !entitling(s) })
}

func tierOf(price string) access.Tier { return access.Tier(strings.Split(price, "_")[1]) }

// says reports whether an entitlement matches a state.
func says(e access.Entitlement, s stripesim.State) bool {
	status := access.Active
	if s.CancelAtPeriodEnd {
		status = access.Canceling
	}
	return entitling(s) && e.Status == status && e.Tier == tierOf(s.Price) && e.ValidUntil.Unix() == s.CurrentPeriodEnd && !e.Trial
}

// judge checks an entitlement that takes effect: the provider must have had that state and, in strict mode, must have it
// now.
func (w *world) judge(id string, e access.Entitlement) {
	w.note("%s: account is told %s %s until %s, version %d", id[:4], e.Tier, e.Status, e.ValidUntil.Format(time.RFC3339), e.Version)
	present := w.subscriptions(id)
	if e.Status == access.Inactive {
		if w.strict && slices.ContainsFunc(present, entitling) {
			w.Errorf("account %s is told inactive but has %+v", id, present)
		}
		return
	}
	if e.Trial || e.Status == access.Trialing {
		w.Errorf("account %s is told %+v, but only account knows trials", id, e)
		return
	}
	states := present
	if !w.strict {
		states = nil
		for _, c := range w.sim.Find("account_id", id) {
			states = append(states, w.sim.History(c)...)
		}
	}
	i := slices.IndexFunc(states, func(s stripesim.State) bool { return says(e, s) })
	if i < 0 {
		w.Errorf("account %s is told %+v, which the provider does not have: %+v", id, e, states)
		return
	}
	for _, p := range w.people {
		if p.id == id {
			p.seen[states[i].Subscription] = true
		}
	}
}

// bury tells billing of a deletion, as account's event does.
func (w *world) bury(p *person) {
	p.buried = true
	w.note("%s: billing hears of the deletion", p.id[:4])
	err := pg.InTx(w.Context(), w.pool, func(tx pgx.Tx) error {
		return w.store.InsertDeletion(w.Context(), tx, p.id, p.deletedAt)
	})
	if err != nil {
		w.Fatal(err)
	}
}

// work lets billing's workers do everything that is due.
func (w *world) work() {
	w.note("workers")
	for _, run := range []func(context.Context) error{w.worker.RunDeletions, w.worker.RunChecks, w.worker.RunPushes} {
		ctx, cancel := context.WithTimeout(w.Context(), 2*time.Minute)
		w.stores.stop = cancel
		if err := run(ctx); err != nil {
			w.Error(err)
		}
		if errors.Is(ctx.Err(), context.DeadlineExceeded) {
			w.Error("the workers do not run out of work")
		}
		cancel()
	}
}

// reconcile compares all accounts with the provider.
func (w *world) reconcile() {
	r, err := w.worker.Reconcile(w.Context())
	w.note("reconciled: %+v", r)
	if err != nil || r.Failed > 0 || r.Strange > 0 {
		w.Errorf("reconcile: %+v, %v", r, err)
	}
}

// settled checks that every account has what the provider says, that nothing was paid twice, and that deleted accounts leave
// nothing behind.
func (w *world) settled() {
	for _, p := range w.people {
		w.settledOne(p)
	}
}

func (w *world) settledOne(p *person) {
	a := w.accounts.get(p.id)
	customers := slices.DeleteFunc(w.sim.Find("account_id", p.id), w.sim.Deleted)
	live := w.live(p.id)
	w.refunded(p)
	if len(customers) > 1 || len(live) > 1 {
		w.Errorf("%s has %d customers and %d subscriptions: %+v", p.id, len(customers), len(live), live)
		return
	}
	if a.deleted {
		if len(customers) > 0 || len(live) > 0 {
			w.Errorf("%s was deleted but has customers %v, subscriptions %+v", p.id, customers, live)
		}
		return
	}
	if len(customers) == 1 && a.customer != customers[0] {
		w.Errorf("%s is customer %s, but account says %q", p.id, customers[0], a.customer)
	}
	e := a.e.At(w.now())
	switch {
	case len(live) == 1:
		if !says(e, live[0]) {
			w.Errorf("%s has %+v, the provider %+v", p.id, e, live[0])
		}
	case e.Status == access.Trialing:
		if p.trialOver || !e.Trial {
			w.Errorf("%s has a trial again: %+v", p.id, e)
		}
	case e.Status != access.Inactive:
		w.Errorf("%s has %+v but nothing at the provider", p.id, e)
	}
}

// refunded checks a deleted account's refunds: payments for subscriptions that began after the deletion were refunded in
// full, payments for earlier subscriptions that account had heard of were not.
func (w *world) refunded(p *person) {
	for _, c := range w.sim.Find("account_id", p.id) {
		begun := map[string]int64{}
		for _, h := range w.sim.History(c) {
			w.happened[h.Status]++
			if _, ok := begun[h.Subscription]; !ok {
				begun[h.Subscription] = h.At
			}
		}
		for _, pay := range w.sim.Payments(c) {
			late := !p.deletedAt.IsZero() && begun[pay.Subscription] > p.deletedAt.Unix()
			if pay.Refunded > 0 {
				w.happened["refunded"]++
			}
			if late && pay.Refunded != pay.Amount {
				w.Errorf("%s was deleted at %d but not refunded: %+v", p.id, p.deletedAt.Unix(), pay)
			}
			if !late && p.seen[pay.Subscription] && pay.Refunded > 0 {
				w.Errorf("%s, deleted at %d, was refunded for what it had received: %+v", p.id, p.deletedAt.Unix(), pay)
			}
		}
	}
}
