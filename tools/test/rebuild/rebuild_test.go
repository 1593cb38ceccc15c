// Package rebuild tests that admin-analytics rebuilds its sums from signup and
// Kafka. Both services run in the test's process, so the race detector sees them.
package rebuild

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"waitlist.internal/libs/access"
	"waitlist.internal/libs/kafka"
	"waitlist.internal/libs/rpc"
	"waitlist.internal/libs/service"
	"waitlist.internal/libs/testenv"
	accountv1 "waitlist.internal/proto/gen/waitlist/account/v1"
	analyticsapp "waitlist.internal/services/admin-analytics/app"
	signupapp "waitlist.internal/services/signup/app"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// pairing is signup and admin-analytics without the other services.
type pairing struct {
	t       *testing.T
	pool    *pgxpool.Pool
	web     string
	environ []string
	topics  kafka.Config
	owner   access.Actor
	http    *http.Client
}

// account takes everybody for the owner.
type account struct {
	accountv1.UnimplementedAccountServiceServer
	p *pairing
}

func (a account) Authorize(context.Context, *accountv1.AuthorizeRequest) (*accountv1.AuthorizeResponse, error) {
	return &accountv1.AuthorizeResponse{Actor: a.p.owner.Proto()}, nil
}

type runnable interface {
	Run(ctx context.Context) error
}

// run runs an app until the returned function is called.
func (p *pairing) run(a runnable) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- a.Run(ctx) }()
	return sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			p.t.Error(err)
		}
	})
}

func newPairing(t *testing.T) *pairing {
	t.Helper()
	brokers, prefix := testenv.Kafka(t)
	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	listen := func() net.Listener {
		l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	web, internal, accounts := listen(), listen(), listen()
	key := base64.StdEncoding.EncodeToString(bytes.Repeat([]byte("k"), 32))
	p := &pairing{
		t: t, web: "http://" + web.Addr().String(), topics: kafka.Config{Brokers: brokers, TopicPrefix: prefix},
		http: &http.Client{Transport: new(http.Transport)},
	}
	p.environ = []string{
		"POSTGRES_URL=" + testenv.Postgres(t), "REDIS_URL=" + testenv.Redis(t),
		"KAFKA_BROKERS=" + strings.Join(brokers, ","), "KAFKA_TOPIC_PREFIX=" + prefix,
		"TOKEN_KEYS=k:" + key, "SEAL_KEYS=k:" + key, "SERVICE_KEYS=" + rpc.Keys{"admin-analytics": {public}}.String(),
		"SERVICE_KEY=" + base64.StdEncoding.EncodeToString(private.Seed()), "SIGNUP_GRPC=" + internal.Addr().String(),
		"ACCOUNT_GRPC=" + accounts.Addr().String(), "GRPC_ADDR=127.0.0.1:0",
		"RATE_LIMIT_RPS=100000", "RATE_LIMIT_BURST=100000", "PURGE_EVERY=100ms", "TOMBSTONE_KEPT=0s", "LOG_LEVEL=WARN",
	}
	server := rpc.NewServer("account", rpc.Keys{"signup": {public}}, slog.New(slog.DiscardHandler))
	accountv1.RegisterAccountServiceServer(server, account{p: p})
	var serving sync.WaitGroup
	serving.Go(func() { _ = server.Serve(accounts) })
	t.Cleanup(func() { server.Stop(); serving.Wait() })
	cfg, err := service.Load[signupapp.Config](p.environ)
	if err != nil {
		t.Fatal(err)
	}
	cfg.HTTPListener, cfg.GRPCListener, cfg.LogOutput = web, internal, t.Output()
	signup, err := signupapp.New(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.run(signup))
	t.Cleanup(p.http.CloseIdleConnections)
	if p.pool, err = pgxpool.New(t.Context(), cfg.PostgresURL); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.pool.Close)
	p.owner = access.Actor{AccountID: uuid.NewString(), EmailVerified: true}
	p.owner.Grants = []access.Grant{{
		OwnerID: p.owner.AccountID, Role: access.Owner,
		Entitlement: access.Entitlement{Tier: access.Pro, Status: access.Active, Version: 1},
	}}
	return p
}

func (p *pairing) config() analyticsapp.Config {
	p.t.Helper()
	cfg, err := service.Load[analyticsapp.Config](p.environ)
	if err != nil {
		p.t.Fatal(err)
	}
	cfg.LogOutput = p.t.Output()
	return cfg
}

// analytics starts admin-analytics.
func (p *pairing) analytics() (stop func()) {
	p.t.Helper()
	a, err := analyticsapp.New(p.t.Context(), p.config())
	if err != nil {
		p.t.Fatal(err)
	}
	return p.run(a)
}

// rebuild runs the command that rebuilds the sums.
func (p *pairing) rebuild(args ...string) {
	p.t.Helper()
	r, err := analyticsapp.NewRebuild(p.t.Context(), p.config(), args)
	if err != nil {
		p.t.Fatal(err)
	}
	if err := r.Run(p.t.Context()); err != nil {
		p.t.Fatal(err)
	}
}

func (p *pairing) exec(sql string, args ...any) {
	p.t.Helper()
	if _, err := p.pool.Exec(p.t.Context(), sql, args...); err != nil {
		p.t.Fatal(err)
	}
}

// waitlist creates a waitlist.
func (p *pairing) waitlist() string {
	p.t.Helper()
	id, err := uuid.NewV7()
	if err != nil {
		p.t.Fatal(err)
	}
	p.exec(`INSERT INTO signup.owner (id, tier, status, trial, version)
		VALUES ($1, 'pro', 'active', false, 1) ON CONFLICT DO NOTHING`, p.owner.AccountID)
	p.exec(`INSERT INTO signup.waitlist (id, owner_id, name, settings, created_at) VALUES ($1, $2, 'Launch', '{}', now())`, id,
		p.owner.AccountID)
	return id.String()
}

// call sends a request and returns a field of the answer.
func (p *pairing) call(method, path, body, field string) string {
	p.t.Helper()
	req, err := http.NewRequestWithContext(p.t.Context(), method, p.web+"/v1"+path, strings.NewReader(body))
	if err != nil {
		p.t.Fatal(err)
	}
	req.Header.Set("X-Api-Key", "key")
	res, err := p.http.Do(req)
	if err != nil {
		p.t.Error(err)
		return ""
	}
	defer res.Body.Close()
	raw, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode >= 300 {
		p.t.Errorf("%s %s: %d %s %v", method, path, res.StatusCode, raw, err)
		return ""
	}
	var doc map[string]any
	if err := json.Unmarshal(raw, &doc); err != nil && len(raw) > 0 {
		p.t.Error(err)
	}
	s, _ := doc[field].(string)
	return s
}

func (p *pairing) imports(id, label string, n int) {
	p.t.Helper()
	type row struct {
		Email string `json:"email"`
	}
	rows := make([]row, n)
	for i := range rows {
		rows[i].Email = fmt.Sprintf("%s%d@example.com", label, i)
	}
	raw, err := json.Marshal(map[string][]row{"signups": rows})
	if err != nil {
		p.t.Fatal(err)
	}
	p.call(http.MethodPost, "/waitlists/"+id+"/import", string(raw), "")
}

func (p *pairing) remove(id, email string) {
	p.t.Helper()
	p.call(http.MethodDelete, "/waitlists/"+id+"/signups/"+email, "", "")
}

// sums returns all sums of the analytics as text.
func (p *pairing) sums() []string {
	p.t.Helper()
	rows, err := p.pool.Query(p.t.Context(), `
		SELECT format('day %s %s v%s s%s r%s', waitlist_id, day, views, signups, referral_signups) FROM admin_analytics.day
		UNION ALL SELECT format('value %s %s %s %s #%s', waitlist_id, field, value, count, last_number) FROM admin_analytics.utm_value
		UNION ALL SELECT format('total %s %s %s', waitlist_id, field, count) FROM admin_analytics.utm_total
		ORDER BY 1`)
	if err != nil {
		p.t.Fatal(err)
	}
	out, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		p.t.Fatal(err)
	}
	return out
}

// settled waits until all events are counted.
func (p *pairing) settled() {
	p.t.Helper()
	// Views counted in the process reach the outbox within half a second.
	<-time.After(700 * time.Millisecond)
	testenv.Eventually(p.t, "everything is counted", func() bool {
		var waiting int
		if err := p.pool.QueryRow(p.t.Context(), `SELECT count(*) FROM signup.outbox`).Scan(&waiting); err != nil {
			p.t.Fatal(err)
		}
		if waiting > 0 {
			return false
		}
		lag, err := kafka.Lag(p.t.Context(), p.topics, "admin-analytics", kafka.SignupsTopic)
		if err != nil || lag[kafka.SignupsTopic] > 0 {
			return false
		}
		if err := p.pool.QueryRow(p.t.Context(), `SELECT count(*) FROM admin_analytics.arrival`).Scan(&waiting); err != nil {
			p.t.Fatal(err)
		}
		return waiting == 0
	})
}

// traffic causes every event that analytics count, and removals.
func (p *pairing) traffic(id, label string, n int) {
	p.t.Helper()
	token := ""
	for i := range n {
		p.call(http.MethodGet, "/public/waitlists/"+id+"/config", "", "")
		email := fmt.Sprintf("%s-%d@example.com", label, i)
		got := p.call(http.MethodPost, "/public/waitlists/"+id+"/signups",
			fmt.Sprintf(`{"email":%q,"referred_by_token":%q,"utm_source":"s%d","utm_medium":%q,"utm_campaign":"%s"}`,
				email, token, i%3, []string{"", "mail"}[i%2], label), "referral_token")
		if token == "" {
			token = got
		}
		if i%4 == 3 {
			p.remove(id, email)
		}
	}
}

// TestRebuild checks that dropped sums are rebuilt from signup's data and Kafka to what they were, also during traffic and
// beside a consumer that comes and goes.
func TestRebuild(t *testing.T) {
	t.Parallel()
	p := newPairing(t)
	stop := p.analytics()
	one, two, gone := p.waitlist(), p.waitlist(), p.waitlist()
	p.traffic(one, "a", 40)
	p.imports(one, "i", 2500) // two chunks
	p.traffic(two, "b", 10)
	p.traffic(gone, "c", 4)
	p.settled()
	day := time.Now().UTC().Format(time.DateOnly)
	before := p.sums()
	for _, want := range []string{
		"day " + one + " " + day + " v40 s2540 r39", "day " + two + " " + day + " v10 s10 r9",
		"value " + one + " utm_source s0 14 #40", "total " + one + " utm_source 40", "value " + one + " utm_medium mail 20 #40",
	} {
		// A test that runs past midnight has two days.
		if !slices.Contains(before, want) && day == time.Now().UTC().Format(time.DateOnly) {
			t.Errorf("%q is missing in\n%s", want, strings.Join(before, "\n"))
		}
	}
	drop := func() {
		p.exec(`TRUNCATE admin_analytics.day, admin_analytics.utm_value, admin_analytics.utm_total`)
	}
	same := func(what string, want []string) {
		t.Helper()
		if got := p.sums(); !slices.Equal(got, want) {
			t.Errorf("%s:\n%s\nbefore:\n%s", what, strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
	}
	drop()
	p.rebuild("-views")
	same("dropped and rebuilt", before)
	p.rebuild("-views")
	same("rebuilt again", before)
	of := func(id string) (lines []string) {
		for _, line := range before {
			if strings.Contains(line, id) {
				lines = append(lines, line)
			}
		}
		return lines
	}
	drop()
	p.rebuild("-waitlist", strings.ToUpper(two), "-views")
	same("one was rebuilt", of(two))

	// Delete a waitlist without an event.
	stop()
	p.rebuild("-views")
	p.exec(`UPDATE signup.waitlist SET deleted_at = now() WHERE id = $1`, gone)
	p.rebuild()
	stop = p.analytics()
	testenv.Eventually(t, "the deleted waitlist's sums have gone", func() bool {
		var n int
		if err := p.pool.QueryRow(t.Context(), `
			SELECT count(*) FROM admin_analytics.day d FULL JOIN admin_analytics.waitlist w USING (waitlist_id)
			WHERE waitlist_id = $1`, gone).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n == 0
	})
	before = slices.DeleteFunc(before, func(line string) bool { return strings.Contains(line, gone) })
	same("one has gone", before)

	// Now with traffic, and with a consumer that is interrupted now and then.
	var wg sync.WaitGroup
	for i, id := range []string{one, two, one} {
		wg.Go(func() { p.traffic(id, fmt.Sprint("t", i), 60) })
	}
	busy := make(chan struct{})
	go func() { wg.Wait(); close(busy) }()
	for round := 0; ; round++ {
		p.rebuild("-views")
		if round%2 == 1 {
			stop()
			stop = p.analytics()
		}
		select {
		case <-busy:
		default:
			continue
		}
		break
	}
	p.imports(one, "late", 10)
	p.settled()
	during := p.sums()
	var views, signups, referred int
	if err := p.pool.QueryRow(t.Context(), `SELECT sum(views), sum(signups), sum(referral_signups) FROM admin_analytics.day`).
		Scan(&views, &signups, &referred); err != nil {
		t.Fatal(err)
	}
	if views != 50+180 || signups != 2550+180+10 || referred != 48+177 {
		t.Errorf("%d views, %d signups, %d of them referred", views, signups, referred)
	}
	drop()
	p.rebuild("-views")
	same("dropped and rebuilt after traffic", during)
	stop()
}
