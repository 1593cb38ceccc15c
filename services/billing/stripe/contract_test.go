package stripe_test

import (
	"log/slog"
	"testing"

	"waitlist.internal/libs/testenv"
	"waitlist.internal/services/billing"
	"waitlist.internal/services/billing/stripe"
)

func TestMain(m *testing.M) { testenv.Main(m) }

const accountID = "0193d4a2-5c1e-7a41-8000-00000000000a"

func provider(t *testing.T, url string) *stripe.Provider {
	t.Helper()
	p, err := stripe.New(stripe.Config{SecretKey: "sk_test_123", URL: url, Log: slog.New(slog.NewJSONHandler(t.Output(), nil))})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
}

// Stripe's own mock checks requests against the official description of the API. It
// must accept every request that billing makes.
func TestRequestsAreWhatStripeTakes(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	p := provider(t, testenv.StripeMock(t))
	sub := billing.Subscription{ID: "sub_1", CustomerID: "cus_1", ItemID: "si_1"}
	var key int
	next := func() string { key++; return "key-" + string(rune('a'+key)) }

	if id, err := p.CreateCustomer(ctx, next(), accountID, "ann@example.com"); err != nil || id == "" {
		t.Errorf("create customer: %q, %v", id, err)
	}
	if c, err := p.Customer(ctx, "cus_1"); err != nil || c.ID == "" {
		t.Errorf("customer: %+v, %v", c, err)
	}
	if page, _, err := p.Customers(ctx, ""); err != nil || len(page) == 0 {
		t.Errorf("customers: %v, %v", page, err)
	}
	if _, _, err := p.Customers(ctx, "cus_1"); err != nil {
		t.Errorf("customers after one: %v", err)
	}
	if list, err := p.Subscriptions(ctx, "cus_1"); err != nil || len(list) != 1 || list[0].ItemID == "" || list[0].PriceID == "" ||
		list[0].CurrentPeriodEnd.IsZero() {
		t.Errorf("subscriptions: %+v, %v", list, err)
	}
	if s, err := p.CreateSession(ctx, next(), billing.NewSession{
		CustomerID: "cus_1", AccountID: accountID, PriceID: "price_1", SuccessURL: "https://example.com/s", CancelURL: "https://example.com/c",
	}); err != nil || s.ID == "" {
		t.Errorf("create session: %+v, %v", s, err)
	}
	if q, err := p.Quote(ctx, sub, "price_2"); err != nil || q.Currency == "" {
		t.Errorf("quote: %+v, %v", q, err)
	}
	if price, err := p.Price(ctx, "price_1"); err != nil || price.Amount == 0 || price.Currency == "" {
		t.Errorf("price: %+v, %v", price, err)
	}
	if list, err := p.Invoices(ctx, "cus_1", 10); err != nil || len(list) != 1 || list[0].ID == "" || list[0].CreatedAt.IsZero() {
		t.Errorf("invoices: %+v, %v", list, err)
	}
	if m, err := p.PaymentMethod(ctx, "cus_1"); err != nil {
		t.Errorf("payment method: %+v, %v", m, err)
	}
	if url, err := p.Portal(ctx, next(), "cus_1", "https://example.com/back"); err != nil || url == "" {
		t.Errorf("portal: %q, %v", url, err)
	}
	ended := sub
	ended.CancelAt = ended.CreatedAt.AddDate(1, 0, 0) // an end date chosen at the provider
	for name, do := range map[string]func() error{
		"sessions":                 func() error { _, err := p.OpenSessions(ctx, "cus_1"); return err },
		"change":                   func() error { return p.ChangePlan(ctx, next(), sub, "price_2") },
		"end":                      func() error { return p.SetCanceling(ctx, next(), sub, true) },
		"go on":                    func() error { return p.SetCanceling(ctx, next(), sub, false) },
		"go on after a chosen day": func() error { return p.SetCanceling(ctx, next(), ended, false) },
		"cancel":                   func() error { return p.Cancel(ctx, next(), "sub_1") },
		"refund":                   func() error { return p.Refund(ctx, next(), "sub_1") },
		"expire":                   func() error { return p.ExpireSession(ctx, next(), "cs_1") },
		"forget":                   func() error { return p.DeleteCustomer(ctx, next(), "cus_1") },
	} {
		if err := do(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}
