package http_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stripe/stripe-go/v76/webhook"

	"waitlist.internal/libs/access"
	"waitlist.internal/libs/apierr"
	"waitlist.internal/services/billing"
	billinghttp "waitlist.internal/services/billing/http"
)

func failure(r billing.Reason) *billing.ProviderError {
	return &billing.ProviderError{Reason: r, Call: "x", Answered: r == billing.Away}
}

// requests are the routes that ask for credentials, with a body that is accepted.
var requests = []struct{ method, path, body string }{
	{http.MethodPost, "/checkout", `{"tier":"pro"}`},
	{http.MethodPost, "/preview", `{"tier":"pro"}`},
	{http.MethodPost, "/start-trial", ""},
	{http.MethodPost, "/cancel", ""},
	{http.MethodPost, "/portal", ""},
	{http.MethodGet, "/info", ""},
}

func TestCheckout(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	page := `{"url":"https://pay.example/cs_0002/p_am?back=https://example.com/s"}`
	e.post("/checkout", ann, `{"tier":"advanced"}`).ok(t, page)
	if got := e.accounts.ofAnn().Status; got != access.Inactive {
		t.Errorf("the trial is %s after the checkout", got)
	}
	// A second click leads to the same page, and makes no second customer.
	e.post("/checkout", ann, `{"tier":"advanced","interval":null}`).ok(t, page)
	if n := len(e.provider.Keys("customer")); n != 1 {
		t.Errorf("%d customers", n)
	}
	e.provider.Subscribe("cus_0001", "p_am")
	e.post("/checkout", ann, `{"tier":"pro","interval":"yearly"}`).ok(t, `{"upgraded":true,"tier":"pro","status":"active"}`)
	e.post("/checkout", ann, `{"tier":"pro","interval":"yearly"}`).fails(t, 400, apierr.ValidationError, "tier")
	e.provider.Fail("plan", false, failure(billing.Card))
	e.post("/checkout", ann, `{"tier":"basic"}`).ok(t, `{"upgraded":false,"payment_failed":true}`)
	if got := e.accounts.ofAnn(); got.Tier != access.Pro || got.Status != access.Active {
		t.Errorf("%s %s after a payment that failed", got.Tier, got.Status)
	}
}

func TestPreview(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	e.post("/preview", ann, `{"tier":"pro"}`).fails(t, 400, apierr.ValidationError, "subscription")
	e.customer()
	e.post("/preview", ann, `{"tier":"pro"}`).fails(t, 400, apierr.ValidationError, "subscription")
	e.provider.Subscribe("cus_0001", "p_am")
	e.post("/preview", ann, `{"tier":"pro","interval":"yearly"}`).ok(t, `{"current_plan":"advanced","new_plan":"pro",`+
		`"proration_amount":49000,"proration_formatted":"$490.00","new_recurring_price":50000,"new_recurring_formatted":"$500.00",`+
		`"is_upgrade":true,"immediate_charge":true}`)
	e.post("/preview", ann, `{"tier":"advanced"}`).ok(t, `{"already_on_plan":true,"actual_tier":"advanced"}`)
}

func TestStartTrial(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	e.post("/start-trial", ann, "").fails(t, 409, apierr.Conflict) // one is under way
	e.accounts.trial = apierr.New(apierr.Conflict, "You have already used your trial.")
	e.post("/start-trial", bob, "").fails(t, 409, apierr.Conflict)
	e.accounts.trial = apierr.NotFoundf("There is no such account.")
	e.post("/start-trial", bob, "").fails(t, 401, apierr.AuthenticationRequired)
	e.accounts.trial = nil
	e.post("/start-trial", bob, "").ok(t, `{"status":"trialing","tier":"pro","trial_end":1900000000}`)
}

func TestCancel(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	e.post("/cancel", bob, "").fails(t, 400, apierr.ValidationError, "subscription")
	e.post("/cancel", ann, "").ok(t, `{"status":"inactive","canceled_immediately":true}`)
	e.post("/cancel", ann, "").fails(t, 400, apierr.ValidationError, "subscription")
	e.customer()
	end := e.provider.Subscribe("cus_0001", "p_bm").CurrentPeriodEnd.Unix()
	want := fmt.Sprintf(`{"status":"canceling","canceled_immediately":false,"cancel_at":%d,"current_period_end":%d}`, end, end)
	e.post("/cancel", ann, "").ok(t, want)
	e.post("/cancel", ann, "").ok(t, want)
	if n := len(e.provider.Keys("canceling")); n != 1 {
		t.Errorf("%d calls cancel once", n)
	}
}

func TestPortal(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	e.post("/portal", ann, "").fails(t, 400, apierr.ValidationError, "customer")
	e.customer()
	e.post("/portal", ann, "").ok(t, `{"url":"https://portal.example/cus_0001?back=https://example.com/p"}`)
	e.provider.Fail("portal", false, failure(billing.Missing))
	e.post("/portal", ann, "").fails(t, 400, apierr.ValidationError, "customer")
}

func TestInfo(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	none := `{"invoices":[],"payment_method":null}`
	e.do(http.MethodGet, "/info", ann, "").ok(t, none)
	e.customer()
	e.do(http.MethodGet, "/info", ann, "").ok(t, none)
	e.provider.Card = &billing.PaymentMethod{Brand: "visa", Last4: "4242", ExpMonth: 2, ExpYear: 2031}
	e.provider.Bills = []billing.Invoice{
		{ID: "in_2", CreatedAt: time.Unix(1_700_000_001, 0), Amount: -500, Currency: "usd"},
		{
			ID: "in_1", CreatedAt: time.Unix(1_700_000_000, 0), Amount: 1000, Currency: "jpy",
			Status: "paid", Description: "Basic", PDF: "https://pay.example/1.pdf", URL: "https://pay.example/1",
		},
	}
	e.do(http.MethodGet, "/info", ann, "").ok(t, `{"invoices":[`+
		`{"id":"in_2","date":1700000001,"amount":-500,"amount_formatted":"-$5.00","status":null,"description":null,`+
		`"invoice_pdf":null,"hosted_invoice_url":null},`+
		`{"id":"in_1","date":1700000000,"amount":1000,"amount_formatted":"¥1,000","status":"paid","description":"Basic",`+
		`"invoice_pdf":"https://pay.example/1.pdf","hosted_invoice_url":"https://pay.example/1"}],`+
		`"payment_method":{"brand":"visa","last4":"4242","exp_month":2,"exp_year":2031}}`)
	e.provider.Fail("method", false, failure(billing.Missing))
	e.do(http.MethodGet, "/info", ann, "").ok(t, none)
}

func TestBadBodies(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	for _, path := range []string{"/checkout", "/preview"} {
		for _, body := range []string{
			"", "{", "[]", "null", "1", `{"tier":"pro"} {}`, "{\"tier\":\"\xff\"}",
			`{"x":"` + strings.Repeat("x", 1<<20) + `"}`,
		} {
			e.post(path, ann, body).fails(t, 400, apierr.InvalidBody)
		}
		for body, fields := range map[string][]string{
			`{}`:                                    {"tier"},
			`{"tier":null}`:                         {"tier"},
			`{"tier":""}`:                           {"tier"},
			`{"tier":5}`:                            {"tier"},
			`{"tier":"gold"}`:                       {"tier"},
			`{"tier":"Pro"}`:                        {"tier"},
			`{"tier":"pro\u0000"}`:                  {"tier"},
			`{"tier":"pro","interval":"daily"}`:     {"interval"},
			`{"tier":"pro","interval":""}`:          {"interval"},
			`{"tier":"pro","interval":["monthly"]}`: {"interval"},
			`{"tier":"gold","interval":"daily"}`:    {"tier", "interval"},
		} {
			e.post(path, ann, body).fails(t, 400, apierr.ValidationError, fields...)
		}
	}
	if n := len(e.provider.Keys("customer")); n != 0 {
		t.Errorf("%d customers from bad bodies", n)
	}
}

func TestUnknownPaths(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	for _, r := range []struct{ method, path string }{
		{http.MethodGet, ""},
		{http.MethodGet, "/"},
		{http.MethodPost, "/nothing"},
		{http.MethodPost, "/info"},
		{http.MethodGet, "/checkout"},
		{http.MethodGet, "/webhook"},
		{http.MethodPost, "/checkout/"},
	} {
		e.do(r.method, r.path, ann, "").fails(t, 404, apierr.NotFound)
	}
}

func TestEveryRouteAsksForCredentials(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	for _, r := range requests {
		e.do(r.method, r.path, "", r.body).fails(t, 401, apierr.AuthenticationRequired)
		e.do(r.method, r.path, "nobody", r.body).fails(t, 401, apierr.AuthenticationRequired)
		e.do(r.method, r.path, ann, r.body, "Authorization", "Bearer nobody").fails(t, 401, apierr.AuthenticationRequired)
		// The webhook's signature authenticates no account.
		raw, signature := signed("evt_1", "cus_0001", newSecret, time.Now())
		e.do(r.method, r.path, "", raw, "Stripe-Signature", signature).fails(t, 401, apierr.AuthenticationRequired)
	}
	e.do(http.MethodGet, "/info", "", "", "Authorization", "Bearer "+ann).ok(t, `{"invoices":[],"payment_method":null}`)
}

// An account needs no subscription to get one, and nobody acts for another account
// here, whatever the role in its team.
func TestEveryTierMayAndOnlyForItself(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	for _, tier := range []access.Tier{"", access.Basic, access.Advanced, access.Pro} {
		e.accounts.has[bob] = access.Entitlement{Tier: tier, Status: access.Inactive, Version: 1}
		e.do(http.MethodGet, "/info", bob, "").ok(t, `{"invoices":[],"payment_method":null}`)
	}
	e.customer()
	e.provider.Subscribe("cus_0001", "p_bm")
	for _, role := range []access.Role{access.Viewer, access.Admin} {
		e.accounts.grants[bob] = []access.Grant{{OwnerID: ann, OwnerEmail: "ann@example.com", Role: role, Entitlement: e.accounts.has[ann]}}
		e.post("/portal", bob, "", "X-Account-Email", "ann@example.com").fails(t, 400, apierr.ValidationError, "customer")
		e.post("/cancel", bob, "", "X-Account-Email", "ann@example.com").fails(t, 400, apierr.ValidationError, "subscription")
		e.post("/preview", bob, `{"tier":"pro"}`, "X-Account-Email", "ann@example.com").fails(t, 400, apierr.ValidationError, "subscription")
	}
	if n := len(e.provider.Keys("canceling")); n != 0 {
		t.Errorf("a member canceled the owner's subscription")
	}
}

// A repetition of a call whose outcome is unknown carries the same key; one after a
// known outcome carries another.
func TestIdempotencyKeys(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	lost := &billing.ProviderError{Reason: billing.Away, Call: "x"}
	for _, step := range []struct {
		err  error
		same bool
	}{{lost, false}, {lost, true}, {failure(billing.Away), true}, {failure(billing.Refused), false}, {nil, false}} {
		e.provider.Fail("customer", false, step.err)
		before := e.provider.Keys("customer")
		a := e.post("/checkout", ann, `{"tier":"pro"}`, "Idempotency-Key", "of the client")
		if (a.status == 200) != (step.err == nil) {
			t.Fatalf("%d %s", a.status, a.raw)
		}
		keys := e.provider.Keys("customer")
		if len(keys) != len(before)+1 {
			t.Fatalf("keys %v", keys)
		}
		if n := len(before); n > 0 && (keys[n] == before[n-1]) != step.same {
			t.Errorf("after %v: keys %v", step.err, keys)
		}
	}
}

// Every route maps the provider's failures to the codes of the API.
func TestFailuresOfTheProvider(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	e.customer()
	e.provider.Subscribe("cus_0001", "p_bm")
	calls := []struct{ method, path, body, call string }{
		{http.MethodPost, "/checkout", `{"tier":"pro"}`, "sessions"},
		{http.MethodPost, "/checkout", `{"tier":"pro"}`, "fetch"},
		{http.MethodPost, "/preview", `{"tier":"pro"}`, "fetch"},
		{http.MethodPost, "/preview", `{"tier":"pro"}`, "price"},
		{http.MethodPost, "/preview", `{"tier":"pro"}`, "quote"},
		{http.MethodPost, "/cancel", "", "canceling"},
		{http.MethodPost, "/portal", "", "portal"},
		{http.MethodGet, "/info", "", "invoices"},
		{http.MethodGet, "/info", "", "method"},
	}
	for _, tc := range []struct {
		err    billing.ProviderError
		status int
		code   apierr.Code
		says   string
		retry  string
	}{
		{billing.ProviderError{Reason: billing.Away, Answered: true}, 502, apierr.ExternalServiceError, "is not responding", ""},
		{
			billing.ProviderError{Reason: billing.Away, Answered: true, RetryAfter: 9500 * time.Millisecond},
			502, apierr.ExternalServiceError, "is not responding", "10",
		},
		{billing.ProviderError{Reason: billing.Throttled}, 429, apierr.RateLimited, "is busy", "1"},
		{billing.ProviderError{Reason: billing.Throttled, RetryAfter: 7 * time.Second}, 429, apierr.RateLimited, "is busy", "7"},
		{billing.ProviderError{Reason: billing.Refused}, 502, apierr.ExternalServiceError, "rejected the request", ""},
		{billing.ProviderError{Reason: billing.KeyReused}, 502, apierr.ExternalServiceError, "rejected the request", ""},
		{billing.ProviderError{Reason: billing.Card}, 400, apierr.PaymentRequired, "declined", ""},
	} {
		for _, c := range calls {
			end := e.provider.Fail(c.call, false, &tc.err)
			a := e.do(c.method, c.path, ann, c.body)
			a.fails(t, tc.status, tc.code)
			if got := a.header.Get("Retry-After"); got != tc.retry || !strings.Contains(a.raw, tc.says) {
				t.Errorf("%s, %s: Retry-After %q and %s, want %q and %q", c.path, tc.err.Reason, got, a.raw, tc.retry, tc.says)
			}
			end()
		}
	}
}

// busy is a store whose accounts are all locked.
type busy struct{ billing.Store }

func (busy) Lock(context.Context, string, time.Duration, func(context.Context, billing.Locked) error) error {
	return fmt.Errorf("wait: %w", billing.ErrBusy)
}

func TestABusyAccount(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	e.customer()
	e.cfg.Store = busy{e.cfg.Store}
	e.serve()
	for _, path := range []string{"/checkout", "/cancel", "/portal"} {
		a := e.post(path, ann, `{"tier":"pro"}`)
		a.fails(t, 429, apierr.RateLimited)
		if got := a.header.Get("Retry-After"); got != "2" {
			t.Errorf("%s: Retry-After %q", path, got)
		}
	}
	// The webhook has no 429.
	raw, signature := signed("evt_1", "cus_0001", newSecret, time.Now())
	e.post("/webhook", "", raw, "Stripe-Signature", signature).fails(t, 502, apierr.ExternalServiceError)
}

func TestADeletedAccount(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	if _, err := e.pool.Exec(t.Context(), `INSERT INTO deletion (grave, account_id, deleted_at, due_at)
		VALUES (encode(substring(sha256(uuid_send($1::uuid)) for 16), 'hex')::uuid, $1, now(), now())`, ann); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"/checkout", "/start-trial", "/cancel", "/portal"} {
		e.post(path, ann, `{"tier":"pro"}`).fails(t, 401, apierr.AuthenticationRequired)
	}
	if n := len(e.provider.Keys("customer")); n != 0 {
		t.Errorf("%d customers for a deleted account", n)
	}
}

// gone is a store without a database.
type gone struct{ billing.Store }

var errGone = errors.New("the database is away")

func (gone) Lock(context.Context, string, time.Duration, func(context.Context, billing.Locked) error) error {
	return errGone
}

func (gone) Subscriber(context.Context, string) (billing.Subscriber, error) {
	return billing.Subscriber{}, errGone
}

func (gone) EventSeen(context.Context, string) (bool, error) { return false, errGone }

func TestFailuresOfTheStore(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	e.cfg.Store = gone{e.cfg.Store}
	e.serve()
	raw, signature := signed("evt_1", "cus_0001", newSecret, time.Now())
	answers := []answer{e.post("/webhook", "", raw, "Stripe-Signature", signature)}
	for _, r := range requests {
		answers = append(answers, e.do(r.method, r.path, ann, r.body))
	}
	for _, a := range answers {
		a.fails(t, 500, apierr.InternalError)
		if strings.Contains(a.raw, "database") {
			t.Errorf("the response reveals the cause: %s", a.raw)
		}
	}
}

// signed is an event about a customer, as the provider sends it.
func signed(id, customer, secret string, at time.Time) (body, signature string) {
	return sign(fmt.Sprintf(`{"id":%q,"type":"customer.subscription.updated",`+
		`"data":{"object":{"object":"subscription","customer":%q}}}`, id, customer), secret, at)
}

func sign(body, secret string, at time.Time) (string, string) {
	s := webhook.GenerateTestSignedPayload(&webhook.UnsignedPayload{Payload: []byte(body), Secret: secret, Timestamp: at})
	return body, s.Header
}

func TestWebhook(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	e.customer()
	e.provider.Subscribe("cus_0001", "p_am")
	fetched := e.provider.Fetches
	for _, secret := range []string{newSecret, oldSecret, newSecret} {
		body, signature := signed("evt_1", "cus_0001", secret, time.Now())
		e.post("/webhook", "", body, "Stripe-Signature", signature).ok(t, `{"received":true}`)
		if n := e.provider.Fetches - fetched; n != 1 {
			t.Errorf("the same event had its effect %d times", n)
		}
	}
	if got := e.accounts.ofAnn(); got.Tier != access.Advanced || got.Status != access.Active {
		t.Errorf("%s %s", got.Tier, got.Status)
	}
	// Events that concern no account are accepted.
	body, signature := signed("evt_2", "cus_of_another", newSecret, time.Now())
	e.post("/webhook", "", body, "Stripe-Signature", signature).ok(t, `{"received":true}`)
	body, signature = sign(`{"id":"evt_3","type":"price.created","data":{"object":{"object":"price","id":"p_bm"}}}`, newSecret, time.Now())
	e.post("/webhook", "", body, "Stripe-Signature", signature).ok(t, `{"received":true}`)
	if n := e.provider.Fetches - fetched; n != 1 {
		t.Errorf("%d fetches", n)
	}
}

func TestForgedEvents(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	e.customer()
	e.provider.Subscribe("cus_0001", "p_am")
	fetched := e.provider.Fetches
	body, good := signed("evt_1", "cus_0001", newSecret, time.Now())
	_, foreign := signed("evt_1", "cus_0001", "whsec_of_another", time.Now())
	_, old := signed("evt_1", "cus_0001", newSecret, time.Now().Add(-301*time.Second))
	for name, tc := range map[string]struct{ body, signature string }{
		"none":             {body, ""},
		"no signature":     {body, "x"},
		"another's secret": {body, foreign},
		"too old":          {body, old},
		"another body":     {body + " ", good},
		"too long":         {body, good + "," + strings.Repeat("x", 4<<10)},
	} {
		t.Log(name)
		e.post("/webhook", ann, tc.body, "Stripe-Signature", tc.signature).fails(t, 400, apierr.InvalidToken)
	}
	for _, raw := range []string{
		`{`, `[]`, `{"type":"x","data":{"object":{}}}`, `{"id":"evt_1","type":"x"}`,
		`{"id":"` + strings.Repeat("x", 256) + `","data":{"object":{}}}`, `{"id":"evt_1","data":{"object":[]}}`,
	} {
		t.Log(raw)
		raw, signature := sign(raw, newSecret, time.Now())
		e.post("/webhook", "", raw, "Stripe-Signature", signature).fails(t, 400, apierr.InvalidBody)
	}
	raw, signature := sign(strings.Repeat("x", 1<<20+1), newSecret, time.Now())
	e.post("/webhook", "", raw, "Stripe-Signature", signature).fails(t, 400, apierr.InvalidBody)
	if e.provider.Fetches != fetched {
		t.Error("a forged event had an effect")
	}
	if n := e.seen(); n != 0 {
		t.Errorf("%d forged events are remembered", n)
	}
}

// seen counts the events that are remembered.
func (e *env) seen() (n int) {
	e.t.Helper()
	if err := e.pool.QueryRow(e.t.Context(), `SELECT count(*) FROM provider_event`).Scan(&n); err != nil {
		e.t.Fatal(err)
	}
	return n
}

// The provider sends a failed event again, which then takes effect.
func TestEventsThatFailAreSentAgain(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	e.customer()
	e.provider.Subscribe("cus_0001", "p_am")
	for _, reason := range []billing.Reason{billing.Away, billing.Throttled} {
		end := e.provider.Fail("fetch", false, failure(reason))
		body, signature := signed("evt_1", "cus_0001", newSecret, time.Now())
		e.post("/webhook", "", body, "Stripe-Signature", signature).fails(t, 502, apierr.ExternalServiceError)
		end()
	}
	if n := e.seen(); n != 0 {
		t.Errorf("%d events are remembered that had no effect", n)
	}
	body, signature := signed("evt_1", "cus_0001", newSecret, time.Now())
	e.post("/webhook", "", body, "Stripe-Signature", signature).ok(t, `{"received":true}`)
	if got := e.accounts.ofAnn().Status; got != access.Active {
		t.Errorf("%s", got)
	}
}

func TestTheWebhookAloneIsExemptFromTheLimit(t *testing.T) {
	t.Parallel()
	for _, r := range append(requests, struct{ method, path, body string }{http.MethodGet, "/webhook", ""}) {
		if billinghttp.Exempt(r.method, "/v1/billing"+r.path) {
			t.Errorf("%s %s is exempt", r.method, r.path)
		}
	}
	if !billinghttp.Exempt(http.MethodPost, "/v1/billing/webhook") {
		t.Error("the webhook is not exempt")
	}
}
