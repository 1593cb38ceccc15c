package stripesim_test

import (
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stripe/stripe-go/v76"

	"waitlist.internal/tools/internal/stripesim"
)

func TestCustomers(t *testing.T) {
	t.Parallel()
	s := start(t, nil)
	c := must(s.stripe.Customers.New(&stripe.CustomerParams{
		Email: new("a+b@example.com"), Metadata: map[string]string{"one": "1", "two": "2"},
	}))(t)
	c = must(s.stripe.Customers.Update(c.ID, &stripe.CustomerParams{
		Name: new("Ann"), Metadata: map[string]string{"two": "", "three": "3"},
	}))(t)
	if c.Name != "Ann" || c.Email != "a+b@example.com" || len(c.Metadata) != 2 || c.Metadata["one"] != "1" || c.Metadata["three"] != "3" {
		t.Fatalf("updated: %+v", c)
	}
	s.customer(t)
	list := s.stripe.Customers.List(&stripe.CustomerListParams{Email: new("a+b@example.com")})
	if !list.Next() || list.Customer().ID != c.ID || list.Next() {
		t.Errorf("by email: %v", list.Err())
	}
	sub := s.subscribeAs(t, c.ID, "price_basic_monthly", "pay")
	if _, err := s.stripe.Customers.Del(c.ID, nil); err != nil {
		t.Fatal(err)
	}
	if got := must(s.stripe.Customers.Get(c.ID, nil))(t); !got.Deleted || got.Email != "" {
		t.Errorf("after its deletion: %+v", got)
	}
	if got := must(s.stripe.Subscriptions.Get(sub.ID, nil))(t); got.Status != "canceled" || got.EndedAt == 0 {
		t.Errorf("its subscription: %s", got.Status)
	}
	_, err := s.stripe.Customers.Update(c.ID, &stripe.CustomerParams{Name: new("Bob")})
	refused(t, err, http.StatusNotFound, "resource_missing")
	_, err = s.stripe.Customers.Del(c.ID, nil)
	refused(t, err, http.StatusNotFound, "resource_missing")
	_, err = s.stripe.CheckoutSessions.New(&stripe.CheckoutSessionParams{
		Mode: new("subscription"), Customer: new(c.ID), SuccessURL: new("https://example.com"),
		LineItems: []*stripe.CheckoutSessionLineItemParams{{Price: new("price_basic_monthly")}},
	})
	refused(t, err, http.StatusBadRequest, "resource_missing")
	if list := s.stripe.Customers.List(&stripe.CustomerListParams{Email: new("a+b@example.com")}); list.Next() {
		t.Error("the deleted customer is listed")
	}
}

// subscribeAs opens a checkout for a customer and pays it.
func (s *sim) subscribeAs(t *testing.T, customer, price, choice string) *stripe.Subscription {
	t.Helper()
	cs := s.session(t, customer, price)
	if status, _, body := s.choose(t, cs.URL, choice); status != http.StatusSeeOther {
		t.Fatalf("paying: %d %s", status, body)
	}
	cs = must(s.stripe.CheckoutSessions.Get(cs.ID, nil))(t)
	return s.get(t, cs.Subscription.ID)
}

func TestPricesAndProducts(t *testing.T) {
	t.Parallel()
	s := start(t, nil)
	want := map[string]int64{
		"price_basic_monthly": 300, "price_basic_yearly": 3000, "price_advanced_monthly": 1000,
		"price_advanced_yearly": 10000, "price_pro_monthly": 5000, "price_pro_yearly": 50000,
	}
	params := &stripe.PriceListParams{Active: new(true)}
	params.Limit = stripe.Int64(4) // two pages
	params.AddExpand("data.product")
	list := s.stripe.Prices.List(params)
	for list.Next() {
		p := list.Price()
		if want[p.ID] != p.UnitAmount || p.Product.Name == "" || p.Currency != "usd" || p.Recurring == nil {
			t.Errorf("price %+v", p)
		}
		delete(want, p.ID)
	}
	if list.Err() != nil || len(want) > 0 {
		t.Errorf("not listed: %v; error: %v", want, list.Err())
	}
	if p := must(s.stripe.Prices.Get("price_pro_yearly", nil))(t); p.Recurring.Interval != "year" {
		t.Errorf("price %+v", p)
	}
	_, err := s.stripe.Prices.Get("price_none", nil)
	e := refusal(t, err, http.StatusNotFound, "resource_missing")
	if e.Type != "invalid_request_error" || !strings.Contains(e.Msg, "price_none") {
		t.Errorf("%+v", e)
	}
	if p := must(s.stripe.Products.Get("prod_pro", nil))(t); p.Name != "Pro" {
		t.Errorf("product %+v", p)
	}
}

func TestListsGoOnWhereTheyStopped(t *testing.T) {
	t.Parallel()
	s := start(t, nil)
	var made []string
	for range 7 {
		made = append(made, s.customer(t).ID)
	}
	slices.Reverse(made)
	params := &stripe.CustomerListParams{}
	params.Limit = stripe.Int64(3)
	list := s.stripe.Customers.List(params)
	var got []string
	for list.Next() {
		got = append(got, list.Customer().ID)
	}
	if !slices.Equal(got, made) {
		t.Errorf("got %v, want %v", got, made)
	}
	if n := len(s.Calls()); n != 7+3 {
		t.Errorf("%d calls, want three pages", n-7)
	}
	one := &stripe.CustomerListParams{}
	one.Limit, one.Single, one.StartingAfter = stripe.Int64(2), true, new(made[1])
	list = s.stripe.Customers.List(one)
	if !list.Next() || list.Customer().ID != made[2] || !list.Meta().HasMore {
		t.Errorf("after %s: %+v", made[1], list.Meta())
	}
	back := &stripe.CustomerListParams{}
	back.Limit, back.Single, back.EndingBefore = stripe.Int64(2), true, new(made[3])
	list = s.stripe.Customers.List(back)
	var before []string
	for list.Next() {
		before = append(before, list.Customer().ID)
	}
	slices.Sort(before)
	if want := slices.Sorted(slices.Values(made[1:3])); !slices.Equal(before, want) {
		t.Errorf("before %s: %v, want %v", made[3], before, want)
	}
}

func TestRequestsThatTheProviderRefuses(t *testing.T) {
	t.Parallel()
	s := start(t, nil)
	send := func(method, path, key, body string) (int, string) {
		r := must(http.NewRequest(method, s.url+path, strings.NewReader(body)))(t)
		if key != "" {
			r.Header.Set("Authorization", "Bearer "+key)
		}
		resp, answer := exchange(t, s.http, r)
		if resp.Header.Get("Request-Id") == "" || !strings.HasPrefix(resp.Header.Get("Content-Type"), "application/json") {
			t.Errorf("%s %s: headers %v", method, path, resp.Header)
		}
		return resp.StatusCode, answer
	}
	for _, c := range []struct {
		name, method, path, key, body string
		status                        int
		says                          string
	}{
		{"no key", "GET", "/v1/customers", "", "", 401, "You did not provide an API key"},
		{"a wrong key is masked", "GET", "/v1/customers", "hemlig_12345", "", 401, "********2345"},
		{"unknown path", "GET", "/v1/nothing", "sk_1", "", 404, "Unrecognized request URL (GET: /v1/nothing)"},
		{"unknown method", "PUT", "/v1/customers", "sk_1", "", 404, "Unrecognized request URL"},
		{"unknown parameter", "POST", "/v1/customers", "sk_1", "emial=a", 400, "parameter_unknown"},
		{"missing parameter", "POST", "/v1/billing_portal/sessions", "sk_1", "", 400, "parameter_missing"},
		{"no number", "GET", "/v1/customers?limit=x", "sk_1", "", 400, "parameter_invalid_integer"},
		{"limit too high", "GET", "/v1/customers?limit=101", "sk_1", "", 400, "Limit must be"},
		{"cannot be expanded", "GET", "/v1/prices/price_pro_monthly?expand[]=nothing", "sk_1", "", 400, "cannot be expanded"},
		{"too large", "POST", "/v1/customers", "sk_1", "name=" + strings.Repeat("x", 1<<20), 400, "cannot be read"},
	} {
		t.Run(c.name, func(t *testing.T) {
			status, body := send(c.method, c.path, c.key, c.body)
			if status != c.status || !strings.Contains(body, c.says) || strings.Contains(body, "hemlig") {
				t.Errorf("%d %s", status, body)
			}
		})
	}
}

func TestSessionsExpire(t *testing.T) {
	t.Parallel()
	s := start(t, nil)
	c := s.customer(t)
	byHand, byTime := s.session(t, c.ID, "price_pro_monthly"), s.session(t, c.ID, "price_pro_yearly")
	if got := must(s.stripe.CheckoutSessions.Expire(byHand.ID, nil))(t); got.Status != "expired" || got.URL != "" {
		t.Errorf("expired: %+v", got)
	}
	_, err := s.stripe.CheckoutSessions.Expire(byHand.ID, nil)
	refused(t, err, http.StatusBadRequest, "")
	open := s.stripe.CheckoutSessions.List(&stripe.CheckoutSessionListParams{Customer: new(c.ID), Status: new("open")})
	if !open.Next() || open.CheckoutSession().ID != byTime.ID || open.Next() {
		t.Errorf("open sessions: %v", open.Err())
	}
	s.clock.add(24*time.Hour - time.Second)
	if got := must(s.stripe.CheckoutSessions.Get(byTime.ID, nil))(t); got.Status != "open" {
		t.Errorf("a second before its end: %s", got.Status)
	}
	s.clock.add(time.Second)
	if got := must(s.stripe.CheckoutSessions.Get(byTime.ID, nil))(t); got.Status != "expired" {
		t.Errorf("at its end: %s", got.Status)
	}
	for _, cs := range []*stripe.CheckoutSession{byHand, byTime} {
		if status, _, _ := s.choose(t, s.url+"/c/pay/"+cs.ID, "pay"); status != http.StatusGone {
			t.Errorf("paying an expired session: %d", status)
		}
	}
	if h := s.History(c.ID); len(h) > 0 {
		t.Errorf("an expired session created %+v", h)
	}
	s.drain(t)
	if n := count(s.hook.types(), "checkout.session.expired"); n != 2 {
		t.Errorf("%d session expired events", n)
	}
}

func TestCheckoutWithoutCustomerAndWithTrial(t *testing.T) {
	t.Parallel()
	s := start(t, nil)
	cs := must(s.stripe.CheckoutSessions.New(&stripe.CheckoutSessionParams{
		Mode: new("subscription"), CustomerEmail: new("new@example.com"),
		LineItems:        []*stripe.CheckoutSessionLineItemParams{{Price: new("price_pro_monthly"), Quantity: stripe.Int64(1)}},
		SuccessURL:       new("https://example.com/ok"),
		SubscriptionData: &stripe.CheckoutSessionSubscriptionDataParams{TrialPeriodDays: stripe.Int64(7)},
	}))(t)
	if status, to, _ := s.choose(t, cs.URL, "pay"); status != http.StatusSeeOther || to != "https://example.com/ok" {
		t.Fatalf("%d %s", status, to)
	}
	cs = must(s.stripe.CheckoutSessions.Get(cs.ID, nil))(t)
	sub := s.get(t, cs.Subscription.ID)
	if cs.PaymentStatus != "no_payment_required" || sub.Status != "trialing" || sub.TrialEnd != s.clock.now().Add(7*24*time.Hour).Unix() ||
		sub.CurrentPeriodEnd != sub.TrialEnd || sub.Customer.Email != "new@example.com" || sub.LatestInvoice.AmountDue != 0 {
		t.Fatalf("%+v %+v", cs, sub)
	}
	s.clock.add(7 * 24 * time.Hour)
	sub = s.get(t, sub.ID)
	if sub.Status != "active" || sub.LatestInvoice.AmountPaid != 5000 {
		t.Errorf("after the trial: %s, paid %d", sub.Status, sub.LatestInvoice.AmountPaid)
	}
}

// raw returns an object's JSON as sent, including what the client hides.
func (s *sim) raw(t *testing.T, path string) string {
	t.Helper()
	r := must(http.NewRequest(http.MethodGet, s.url+path, nil))(t)
	r.Header.Set("Authorization", "Bearer sk_test_1")
	_, body := exchange(t, s.http, r)
	return body
}

func TestObjectsShowNothingOfTheSimulator(t *testing.T) {
	t.Parallel()
	s := start(t, nil)
	sub := s.subscribe(t, "price_pro_monthly", "pay")
	for _, path := range []string{
		"/v1/subscriptions/" + sub.ID + "?expand[]=latest_invoice.payment_intent&expand[]=customer&expand[]=default_payment_method",
		"/v1/invoices", "/v1/payment_methods?customer=" + sub.Customer.ID, "/v1/checkout/sessions", "/v1/events?limit=100",
	} {
		if body := s.raw(t, path); strings.Contains(body, `"sim"`) || strings.Contains(body, `"error"`) {
			t.Errorf("%s: %s", path, body)
		}
	}
}

func TestRefunds(t *testing.T) {
	t.Parallel()
	s := start(t, nil)
	sub := s.subscribe(t, "price_pro_monthly", "pay")
	pi := must(s.stripe.PaymentIntents.Get(sub.LatestInvoice.PaymentIntent.ID, nil))(t)
	r := must(s.stripe.Refunds.New(&stripe.RefundParams{PaymentIntent: new(pi.ID), Amount: stripe.Int64(2000)}))(t)
	if r.Amount != 2000 || r.Status != "succeeded" {
		t.Fatalf("%+v", r)
	}
	_, err := s.stripe.Refunds.New(&stripe.RefundParams{Charge: new(pi.LatestCharge.ID), Amount: stripe.Int64(3001)})
	refused(t, err, http.StatusBadRequest, "")
	_ = must(s.stripe.Refunds.New(&stripe.RefundParams{Charge: new(pi.LatestCharge.ID)}))(t)
	ch := must(s.stripe.Charges.Get(pi.LatestCharge.ID, nil))(t)
	if !ch.Refunded || ch.AmountRefunded != 5000 {
		t.Errorf("%+v", ch)
	}
	_, err = s.stripe.Refunds.New(&stripe.RefundParams{Charge: new(ch.ID)})
	refused(t, err, http.StatusBadRequest, "charge_already_refunded")
	list := s.stripe.Refunds.List(&stripe.RefundListParams{PaymentIntent: new(pi.ID)})
	n := 0
	for list.Next() {
		n++
	}
	if n != 2 {
		t.Errorf("%d refunds, want 2", n)
	}
}

func TestPaymentMethods(t *testing.T) {
	t.Parallel()
	s := start(t, nil)
	c, other := s.customer(t), s.customer(t)
	m := must(s.stripe.PaymentMethods.Attach("pm_card_visa", &stripe.PaymentMethodAttachParams{Customer: new(c.ID)}))(t)
	_, err := s.stripe.PaymentMethods.Attach(m.ID, &stripe.PaymentMethodAttachParams{Customer: new(other.ID)})
	refused(t, err, http.StatusBadRequest, "")
	got := must(s.stripe.PaymentMethods.Get(m.ID, nil))(t)
	if got.Card.Brand != "visa" || got.Card.Last4 != "4242" || got.Card.ExpYear != 2034 {
		t.Errorf("%+v", got.Card)
	}
	list := s.stripe.PaymentMethods.List(&stripe.PaymentMethodListParams{Customer: new(c.ID), Type: new("card")})
	if !list.Next() || list.PaymentMethod().ID != m.ID || list.Next() {
		t.Errorf("list: %v", list.Err())
	}
	_, err = s.stripe.Customers.Update(other.ID, &stripe.CustomerParams{
		InvoiceSettings: &stripe.CustomerInvoiceSettingsParams{DefaultPaymentMethod: new(m.ID)},
	})
	refused(t, err, http.StatusBadRequest, "")
	_ = must(s.stripe.PaymentMethods.Detach(m.ID, nil))(t)
	list = s.stripe.PaymentMethods.List(&stripe.PaymentMethodListParams{Customer: new(c.ID)})
	if list.Next() {
		t.Error("the detached card is listed")
	}
}

func TestPortal(t *testing.T) {
	t.Parallel()
	s := start(t, nil)
	sub := s.subscribe(t, "price_pro_monthly", "pay")
	p := must(s.stripe.BillingPortalSessions.New(&stripe.BillingPortalSessionParams{
		Customer: new(sub.Customer.ID), ReturnURL: new("https://example.com/account"),
	}))(t)
	resp, body := s.fetch(t, p.URL)
	if resp.StatusCode != 200 || !strings.Contains(body, "Pro: active until 28 February 2026") ||
		!strings.Contains(body, "https://example.com/account") {
		t.Fatalf("%d %s", resp.StatusCode, body)
	}
	for _, step := range []struct {
		choice string
		atEnd  bool
		last4  string
	}{
		{"cancel", true, "4242"}, {"cancel", true, "4242"}, {"resume", false, "4242"}, {"bad_card", false, "0002"}, {"card", false, "4242"},
	} {
		if status, _, body := s.choose(t, p.URL, step.choice); status != 200 {
			t.Fatalf("%s: %d %s", step.choice, status, body)
		}
		if got := s.get(t, sub.ID); got.CancelAtPeriodEnd != step.atEnd || got.DefaultPaymentMethod.Card.Last4 != step.last4 {
			t.Errorf("after %s: %t %s", step.choice, got.CancelAtPeriodEnd, got.DefaultPaymentMethod.Card.Last4)
		}
	}
	if status, to, _ := s.choose(t, p.URL, "return"); status != http.StatusSeeOther || to != "https://example.com/account" {
		t.Errorf("return: %d %s", status, to)
	}
	if status, _, _ := s.choose(t, s.url+"/p/session/none", "cancel"); status != http.StatusNotFound {
		t.Errorf("another customer's portal: %d", status)
	}
}

func TestPagesEscapeWhatTheyShow(t *testing.T) {
	t.Parallel()
	evil := `"><script>alert(1)</script>`
	s := start(t, func(c *stripesim.Config) {
		c.Prices = []stripesim.Price{{ID: "price_x", Product: evil, Currency: "usd", Amount: 100, Interval: "month"}}
	})
	sub := s.subscribe(t, "price_x", "pay")
	cs := s.session(t, sub.Customer.ID, "price_x")
	p := must(s.stripe.BillingPortalSessions.New(&stripe.BillingPortalSessionParams{
		Customer: new(sub.Customer.ID), ReturnURL: new("javascript:" + evil),
	}))(t)
	for _, u := range []string{cs.URL, p.URL, sub.LatestInvoice.HostedInvoiceURL} {
		resp, body := s.fetch(t, u)
		if resp.StatusCode != 200 || strings.Contains(body, "<script") || strings.Contains(body, "javascript:") ||
			!strings.Contains(body, "&lt;script&gt;") {
			t.Errorf("%s: %d %s", u, resp.StatusCode, body)
		}
		if csp := resp.Header.Get("Content-Security-Policy"); !strings.Contains(csp, "default-src 'none'") {
			t.Errorf("%s: %q", u, csp)
		}
	}
	if _, err := url.Parse(cs.URL); err != nil {
		t.Error(err)
	}
}
