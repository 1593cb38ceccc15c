package http_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/jackc/pgx/v5/pgxpool"
	"google.golang.org/protobuf/proto"

	"waitlist.internal/libs/audit"
	"waitlist.internal/libs/httpapi"
	"waitlist.internal/libs/testenv"
	"waitlist.internal/libs/token"
	eventv1 "waitlist.internal/proto/gen/waitlist/event/v1"
	"waitlist.internal/services/account"
	accounthttp "waitlist.internal/services/account/http"
	"waitlist.internal/services/account/postgres"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// clock is a clock that tests move.
type clock struct {
	mu  sync.Mutex
	now time.Time
}

func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *clock) Add(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

// closer is a fake of signup.
type closer struct {
	mu     sync.Mutex
	away   bool
	closed []string
}

func (c *closer) CloseOwner(_ context.Context, accountID string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.away {
		return errors.New("signup is away")
	}
	c.closed = append(c.closed, accountID)
	return nil
}

func (c *closer) setAway(away bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.away = away
}

func (c *closer) got() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]string(nil), c.closed...)
}

// patience is long enough for a loaded machine.
const patience = time.Minute

// env is the service with its own database.
type env struct {
	t      testing.TB
	pool   *pgxpool.Pool
	store  *postgres.Store
	cfg    account.Config
	svc    *account.Service
	engine *gin.Engine
	clock  *clock
	owner  *closer
	tokens *token.Ring

	mu    sync.Mutex
	waits []time.Duration
}

func secret() string {
	b := make([]byte, 32)
	_, _ = rand.Read(b)
	return base64.StdEncoding.EncodeToString(b)
}

func newEnv(t testing.TB) *env {
	t.Helper()
	pool := testenv.Migrated(t, account.Name, 8, postgres.Migrations)
	tokens, err := token.ParseRing("t:" + secret())
	if err != nil {
		t.Fatal(err)
	}
	keys, err := account.ParseKeys(secret())
	if err != nil {
		t.Fatal(err)
	}
	e := &env{
		t: t, pool: pool, store: postgres.New(pool, func() {}), clock: &clock{now: time.Now()}, owner: &closer{}, tokens: tokens,
	}
	e.cfg = account.Config{
		Store: e.store, Owner: e.owner, Trails: []audit.Trail{&audit.Table{Pool: pool}}, Tokens: tokens, Keys: keys,
		Issuer: "issuer", Audience: "audience", IDTokenTTL: time.Hour, RefreshTokenTTL: 30 * 24 * time.Hour,
		TrialDuration: 7 * 24 * time.Hour, AddressKey: []byte("address key"), MaxMembers: 100, HashConcurrency: 2, HashPatience: patience,
		Logger: slog.New(slog.DiscardHandler), Now: e.clock.Now,
		Wait: func(_ context.Context, d time.Duration) bool {
			e.mu.Lock()
			defer e.mu.Unlock()
			e.waits = append(e.waits, d)
			return true
		},
	}
	e.serve()
	return e
}

// serve creates the service and its engine from the current configuration.
func (e *env) serve() {
	e.t.Helper()
	var err error
	e.svc = account.New(e.cfg)
	if e.engine, err = httpapi.NewEngine(httpapi.Config{Log: e.cfg.Logger, Timeout: patience}); err != nil {
		e.t.Fatal(err)
	}
	accounthttp.Routes(e.engine, e.svc)
}

// answer is a response.
type answer struct {
	status int
	header http.Header
	raw    string
	body   map[string]any
}

func (a answer) str(name string) string { s, _ := a.body[name].(string); return s }

// expect fails the test unless the status and the error code are as given.
func (a answer) expect(t testing.TB, status int, code string) answer {
	t.Helper()
	if a.status != status || a.str("error_code") != code {
		t.Fatalf("got %d %s, want %d %q", a.status, a.raw, status, code)
	}
	if code != "" && (a.str("error") == "" || a.str("request_id") == "") {
		t.Fatalf("error body lacks its fields: %s", a.raw)
	}
	return a
}

type option func(*http.Request)

func bearer(token string) option {
	return func(r *http.Request) { r.Header.Set("Authorization", "Bearer "+token) }
}

func key(k string) option { return func(r *http.Request) { r.Header.Set("X-Api-Key", k) } }

func from(ip string) option { return func(r *http.Request) { r.RemoteAddr = ip + ":4000" } }

// do sends a request below /v1/auth. It sends a string body as it is and encodes any
// other body as JSON.
func (e *env) do(method, path string, body any, options ...option) answer {
	e.t.Helper()
	return e.send(method, "/v1/auth"+path, body, options...)
}

func (e *env) send(method, path string, body any, options ...option) answer {
	e.t.Helper()
	var in io.Reader = http.NoBody
	switch b := body.(type) {
	case nil:
	case string:
		in = bytes.NewBufferString(b)
	default:
		raw, err := json.Marshal(b)
		if err != nil {
			e.t.Fatal(err)
		}
		in = bytes.NewReader(raw)
	}
	req := httptest.NewRequestWithContext(e.t.Context(), method, path, in)
	req.RemoteAddr = "192.0.2.1:4000"
	for _, o := range options {
		o(req)
	}
	rec := httptest.NewRecorder()
	e.engine.ServeHTTP(rec, req)
	a := answer{status: rec.Code, header: rec.Header(), raw: rec.Body.String()}
	if rec.Body.Len() > 0 {
		if err := json.Unmarshal(rec.Body.Bytes(), &a.body); err != nil {
			e.t.Fatalf("%s %s: %v in %q", method, path, err, a.raw)
		}
	}
	return a
}

func (e *env) post(path string, body any, options ...option) answer {
	e.t.Helper()
	return e.do(http.MethodPost, path, body, options...)
}

func (e *env) me(options ...option) answer {
	e.t.Helper()
	return e.do(http.MethodGet, "/me", nil, options...)
}

const password = "correct horse"

func pair(email, password string) map[string]string {
	return map[string]string{"email": email, "password": password}
}

// register creates an account and returns its API key.
func (e *env) register(email string) string {
	e.t.Helper()
	return e.post("/register", pair(email, password)).expect(e.t, 201, "").str("api_key")
}

func (e *env) login(email string) (idToken, refreshToken string) {
	e.t.Helper()
	a := e.post("/login", pair(email, password)).expect(e.t, 200, "")
	return a.str("id_token"), a.str("refresh_token")
}

// events returns all published events.
func (e *env) events() []*eventv1.Event {
	e.t.Helper()
	rows, err := e.pool.Query(e.t.Context(), `SELECT payloads FROM outbox WHERE topic = 'waitlist.accounts.v1' ORDER BY id`)
	if err != nil {
		e.t.Fatal(err)
	}
	defer rows.Close()
	var out []*eventv1.Event
	for rows.Next() {
		var payloads [][]byte
		if err := rows.Scan(&payloads); err != nil {
			e.t.Fatal(err)
		}
		for _, p := range payloads {
			ev := new(eventv1.Event)
			if err := proto.Unmarshal(p, ev); err != nil {
				e.t.Fatal(err)
			}
			out = append(out, ev)
		}
	}
	if err := rows.Err(); err != nil {
		e.t.Fatal(err)
	}
	return out
}

// published returns the payloads of all published events of one type.
func published[T any](e *env, get func(*eventv1.Event) *T) []*T {
	e.t.Helper()
	var out []*T
	for _, ev := range e.events() {
		if p := get(ev); p != nil {
			out = append(out, p)
		}
	}
	return out
}

// run runs a worker until the test ends or calls stop.
func (e *env) run(worker func(context.Context) error) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := worker(ctx); err != nil {
			e.t.Errorf("worker: %v", err)
		}
	})
	stop = func() { cancel(); wg.Wait() }
	e.t.Cleanup(stop)
	return stop
}

func (e *env) count(query string, args ...any) (n int) {
	e.t.Helper()
	if err := e.pool.QueryRow(e.t.Context(), query, args...).Scan(&n); err != nil {
		e.t.Fatal(err)
	}
	return n
}

func (e *env) exec(query string, args ...any) {
	e.t.Helper()
	if _, err := e.pool.Exec(e.t.Context(), query, args...); err != nil {
		e.t.Fatal(err)
	}
}
