package http_test

import (
	"cmp"
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/jackc/pgx/v5/pgxpool"
	"google.golang.org/grpc"

	"waitlist.internal/libs/access"
	"waitlist.internal/libs/apierr"
	"waitlist.internal/libs/httpapi"
	"waitlist.internal/libs/testenv"
	accountv1 "waitlist.internal/proto/gen/waitlist/account/v1"
	"waitlist.internal/services/billing"
	billinghttp "waitlist.internal/services/billing/http"
	"waitlist.internal/services/billing/postgres"
	"waitlist.internal/services/billing/providertest"
	"waitlist.internal/services/billing/stripe"
)

func TestMain(m *testing.M) { testenv.Main(m) }

const (
	ann = "0197f0c4-6d0e-7cc1-a2a3-00000000000a"
	bob = "0197f0c4-6d0e-7cc1-a2a3-00000000000b"
	// oldSecret and newSecret sign webhook events during a rotation.
	oldSecret, newSecret = "whsec_before", "whsec_of_the_test"
)

// accounts stands for account, as the authorizer of requests and as the keeper of
// entitlements. The API key of an account is its id.
type accounts struct {
	mu     sync.Mutex
	has    map[string]access.Entitlement
	grants map[string][]access.Grant // of other owners
	trial  error                     // what StartTrial answers
}

func (a *accounts) Authorize(_ context.Context, in *accountv1.AuthorizeRequest,
	_ ...grpc.CallOption,
) (*accountv1.AuthorizeResponse, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	id := cmp.Or(in.GetBearerToken(), in.GetApiKey())
	e, ok := a.has[id]
	if !ok {
		return nil, apierr.New(apierr.AuthenticationRequired, "Credentials are missing or invalid.")
	}
	own := access.Grant{OwnerID: id, Role: access.Owner, Entitlement: e}
	actor := access.Actor{AccountID: id, Email: "x@example.com", Grants: append([]access.Grant{own}, a.grants[id]...)}
	return &accountv1.AuthorizeResponse{Actor: actor.Proto()}, nil
}

func (a *accounts) SetEntitlement(_ context.Context, id string, e access.Entitlement) (access.Entitlement, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if e.Version > a.has[id].Version {
		a.has[id] = e
	}
	return a.has[id], nil
}

func (a *accounts) SetPaymentCustomer(context.Context, string, string) error { return nil }

func (a *accounts) StartTrial(_ context.Context, id string) (access.Entitlement, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.trial != nil {
		return access.Entitlement{}, a.trial
	}
	a.has[id] = access.Entitlement{
		Tier: access.Pro, Status: access.Trialing, Trial: true, ValidUntil: time.Unix(1_900_000_000, 0), Version: a.has[id].Version + 1,
	}
	return a.has[id], nil
}

func (a *accounts) ofAnn() access.Entitlement {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.has[ann]
}

// env is the service's routes over the domain on a database of its own.
type env struct {
	t        *testing.T
	pool     *pgxpool.Pool
	cfg      billing.Config
	provider *providertest.Provider
	accounts *accounts
	engine   *gin.Engine
}

// newEnv has ann in a trial and bob after one; neither is a customer yet.
func newEnv(t *testing.T) *env {
	t.Helper()
	e := &env{
		t: t, pool: testenv.Migrated(t, billing.Name, 4, postgres.Migrations),
		provider: providertest.New(time.Now),
		accounts: &accounts{grants: map[string][]access.Grant{}, has: map[string]access.Entitlement{
			ann: {Tier: access.Pro, Status: access.Trialing, Trial: true, ValidUntil: time.Now().Add(time.Hour), Version: 1},
			bob: {Tier: access.Pro, Status: access.Trialing, Trial: true, ValidUntil: time.Now().Add(-time.Hour), Version: 1},
		}},
	}
	prices, err := billing.ParsePrices([]string{
		"basic.monthly=p_bm", "basic.yearly=p_by", "advanced.monthly=p_am", "advanced.yearly=p_ay", "pro.monthly=p_pm", "pro.yearly=p_py",
	})
	if err != nil {
		t.Fatal(err)
	}
	e.cfg = billing.Config{
		Store: postgres.New(e.pool, e.pool, 2), Accounts: e.accounts, Provider: e.provider, Prices: prices,
		URLs: billing.URLs{Success: "https://example.com/s", Cancel: "https://example.com/c", Portal: "https://example.com/p"},
		Log:  slog.New(slog.DiscardHandler), Now: time.Now,
	}
	e.serve()
	return e
}

// serve creates the engine from the current configuration.
func (e *env) serve() {
	e.t.Helper()
	webhook, err := stripe.NewWebhook([]string{oldSecret, newSecret})
	if err != nil {
		e.t.Fatal(err)
	}
	if e.engine, err = httpapi.NewEngine(httpapi.Config{Log: e.cfg.Log, Timeout: time.Minute}); err != nil {
		e.t.Fatal(err)
	}
	billinghttp.Routes(e.engine, billing.New(e.cfg), e.accounts, webhook)
}

// answer is a response.
type answer struct {
	status int
	header http.Header
	raw    string
}

// ok fails the test unless the answer is 200 with this body.
func (a answer) ok(t *testing.T, body string) {
	t.Helper()
	if a.status != http.StatusOK || a.raw != body {
		t.Fatalf("got %d %s, want 200 %s", a.status, a.raw, body)
	}
}

// fails expects an error with a status, a code and exactly these fields. Every message
// must be a sentence.
func (a answer) fails(t *testing.T, status int, code apierr.Code, fields ...string) {
	t.Helper()
	var got struct {
		Error     string      `json:"error"`
		Code      apierr.Code `json:"error_code"`
		RequestID string      `json:"request_id"`
		Errors    []apierr.Field
	}
	if err := json.Unmarshal([]byte(a.raw), &got); err != nil || a.status != status || got.Code != code {
		t.Fatalf("got %d %s, want %d %s", a.status, a.raw, status, code)
	}
	named := make([]string, 0, len(got.Errors))
	for _, f := range got.Errors {
		named = append(named, f.Field)
	}
	for _, m := range append([]apierr.Field{{Message: got.Error}}, got.Errors...) {
		if m.Message != strings.ToUpper(m.Message[:1])+m.Message[1:] || !strings.HasSuffix(m.Message, ".") {
			t.Errorf("%q is not a sentence", m.Message)
		}
	}
	if got.Error == "" || got.RequestID == "" || !slices.Equal(named, append([]string{}, fields...)) {
		t.Fatalf("got %s, want fields %v", a.raw, fields)
	}
}

// do sends a request below /v1/billing with an API key, and header names followed by
// their values.
func (e *env) do(method, path, key, body string, header ...string) answer {
	e.t.Helper()
	req := httptest.NewRequestWithContext(e.t.Context(), method, "/v1/billing"+path, strings.NewReader(body))
	if key != "" {
		req.Header.Set("X-Api-Key", key)
	}
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	rec := httptest.NewRecorder()
	e.engine.ServeHTTP(rec, req)
	return answer{rec.Code, rec.Header(), strings.TrimSpace(rec.Body.String())}
}

func (e *env) post(path, key, body string, header ...string) answer {
	e.t.Helper()
	return e.do(http.MethodPost, path, key, body, header...)
}

// customer makes Ann's account the provider's first customer, who has an open checkout.
func (e *env) customer() {
	e.t.Helper()
	if a := e.post("/checkout", ann, `{"tier":"basic"}`); a.status != http.StatusOK {
		e.t.Fatalf("%d %s", a.status, a.raw)
	}
}
