package stripesim_test

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	mathrand "math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"waitlist.internal/libs/access"
	"waitlist.internal/libs/pg"
	"waitlist.internal/libs/rpc"
	"waitlist.internal/libs/service"
	"waitlist.internal/libs/testenv"
	accountv1 "waitlist.internal/proto/gen/waitlist/account/v1"
	"waitlist.internal/services/billing"
	"waitlist.internal/services/billing/app"
	billingpostgres "waitlist.internal/services/billing/postgres"
	"waitlist.internal/tools/internal/stripesim"
)

// suite is the environment of several billing replicas: real servers, the simulator, and account over gRPC.
type suite struct {
	*testing.T
	sim      *sim
	accounts *accounts
	database string
	env      []string
	addrs    []string // of the replicas
	log      *os.File
}

func newSuite(t *testing.T) *suite {
	t.Helper()
	s := &suite{T: t, accounts: newAccounts(time.Now), database: testenv.Postgres(t)}
	s.sim = start(t, func(c *stripesim.Config) {
		c.Now, c.WebhookURL, c.WebhookEvents = nil, "", asked
		c.Backoff = func(int) (time.Duration, bool) { return 50 * time.Millisecond, true }
	})
	raw := make([]byte, ed25519.SeedSize)
	_, _ = rand.Read(raw) // never fails
	id, err := rpc.NewIdentity("billing", raw)
	if err != nil {
		t.Fatal(err)
	}
	server := rpc.NewServer("account", rpc.Keys{"billing": {id.Public()}}, slog.New(slog.DiscardHandler))
	accountv1.RegisterAccountServiceServer(server, s.accounts)
	l := s.listen()
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	t.Cleanup(func() {
		server.Stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	brokers, prefix := testenv.Kafka(t)
	s.env = []string{
		"POSTGRES_URL=" + s.database, "REDIS_URL=" + testenv.Redis(t), "KAFKA_BROKERS=" + strings.Join(brokers, ","),
		"KAFKA_TOPIC_PREFIX=" + prefix,
		"ACCOUNT_GRPC=" + l.Addr().String(), "SERVICE_KEY=" + base64.StdEncoding.EncodeToString(raw),
		"SERVICE_KEYS=" + rpc.Keys{"billing": {id.Public()}}.String(),
		"STRIPE_SECRET_KEY=sk_test_1", "STRIPE_URL=" + s.sim.url, "STRIPE_WEBHOOK_SECRETS=" + secret,
		"STRIPE_PRICES=" + strings.Join(priceList, ","),
		"BILLING_URL=https://example.com/billing", "LOG_LEVEL=WARN", "RATE_LIMIT_RPS=10000", "RATE_LIMIT_BURST=10000",
	}
	if s.log, err = os.Create(filepath.Join(t.TempDir(), "log")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = s.log.Close()
		if b, _ := os.ReadFile(s.log.Name()); t.Failed() {
			t.Logf("billing's log ends with:\n%s", b[max(0, len(b)-6000):])
		}
	})
	return s
}

func (s *suite) listen() net.Listener {
	s.Helper()
	l, err := (&net.ListenConfig{}).Listen(s.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		s.Fatal(err)
	}
	return l
}

func (s *suite) config() app.Config {
	s.Helper()
	cfg, err := service.Load[app.Config](s.env)
	if err != nil {
		s.Fatal(err)
	}
	cfg.LogOutput = s.log
	return cfg
}

// replica runs a billing replica in this process until the test ends.
func (s *suite) replica() {
	s.Helper()
	cfg := s.config()
	cfg.HTTPListener = s.listen()
	a, err := app.New(s.Context(), cfg)
	if err != nil {
		s.Fatal(err)
	}
	testenv.Run(s, a.Run)
	s.addrs = append(s.addrs, cfg.HTTPListener.Addr().String())
}

// account creates an account whose trial is over (usedTrial) or may still start.
func (s *suite) account(usedTrial bool) string {
	id := uuid.NewString()
	s.accounts.add(id, access.Entitlement{Tier: access.Basic, Status: access.Inactive, Version: 1}, usedTrial)
	return id
}

// answer is an answer from billing.
type answer struct {
	status int
	body   map[string]any
}

// post calls a replica. An error means that the process died.
func (s *suite) post(replica int, id, path, body string) (answer, error) {
	r, err := http.NewRequest(http.MethodPost, "http://"+s.addrs[replica%len(s.addrs)]+"/v1/billing"+path, strings.NewReader(body))
	if err != nil {
		return answer{}, err
	}
	r.Header.Set("X-Api-Key", id)
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 40 * time.Second}
	resp, err := client.Do(r)
	if err != nil {
		return answer{}, err
	}
	defer resp.Body.Close()
	a := answer{status: resp.StatusCode}
	b, err := io.ReadAll(resp.Body)
	if err == nil {
		err = json.Unmarshal(b, &a.body)
	}
	return a, err
}

// twenty sends 20 calls at once, spread over the replicas.
func (s *suite) twenty(id, path string, body func(i int) string) []answer {
	s.Helper()
	out := make([]answer, 20)
	var group sync.WaitGroup
	begin := make(chan struct{})
	for i := range out {
		group.Go(func() {
			<-begin
			a, err := s.post(i, id, path, body(i))
			if err != nil {
				s.Error(err)
			}
			out[i] = a
		})
	}
	close(begin)
	group.Wait()
	return out
}

// same returns a function that always returns the same body.
func same(body string) func(int) string { return func(int) string { return body } }

// counted counts the answers by status.
func counted(answers []answer) map[int]int {
	out := map[int]int{}
	for _, a := range answers {
		out[a.status]++
	}
	return out
}

// customer returns the one customer of an account.
func (s *suite) customer(id string) string {
	s.Helper()
	all := s.sim.Find("account_id", id)
	if len(all) != 1 {
		s.Fatalf("%d customers of one account", len(all))
	}
	return all[0]
}

// has waits until account has what the provider has; trials exist only in account.
func (s *suite) has(id string) {
	s.Helper()
	var e access.Entitlement
	var live []stripesim.State
	for end := time.Now().Add(time.Minute); time.Now().Before(end); <-time.After(20 * time.Millisecond) {
		live = nil
		for _, c := range s.sim.Find("account_id", id) {
			live = append(live, slices.DeleteFunc(s.sim.Current(c), func(st stripesim.State) bool { return !entitling(st) })...)
		}
		e = s.accounts.get(id).e
		if len(live) == 1 && says(e, live[0]) || len(live) == 0 && (e.Trial || e.At(time.Now()).Status == access.Inactive) {
			return
		}
	}
	s.Errorf("%s has %+v, the provider %+v", id, e, live)
}

// A double click, even twenty clicks at two replicas, counts as one click.
func TestDoubleClick(t *testing.T) {
	t.Parallel()
	s := newSuite(t)
	s.replica()
	s.replica()
	s.sim.SetWebhook("http://"+s.addrs[0]+"/v1/billing/webhook", secret)
	id := s.account(true)

	pages := map[any]int{}
	for _, a := range s.twenty(id, "/checkout", same(`{"tier":"basic"}`)) {
		if a.status != http.StatusOK {
			t.Fatalf("checkout: %+v", a)
		}
		pages[a.body["url"]]++
	}
	if len(pages) != 1 {
		t.Errorf("20 checkouts opened %v", pages)
	}
	cust := s.customer(id)

	// Simultaneous checkouts for different plans leave at most one page that can be paid.
	for _, a := range s.twenty(id, "/checkout", func(i int) string {
		return fmt.Sprintf(`{"tier":%q}`, []string{"basic", "advanced", "pro"}[i%3])
	}) {
		if a.status != http.StatusOK {
			t.Fatalf("checkout: %+v", a)
		}
		pages[a.body["url"]]++
	}
	a, err := s.post(0, id, "/checkout", `{"tier":"basic"}`)
	if err != nil || a.status != http.StatusOK {
		t.Fatal(a, err)
	}
	pages[a.body["url"]]++
	paid := 0
	for page := range pages {
		var group sync.WaitGroup
		status := make([]int, 20)
		for i := range status {
			group.Go(func() { status[i], _, _ = s.sim.choose(t, page.(string), "pay") }) // the contract's
		}
		group.Wait()
		if n := counts(status, http.StatusSeeOther); n == 20 {
			paid++
		} else if n != 0 {
			t.Errorf("%d of 20 could pay one page", n)
		}
	}
	if got := s.sim.Payments(cust); paid != 1 || len(got) != 1 || got[0].Amount != 300 {
		t.Fatalf("%d of %d pages were paid: %+v", paid, len(pages), got)
	}
	s.has(id)

	got := s.twenty(id, "/checkout", same(`{"tier":"pro","interval":"yearly"}`))
	if n := counted(got); n[http.StatusOK] < 1 || n[http.StatusOK]+n[http.StatusBadRequest] != 20 {
		t.Errorf("upgrades: %+v", n)
	}
	s.has(id)
	if got := s.sim.Payments(cust); len(got) != 2 {
		t.Errorf("20 upgrades caused the charges %+v", got)
	}

	before := len(s.sim.History(cust))
	for _, a := range s.twenty(id, "/cancel", same("")) {
		if a.status != http.StatusOK || a.body["status"] != "canceling" {
			t.Errorf("cancel: %+v", a)
		}
	}
	if got := s.sim.History(cust); len(got) != before+1 || !got[len(got)-1].CancelAtPeriodEnd {
		t.Errorf("20 cancellations caused the states %+v", got[before:])
	}
	s.has(id)

	got = s.twenty(id, "/checkout", same(`{"tier":"pro","interval":"yearly"}`))
	if n := counted(got); n[http.StatusOK] < 1 || n[http.StatusOK]+n[http.StatusBadRequest] != 20 {
		t.Errorf("resuming: %+v", n)
	}
	if got := s.sim.History(cust); len(got) != before+2 || len(s.sim.Payments(cust)) != 2 {
		t.Errorf("resuming caused the states %+v", got[before:])
	}
	s.has(id)

	young := s.account(false)
	if n := counted(s.twenty(young, "/start-trial", same(""))); n[http.StatusOK] != 1 || n[http.StatusConflict] != 19 {
		t.Errorf("trials: %+v", n)
	}
}

func counts(list []int, want int) int {
	n := 0
	for _, v := range list {
		if v == want {
			n++
		}
	}
	return n
}

// child is billing as a process of its own.
type child struct {
	s    *suite
	addr string
	cmd  *exec.Cmd
}

func (c *child) start() {
	c.s.Helper()
	self, err := os.Executable()
	if err != nil {
		c.s.Fatal(err)
	}
	c.cmd = exec.Command(self)
	c.cmd.Env = append(append(os.Environ(), c.s.env...), asBilling+"=1", "HTTP_ADDR="+c.addr)
	c.cmd.Stdout, c.cmd.Stderr = c.s.log, c.s.log
	if err := c.cmd.Start(); err != nil {
		c.s.Fatal(err)
	}
	until(c.s.T, func() bool {
		conn, err := net.DialTimeout("tcp", c.addr, time.Second)
		if err == nil {
			conn.Close()
		}
		return err == nil
	})
}

// kill kills the process with SIGKILL.
func (c *child) kill() {
	_ = c.cmd.Process.Kill()
	_ = c.cmd.Wait() // reports the SIGKILL
}

func (s *suite) reconcile() {
	s.Helper()
	rec, err := app.NewReconcile(s.Context(), s.config())
	if err != nil {
		s.Fatal(err)
	}
	if err := rec.Run(s.Context()); err != nil {
		s.Error(err)
	}
}

// delete tells billing that an account was deleted.
func (s *suite) delete(id string, at time.Time) {
	s.Helper()
	s.accounts.remove(id)
	s.query(func(ctx context.Context, pool *pgxpool.Pool) error {
		return pg.InTx(ctx, pool, func(tx pgx.Tx) error {
			return billingpostgres.New(pool, pool, 1).InsertDeletion(ctx, tx, id, at)
		})
	})
}

// query runs do on billing's database.
func (s *suite) query(do func(ctx context.Context, pool *pgxpool.Pool) error) {
	s.Helper()
	pool, err := pg.Open(s.Context(), s.database, billing.Name, 2)
	if err != nil {
		s.Fatal(err)
	}
	defer pool.Close()
	if err := do(s.Context(), pool); err != nil {
		s.Fatal(err)
	}
}

// expireLease ends the one-minute lease that a dead process still holds on a deletion.
func (s *suite) expireLease() {
	s.Helper()
	s.query(func(ctx context.Context, pool *pgxpool.Pool) error {
		_, err := pool.Exec(ctx, "UPDATE deletion SET due_at = $1 WHERE due_at IS NOT NULL", time.Now())
		return err
	})
}

// buried reports whether all deletions are done.
func (s *suite) buried() (done bool) {
	s.Helper()
	s.query(func(ctx context.Context, pool *pgxpool.Pool) error {
		return pool.QueryRow(ctx, "SELECT NOT EXISTS (SELECT FROM deletion WHERE due_at IS NOT NULL)").Scan(&done)
	})
	return done
}

// subscribed creates an account that has paid for the basic plan. told says whether billing has heard of it.
func (s *suite) subscribed(told bool) string {
	s.Helper()
	id := s.account(true)
	a, err := s.post(0, id, "/checkout", `{"tier":"basic"}`)
	if err != nil || a.status != http.StatusOK {
		s.Fatal(a, err)
	}
	if told {
		s.sim.choose(s.T, a.body["url"].(string), "pay") // the contract's
		s.has(id)
		return id
	}
	s.sim.drain(s.T) // handling the customer's event later would find the subscription
	s.sim.SetChaos(stripesim.Chaos{Drop: 1})
	s.sim.choose(s.T, a.body["url"].(string), "pay") // the contract's
	s.sim.SetChaos(stripesim.Chaos{})
	return id
}

// Billing is killed after the provider did what billing asked but before billing recorded it. Whether the owner retries, or
// the reconciler or the responsible worker takes over, nothing is done twice and nothing is left behind.
func TestKilledBetweenCallAndCommit(t *testing.T) {
	t.Parallel()
	s := newSuite(t)
	free := s.listen()
	c := &child{s: s, addr: free.Addr().String()}
	_ = free.Close()
	s.addrs = []string{c.addr}
	s.sim.SetWebhook("http://"+c.addr+"/v1/billing/webhook", secret)
	c.start()
	defer func() { c.kill() }()

	for _, k := range []struct {
		name         string
		prepare      func() string
		path, body   string // the owner's request; no path: the worker's task
		method, call string // the provider call during which the process dies
		payments     int
		refunded     bool
	}{
		{"customer", func() string { return s.account(true) }, "/checkout", `{"tier":"basic"}`, http.MethodPost, "/v1/customers", 0, false},
		{
			"session", func() string { return s.account(true) }, "/checkout", `{"tier":"basic"}`, http.MethodPost, "/v1/checkout/sessions",
			0, false,
		},
		{"another plan before paying", func() string {
			id := s.account(true)
			if a, err := s.post(0, id, "/checkout", `{"tier":"basic"}`); err != nil || a.status != http.StatusOK {
				t.Fatal(a, err)
			}
			return id
		}, "/checkout", `{"tier":"pro"}`, http.MethodPost, "/v1/checkout/sessions/", 0, false},
		{"upgrade", func() string { return s.subscribed(true) }, "/checkout", `{"tier":"pro"}`, http.MethodPost, "/v1/subscriptions/", 2, false},
		{"cancel", func() string { return s.subscribed(true) }, "/cancel", "", http.MethodPost, "/v1/subscriptions/", 1, false},
		{"deletion", func() string { return s.subscribed(true) }, "", "", http.MethodDelete, "/v1/customers/", 1, false},
		{
			"canceling the subscription of a deleted account", func() string { return s.subscribed(true) }, "", "", http.MethodDelete,
			"/v1/subscriptions/", 1, false,
		},
		{"refund of what was paid too late", func() string { return s.subscribed(false) }, "", "", http.MethodPost, "/v1/refunds", 1, true},
	} {
		for _, again := range []bool{false, true} {
			if again && k.path == "" {
				continue // no owner to retry
			}
			t.Run(fmt.Sprintf("%s, again %t", k.name, again), func(t *testing.T) {
				s.T = t
				id := k.prepare()
				if err := s.sim.Inject(stripesim.Fault{Method: k.method, Path: k.call, Times: 1, Kind: stripesim.Hang, After: true}); err != nil {
					t.Fatal(err)
				}
				var group sync.WaitGroup
				if k.path == "" {
					s.delete(id, time.Now())
				} else {
					group.Go(func() {
						if a, err := s.post(0, id, k.path, k.body); err == nil {
							t.Errorf("the killed process answered %+v", a)
						}
					})
				}
				until(t, func() bool { return s.sim.Hanging() == 1 })
				c.kill()
				group.Wait()
				s.sim.ClearFaults()
				until(t, func() bool { return s.sim.Hanging() == 0 })
				switch {
				case k.path == "":
					c.start()
					s.expireLease()
					until(t, func() bool { return s.buried() })
				case again:
					c.start()
					a, err := s.post(0, id, k.path, k.body)
					if err != nil || a.status != http.StatusOK && a.status != http.StatusBadRequest {
						t.Errorf("the retry: %+v %v", a, err)
					}
				default:
					s.reconcile()
					c.start()
				}
				s.mended(id, k.path == "", k.payments, k.refunded)
			})
		}
	}
	s.T = t
}

// mended checks that a call whose answer was lost left nothing behind.
func (s *suite) mended(id string, deleted bool, payments int, refunded bool) {
	s.Helper()
	all := s.sim.Find("account_id", id)
	if len(all) != 1 {
		s.Fatalf("%d customers", len(all))
	}
	if got := s.sim.Payments(all[0]); len(got) != payments {
		s.Errorf("payments %+v, want %d", got, payments)
	} else if slices.ContainsFunc(got, func(p stripesim.Payment) bool { return (p.Refunded == p.Amount) != refunded }) {
		s.Errorf("payments %+v, refunded: want %t", got, refunded)
	}
	if deleted {
		live := slices.DeleteFunc(s.sim.Current(all[0]), func(st stripesim.State) bool { return !entitling(st) })
		if !s.sim.Deleted(all[0]) || len(live) > 0 {
			s.Errorf("a deleted account still has %+v", live)
		}
		return
	}
	until(s.T, func() bool { return s.accounts.get(id).customer == all[0] })
	s.has(id)
	open := s.sim.stripe.CheckoutSessions.List(openSessions(all[0]))
	n := 0
	for open.Next() {
		n++
	}
	if open.Err() != nil || n > 1 {
		s.Errorf("%d pages can be paid: %v", n, open.Err())
	}
}

// Owners click at both replicas while the provider's events arrive late, twice or never. Billing never tells account what
// the provider never had. After reconciliation, every account has what was paid, once.
func TestOwnersAtOnce(t *testing.T) {
	t.Parallel()
	const owners, clicks = 12, 12
	s := newSuite(t)
	s.accounts.shown = func(id string, e access.Entitlement) {
		if e.Status == access.Inactive {
			return
		}
		for _, c := range s.sim.Find("account_id", id) {
			if slices.ContainsFunc(s.sim.History(c), func(st stripesim.State) bool { return says(e, st) }) {
				return
			}
		}
		t.Errorf("account %s is told %+v, which the provider never had", id, e)
	}
	s.replica()
	s.replica()
	s.sim.SetChaos(stripesim.Chaos{Seed: 1, Drop: 0.15, Duplicate: 0.3, MaxDelay: 300 * time.Millisecond})
	s.sim.SetWebhook("http://"+s.addrs[1]+"/v1/billing/webhook", secret)
	ids := make([]string, owners)
	var group sync.WaitGroup
	for i := range ids {
		ids[i] = s.account(i%2 == 0)
		for hand := range 2 { // an owner with two windows
			random := mathrand.New(mathrand.NewPCG(uint64(i), uint64(hand)))
			group.Go(func() { s.clicks(ids[i], random, clicks) })
		}
	}
	group.Wait()
	s.sim.drain(t)
	s.reconcile()
	for _, id := range ids {
		s.has(id)
		for i, c := range s.sim.Find("account_id", id) {
			if i > 0 && !s.sim.Deleted(c) {
				t.Errorf("%s has a second customer", id)
			}
			kept := map[string]bool{}
			for _, p := range s.sim.Payments(c) {
				if p.Refunded == 0 {
					kept[p.Subscription] = true
				}
			}
			// In so short a time only duplicate subscriptions end, and those are refunded.
			if len(kept) > 1 {
				t.Errorf("%s paid for %d subscriptions: %+v", id, len(kept), s.sim.Payments(c))
			}
		}
	}
}

// clicks does n random things that an owner may do.
func (s *suite) clicks(id string, random *mathrand.Rand, n int) {
	page := ""
	for range n {
		path, body := "/checkout", fmt.Sprintf(`{"tier":%q}`, []string{"basic", "advanced", "pro"}[random.IntN(3)])
		switch random.IntN(8) {
		case 0:
			path, body = "/cancel", ""
		case 1:
			path, body = "/start-trial", ""
		case 2, 3, 4:
			if page != "" {
				s.sim.choose(s.T, page, []string{"pay", "later", "decline", "cancel"}[random.IntN(4)])
				continue
			}
		}
		a, err := s.post(random.IntN(2), id, path, body)
		if err != nil || a.status != http.StatusOK && a.status != http.StatusBadRequest && a.status != http.StatusConflict {
			s.Errorf("%s %s: %+v %v", path, body, a, err)
		}
		if url, ok := a.body["url"].(string); ok {
			page = url
		}
	}
}
