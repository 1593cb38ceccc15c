package stripesim_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stripe/stripe-go/v76"
	"github.com/stripe/stripe-go/v76/webhook"

	"waitlist.internal/tools/internal/stripesim"
)

// keyed returns customer parameters with an idempotency key.
func keyed(key, name string) *stripe.CustomerParams {
	p := &stripe.CustomerParams{Name: new(name)}
	p.IdempotencyKey = new(key)
	return p
}

func TestIdempotency(t *testing.T) {
	t.Parallel()
	s := start(t, nil)
	first := must(s.stripe.Customers.New(keyed("k", "Ann")))(t)
	if first.LastResponse.Header.Get("Idempotent-Replayed") != "" {
		t.Error("the first answer is marked as replayed")
	}
	s.clock.add(24*time.Hour - time.Second)
	again := must(s.stripe.Customers.New(keyed("k", "Ann")))(t)
	if again.ID != first.ID || again.LastResponse.Header.Get("Idempotent-Replayed") != "true" {
		t.Errorf("the same key created two customers, %s and %s", first.ID, again.ID)
	}
	_, err := s.stripe.Customers.New(keyed("k", "Bob"))
	if e := refusal(t, err, http.StatusBadRequest, ""); e.Type != "idempotency_error" {
		t.Errorf("%+v", e)
	}
	s.clock.add(time.Second)
	if later := must(s.stripe.Customers.New(keyed("k", "Bob")))(t); later.ID == first.ID {
		t.Error("a key is still remembered after a day")
	}
	// The key forgets a rejected parameter but remembers a declined card.
	p := keyed("k2", "Ann")
	p.AddExtra("nonsense", "1")
	_, err = s.stripe.Customers.New(p)
	refused(t, err, http.StatusBadRequest, "parameter_unknown")
	_ = must(s.stripe.Customers.New(keyed("k2", "Ann")))(t)
	sub := s.subscribe(t, "price_basic_monthly", "later")
	update := &stripe.SubscriptionParams{
		Items:             []*stripe.SubscriptionItemsParams{{ID: new(sub.Items.Data[0].ID), Price: new("price_pro_monthly")}},
		ProrationBehavior: new("always_invoice"), PaymentBehavior: new("error_if_incomplete"),
	}
	update.IdempotencyKey = new("k3")
	_, err = s.stripe.Subscriptions.Update(sub.ID, update)
	refused(t, err, http.StatusPaymentRequired, "card_declined")
	if err := s.SetCard(sub.Customer.ID, "4242"); err != nil {
		t.Fatal(err)
	}
	_, err = s.stripe.Subscriptions.Update(sub.ID, update)
	refused(t, err, http.StatusPaymentRequired, "card_declined")
	update.IdempotencyKey = new("k4")
	_ = must(s.stripe.Subscriptions.Update(sub.ID, update))(t)
}

func TestIdempotencyKeyInFlight(t *testing.T) {
	t.Parallel()
	s := start(t, nil)
	if err := s.Inject(stripesim.Fault{Path: "/v1/customers", Times: 1, Kind: stripesim.Hang}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var group sync.WaitGroup
	group.Go(func() {
		p := keyed("k", "Ann")
		p.Context = ctx
		if _, err := s.stripe.Customers.New(p); err == nil {
			t.Error("a hanging call was answered")
		}
	})
	until(t, func() bool { return len(s.Calls()) == 1 })
	until(t, func() bool { // the first call has begun
		_, err := s.stripe.Customers.New(keyed("k", "Ann"))
		e, ok := errors.AsType[*stripe.Error](err)
		return ok && e.HTTPStatusCode == http.StatusConflict && e.Type == "idempotency_error"
	})
	cancel()
	group.Wait()
	until(t, func() bool { _, err := s.stripe.Customers.New(keyed("k", "Ann")); return err == nil })
}

// until waits for a condition.
func until(t *testing.T, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	end := time.After(time.Minute)
	for !ok() {
		select {
		case <-tick.C:
		case <-end:
			t.Fatal("the condition was not met within a minute")
		}
	}
}

func TestFaults(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{stripesim.Throttle, stripesim.Broken, stripesim.Hang, stripesim.Reset} {
		for _, after := range []bool{false, true} {
			t.Run(kind+map[bool]string{true: " after", false: " before"}[after], func(t *testing.T) {
				t.Parallel()
				s := start(t, nil)
				err := s.Inject(stripesim.Fault{
					Method: http.MethodPost, Path: "/v1/customers", Skip: 1, Times: 1, Kind: kind, After: after, RetryAfter: 7,
				})
				if err != nil {
					t.Fatal(err)
				}
				_ = must(s.stripe.Customers.New(keyed("k0", "first")))(t) // skipped by the fault
				p := keyed("k", "Ann")
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				p.Context = ctx
				if kind == stripesim.Hang {
					go func() { // the caller gives up once the simulator has its call
						for s.posts() < 2 && t.Context().Err() == nil {
							<-time.After(time.Millisecond)
						}
						if after {
							for s.customers() < 2 && t.Context().Err() == nil {
								<-time.After(time.Millisecond)
							}
						}
						cancel()
					}()
				}
				_, err = s.stripe.Customers.New(p)
				e, answered := errors.AsType[*stripe.Error](err)
				switch kind {
				case stripesim.Throttle:
					if !answered || e.HTTPStatusCode != 429 || e.LastResponse.Header.Get("Retry-After") != "7" {
						t.Errorf("%v", err)
					}
				case stripesim.Broken:
					if !answered || e.HTTPStatusCode != 500 || e.Type != "api_error" {
						t.Errorf("%v", err)
					}
				default:
					if err == nil || answered {
						t.Errorf("the call succeeded: %v", err)
					}
				}
				want := 1
				if after {
					want = 2
				}
				if got := s.customers(); got != want {
					t.Errorf("%d customers, want %d", got, want)
				}
				var got *stripe.Customer
				until(t, func() bool { // a hanging call ends shortly after its caller gives up
					got, err = s.stripe.Customers.New(keyed("k", "Ann"))
					return err == nil
				})
				if replayed := got.LastResponse.Header.Get("Idempotent-Replayed") == "true"; replayed != after || s.customers() != 2 {
					t.Errorf("the retry: replayed %t, %d customers", replayed, s.customers())
				}
			})
		}
	}
}

// customers counts the customers.
func (s *sim) customers() int {
	n := 0
	list := s.stripe.Customers.List(&stripe.CustomerListParams{})
	for list.Next() {
		n++
	}
	return n
}

// posts counts the requests that change something.
func (s *sim) posts() int {
	n := 0
	for _, c := range s.Calls() {
		if c.Method == http.MethodPost {
			n++
		}
	}
	return n
}

func TestFaultThatAKeyRemembers(t *testing.T) {
	t.Parallel()
	s := start(t, nil)
	if err := s.Inject(stripesim.Fault{Times: 1, Kind: stripesim.Broken, After: true, Sticky: true}); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		_, err := s.stripe.Customers.New(keyed("k", "Ann"))
		refused(t, err, http.StatusInternalServerError, "")
	}
	list := s.stripe.Customers.List(&stripe.CustomerListParams{})
	if !list.Next() || list.Next() {
		t.Error("the call did not take effect exactly once")
	}
	if err := s.Inject(stripesim.Fault{Times: 1, Kind: "nonsense"}); err == nil {
		t.Error("Inject accepted an unknown kind of fault")
	}
	if err := s.Inject(stripesim.Fault{Times: 100, Kind: stripesim.Broken}); err != nil {
		t.Fatal(err)
	}
	s.ClearFaults()
	s.customer(t)
}

func TestWebhooksAreRepeatedUntilTheyAreTaken(t *testing.T) {
	t.Parallel()
	s := start(t, nil)
	s.hook.refuse = 3
	c := s.customer(t)
	s.drain(t)
	if got := s.hook.types(); !slices.Equal(got, []string{"customer.created"}) {
		t.Errorf("got %v", got)
	}
	e := s.hook.events[0]
	if e.APIVersion != stripesim.APIVersion || e.Data.Object["id"] != c.ID || e.Request.ID == "" {
		t.Errorf("event %+v", e)
	}
	s.hook.refuse = 100 // more than Backoff allows
	s.customer(t)
	s.drain(t)
	if got := s.hook.types(); len(got) != 1 {
		t.Errorf("got %v", got)
	}
	if s.hook.refuse != 95 {
		t.Errorf("%d tries, want 5", 100-s.hook.refuse)
	}
}

func TestWebhookGetsWhatItAskedFor(t *testing.T) {
	t.Parallel()
	s := start(t, func(c *stripesim.Config) { c.WebhookEvents = []string{"customer.deleted"} })
	_ = must(s.stripe.Customers.Del(s.customer(t).ID, nil))(t)
	s.drain(t)
	if got := s.hook.types(); !slices.Equal(got, []string{"customer.deleted"}) {
		t.Errorf("got %v", got)
	}
}

func TestSignatureIsTheProviders(t *testing.T) {
	t.Parallel()
	s := start(t, func(c *stripesim.Config) { c.Now = nil }) // signatures have a tolerance of minutes
	type got struct{ body, header string }
	came := make(chan got, 10)
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		came <- got{string(b), r.Header.Get("Stripe-Signature")}
	}))
	defer server.Close()
	s.SetWebhook(server.URL, "whsec_other")
	s.customer(t)
	g := <-came
	if _, err := webhook.ConstructEvent([]byte(g.body), g.header, "whsec_other"); err != nil {
		t.Error(err)
	}
	if _, err := webhook.ConstructEvent([]byte(g.body), g.header, secret); err == nil {
		t.Error("the old secret verifies the signature")
	}
	if _, err := webhook.ConstructEvent([]byte(g.body+" "), g.header, "whsec_other"); err == nil {
		t.Error("the signature verifies another body")
	}
}

func TestEventsOnDemand(t *testing.T) {
	t.Parallel()
	s := start(t, nil)
	s.SetChaos(stripesim.Chaos{Hold: true})
	sub := s.subscribe(t, "price_pro_monthly", "pay")
	waiting := s.Pending()
	if len(waiting) < 6 || len(s.hook.types()) != 0 {
		t.Fatalf("pending %+v, delivered %v", waiting, s.hook.types())
	}
	find := func(kind string) string {
		i := slices.IndexFunc(waiting, func(d stripesim.Delivery) bool { return d.Type == kind })
		if i < 0 {
			t.Fatalf("no pending %s in %+v", kind, waiting)
		}
		return waiting[i].Event
	}
	for range 2 { // twice, and before all others
		if status, err := s.Send(t.Context(), find("checkout.session.completed")); err != nil || status != http.StatusOK {
			t.Fatal(status, err)
		}
	}
	if got := s.hook.types(); !slices.Equal(got, []string{"checkout.session.completed", "checkout.session.completed"}) {
		t.Errorf("sent: %v", got)
	}
	if !s.Drop(find("customer.subscription.created")) || s.Drop("evt_none") || !s.Release(find("invoice.paid")) {
		t.Error("Drop or Release gave the wrong answer")
	}
	until(t, func() bool { return slices.Contains(s.hook.types(), "invoice.paid") })
	if n := len(s.hook.types()); n != 3 {
		t.Errorf("%d events were delivered", n)
	}
	s.drain(t)
	got := s.hook.types()
	if slices.Contains(got, "customer.subscription.created") || count(got, "invoice.paid") != 1 || len(got) != len(waiting)+1 {
		t.Errorf("%d were pending, delivered: %v", len(waiting), got)
	}
	list := s.stripe.Events.List(&stripe.EventListParams{Types: []*string{new("customer.subscription.created")}})
	if !list.Next() || list.Event().Data.Object["id"] != sub.ID || list.Next() {
		t.Error("the dropped event is not listed")
	}
	if e := must(s.stripe.Events.Get(list.Event().ID, nil))(t); e.Type != "customer.subscription.created" {
		t.Errorf("%+v", e)
	}
}

func TestChaosIsRepeatable(t *testing.T) {
	t.Parallel()
	run := func(chaos stripesim.Chaos) map[string]int {
		s := start(t, nil)
		s.SetChaos(chaos)
		s.subscribe(t, "price_pro_monthly", "pay")
		s.drain(t)
		out := map[string]int{}
		for _, k := range s.hook.types() {
			out[k]++
		}
		return out
	}
	all := run(stripesim.Chaos{})
	half := stripesim.Chaos{Seed: 7, Drop: 0.3, Duplicate: 0.5, MaxDelay: time.Hour} // Drain releases the delayed events, too
	some := run(half)
	if !maps.Equal(some, run(half)) {
		t.Error("the same seed gave another outcome")
	}
	lost, doubled := 0, 0
	for k := range all {
		switch some[k] {
		case 0:
			lost++
		case 2:
			doubled++
		}
	}
	if lost == 0 || doubled == 0 {
		t.Errorf("of %v, %v were delivered", all, some)
	}
	if none := run(stripesim.Chaos{Drop: 1}); len(none) > 0 {
		t.Errorf("delivered: %v", none)
	}
}

func TestStateSurvivesARestart(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "data", "stripe.json")
	first := start(t, func(c *stripesim.Config) { c.File = file })
	first.SetChaos(stripesim.Chaos{Hold: true})
	cust := must(first.stripe.Customers.New(keyed("k", "Ann")))(t)
	sub := first.subscribeAs(t, cust.ID, "price_basic_monthly", "later")
	waiting := first.Pending()
	before := first.History(cust.ID)
	first.stop()

	second := start(t, func(c *stripesim.Config) { c.File = file })
	if got := must(second.stripe.Customers.New(keyed("k", "Ann")))(t); got.ID != cust.ID {
		t.Error("the idempotency key was lost")
	}
	if got := second.get(t, sub.ID); got.Status != "active" || got.Customer.Name != "Ann" {
		t.Errorf("subscription %+v", got)
	}
	if !slices.Equal(second.History(cust.ID), before) || len(before) == 0 {
		t.Errorf("history %+v, was %+v", second.History(cust.ID), before)
	}
	if got := second.Pending(); !slices.Equal(got, waiting) || len(got) == 0 {
		t.Errorf("waiting %+v, was %+v", got, waiting)
	}
	_, err := second.update(t, sub.ID, "price_pro_monthly", "always_invoice", "error_if_incomplete", 0)
	refused(t, err, http.StatusPaymentRequired, "card_declined") // the card's state was kept, too
	if _, err := stripesim.New(stripesim.Config{File: filepath.Dir(file)}); err == nil {
		t.Error("New accepted an unreadable state file")
	}
}

func TestControls(t *testing.T) {
	t.Parallel()
	s := start(t, func(c *stripesim.Config) { c.ControlKey = "secret" })
	key := ""
	do := func(method, path, body, kind string) (int, string) {
		t.Helper()
		r := must(http.NewRequest(method, s.url+path+key, bytes.NewReader([]byte(body))))(t)
		r.Header.Set("Content-Type", kind)
		resp, answer := exchange(t, s.http, r)
		return resp.StatusCode, answer
	}
	post := func(path, body string) {
		t.Helper()
		if status, answer := do(http.MethodPost, path, body, "application/json"); status/100 != 2 {
			t.Fatalf("%s: %d %s", path, status, answer)
		}
	}
	if status, _ := do(http.MethodGet, "/_sim/calls", "", ""); status != http.StatusForbidden {
		t.Errorf("without the key: %d", status)
	}
	key = "?key=secret"
	status, _ := do(http.MethodPost, "/_sim/faults", `{"times":1,"kind":"broken"}`, "text/plain")
	if status != http.StatusUnsupportedMediaType {
		t.Errorf("a content type that a foreign page's form can send: %d", status)
	}
	if status, _ := do(http.MethodPost, "/_sim/faults", `{"nonsense":1}`, "application/json"); status != http.StatusBadRequest {
		t.Errorf("unknown field: %d", status)
	}
	post("/_sim/faults", `{"times":1,"kind":"broken","path":"/v1/customers"}`)
	_, err := s.stripe.Customers.New(&stripe.CustomerParams{})
	refused(t, err, http.StatusInternalServerError, "")
	post("/_sim/faults", `{"times":9,"kind":"broken"}`)
	if status, _ := do(http.MethodDelete, "/_sim/faults", "", ""); status != http.StatusNoContent {
		t.Errorf("clear: %d", status)
	}
	post("/_sim/chaos", `{"hold":true}`)
	sub := s.subscribe(t, "price_pro_monthly", "pay")
	var waiting []stripesim.Delivery
	_, body := do(http.MethodGet, "/_sim/deliveries", "", "")
	if err := json.Unmarshal([]byte(body), &waiting); err != nil || len(waiting) == 0 || !waiting[0].Held {
		t.Fatalf("%s: %v", body, err)
	}
	post("/_sim/deliveries", `{"do":"send","event":"`+waiting[0].Event+`"}`)
	post("/_sim/deliveries", `{"do":"drop","event":"`+waiting[1].Event+`"}`)
	post("/_sim/deliveries", `{"do":"drain"}`)
	if got := len(s.hook.types()); got != len(waiting) {
		t.Errorf("%d deliveries of %d events; want one duplicate and one loss", got, len(waiting))
	}
	post("/_sim/card", `{"customer":"`+sub.Customer.ID+`","last4":"0002"}`)
	post("/_sim/advance", `{"seconds":2592000}`)
	if got := s.get(t, sub.ID); got.Status != "past_due" {
		t.Errorf("after a month with a bad card: %s", got.Status)
	}
	if got := s.Time().Sub(s.clock.now()); got != 30*24*time.Hour {
		t.Errorf("time is %s ahead", got)
	}
	key = ""
	if _, body := do(http.MethodGet, "/_sim/history?key=secret&customer="+sub.Customer.ID, "", ""); !strings.Contains(body, `"past_due"`) {
		t.Errorf("history: %s", body)
	}
	key = "?key=secret"
	if _, body := do(http.MethodGet, "/_sim/calls", "", ""); !strings.Contains(body, `"/v1/customers"`) {
		t.Errorf("calls: %s", body)
	}
	post("/_sim/webhook", `{"url":"","secret":""}`)
	s.customer(t)
	if waiting := s.Pending(); slices.ContainsFunc(waiting, func(d stripesim.Delivery) bool { return d.Type == "customer.created" }) {
		t.Errorf("pending without a webhook: %+v", waiting)
	}
}

func TestProgram(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	out, in := io.Pipe()
	ended := make(chan error, 1)
	go func() {
		ended <- stripesim.Main(ctx, []string{"-addr", "127.0.0.1:0"}, func(name string) string {
			return map[string]string{"STRIPESIM_CURRENCY": "jpy", "STRIPESIM_ADDR": "nonsense"}[name]
		}, in)
		_ = in.Close()
	}()
	b := make([]byte, 100)
	n, err := out.Read(b)
	if err != nil {
		t.Fatal(err)
	}
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	sc := api(strings.TrimSpace(string(b[:n])), &http.Client{Transport: transport, Timeout: 10 * time.Second})
	if p := must(sc.Prices.Get("price_pro_yearly", nil))(t); p.Currency != "jpy" || p.UnitAmount != 50000 {
		t.Errorf("%+v", p)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if err := stripesim.Main(t.Context(), []string{"-nonsense"}, func(string) string { return "" }, io.Discard); err == nil {
		t.Error("an unknown flag was accepted")
	}
}
