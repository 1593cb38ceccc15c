package http_test

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	stdmail "net/mail"
	"strings"
	"testing"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"google.golang.org/grpc"

	"waitlist.internal/libs/access"
	"waitlist.internal/libs/apierr"
	"waitlist.internal/libs/httpapi"
	"waitlist.internal/libs/pg"
	"waitlist.internal/libs/seal"
	"waitlist.internal/libs/testenv"
	accountv1 "waitlist.internal/proto/gen/waitlist/account/v1"
	"waitlist.internal/services/messaging"
	"waitlist.internal/services/messaging/domains"
	messaginghttp "waitlist.internal/services/messaging/http"
	"waitlist.internal/services/messaging/postgres"
	"waitlist.internal/services/messaging/templates"
)

func TestMain(m *testing.M) { testenv.Main(m) }

const (
	ownerID  = "0193d4a2-5c1e-7a41-8000-00000000000a"
	otherID  = "0193d4a2-5c1e-7a41-8000-00000000000b"
	memberID = "0193d4a2-5c1e-7a41-8000-00000000000c"
)

// env is the routes with their own database. actors stands in for account: it maps keys to their holders.
type env struct {
	t      testing.TB
	pool   *pgxpool.Pool
	engine *gin.Engine
	actors map[string]access.Actor
	woken  int

	zone    *zone
	now     time.Time
	domains *postgres.Domains
	owners  *domains.Service
}

func newEnv(t testing.TB) *env {
	t.Helper()
	e := &env{t: t, pool: testenv.Migrated(t, messaging.Name, 8, postgres.Migrations), actors: map[string]access.Actor{}}
	engine, err := httpapi.NewEngine(httpapi.Config{})
	if err != nil {
		t.Fatal(err)
	}
	e.engine = engine
	ring, err := seal.ParseRing("k1:" + base64.StdEncoding.EncodeToString([]byte(strings.Repeat("s", 32))))
	if err != nil {
		t.Fatal(err)
	}
	e.zone, e.now = &zone{texts: map[string][]string{}}, time.Now()
	e.domains = postgres.NewDomains(e.pool, ring, "dns", stdmail.Address{Name: "Waitlist", Address: "no-reply@mail.example.org"})
	e.owners = domains.New(domains.Config{
		Store: e.domains, Prover: domains.Records{Texts: e.zone}, Own: "mail.example.org", EnforceVerification: true,
		Every: time.Minute, Log: slog.New(slog.NewTextHandler(t.Output(), nil)), Now: func() time.Time { return e.now },
	})
	messaginghttp.Routes(engine, messaginghttp.Backends{
		Accounts:  e,
		Templates: templates.New(postgres.NewTemplates(e.pool, func() { e.woken++ }), 0, time.Now),
		Domains:   e.owners,
	})
	e.actors["owner"] = actor(ownerID, "owner@example.com", pro())
	e.actors["other"] = actor(otherID, "other@example.com", pro())
	return e
}

func pro() access.Entitlement { return access.Entitlement{Tier: access.Pro, Status: access.Active} }

// actor is a person with an account and roles in other accounts.
func actor(id, email string, own access.Entitlement, teams ...access.Grant) access.Actor {
	return access.Actor{
		AccountID: id, Email: email, EmailVerified: true,
		Grants: append([]access.Grant{{OwnerID: id, OwnerEmail: email, Role: access.Owner, Entitlement: own}}, teams...),
	}
}

// Authorize implements authn.Authorizer.
func (e *env) Authorize(_ context.Context, r *accountv1.AuthorizeRequest, _ ...grpc.CallOption) (*accountv1.AuthorizeResponse, error) {
	a, ok := e.actors[r.GetApiKey()]
	if !ok {
		return nil, apierr.New(apierr.AuthenticationRequired, "no")
	}
	return &accountv1.AuthorizeResponse{Actor: a.Proto()}, nil
}

// answer is a response and its decoded body.
type answer struct {
	t      testing.TB
	status int
	raw    string
	body   map[string]any
}

// do sends a request as an actor, on behalf of the owner with an address if one is given. body is raw text or
// a value to encode as JSON.
func (e *env) do(who, method, path string, body any, account ...string) answer {
	e.t.Helper()
	text, ok := body.(string)
	if !ok && body != nil {
		b, err := json.Marshal(body)
		if err != nil {
			e.t.Fatal(err)
		}
		text = string(b)
	}
	r := httptest.NewRequestWithContext(e.t.Context(), method, "/v1"+path, strings.NewReader(text))
	r.Header.Set("X-Api-Key", who)
	if len(account) > 0 {
		r.Header.Set("X-Account-Email", account[0])
	}
	rec := httptest.NewRecorder()
	e.engine.ServeHTTP(rec, r)
	a := answer{t: e.t, status: rec.Code, raw: rec.Body.String()}
	if a.raw != "" {
		if err := json.Unmarshal(rec.Body.Bytes(), &a.body); err != nil {
			e.t.Fatalf("%s %s: %v in %q", method, path, err, a.raw)
		}
	}
	return a
}

// want checks the status and, if code is not empty, the error code.
func (a answer) want(status int, code string) answer {
	a.t.Helper()
	got, _ := a.body["error_code"].(string)
	if a.status != status || got != code {
		a.t.Fatalf("%d %s, want %d %s", a.status, a.raw, status, code)
	}
	return a
}

func (a answer) str(name string) string {
	a.t.Helper()
	s, ok := a.body[name].(string)
	if !ok {
		a.t.Fatalf("no %s in %s", name, a.raw)
	}
	return s
}

// fields returns the fields that a validation error names.
func (a answer) fields() string {
	var out []string
	list, _ := a.body["errors"].([]any)
	for _, entry := range list {
		entry, _ := entry.(map[string]any)
		out = append(out, fmt.Sprint(entry["field"]))
	}
	return strings.Join(out, ",")
}

func (e *env) count(sql string) (n int) {
	e.t.Helper()
	if err := e.pool.QueryRow(e.t.Context(), sql).Scan(&n); err != nil {
		e.t.Fatal(err)
	}
	return n
}

// forget deletes an account and all its data.
func (e *env) forget(ownerID string) {
	e.t.Helper()
	mails := postgres.NewMails(e.pool)
	if err := pg.InTx(e.t.Context(), e.pool, func(tx pgx.Tx) error { return mails.Forget(e.t.Context(), tx, ownerID) }); err != nil {
		e.t.Fatal(err)
	}
	if err := (&postgres.Purge{Pool: e.pool}).Once(e.t.Context()); err != nil {
		e.t.Fatal(err)
	}
}

const (
	get    = http.MethodGet
	post   = http.MethodPost
	patch  = http.MethodPatch
	remove = http.MethodDelete
)
