package app_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	kafkago "github.com/segmentio/kafka-go"
	"github.com/stripe/stripe-go/v76/webhook"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"waitlist.internal/libs/access"
	"waitlist.internal/libs/apierr"
	"waitlist.internal/libs/kafka"
	"waitlist.internal/libs/kafka/kafkatest"
	"waitlist.internal/libs/pg"
	"waitlist.internal/libs/rpc"
	"waitlist.internal/libs/service"
	"waitlist.internal/libs/testenv"
	accountv1 "waitlist.internal/proto/gen/waitlist/account/v1"
	eventv1 "waitlist.internal/proto/gen/waitlist/event/v1"
	"waitlist.internal/services/billing/app"
)

func TestMain(m *testing.M) { testenv.Main(m) }

const (
	ann    = "0197f0c4-6d0e-7cc1-a2a3-00000000000a"
	secret = "whsec_of_the_test"
)

// account is a fake of the account service. Ann's API key is "ann".
type account struct {
	accountv1.UnimplementedAccountServiceServer
	mu  sync.Mutex
	has access.Entitlement
	// customer is the last customer that billing set for her.
	customer string
}

func (a *account) Authorize(_ context.Context, in *accountv1.AuthorizeRequest) (*accountv1.AuthorizeResponse, error) {
	if in.GetApiKey() != "ann" {
		return nil, apierr.New(apierr.AuthenticationRequired, "no")
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	actor := access.Actor{
		AccountID: ann,
		Email:     "ann@example.com",
		Grants:    []access.Grant{{OwnerID: ann, Role: access.Owner, Entitlement: a.has}},
	}
	return &accountv1.AuthorizeResponse{Actor: actor.Proto()}, nil
}

// GetAccount implements the service: all accounts are deleted.
func (a *account) GetAccount(context.Context, *accountv1.GetAccountRequest) (*accountv1.GetAccountResponse, error) {
	return nil, apierr.NotFoundf("There is no such account.")
}

func (a *account) SetEntitlement(_ context.Context, in *accountv1.SetEntitlementRequest) (*accountv1.SetEntitlementResponse, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if e := access.EntitlementFromProto(in.GetEntitlement()); e.Version > a.has.Version {
		a.has = e
	}
	return &accountv1.SetEntitlementResponse{Entitlement: a.has.Proto()}, nil
}

func (a *account) SetPaymentCustomer(
	_ context.Context,
	in *accountv1.SetPaymentCustomerRequest,
) (*accountv1.SetPaymentCustomerResponse, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.customer = in.GetCustomerId()
	return &accountv1.SetPaymentCustomerResponse{}, nil
}

func (a *account) StartTrial(context.Context, *accountv1.StartTrialRequest) (*accountv1.StartTrialResponse, error) {
	return nil, apierr.New(apierr.Conflict, "The trial was used already.")
}

func (a *account) status() access.Status {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.has.Status
}

// stripe is a fake of the provider for one customer with one subscription.
type stripe struct {
	*httptest.Server
	mu    sync.Mutex
	subs  []map[string]any
	asked []string
}

func newStripe(t *testing.T) *stripe {
	t.Helper()
	s := &stripe{}
	s.Server = httptest.NewServer(s)
	t.Cleanup(s.Close)
	return s
}

func (s *stripe) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked = append(s.asked, r.Method+" "+r.URL.Path)
	list := func(data any) any { return map[string]any{"object": "list", "data": data, "has_more": false} }
	var out any
	switch r.Method + " " + r.URL.Path {
	case "POST /v1/customers":
		out = map[string]any{"id": "cus_1", "object": "customer"}
	case "GET /v1/customers":
		out = list([]any{map[string]any{"id": "cus_1", "object": "customer", "metadata": map[string]string{"account_id": ann}}})
	case "DELETE /v1/customers/cus_1":
		out = map[string]any{"id": "cus_1", "object": "customer", "deleted": true}
	case "GET /v1/checkout/sessions":
		out = list([]any{})
	case "POST /v1/checkout/sessions":
		out = map[string]any{"id": "cs_1", "object": "checkout.session", "url": "https://pay.example/cs_1", "status": "open"}
	case "GET /v1/subscriptions":
		out = list(s.subs)
	case "DELETE /v1/subscriptions/sub_1":
		s.subs[0]["status"] = "canceled"
		out = s.subs[0]
	default:
		w.WriteHeader(http.StatusNotFound)
		out = map[string]any{"error": map[string]any{"type": "invalid_request_error", "code": "resource_missing"}}
	}
	_ = json.NewEncoder(w).Encode(out)
}

// subscribe makes the customer pay.
func (s *stripe) subscribe(price string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.subs = []map[string]any{
		{
			"id":       "sub_1",
			"object":   "subscription",
			"status":   "active",
			"customer": "cus_1",
			"created":  time.Now().Unix(),
			"current_period_end": time.Now().AddDate(
				0,
				1,
				0,
			).Unix(),
			"items": map[string]any{"data": []any{map[string]any{"id": "si_1", "price": map[string]any{"id": price}}}},
		},
	}
}

func (s *stripe) was(call string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Contains(s.asked, call)
}

func seed(name string) []byte { return []byte(strings.Repeat(name[:1], 32)) }

// world is the service's dependencies.
type world struct {
	t       *testing.T
	account *account
	stripe  *stripe
	kafka   kafka.Config
	env     []string
}

func newWorld(t *testing.T) *world {
	t.Helper()
	brokers, prefix := testenv.Kafka(t)
	id, err := rpc.NewIdentity("billing", seed("billing"))
	if err != nil {
		t.Fatal(err)
	}
	w := &world{
		t:      t,
		stripe: newStripe(t),
		kafka:  kafka.Config{Brokers: brokers, TopicPrefix: prefix},
		account: &account{
			has: access.Entitlement{Tier: access.Pro, Status: access.Trialing, Trial: true, ValidUntil: time.Now().Add(time.Hour), Version: 1},
		},
	}
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := rpc.NewServer("account", rpc.Keys{"billing": {id.Public()}}, testLog(t), grpc.WaitForHandlers(true))
	accountv1.RegisterAccountServiceServer(server, w.account)
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	t.Cleanup(func() {
		server.Stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	w.env = []string{
		"POSTGRES_URL=" + testenv.Postgres(
			t,
		),
		"REDIS_URL=" + testenv.Redis(t),
		"KAFKA_BROKERS=" + strings.Join(brokers, ","),
		"KAFKA_TOPIC_PREFIX=" + prefix,
		"SERVICE_KEY=" + base64.StdEncoding.EncodeToString(
			seed("billing"),
		),
		"ACCOUNT_GRPC=" + listener.Addr().String(),
		"RATE_LIMIT_RPS=1",
		"RATE_LIMIT_BURST=10",
		"STRIPE_SECRET_KEY=sk_test_123",
		"STRIPE_WEBHOOK_SECRETS=whsec_before," + secret,
		"STRIPE_URL=" + w.stripe.URL,
		"STRIPE_PRICES=basic.monthly=bm,basic.yearly=by,advanced.monthly=am,advanced.yearly=ay,pro.monthly=pm,pro.yearly=py",
		"BILLING_URL=https://example.com/billing/",
	}
	return w
}

// start runs the service until the test's end and returns its public interface.
func (w *world) start() http.Handler {
	w.t.Helper()
	cfg, err := service.Load[app.Config](w.env)
	if err != nil {
		w.t.Fatal(err)
	}
	cfg.LogOutput = w.t.Output()
	a, err := app.New(w.t.Context(), cfg)
	if err != nil {
		w.t.Fatal(err)
	}
	if a.Ready(w.t.Context()) == nil {
		w.t.Error("the service is ready before it serves")
	}
	w.t.Cleanup(func() {
		if a.Ready(context.Background()) == nil {
			w.t.Error("the service is ready after it stopped")
		}
	})
	testenv.Run(w.t, a.Run)
	testenv.Eventually(w.t, "ready", func() bool { return a.Ready(w.t.Context()) == nil })
	return a.Handler()
}

// do sends a request and returns its status and body.
func do(t *testing.T, h http.Handler, method, path, key, body string, header ...string) (int, string) {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), method, "/v1/billing"+path, strings.NewReader(body))
	r.Header.Set("X-Api-Key", key)
	for i := 0; i+1 < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	rec := httptest.NewRecorder()
	h.ServeHTTP(rec, r)
	return rec.Code, strings.TrimSpace(rec.Body.String())
}

// event returns a signed event about the customer.
func event(id string) (body, signature string) {
	signed := webhook.GenerateTestSignedPayload(&webhook.UnsignedPayload{
		Payload: fmt.Appendf(
			nil,
			`{"id":%q,"type":"customer.subscription.created","data":{"object":{"object":"subscription","customer":"cus_1"}}}`,
			id,
		),
		Secret: secret,
	})
	return string(signed.Payload), signed.Header
}

// An account's life from the first checkout to the deletion, with every dependency.
func TestTheLifeOfASubscription(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	h := w.start()
	status, body := do(t, h, http.MethodPost, "/checkout", "ann", `{"tier":"advanced"}`)
	if status != http.StatusOK || body != `{"url":"https://pay.example/cs_1"}` {
		t.Fatalf("%d %s", status, body)
	}
	if got := w.account.status(); got != access.Inactive || w.account.customer != "cus_1" {
		t.Errorf("%s, customer %q", got, w.account.customer)
	}
	w.stripe.subscribe("am")
	body, signature := event("evt_1")
	if status, answer := do(
		t,
		h,
		http.MethodPost,
		"/webhook",
		"",
		body,
		"Stripe-Signature",
		signature,
	); status != http.StatusOK ||
		answer != `{"received":true}` {
		t.Fatalf("%d %s", status, answer)
	}
	if got := w.account.status(); got != access.Active {
		t.Errorf("after the event, account has the status %s", got)
	}

	writer := kafka.NewWriter(w.kafka)
	defer func() {
		if err := writer.Close(); err != nil {
			t.Error(err)
		}
	}()
	ev := &eventv1.Event{
		Id: uuid.Must(uuid.NewV7()).String(), OccurredAt: timestamppb.Now(),
		Payload: &eventv1.Event_AccountDeleted{AccountDeleted: &eventv1.AccountDeleted{AccountId: ann}},
	}
	raw, err := proto.Marshal(ev)
	if err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, "the record of the deletion", func() bool {
		return writer.WriteMessages(t.Context(), kafkago.Message{Topic: kafka.AccountsTopic, Key: []byte(ann), Value: raw}) == nil
	})
	testenv.Eventually(t, "the deletion of the customer", func() bool { return w.stripe.was("DELETE /v1/customers/cus_1") })
	if !w.stripe.was("DELETE /v1/subscriptions/sub_1") {
		t.Error("the subscription was not canceled")
	}
	if status, body := do(t, h, http.MethodPost, "/checkout", "ann", `{"tier":"pro"}`); status != http.StatusUnauthorized {
		t.Errorf("after the deletion: %d %s", status, body)
	}
}

// The consumer continues behind events that it cannot handle, and handles each of
// them once when it can.
func TestPoison(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	// Deletions of paying accounts wait while the provider is unavailable.
	w.stripe.Close()
	w.start()
	url, _ := strings.CutPrefix(w.env[0], "POSTGRES_URL=")
	pool, err := pg.Open(t.Context(), url, "billing", 2)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	kafkatest.TakesPoison(t, kafkatest.Consumer{
		Config: w.kafka, Group: "billing", Topic: kafka.AccountsTopic, Pool: pool,
		Event: func(id string) *eventv1.Event {
			if uuid.Validate(id) == nil {
				if _, err := pool.Exec(t.Context(), "INSERT INTO subscriber (account_id, customer_id) VALUES ($1, $1::uuid::text)", id); err != nil {
					t.Fatal(err)
				}
			}
			return &eventv1.Event{Payload: &eventv1.Event_AccountDeleted{AccountDeleted: &eventv1.AccountDeleted{AccountId: id}}}
		},
		Effects: "SELECT account_id::text FROM deletion", Undo: "DELETE FROM deletion",
	})
}

func TestEventsAreTakenWhateverTheLimit(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	h := w.start()
	testenv.Eventually(t, "the rate limit", func() bool {
		status, _ := do(t, h, http.MethodGet, "/info", "nobody", "")
		return status == http.StatusTooManyRequests
	})
	for i := range 30 {
		body, signature := event(fmt.Sprintf("evt_%d", i))
		if status, answer := do(t, h, http.MethodPost, "/webhook", "", body, "Stripe-Signature", signature); status != http.StatusOK {
			t.Fatalf("%d %s", status, answer)
		}
	}
}

func TestRequestsAreChecked(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.env = append(w.env, "RATE_LIMIT_RPS=10000", "RATE_LIMIT_BURST=10000")
	h := w.start()
	body, signature := event("evt_1")
	for name, tc := range map[string]struct {
		method, path, key, body string
		header                  []string
		status                  int
		code, field             string
	}{
		"no credentials": {http.MethodPost, "/checkout", "", `{"tier":"pro"}`, nil, 401, "AUTHENTICATION_REQUIRED", ""},
		"no body":        {http.MethodPost, "/checkout", "ann", ``, nil, 400, "INVALID_BODY", ""},
		"no tier":        {http.MethodPost, "/checkout", "ann", `{}`, nil, 400, "VALIDATION_ERROR", "tier"},
		"a strange tier": {http.MethodPost, "/preview", "ann", `{"tier":"gold"}`, nil, 400, "VALIDATION_ERROR", "tier"},
		"a number":       {http.MethodPost, "/checkout", "ann", `{"tier":5}`, nil, 400, "VALIDATION_ERROR", "tier"},
		"an interval":    {http.MethodPost, "/checkout", "ann", `{"tier":"pro","interval":"daily"}`, nil, 400, "VALIDATION_ERROR", "interval"},
		"nothing paid":   {http.MethodPost, "/preview", "ann", `{"tier":"pro","interval":null}`, nil, 400, "VALIDATION_ERROR", "subscription"},
		"no customer":    {http.MethodPost, "/portal", "ann", ``, nil, 400, "VALIDATION_ERROR", "customer"},
		"a used trial":   {http.MethodPost, "/start-trial", "ann", ``, nil, 409, "CONFLICT", ""},
		"no signature":   {http.MethodPost, "/webhook", "", body, nil, 400, "INVALID_TOKEN", ""},
		"another's":      {http.MethodPost, "/webhook", "", body + " ", []string{"Stripe-Signature", signature}, 400, "INVALID_TOKEN", ""},
		"a long signature": {
			http.MethodPost, "/webhook", "", body, []string{"Stripe-Signature", strings.Repeat("x", 5000)}, 400, "INVALID_TOKEN", "",
		},
		"a long event": {http.MethodPost, "/webhook", "", strings.Repeat("x", 1<<20+1), nil, 400, "INVALID_BODY", ""},
		"no such path": {http.MethodPost, "/nope", "ann", ``, nil, 404, "NOT_FOUND", ""},
	} {
		status, answer := do(t, h, tc.method, tc.path, tc.key, tc.body, tc.header...)
		var got struct {
			Code   string `json:"error_code"`
			Errors []struct{ Field string }
		}
		if err := json.Unmarshal([]byte(answer), &got); err != nil || status != tc.status || got.Code != tc.code {
			t.Errorf("%s: %d %s", name, status, answer)
		}
		if tc.field != "" && (len(got.Errors) != 1 || got.Errors[0].Field != tc.field) {
			t.Errorf("%s: %s", name, answer)
		}
	}
	if status, answer := do(
		t,
		h,
		http.MethodGet,
		"/info",
		"ann",
		"",
	); status != http.StatusOK ||
		answer != `{"invoices":[],"payment_method":null}` {
		t.Errorf("%d %s", status, answer)
	}
}

func TestTheCommandMendsWhatNobodyToldOf(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	reconcile := func(want string) {
		t.Helper()
		cfg, err := service.Load[app.Config](w.env)
		if err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		cfg.LogOutput, cfg.Output = t.Output(), &out
		r, err := app.NewReconcile(t.Context(), cfg)
		if err != nil {
			t.Fatal(err)
		}
		if err := r.Run(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := strings.TrimSpace(out.String()); got != want {
			t.Errorf("it prints %q, want %q", got, want)
		}
	}
	reconcile("customers 1, accounts 0, deleted 0; repaired 0, adopted 0, removed 0, left alone 1, failed 0")
	// The service then skips its own reconciliation at the start.
	url, _ := strings.CutPrefix(w.env[0], "POSTGRES_URL=")
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	if _, err := conn.Exec(t.Context(), "INSERT INTO billing.reconciliation VALUES (true, now())"); err != nil {
		t.Fatal(err)
	}
	h := w.start()
	if status, body := do(t, h, http.MethodPost, "/checkout", "ann", `{"tier":"pro"}`); status != http.StatusOK {
		t.Fatalf("%d %s", status, body)
	}
	w.stripe.subscribe("pm")
	for _, repaired := range []int{1, 0} {
		reconcile(fmt.Sprintf("customers 1, accounts 1, deleted 0; repaired %d, adopted 0, removed 0, left alone 0, failed 0", repaired))
		if got := w.account.status(); got != access.Active {
			t.Errorf("%s", got)
		}
	}
}

func TestSaysAllThatIsMissing(t *testing.T) {
	t.Parallel()
	cfg, err := service.Load[app.Config](
		[]string{"STRIPE_TIMEOUT=1h", "POSTGRES_MAX_CONNS=8", "STRIPE_URL=x"},
	)
	if err != nil {
		t.Fatal(err)
	}
	_, err = app.New(t.Context(), cfg)
	for _, want := range []string{
		"STRIPE_SECRET_KEY", "STRIPE_WEBHOOK_SECRETS", "STRIPE_PRICES", "STRIPE_URL", "STRIPE_TIMEOUT",
		"BILLING_URL", "POSTGRES_MAX_CONNS to more than 8",
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s is missing in %v", want, err)
		}
	}
}
