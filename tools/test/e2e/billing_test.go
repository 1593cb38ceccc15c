package e2e

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stripe/stripe-go/v76/webhook"

	"waitlist.internal/tools/internal/stripesim"
)

// paymentSecret signs the payment provider's events in every deployment.
const paymentSecret = "whsec_of_the_suite"

// paymentEvent returns a signed event about a customer.
func paymentEvent(id, customer string) Request {
	return signedEvent(fmt.Sprintf(`{"id":%q,"type":"customer.updated","data":{"object":{"object":"customer","id":%q}}}`, id,
		customer), paymentSecret, time.Now())
}

func signedEvent(body, secret string, at time.Time) Request {
	signed := webhook.GenerateTestSignedPayload(&webhook.UnsignedPayload{Payload: []byte(body), Secret: secret, Timestamp: at})
	return Post("/billing/webhook", nil).Raw(signed.Payload).With("Content-Type", "application/json").With("Stripe-Signature", signed.Header)
}

// till is a deployment whose payment provider is a simulator that the test controls.
type till struct {
	*deployment
	sim    *stripesim.Server
	prefix string
}

// open deploys the program with prices in a currency.
func (s *suite) open(t *testing.T, currency string, monthly [3]int64) *till {
	t.Helper()
	const key = "sk_test_of_the_suite"
	prices := stripesim.Prices(currency, currency+"_", monthly)
	sim, err := stripesim.New(stripesim.Config{
		Key: key, Prices: prices, Retries: []time.Duration{72 * time.Hour, 120 * time.Hour}, AfterRetries: "unpaid",
		Backoff: func(int) (time.Duration, bool) { return 100 * time.Millisecond, true },
	})
	if err != nil {
		t.Fatal(err)
	}
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- sim.Serve(ctx, listener) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil && !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
	var named []string
	for _, p := range prices {
		tier, interval, _ := strings.Cut(strings.TrimPrefix(p.ID, currency+"_"), "_")
		named = append(named, tier+"."+interval+"="+p.ID)
	}
	d := s.deploy(t, map[string]string{
		"STRIPE_SECRET_KEY": key, "STRIPE_URL": "http://" + listener.Addr().String(), "STRIPE_PRICES": strings.Join(named, ","),
		"STRIPE_TIMEOUT": "1s",
		"BILLING_URL":    "https://site.example/plans",
	})
	sim.SetWebhook(d.server.URL+"/v1/billing/webhook", paymentSecret)
	return &till{deployment: d, sim: sim, prefix: currency + "_"}
}

// choose submits the form of a hosted page. It returns the status and the Location header.
func choose(t *testing.T, page, choice string) (status int, location string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, page, strings.NewReader(url.Values{"choice": {choice}}.Encode()))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	res, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	return res.StatusCode, res.Header.Get("Location")
}

// plan returns a request body that names a plan.
func plan(tier string, interval ...string) Obj {
	body := Obj{"tier": tier}
	if len(interval) > 0 {
		body["interval"] = interval[0]
	}
	return body
}

// bill calls an operation of billing.
func (o *owner) bill(t testing.TB, operation string, body any) *Response {
	t.Helper()
	if operation == "info" {
		return o.Do(t, Get("/billing/info").As(o.token))
	}
	return o.Do(t, Post("/billing/"+operation, body).As(o.token))
}

// awaitStatus waits until the profile shows a plan and a status.
func (o *owner) awaitStatus(t *testing.T, tier, status string) {
	t.Helper()
	var last *Response
	Await(t, time.Minute, tier+" "+status, func() bool {
		last = o.Do(t, Get("/auth/me").As(o.token)).Want(http.StatusOK)
		return last.Str("subscription_tier") == tier && last.Str("subscription_status") == status
	})
}

// wantStatus requires the profile to show a plan and a status now.
func (o *owner) wantStatus(t *testing.T, tier, status string) *Response {
	t.Helper()
	return o.Do(t, Get("/auth/me").As(o.token)).Want(http.StatusOK).WantJSON("subscription_tier", tier).WantJSON("subscription_status", status)
}

// subscriber returns an owner who has paid for a plan with a card.
func (d *deployment) subscriber(t *testing.T, card, tier string, interval ...string) *owner {
	t.Helper()
	o := d.owner(t)
	page := o.bill(t, "checkout", plan(tier, interval...)).Want(http.StatusOK).Str("url")
	if status, _ := choose(t, page, card); status != http.StatusSeeOther {
		t.Fatalf("the page answers %d", status)
	}
	o.awaitStatus(t, tier, "active")
	return o
}

// customer returns the owner's customer id at the provider.
func (o *owner) customer(t *testing.T) string {
	t.Helper()
	return o.Do(t, Get("/auth/me").As(o.token)).Want(http.StatusOK).Str("payment_customer_id")
}

// testBilling tests the states of subscriptions and the answers and errors of the contract, against a provider that the test
// controls.
func (s *suite) testBilling(t *testing.T) {
	d := s.open(t, "usd", [3]int64{300, 1000, 5000})
	for _, part := range []struct {
		name string
		run  func(*testing.T, *till)
	}{
		{"checkout", testCheckout},
		{"changes", testChanges},
		{"preview", testPreview},
		{"cancellation", testCancellation},
		{"trials", testTrials},
		{"info", testInfo},
		{"clicks", testClicks},
		{"events", testEvents},
		{"deletion", testDeletedSubscriber},
		{"time", testTime}, // advances time for all accounts
		{"provider", testProviderFails},
	} {
		t.Run(part.name, func(t *testing.T) { part.run(t, d) })
	}
	t.Run("yen", s.testYen)
}

func testCheckout(t *testing.T, d *till) {
	o := d.owner(t)
	o.wantStatus(t, "pro", "trialing").WantJSON("payment_customer_id", nil)
	list := o.waitlist(t, nil)
	first := o.bill(t, "checkout", plan("advanced")).Want(http.StatusOK).Str("url")
	// Cancel the trial first.
	o.wantStatus(t, "pro", "inactive")
	o.Do(t, Get("/waitlists/"+list).As(o.token)).WantError(http.StatusForbidden, "FORBIDDEN")
	if again := o.bill(t, "checkout", plan("advanced")).Str("url"); again != first {
		t.Errorf("a second click leads to %s, want %s", again, first)
	}
	other := o.bill(t, "checkout", plan("advanced", "yearly")).Want(http.StatusOK).Str("url")
	if status, _ := choose(t, first, "pay"); status != http.StatusGone {
		t.Errorf("an abandoned page can still be paid: %d", status)
	}
	for choice, want := range map[string]int{"decline": http.StatusPaymentRequired, "cancel": http.StatusSeeOther} {
		if status, to := choose(t, other, choice); status != want || (choice == "cancel" && to != "https://site.example/plans/canceled") {
			t.Errorf("%s: %d to %q", choice, status, to)
		}
	}
	o.wantStatus(t, "pro", "inactive")
	if status, to := choose(t, other, "pay"); status != http.StatusSeeOther || to != "https://site.example/plans/success" {
		t.Errorf("paid: %d to %q", status, to)
	}
	o.awaitStatus(t, "advanced", "active")
	if o.customer(t) == "" {
		t.Error("the account has no payment customer")
	}
	o.Do(t, Get("/waitlists/"+list).As(o.token)).Want(http.StatusOK)
	o.Do(t, Get("/templates").As(o.token)).WantError(http.StatusForbidden, "TIER_REQUIRED")

	for name, r := range map[string]Request{
		"tier":     Post("/billing/checkout", Obj{"tier": "gold"}).Invalid(),
		"interval": Post("/billing/checkout", Obj{"tier": "pro", "interval": "daily"}).Invalid(),
	} {
		for _, path := range []string{"checkout", "preview"} {
			r.path = "/billing/" + path
			o.Do(t, r.As(o.token)).Invalid(name)
		}
	}
	for _, path := range []string{"checkout", "preview"} {
		o.Do(t, Post("/billing/"+path, nil).Raw([]byte("{")).Invalid().As(o.token)).WantError(http.StatusBadRequest, "INVALID_BODY")
		o.Do(t, Post("/billing/"+path, Obj{}).Invalid().As(o.token)).Invalid("tier")
		o.Do(t, Post("/billing/"+path, plan("pro"))).WantError(http.StatusUnauthorized, "AUTHENTICATION_REQUIRED")
	}
}

func testChanges(t *testing.T, d *till) {
	o := d.subscriber(t, "pay", "basic")
	for _, to := range []Obj{plan("pro"), plan("pro", "yearly"), plan("advanced"), plan("basic")} {
		o.bill(t, "checkout", to).Want(http.StatusOK).
			WantJSON("upgraded", true).WantJSON("tier", to["tier"]).WantJSON("status", "active").WantAbsent("url", "payment_failed")
		// The change is visible within the same request, on every replica.
		o.wantStatus(t, to["tier"].(string), "active")
		o.bill(t, "checkout", to).Invalid("tier")
	}
	// This card pays once and is declined afterwards.
	late := d.subscriber(t, "later", "basic")
	late.bill(t, "checkout", plan("pro")).Want(http.StatusOK).WantJSON("upgraded", false).WantJSON("payment_failed", true).
		WantAbsent("tier", "status", "url")
	late.wantStatus(t, "basic", "active")
	if err := d.sim.SetCard(late.customer(t), "4242"); err != nil {
		t.Fatal(err)
	}
	late.bill(t, "checkout", plan("pro")).Want(http.StatusOK).WantJSON("upgraded", true)
}

func testPreview(t *testing.T, d *till) {
	o := d.owner(t)
	o.bill(t, "preview", plan("basic")).Invalid("subscription") // during the trial
	o.bill(t, "checkout", plan("basic")).Want(http.StatusOK)
	o.bill(t, "preview", plan("basic")).Invalid("subscription") // before the payment
	o = d.subscriber(t, "pay", "advanced")
	o.bill(t, "preview", plan("advanced")).Want(http.StatusOK).WantJSON("already_on_plan", true).WantJSON("actual_tier", "advanced")
	for _, tc := range []struct {
		to        Obj
		upgrade   bool
		charge    bool
		recurring int
		formatted string
	}{
		{plan("pro"), true, true, 5000, "$50.00"},
		{plan("advanced", "yearly"), true, true, 10000, "$100.00"},
		{plan("basic"), false, false, 300, "$3.00"},
		{plan("basic", "yearly"), false, true, 3000, "$30.00"},
	} {
		o.bill(t, "preview", tc.to).Want(http.StatusOK).
			WantJSON("current_plan", "advanced").WantJSON("new_plan", tc.to["tier"]).WantJSON("is_upgrade", tc.upgrade).
			WantJSON("immediate_charge", tc.charge).WantJSON("new_recurring_price", tc.recurring).WantJSON("new_recurring_formatted", tc.formatted)
	}
	// The change charges what the preview showed.
	shown := o.bill(t, "preview", plan("pro")).Want(http.StatusOK)
	o.bill(t, "checkout", plan("pro")).Want(http.StatusOK)
	charged := o.bill(t, "info", nil).Want(http.StatusOK)
	if difference := shown.Int("proration_amount") - charged.Int("invoices.0.amount"); difference < -1 ||
		difference > 1 { // a second may pass in between
		t.Errorf("shown %d, charged %d", shown.Int("proration_amount"), charged.Int("invoices.0.amount"))
	}
	if shown.Str("proration_formatted") != fmt.Sprintf("$%d.%02d", shown.Int("proration_amount")/100, shown.Int("proration_amount")%100) {
		t.Errorf("%s", shown.Body)
	}
	if down := o.bill(t, "preview", plan("basic")).Want(http.StatusOK); down.Int("proration_amount") >= 0 ||
		!strings.HasPrefix(down.Str("proration_formatted"), "-$") {
		t.Errorf("%s", down.Body)
	}
}

func testCancellation(t *testing.T, d *till) {
	o := d.owner(t)
	o.bill(t, "cancel", nil).Want(http.StatusOK).WantJSON("status", "inactive").WantJSON("canceled_immediately", true).WantAbsent("cancel_at")
	o.wantStatus(t, "pro", "inactive")
	o.Do(t, Get("/waitlists").As(o.token)).WantError(http.StatusForbidden, "FORBIDDEN")
	o.bill(t, "cancel", nil).Invalid("subscription")

	o = d.subscriber(t, "pay", "pro")
	for range 2 {
		out := o.bill(t, "cancel", nil).Want(http.StatusOK).WantJSON("status", "canceling").WantJSON("canceled_immediately", false)
		end := out.Int("current_period_end")
		if in := time.Until(time.Unix(end, 0)); out.Int("cancel_at") != end || in < 27*24*time.Hour || in > 32*24*time.Hour {
			t.Errorf("%s", out.Body)
		}
	}
	o.wantStatus(t, "pro", "canceling")
	o.Do(t, Get("/templates").As(o.token)).Want(http.StatusOK)
	o.bill(t, "checkout", plan("pro")).Want(http.StatusOK).WantJSON("upgraded", true).WantJSON("tier", "pro").WantJSON("status", "active")
	o.wantStatus(t, "pro", "active")
	// The provider's own page works as well.
	portal := o.bill(t, "portal", nil).Want(http.StatusOK).Str("url")
	choose(t, portal, "cancel")
	o.awaitStatus(t, "pro", "canceling")
	choose(t, portal, "resume")
	o.awaitStatus(t, "pro", "active")
	o.Do(t, Post("/billing/cancel", nil)).WantError(http.StatusUnauthorized, "AUTHENTICATION_REQUIRED")
}

func testTrials(t *testing.T, d *till) {
	o := d.owner(t)
	o.bill(t, "start-trial", nil).WantError(http.StatusConflict, "CONFLICT")
	o.bill(t, "cancel", nil).Want(http.StatusOK)
	o.bill(t, "start-trial", nil).WantError(http.StatusConflict, "CONFLICT")
	// An account that never had a trial.
	d.exec(t, "UPDATE account.account SET has_used_trial = false, trial_ends_at = NULL WHERE email = $1", o.email)
	out := o.bill(t, "start-trial", nil).Want(http.StatusOK).WantJSON("status", "trialing").WantJSON("tier", "pro")
	if in := time.Until(time.Unix(out.Int("trial_end"), 0)).Round(time.Hour); in != 7*24*time.Hour {
		t.Errorf("the trial ends after %s", in)
	}
	o.wantStatus(t, "pro", "trialing").WantJSON("trial_end", out.Int("trial_end")).WantJSON("has_used_trial", true)
	o.bill(t, "start-trial", nil).WantError(http.StatusConflict, "CONFLICT")
	d.subscriber(t, "pay", "basic").bill(t, "start-trial", nil).WantError(http.StatusConflict, "CONFLICT")
	o.Do(t, Post("/billing/start-trial", nil)).WantError(http.StatusUnauthorized, "AUTHENTICATION_REQUIRED")
}

func testInfo(t *testing.T, d *till) {
	o := d.owner(t)
	o.bill(t, "info", nil).Want(http.StatusOK).WantJSON("invoices", []any{}).WantJSON("payment_method", nil)
	o.bill(t, "portal", nil).Invalid("customer")
	o = d.subscriber(t, "pay", "advanced", "yearly")
	info := o.bill(t, "info", nil).Want(http.StatusOK).
		WantJSON("payment_method", Obj{"brand": "visa", "last4": "4242", "exp_month": 12, "exp_year": 2034}).
		WantJSON("invoices.0.amount", 10000).WantJSON("invoices.0.amount_formatted", "$100.00").WantJSON("invoices.0.status", "paid")
	if age := time.Since(time.Unix(info.Int("invoices.0.date"), 0)); age < -time.Minute || age > time.Minute {
		t.Errorf("the invoice is %s old", age)
	}
	for _, page := range []string{
		info.Str("invoices.0.hosted_invoice_url"), info.Str("invoices.0.invoice_pdf"),
		o.bill(t, "portal", nil).Want(http.StatusOK).Str("url"),
	} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, page, nil)
		if err != nil {
			t.Fatal(err)
		}
		res, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = res.Body.Close()
		if res.StatusCode != http.StatusOK {
			t.Errorf("%s: %d", page, res.StatusCode)
		}
	}
	for _, r := range []Request{Get("/billing/info"), Post("/billing/portal", nil)} {
		o.Do(t, r).WantError(http.StatusUnauthorized, "AUTHENTICATION_REQUIRED")
	}
}

// testClicks checks that twenty clicks pay once.
func testClicks(t *testing.T, d *till) {
	o := d.owner(t)
	crowd := func(operation string, body any) map[string]int {
		t.Helper()
		var mu sync.Mutex
		seen := map[string]int{}
		var all sync.WaitGroup
		for range 20 {
			all.Go(func() {
				r, err := o.Send(t.Context(), Post("/billing/"+operation, body).As(o.token))
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				defer mu.Unlock()
				if r.Status == http.StatusOK {
					seen[string(r.Body)]++
				} else {
					seen[fmt.Sprint(r.Status)]++
				}
			})
		}
		all.Wait()
		return seen
	}
	if seen := crowd("checkout", plan("basic")); len(seen) != 1 {
		t.Fatalf("%v", seen)
	}
	choose(t, o.bill(t, "checkout", plan("basic")).Want(http.StatusOK).Str("url"), "pay")
	o.awaitStatus(t, "basic", "active")
	// One call upgrades; the others learn that it is already done.
	if seen := crowd("checkout", plan("pro")); len(seen) != 2 || seen["400"] != 19 {
		t.Errorf("%v", seen)
	}
	if seen := crowd("cancel", nil); len(seen) != 1 {
		t.Errorf("%v", seen)
	}
	if invoices, _ := o.bill(t, "info", nil).Want(http.StatusOK).Get("invoices").([]any); len(invoices) != 2 {
		t.Errorf("%d invoices, want one for the start and one for the change", len(invoices))
	}
	if all := d.sim.Current(o.customer(t)); len(all) != 1 || all[0].Price != d.prefix+"pro_monthly" || !all[0].CancelAtPeriodEnd {
		t.Errorf("%+v", all)
	}
}

func testEvents(t *testing.T, d *till) {
	o := d.subscriber(t, "pay", "basic")
	c := d.client(t)
	received := func(r Request) { c.Do(t, r).Want(http.StatusOK).WantJSON("received", true) }
	event := paymentEvent(address("evt"), o.customer(t))
	for range 3 { // repetitions do nothing
		received(event)
	}
	received(paymentEvent(address("evt"), "cus_nobody"))
	received(signedEvent(`{"id":"`+address("evt")+`","type":"price.created","data":{"object":{"object":"price"}}}`,
		"whsec_the_one_before", time.Now()))
	body := `{"id":"` + address("evt") + `","type":"customer.updated","data":{"object":{"object":"customer","id":"x"}}}`
	for name, r := range map[string]Request{
		"stranger": signedEvent(body, "whsec_somebody_else", time.Now()),
		"old":      signedEvent(body, paymentSecret, time.Now().Add(-6*time.Minute)),
		"none":     Post("/billing/webhook", nil).Raw([]byte(body)).With("Content-Type", "application/json").With("Stripe-Signature", "x"),
	} {
		t.Run(name, func(t *testing.T) { c.Do(t, r.Invalid()).WantError(http.StatusBadRequest, "INVALID_TOKEN") })
	}
	for _, body := range []string{`{}`, `{`, `"` + strings.Repeat("x", 1<<20) + `"`} {
		c.Do(t, signedEvent(body, paymentSecret, time.Now()).Invalid()).WantError(http.StatusBadRequest, "INVALID_BODY")
	}
	// The content of an event is not trusted.
	received(signedEvent(fmt.Sprintf(`{"id":%q,"type":"customer.subscription.deleted",
		"data":{"object":{"object":"subscription","status":"canceled","customer":%q}}}`,
		address("evt"), o.customer(t)), paymentSecret, time.Now()))
	o.wantStatus(t, "basic", "active")
}

func testDeletedSubscriber(t *testing.T, d *till) {
	o := d.subscriber(t, "pay", "pro")
	customer := o.customer(t)
	o.Do(t, Delete("/auth/me").As(o.token)).Want(http.StatusNoContent)
	Await(t, time.Minute, "the customer is deleted", func() bool { return d.sim.Deleted(customer) })
	if all := d.sim.Current(customer); len(all) != 1 || all[0].Status != "canceled" {
		t.Errorf("%+v", all)
	}
	// A page that was open when its account was deleted.
	o = d.owner(t)
	page := o.bill(t, "checkout", plan("pro")).Want(http.StatusOK).Str("url")
	customer = o.customer(t)
	o.Do(t, Delete("/auth/me").As(o.token)).Want(http.StatusNoContent)
	choose(t, page, "pay") // may or may not be too late
	Await(t, time.Minute, "what was paid is given back", func() bool {
		return d.sim.Deleted(customer) &&
			!slices.ContainsFunc(d.sim.Payments(customer), func(p stripesim.Payment) bool { return p.Refunded != p.Amount })
	})
	again := &owner{Client: d.client(t), email: o.email, password: o.password}
	again.Do(t, Post("/auth/register", Obj{"email": o.email, "password": o.password})).Want(http.StatusCreated)
	again.login(t)
	again.wantStatus(t, "basic", "inactive").WantJSON("payment_customer_id", nil)
}

// testTime lets time pass at the provider.
func testTime(t *testing.T, d *till) {
	loyal := d.subscriber(t, "pay", "pro")
	leaving := d.subscriber(t, "pay", "advanced")
	leaving.bill(t, "cancel", nil).Want(http.StatusOK)
	broke := d.subscriber(t, "later", "basic")
	pass := func(span time.Duration) {
		t.Helper()
		if err := d.sim.Advance(span); err != nil {
			t.Fatal(err)
		}
		if err := d.sim.Drain(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	pass(32 * 24 * time.Hour)
	leaving.wantStatus(t, "advanced", "inactive")
	leaving.Do(t, Get("/waitlists").As(leaving.token)).WantError(http.StatusForbidden, "FORBIDDEN")
	leaving.bill(t, "cancel", nil).Invalid("subscription")
	loyal.wantStatus(t, "pro", "active")
	broke.wantStatus(t, "basic", "active") // past due, while the provider retries
	pass(9 * 24 * time.Hour)
	broke.wantStatus(t, "basic", "inactive") // unpaid
	broke.bill(t, "preview", plan("pro")).Invalid("subscription")
	// Both owners can subscribe again.
	for _, o := range []*owner{leaving, broke} {
		choose(t, o.bill(t, "checkout", plan("basic")).Want(http.StatusOK).Str("url"), "pay")
		o.awaitStatus(t, "basic", "active")
	}
	live := slices.DeleteFunc(d.sim.Current(broke.customer(t)), func(s stripesim.State) bool { return s.Status == "canceled" })
	if len(live) != 1 {
		t.Errorf("%+v", live)
	}
}

// testProviderFails runs last because the circuit breaker stays open for a while.
func testProviderFails(t *testing.T, d *till) {
	o := d.subscriber(t, "pay", "basic")
	everything := map[string]func(t *testing.T) *Response{
		"checkout": func(t *testing.T) *Response { return o.bill(t, "checkout", plan("pro")) },
		"preview":  func(t *testing.T) *Response { return o.bill(t, "preview", plan("pro")) },
		"cancel":   func(t *testing.T) *Response { return o.bill(t, "cancel", nil) },
		"portal":   func(t *testing.T) *Response { return o.bill(t, "portal", nil) },
		"info":     func(t *testing.T) *Response { return o.bill(t, "info", nil) },
	}
	inject := func(f stripesim.Fault) {
		t.Helper()
		d.sim.ClearFaults()
		if err := d.sim.Inject(f); err != nil {
			t.Fatal(err)
		}
	}
	inject(stripesim.Fault{Kind: stripesim.Throttle, Times: 1000, RetryAfter: 7})
	for name, do := range everything {
		t.Run("throttled "+name, func(t *testing.T) {
			if r := do(t).WantError(http.StatusTooManyRequests, "RATE_LIMITED"); r.Header.Get("Retry-After") != "7" {
				t.Errorf("Retry-After %q", r.Header.Get("Retry-After"))
			}
		})
	}
	inject(stripesim.Fault{Kind: stripesim.Decline, Times: 1000})
	for _, name := range []string{"checkout", "preview"} {
		everything[name](t).WantError(http.StatusBadRequest, "PAYMENT_REQUIRED")
	}
	inject(stripesim.Fault{Kind: stripesim.Broken, Times: 1000})
	for name, do := range everything {
		t.Run("broken "+name, func(t *testing.T) { do(t).WantError(http.StatusBadGateway, "EXTERNAL_SERVICE_ERROR") })
	}
	o.Do(t, paymentEvent(address("evt"), o.customer(t))).WantError(http.StatusBadGateway, "EXTERNAL_SERVICE_ERROR")
	// Nobody waits eight seconds for the provider any more, and the rest of the suite continues.
	inject(stripesim.Fault{Kind: stripesim.Hang, Times: 1000})
	if r := o.bill(t, "info", nil).WantError(http.StatusBadGateway, "EXTERNAL_SERVICE_ERROR"); r.Took > 4*time.Second {
		t.Errorf("the answer took %s", r.Took)
	}
	o.wantStatus(t, "basic", "active")
	d.owner(t).bill(t, "cancel", nil).Want(http.StatusOK) // canceling a trial does not involve the provider
	d.sim.ClearFaults()
	// The breaker is per replica, and the next request may reach another one.
	inRow := 0
	Await(t, time.Minute, "the provider is used again", func() bool {
		if inRow++; o.bill(t, "info", nil).Status != http.StatusOK {
			inRow = 0
		}
		return inRow == 4
	})
	o.bill(t, "checkout", plan("pro")).Want(http.StatusOK).WantJSON("upgraded", true)
}

// testYen tests a currency without decimals.
func (s *suite) testYen(t *testing.T) {
	d := s.open(t, "jpy", [3]int64{300, 1500, 5000})
	o := d.subscriber(t, "pay", "advanced")
	o.bill(t, "preview", plan("pro")).Want(http.StatusOK).
		WantJSON("new_recurring_price", 5000).WantJSON("new_recurring_formatted", "¥5,000").WantJSON("proration_amount", 3500).
		WantJSON("proration_formatted", "¥3,500")
	o.bill(t, "preview", plan("basic")).Want(http.StatusOK).WantJSON("proration_amount", -1200).WantJSON("proration_formatted", "-¥1,200")
	o.bill(t, "info", nil).Want(http.StatusOK).WantJSON("invoices.0.amount", 1500).WantJSON("invoices.0.amount_formatted", "¥1,500")
}

// testPayments tests the built-in simulator that the program uses without a key: it serves its pages at the program's own
// address and keeps its state across a kill.
func (s *suite) testPayments(t *testing.T) {
	d := s.deploy(t, nil)
	o := d.owner(t)
	page := o.bill(t, "checkout", plan("pro")).Want(http.StatusOK).Str("url")
	if !strings.HasPrefix(page, d.server.URL+"/") {
		t.Fatalf("the page is at %s", page)
	}
	d.server.Kill()
	d.restart(t)
	if status, _ := choose(t, page, "pay"); status != http.StatusSeeOther {
		t.Fatalf("the page answers %d", status)
	}
	o.awaitStatus(t, "pro", "active")
	portal := o.bill(t, "portal", nil).Want(http.StatusOK).Str("url")
	choose(t, portal, "bad_card")
	o.bill(t, "checkout", plan("pro", "yearly")).Want(http.StatusOK).WantJSON("payment_failed", true)
	choose(t, portal, "card")
	o.bill(t, "checkout", plan("pro", "yearly")).Want(http.StatusOK).WantJSON("upgraded", true)
}
