package stripesim_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stripe/stripe-go/v76"
	"github.com/stripe/stripe-go/v76/client"
	"github.com/stripe/stripe-go/v76/webhook"

	"waitlist.internal/libs/service"
	"waitlist.internal/libs/testenv"
	"waitlist.internal/services/billing/app"
	"waitlist.internal/tools/internal/stripesim"
)

// asBilling makes this test binary run billing, as a process that tests can kill.
const asBilling = "STRIPESIM_TEST_AS_BILLING"

func TestMain(m *testing.M) {
	if os.Getenv(asBilling) != "" {
		os.Exit(service.Command(app.New))
	}
	testenv.Main(m)
}

const secret = "whsec_test"

// clock is a clock that tests set.
type clock struct {
	mu sync.Mutex
	t  time.Time
}

func (c *clock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.t
}

func (c *clock) add(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.t = c.t.Add(d)
}

// sim is a running simulator with the real client and a webhook.
type sim struct {
	*stripesim.Server
	clock  *clock
	url    string
	stripe *client.API
	http   *http.Client
	hook   *hook
	stop   func() // stops the simulator; the test's cleanup does so as well
}

// hook is a webhook that records its events.
type hook struct {
	mu     sync.Mutex
	events []stripe.Event
	refuse int // how many more events to refuse
	bad    []error
	came   chan struct{}
}

func (h *hook) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	e, err := webhook.ConstructEventWithOptions(body, r.Header.Get("Stripe-Signature"), secret,
		webhook.ConstructEventOptions{IgnoreTolerance: true}) // the simulator runs on the test's clock
	h.mu.Lock()
	defer h.mu.Unlock()
	select {
	case h.came <- struct{}{}:
	default:
	}
	switch {
	case err != nil:
		h.bad = append(h.bad, err)
		w.WriteHeader(http.StatusBadRequest)
	case h.refuse > 0:
		h.refuse--
		w.WriteHeader(http.StatusServiceUnavailable)
	default:
		h.events = append(h.events, e)
	}
}

func (h *hook) types() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	out := make([]string, 0, len(h.events))
	for _, e := range h.events {
		out = append(out, string(e.Type))
	}
	return out
}

// start runs a simulator on the test's clock.
func start(t *testing.T, change func(*stripesim.Config)) *sim {
	t.Helper()
	h := &hook{came: make(chan struct{}, 1)}
	receiver := httptest.NewServer(h)
	t.Cleanup(receiver.Close)
	c := &clock{t: time.Date(2026, 1, 31, 12, 0, 0, 0, time.UTC)}
	cfg := stripesim.Config{
		WebhookURL: receiver.URL, WebhookSecret: secret, Now: c.now, CheckEvery: time.Hour,
		Backoff: func(n int) (time.Duration, bool) { return time.Millisecond, n < 5 },
	}
	if change != nil {
		change(&cfg)
	}
	s, err := stripesim.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	ran := make(chan error, 1)
	go func() { ran <- s.Run(ctx) }()
	server := httptest.NewServer(s)
	// net/http itself repeats keyed requests when a kept-alive connection breaks.
	transport := &http.Transport{DisableKeepAlives: true}
	hc := &http.Client{
		Transport:     transport,
		Timeout:       10 * time.Second,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	stop := sync.OnceFunc(func() {
		cancel()
		if err := <-ran; err != nil {
			t.Error(err)
		}
		transport.CloseIdleConnections()
		server.Close()
		h.mu.Lock()
		defer h.mu.Unlock()
		if len(h.bad) > 0 {
			t.Errorf("events that cannot be verified: %v", errors.Join(h.bad...))
		}
	})
	t.Cleanup(stop)
	return &sim{Server: s, clock: c, url: server.URL, stripe: api(server.URL, hc), http: hc, hook: h, stop: stop}
}

// api returns the provider's client without retries.
func api(url string, hc *http.Client) *client.API {
	b := stripe.GetBackendWithConfig(stripe.APIBackend, &stripe.BackendConfig{
		URL: new(url), HTTPClient: hc, MaxNetworkRetries: stripe.Int64(0),
		LeveledLogger: &stripe.LeveledLogger{Level: stripe.LevelNull},
	})
	return client.New("sk_test_123", &stripe.Backends{API: b, Connect: b, Uploads: b})
}

// must fails the test if the call failed.
func must[T any](v T, err error) func(t *testing.T) T {
	return func(t *testing.T) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func (s *sim) customer(t *testing.T) *stripe.Customer {
	t.Helper()
	return must(s.stripe.Customers.New(&stripe.CustomerParams{Email: new("owner@example.com")}))(t)
}

// session opens a checkout session.
func (s *sim) session(t *testing.T, customer, price string) *stripe.CheckoutSession {
	t.Helper()
	return must(s.stripe.CheckoutSessions.New(&stripe.CheckoutSessionParams{
		Mode: new("subscription"), Customer: new(customer),
		LineItems:         []*stripe.CheckoutSessionLineItemParams{{Price: new(price), Quantity: stripe.Int64(1)}},
		SuccessURL:        new("https://example.com/thanks?session={CHECKOUT_SESSION_ID}"),
		CancelURL:         new("https://example.com/plans"),
		ClientReferenceID: new("account-1"),
		SubscriptionData: &stripe.CheckoutSessionSubscriptionDataParams{
			Metadata: map[string]string{"account": "account-1"},
		},
	}))(t)
}

// reply is a response whose body has been read.
type reply struct {
	StatusCode int
	Header     http.Header
}

// exchange sends a request and reads the response.
func exchange(t *testing.T, hc *http.Client, r *http.Request) (reply, string) {
	t.Helper()
	resp, err := hc.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return reply{resp.StatusCode, resp.Header}, string(b)
}

func (s *sim) fetch(t *testing.T, page string) (reply, string) {
	t.Helper()
	return exchange(t, s.http, must(http.NewRequest(http.MethodGet, page, nil))(t))
}

// choose submits a page's form. It returns the status, the Location header and the page.
func (s *sim) choose(t *testing.T, page, choice string) (status int, to, body string) {
	t.Helper()
	r := must(http.NewRequest(http.MethodPost, page, strings.NewReader(url.Values{"choice": {choice}}.Encode())))(t)
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	resp, body := exchange(t, s.http, r)
	return resp.StatusCode, resp.Header.Get("Location"), body
}

// subscribe pays a checkout session and returns the subscription.
func (s *sim) subscribe(t *testing.T, price, choice string) *stripe.Subscription {
	t.Helper()
	cs := s.session(t, s.customer(t).ID, price)
	if status, _, body := s.choose(t, cs.URL, choice); status != http.StatusSeeOther {
		t.Fatalf("paying: %d %s", status, body)
	}
	cs = must(s.stripe.CheckoutSessions.Get(cs.ID, nil))(t)
	return s.get(t, cs.Subscription.ID)
}

func (s *sim) get(t *testing.T, id string) *stripe.Subscription {
	t.Helper()
	p := &stripe.SubscriptionParams{}
	p.AddExpand("latest_invoice.payment_intent")
	p.AddExpand("default_payment_method")
	p.AddExpand("customer")
	return must(s.stripe.Subscriptions.Get(id, p))(t)
}

func (s *sim) drain(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := s.Drain(ctx); err != nil {
		t.Fatal(err)
	}
}

// refused fails the test unless err is the provider's error with this status and code.
func refused(t *testing.T, err error, status int, code stripe.ErrorCode) {
	t.Helper()
	_ = refusal(t, err, status, code)
}

// refusal returns the provider's error, which must have this status and code.
func refusal(t *testing.T, err error, status int, code stripe.ErrorCode) *stripe.Error {
	t.Helper()
	e, ok := errors.AsType[*stripe.Error](err)
	if !ok || e.HTTPStatusCode != status || e.Code != code {
		t.Fatalf("got %v, want %d %s", err, status, code)
	}
	if e.RequestID == "" {
		t.Error("no request id")
	}
	return e
}

func TestCheckout(t *testing.T) {
	t.Parallel()
	s := start(t, nil)
	c := s.customer(t)
	cs := s.session(t, c.ID, "price_pro_monthly")
	if cs.Status != "open" || cs.AmountTotal != 5000 || cs.ClientReferenceID != "account-1" {
		t.Fatalf("session: %+v", cs)
	}
	page, text := s.fetch(t, cs.URL)
	if page.StatusCode != 200 || !strings.Contains(text, `<form method="post">`) || !strings.Contains(text, "$50.00 per month") {
		t.Fatalf("page: %d %s", page.StatusCode, text)
	}
	if status, _, body := s.choose(t, cs.URL, "decline"); status != http.StatusPaymentRequired || !strings.Contains(body, "declined") {
		t.Errorf("decline: %d %s", status, body)
	}
	if status, to, _ := s.choose(t, cs.URL, "cancel"); status != http.StatusSeeOther || to != "https://example.com/plans" {
		t.Errorf("cancel: %d %s", status, to)
	}
	if status, _, _ := s.choose(t, cs.URL, "<script>"); status != http.StatusBadRequest {
		t.Errorf("unknown choice: %d", status)
	}
	if l := s.History(c.ID); len(l) != 0 {
		t.Fatalf("subscriptions before any payment: %+v", l)
	}
	for range 2 { // the second time is a double click
		status, to, _ := s.choose(t, cs.URL, "pay")
		if status != http.StatusSeeOther || to != "https://example.com/thanks?session="+cs.ID {
			t.Fatalf("pay: %d %s", status, to)
		}
	}
	cs = must(s.stripe.CheckoutSessions.Get(cs.ID, nil))(t)
	if cs.Status != "complete" || cs.PaymentStatus != "paid" || cs.Subscription == nil {
		t.Fatalf("session: %+v", cs)
	}
	sub := s.get(t, cs.Subscription.ID)
	if sub.Status != "active" || sub.Metadata["account"] != "account-1" || sub.Items.Data[0].Price.ID != "price_pro_monthly" {
		t.Errorf("subscription: %+v", sub)
	}
	if got, want := time.Unix(sub.CurrentPeriodEnd, 0).UTC(), time.Date(2026, 2, 28, 12, 0, 0, 0, time.UTC); !got.Equal(want) {
		t.Errorf("a month from 31 January ends %s, want %s", got, want)
	}
	if sub.DefaultPaymentMethod.Card.Last4 != "4242" || sub.Customer.Email != "owner@example.com" {
		t.Errorf("expanded: %+v %+v", sub.DefaultPaymentMethod, sub.Customer)
	}
	inv := sub.LatestInvoice
	if inv.AmountPaid != 5000 || inv.PaymentIntent.Status != "succeeded" || inv.StatusTransitions.PaidAt != s.clock.now().Unix() {
		t.Errorf("invoice: %+v", inv)
	}
	s.drain(t)
	got := s.hook.types()
	for _, want := range []string{"checkout.session.completed", "customer.subscription.created", "invoice.paid", "charge.succeeded"} {
		if n := count(got, want); n != 1 {
			t.Errorf("%d of %s in %v", n, want, got)
		}
	}
	for _, u := range []string{inv.HostedInvoiceURL, inv.InvoicePDF} {
		resp, b := s.fetch(t, u)
		if resp.StatusCode != 200 || !strings.Contains(b, "$50.00") {
			t.Errorf("%s: %d", u, resp.StatusCode)
		}
	}
}

func count(list []string, want string) int {
	n := 0
	for _, v := range list {
		if v == want {
			n++
		}
	}
	return n
}

// update changes a subscription's price.
func (s *sim) update(t *testing.T, id, price, proration, payment string, at int64) (*stripe.Subscription, error) {
	t.Helper()
	p := &stripe.SubscriptionParams{
		Items:             []*stripe.SubscriptionItemsParams{{ID: new(s.get(t, id).Items.Data[0].ID), Price: new(price)}},
		ProrationBehavior: new(proration),
		PaymentBehavior:   new(payment),
	}
	if at != 0 {
		p.ProrationDate = new(at)
	}
	p.AddExpand("latest_invoice")
	return s.stripe.Subscriptions.Update(id, p)
}

// preview returns the upcoming invoice of a price change.
func (s *sim) preview(t *testing.T, id, price, proration string, at int64) *stripe.Invoice {
	t.Helper()
	sub := s.get(t, id)
	p := &stripe.InvoiceUpcomingParams{
		Customer: new(sub.Customer.ID), Subscription: new(id),
		SubscriptionItems:             []*stripe.SubscriptionItemsParams{{ID: new(sub.Items.Data[0].ID), Price: new(price)}},
		SubscriptionProrationBehavior: new(proration),
	}
	if at != 0 {
		p.SubscriptionProrationDate = new(at)
	}
	return must(s.stripe.Invoices.Upcoming(p))(t)
}

func TestUpdateChargesWhatThePreviewShowed(t *testing.T) {
	t.Parallel()
	prices := []string{
		"price_basic_monthly", "price_basic_yearly", "price_advanced_monthly", "price_advanced_yearly",
		"price_pro_monthly", "price_pro_yearly",
	}
	for _, currency := range []string{"usd", "jpy"} {
		for i, from := range prices {
			for j, to := range prices {
				t.Run(fmt.Sprintf("%s %s to %s", currency, from, to), func(t *testing.T) {
					t.Parallel()
					s := start(t, func(c *stripesim.Config) {
						c.Prices = stripesim.Prices(currency, "price_", [3]int64{307, 1013, 5011})
					})
					sub := s.subscribe(t, from, "pay")
					s.clock.add(time.Duration(1+i*97+j*1009) * 7 * time.Minute)
					at := s.clock.now().Unix()
					shown := s.preview(t, sub.ID, to, "always_invoice", at)
					s.clock.add(time.Duration(i+j) * time.Minute) // the proration date stays the same
					before := sub.LatestInvoice.ID
					after := must(s.update(t, sub.ID, to, "always_invoice", "error_if_incomplete", at))(t)
					charged := after.LatestInvoice
					if i == j {
						if charged.ID != before {
							t.Errorf("an update without a change made an invoice: %+v", charged)
						}
						return
					}
					if charged.ID == before || charged.AmountDue != shown.AmountDue || charged.Total != shown.Total || !charged.Paid {
						t.Errorf("charged %d of %d, shown %d of %d", charged.AmountDue, charged.Total, shown.AmountDue, shown.Total)
					}
					var prorations int
					for _, l := range shown.Lines.Data {
						if l.Proration {
							prorations++
						}
					}
					if prorations == 0 {
						t.Error("no line is a proration")
					}
				})
			}
		}
	}
}

// openSessions returns the parameters that list the checkouts still open for payment.
func openSessions(customer string) *stripe.CheckoutSessionListParams {
	return &stripe.CheckoutSessionListParams{Customer: new(customer), Status: new("open")}
}
