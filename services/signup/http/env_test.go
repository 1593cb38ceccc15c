package http_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"google.golang.org/grpc"

	"waitlist.internal/libs/access"
	"waitlist.internal/libs/apierr"
	"waitlist.internal/libs/httpapi"
	"waitlist.internal/libs/testenv"
	"waitlist.internal/libs/token"
	"waitlist.internal/libs/views"
	accountv1 "waitlist.internal/proto/gen/waitlist/account/v1"
	signuphttp "waitlist.internal/services/signup/http"
	"waitlist.internal/services/signup/join"
	"waitlist.internal/services/signup/owners"
	"waitlist.internal/services/signup/postgres"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// clock is the time of every test.
var clock = time.Date(2026, 5, 4, 3, 2, 1, 678_000_000, time.UTC)

// formURL is the address of the pages.
const formURL = "https://example.com"

const clockText = "2026-05-04T03:02:01.678Z"

// env is the router over the domain and a Postgres of its own, with one waitlist.
type env struct {
	pool *pgxpool.Pool
	svc  *join.Service
	ring *token.Ring
	// stop ends the service, which then refuses signups.
	stop   func()
	server *httptest.Server
	// owner and list are the ids of an owner and its waitlist.
	owner, list string
	// actor is whom account takes a caller with the API key "good" for.
	actor access.Actor
	// analytics and messaging stand for the services.
	analytics sums
	messaging bulk
}

// newEnv returns an env whose owner has a tier. The service of an env with
// MaxQueue set does not run: what is queued stays there.
func newEnv(t *testing.T, tier string, cfg join.Config, shown *views.Counter) *env {
	t.Helper()
	e := &env{pool: testenv.Migrated(t, "signup", 8, postgres.Migrations), owner: uuid.NewString(), list: uuid.NewString()}
	var err error
	if e.ring, err = token.ParseRing("k1:MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY="); err != nil {
		t.Fatal(err)
	}
	e.exec(t, `INSERT INTO owner (id, tier, status, trial, version) VALUES ($1, $2, 'active', false, 1)`, e.owner, tier)
	e.exec(t, `INSERT INTO waitlist (id, owner_id, name, settings, created_at) VALUES ($1, $2, 'Launch', '{}', now())`, e.list, e.owner)
	store := postgres.NewSignups(e.pool, e.ring, func() {}, now)
	quiet := slog.New(slog.DiscardHandler)
	if cfg.Now == nil {
		cfg.Now = now
	}
	cfg.Store, cfg.Tokens, cfg.Log = store, e.ring, quiet
	e.svc = join.New(cfg)
	e.stop = func() {}
	if cfg.MaxQueue == 0 {
		e.stop = testenv.Run(t, e.svc.Run)
	}
	engine, err := httpapi.NewEngine(httpapi.Config{Log: quiet})
	if err != nil {
		t.Fatal(err)
	}
	signuphttp.Routes(engine, e.svc, shown, formURL)
	service := owners.NewOwners(postgres.NewWaitlists(e.pool, func() {}, now), nil, nil, owners.Bounds{}, now)
	e.actor = access.Actor{AccountID: e.owner, EmailVerified: true, Grants: []access.Grant{{
		OwnerID: e.owner, Role: access.Owner, Entitlement: access.Entitlement{Tier: access.Tier(tier), Status: access.Active, Version: 1},
	}}}
	signuphttp.OwnersRoutes(engine, signuphttp.Backends{
		Accounts: e, Owners: service, Admin: owners.NewAdmin(service, e.svc, store, nil, now, slog.New(slog.DiscardHandler)),
		Analytics: &e.analytics, Messaging: &e.messaging,
	})
	e.server = httptest.NewServer(engine)
	t.Cleanup(e.server.Close)
	return e
}

// Authorize implements authn.Authorizer.
func (e *env) Authorize(_ context.Context, r *accountv1.AuthorizeRequest, _ ...grpc.CallOption) (*accountv1.AuthorizeResponse, error) {
	if r.GetApiKey() != "good" {
		return nil, apierr.New(apierr.AuthenticationRequired, "no")
	}
	return &accountv1.AuthorizeResponse{Actor: e.actor.Proto()}, nil
}

// as sends a request of the actor.
func (e *env) as(t *testing.T, method, path, body string, header ...string) answer {
	t.Helper()
	return e.send(t.Context(), t, method, path, body, append([]string{"X-Api-Key", "good"}, header...)...)
}

func now() time.Time { return clock }

func (e *env) exec(t *testing.T, sql string, args ...any) {
	t.Helper()
	if _, err := e.pool.Exec(t.Context(), sql, args...); err != nil {
		t.Fatal(err)
	}
}

// set stores the waitlist's settings.
func (e *env) set(t *testing.T, settings string) {
	t.Helper()
	e.exec(t, `UPDATE waitlist SET settings = $2, version = version + 1 WHERE id = $1`, e.list, settings)
}

// path is a path below the waitlist's.
func (e *env) path(rest string) string { return "/v1/public/waitlists/" + e.list + rest }

// answer is a response that has been read.
type answer struct {
	status int
	header http.Header
	body   string
}

func (e *env) send(ctx context.Context, t *testing.T, method, path, body string, header ...string) answer {
	t.Helper()
	req, err := http.NewRequestWithContext(ctx, method, e.server.URL+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	res, err := e.server.Client().Transport.RoundTrip(req)
	if err != nil {
		if ctx.Err() == nil {
			t.Fatal(err)
		}
		return answer{}
	}
	defer res.Body.Close()
	raw, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer{res.StatusCode, res.Header, string(raw)}
}

func (e *env) get(t *testing.T, path string) answer {
	t.Helper()
	return e.send(t.Context(), t, http.MethodGet, path, "")
}

func (e *env) post(t *testing.T, path, body string, header ...string) answer {
	t.Helper()
	return e.send(t.Context(), t, http.MethodPost, path, body, header...)
}

// join signs an address up and returns its referral token.
func (e *env) join(t *testing.T, email, referrer string) string {
	t.Helper()
	a := e.post(t, e.path("/signups"), fmt.Sprintf(`{"email":%q,"referred_by_token":%q}`, email, referrer))
	tok, _ := a.object(t)["referral_token"].(string)
	if a.status != http.StatusCreated || len(tok) != 32 {
		t.Fatalf("sign %s up: %d %s", email, a.status, a.body)
	}
	return tok
}

// mint returns a mail token about the signup with a number.
func (e *env) mint(p token.Purpose, number int64) string {
	return e.ring.Mint(p, token.SignupSubject(e.list, number), clock.Add(time.Hour))
}

func (a answer) object(t *testing.T) map[string]any {
	t.Helper()
	var v map[string]any
	if err := json.Unmarshal([]byte(a.body), &v); err != nil {
		t.Fatalf("%d %s: %v", a.status, a.body, err)
	}
	return v
}

// is fails the test unless the answer has that status and that JSON. A key with
// the value "*" stands for any non-empty text.
func (a answer) is(t *testing.T, status int, want string) {
	t.Helper()
	if a.status != status || a.header.Get("Content-Type") != "application/json; charset=utf-8" {
		t.Fatalf("%d %s %s, want %d", a.status, a.header.Get("Content-Type"), a.body, status)
	}
	got, wanted := a.object(t), answer{body: want}.object(t)
	for key, value := range wanted {
		if text, _ := got[key].(string); value == "*" && text != "" {
			wanted[key] = text
		}
	}
	if !reflect.DeepEqual(got, wanted) {
		t.Fatalf("%s\nwant %s", a.body, want)
	}
}

// fails fails the test unless the answer is an error with that code about exactly
// those fields, in any order.
func (a answer) fails(t *testing.T, status int, code apierr.Code, fields ...string) {
	t.Helper()
	var body struct {
		Error     string
		Code      apierr.Code `json:"error_code"`
		RequestID string      `json:"request_id"`
		Errors    []apierr.Field
	}
	if err := json.Unmarshal([]byte(a.body), &body); err != nil {
		t.Fatalf("%d %s: %v", a.status, a.body, err)
	}
	var named []string
	for _, f := range body.Errors {
		named = append(named, f.Field)
		if f.Message == "" {
			t.Errorf("no message about %s", f.Field)
		}
	}
	slices.Sort(named)
	slices.Sort(fields)
	if a.status != status || body.Code != code || !slices.Equal(named, fields) || body.Error == "" || body.RequestID == "" {
		t.Fatalf("%d %s, want %d %s about %v", a.status, a.body, status, code, fields)
	}
}
