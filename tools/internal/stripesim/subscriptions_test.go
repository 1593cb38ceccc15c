package stripesim_test

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stripe/stripe-go/v76"

	"waitlist.internal/tools/internal/stripesim"
)

// own creates a subscription without a checkout.
func (s *sim) own(t *testing.T, card, price, behavior string) (*stripe.Subscription, error) {
	t.Helper()
	c := s.customer(t)
	m := must(s.stripe.PaymentMethods.Attach(card, &stripe.PaymentMethodAttachParams{Customer: new(c.ID)}))(t)
	return s.stripe.Subscriptions.New(&stripe.SubscriptionParams{
		Customer: new(c.ID), DefaultPaymentMethod: new(m.ID), PaymentBehavior: new(behavior),
		Items: []*stripe.SubscriptionItemsParams{{Price: new(price)}},
	})
}

func TestFirstPaymentThatFails(t *testing.T) {
	t.Parallel()
	s := start(t, nil)
	_, err := s.own(t, "pm_card_chargeDeclined", "price_pro_monthly", "error_if_incomplete")
	if e := refusal(t, err, http.StatusPaymentRequired, "card_declined"); e.Type != "card_error" || e.DeclineCode != "generic_decline" {
		t.Errorf("%+v", e)
	}
	sub := must(s.own(t, "pm_card_chargeDeclined", "price_pro_monthly", "allow_incomplete"))(t)
	if sub.Status != "incomplete" {
		t.Fatalf("status %s", sub.Status)
	}
	s.clock.add(23 * time.Hour)
	got := s.get(t, sub.ID)
	if got.Status != "incomplete_expired" || got.LatestInvoice.Status != "void" {
		t.Errorf("after 23 hours: %s, invoice %s", got.Status, got.LatestInvoice.Status)
	}
	_, err = s.stripe.Subscriptions.Cancel(sub.ID, nil)
	refused(t, err, http.StatusNotFound, "resource_missing")
}

func TestProrationByTheSecond(t *testing.T) {
	t.Parallel()
	// From 31 January to 28 February at noon it is 28 days: a quarter of that is a week.
	for _, c := range []struct {
		from, to string
		after    time.Duration
		lines    []int64
		due      int64
		balance  int64
	}{
		{"price_basic_monthly", "price_pro_monthly", 7 * 24 * time.Hour, []int64{-225, 3750}, 3525, 0},
		{"price_basic_monthly", "price_pro_monthly", 0, []int64{-300, 5000}, 4700, 0},
		{"price_pro_monthly", "price_basic_monthly", 14 * 24 * time.Hour, []int64{-2500, 150}, 0, -2350},
		{"price_basic_monthly", "price_pro_yearly", 21 * 24 * time.Hour, []int64{-75, 50000}, 49925, 0},
		{"price_basic_monthly", "price_advanced_monthly", time.Second, []int64{-300, 1000}, 700, 0}, // 299.9999 and 999.9996
		{"price_basic_monthly", "price_advanced_monthly", 28*24*time.Hour - time.Second, []int64{0, 0}, 0, 0},
	} {
		t.Run(fmt.Sprintf("%s to %s after %s", c.from, c.to, c.after), func(t *testing.T) {
			t.Parallel()
			s := start(t, nil)
			sub := s.subscribe(t, c.from, "pay")
			s.clock.add(c.after)
			inv := s.preview(t, sub.ID, c.to, "always_invoice", 0)
			lines := make([]int64, 0, len(inv.Lines.Data))
			for _, l := range inv.Lines.Data {
				lines = append(lines, l.Amount)
			}
			if !slices.Equal(lines, c.lines) || inv.AmountDue != c.due || inv.EndingBalance != c.balance {
				t.Errorf("lines %v, due %d, balance %d", lines, inv.AmountDue, inv.EndingBalance)
			}
			if must(s.stripe.Customers.Get(sub.Customer.ID, nil))(t).Balance != 0 {
				t.Error("a preview changed the balance")
			}
			after := must(s.update(t, sub.ID, c.to, "always_invoice", "error_if_incomplete", 0))(t)
			if after.LatestInvoice.AmountPaid != c.due {
				t.Errorf("paid %d", after.LatestInvoice.AmountPaid)
			}
			if got := must(s.stripe.Customers.Get(sub.Customer.ID, nil))(t).Balance; got != c.balance {
				t.Errorf("balance %d", got)
			}
		})
	}
}

func TestCreditPaysTheNextInvoice(t *testing.T) {
	t.Parallel()
	s := start(t, nil)
	sub := s.subscribe(t, "price_pro_monthly", "pay")
	s.clock.add(14 * 24 * time.Hour)
	_ = must(s.update(t, sub.ID, "price_advanced_monthly", "always_invoice", "error_if_incomplete", 0))(t) // -2500 + 500
	upcoming := must(s.stripe.Invoices.Upcoming(&stripe.InvoiceUpcomingParams{Subscription: new(sub.ID)}))(t)
	if upcoming.AmountDue != 0 || upcoming.StartingBalance != -2000 || upcoming.EndingBalance != -1000 || upcoming.Total != 1000 {
		t.Errorf("due %d, balance %d to %d", upcoming.AmountDue, upcoming.StartingBalance, upcoming.EndingBalance)
	}
	s.clock.add(14 * 24 * time.Hour)
	got := s.get(t, sub.ID)
	if inv := got.LatestInvoice; inv.AmountDue != 0 || inv.Status != "paid" || inv.PaymentIntent != nil || inv.Total != 1000 {
		t.Errorf("renewal: due %d of %d, %s", inv.AmountDue, inv.Total, inv.Status)
	}
	for range 2 { // the third month uses the last 1000 of credit
		s.clock.add(31 * 24 * time.Hour)
	}
	if got = s.get(t, sub.ID); got.LatestInvoice.AmountPaid != 1000 {
		t.Errorf("without credit: paid %d", got.LatestInvoice.AmountPaid)
	}
}

func TestProrationsOnTheNextInvoice(t *testing.T) {
	t.Parallel()
	s := start(t, nil)
	sub := s.subscribe(t, "price_basic_monthly", "pay")
	s.clock.add(7 * 24 * time.Hour)
	at := s.clock.now().Unix()
	shown := s.preview(t, sub.ID, "price_pro_monthly", "create_prorations", at)
	if shown.AmountDue != -225+3750+5000 || shown.PeriodEnd != sub.CurrentPeriodEnd {
		t.Errorf("shown: %d", shown.AmountDue)
	}
	after := must(s.update(t, sub.ID, "price_pro_monthly", "create_prorations", "error_if_incomplete", at))(t)
	if after.LatestInvoice.ID != sub.LatestInvoice.ID {
		t.Error("an invoice was made at once")
	}
	s.clock.add(21 * 24 * time.Hour)
	if got := s.get(t, sub.ID).LatestInvoice; got.AmountPaid != shown.AmountDue || got.BillingReason != "subscription_cycle" {
		t.Errorf("paid %d, shown %d", got.AmountPaid, shown.AmountDue)
	}
}

func TestUpdateWhosePaymentFails(t *testing.T) {
	t.Parallel()
	s := start(t, nil)
	sub := s.subscribe(t, "price_basic_monthly", "later")
	s.clock.add(time.Hour)
	before := len(s.History(sub.Customer.ID))

	_, err := s.update(t, sub.ID, "price_pro_monthly", "always_invoice", "error_if_incomplete", 0)
	refused(t, err, http.StatusPaymentRequired, "card_declined")
	got := s.get(t, sub.ID)
	if got.Items.Data[0].Price.ID != "price_basic_monthly" || got.Status != "active" || got.LatestInvoice.ID != sub.LatestInvoice.ID {
		t.Errorf("a failed update changed the subscription: %+v", got)
	}
	if n := len(s.History(sub.Customer.ID)); n != before {
		t.Errorf("%d states, want %d", n, before)
	}

	got = must(s.update(t, sub.ID, "price_pro_monthly", "always_invoice", "pending_if_incomplete", 0))(t)
	if got.PendingUpdate == nil || got.Items.Data[0].Price.ID != "price_basic_monthly" || got.Status != "active" {
		t.Fatalf("pending: %+v", got)
	}
	s.clock.add(23 * time.Hour)
	if got := s.get(t, sub.ID); got.PendingUpdate != nil || got.LatestInvoice.Status != "void" {
		t.Errorf("after 23 hours: %+v, invoice %s", got.PendingUpdate, got.LatestInvoice.Status)
	}
	got = must(s.update(t, sub.ID, "price_pro_monthly", "always_invoice", "pending_if_incomplete", 0))(t)
	if err := s.SetCard(sub.Customer.ID, "4242"); err != nil {
		t.Fatal(err)
	}
	_ = must(s.stripe.Invoices.Pay(got.LatestInvoice.ID, nil))(t)
	if got := s.get(t, sub.ID); got.PendingUpdate != nil || got.Items.Data[0].Price.ID != "price_pro_monthly" {
		t.Errorf("after paying: %+v", got)
	}

	if err := s.SetCard(sub.Customer.ID, "0002"); err != nil {
		t.Fatal(err)
	}
	got = must(s.update(t, sub.ID, "price_pro_yearly", "always_invoice", "allow_incomplete", 0))(t)
	if got.Status != "past_due" || got.Items.Data[0].Price.ID != "price_pro_yearly" || got.LatestInvoice.Status != "open" {
		t.Errorf("allow_incomplete: %s %s", got.Status, got.LatestInvoice.Status)
	}
}

func TestUpdatesThatTheProviderRefuses(t *testing.T) {
	t.Parallel()
	s := start(t, func(c *stripesim.Config) {
		c.Prices = append(stripesim.DefaultPrices(), stripesim.Prices("jpy", "yen_", [3]int64{300, 1000, 5000})...)
	})
	sub := s.subscribe(t, "price_basic_monthly", "pay")
	item := sub.Items.Data[0].ID
	for _, c := range []struct {
		name, says string
		params     stripe.SubscriptionParams
	}{
		{
			"without its id an item is a second one", "Without the id",
			stripe.SubscriptionParams{Items: []*stripe.SubscriptionItemsParams{{Price: new("price_pro_monthly")}}},
		},
		{
			"unknown price", "No such price",
			stripe.SubscriptionParams{Items: []*stripe.SubscriptionItemsParams{{ID: &item, Price: new("price_none")}}},
		},
		{
			"another currency", "different currency",
			stripe.SubscriptionParams{Items: []*stripe.SubscriptionItemsParams{{ID: &item, Price: new("yen_pro_monthly")}}},
		},
		{"unknown behavior", "proration_behavior", stripe.SubscriptionParams{ProrationBehavior: new("sometimes")}},
		{"date before the period", "outside of current", stripe.SubscriptionParams{
			Items: []*stripe.SubscriptionItemsParams{{ID: &item, Price: new("price_pro_monthly")}}, ProrationDate: stripe.Int64(1),
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := s.stripe.Subscriptions.Update(sub.ID, &c.params)
			if err == nil || !strings.Contains(err.Error(), c.says) {
				t.Errorf("%v", err)
			}
		})
	}
	if h := s.History(sub.Customer.ID); len(h) != 1 {
		t.Errorf("a refused update changed %+v", h)
	}
}

func TestCancelAtPeriodEnd(t *testing.T) {
	t.Parallel()
	s := start(t, nil)
	sub := s.subscribe(t, "price_pro_monthly", "pay")
	set := func(v bool) *stripe.Subscription {
		return must(s.stripe.Subscriptions.Update(sub.ID, &stripe.SubscriptionParams{CancelAtPeriodEnd: new(v)}))(t)
	}
	if got := set(true); !got.CancelAtPeriodEnd || got.CancelAt != got.CurrentPeriodEnd || got.Status != "active" || got.CanceledAt == 0 {
		t.Errorf("canceling: %+v", got)
	}
	if got := set(false); got.CancelAtPeriodEnd || got.CancelAt != 0 || got.CanceledAt != 0 {
		t.Errorf("after taking the cancellation back: %+v", got)
	}
	set(true)
	_, err := s.stripe.Invoices.Upcoming(&stripe.InvoiceUpcomingParams{Subscription: new(sub.ID)})
	refused(t, err, http.StatusNotFound, "invoice_upcoming_none")
	s.clock.add(time.Unix(sub.CurrentPeriodEnd, 0).Sub(s.clock.now()) - time.Second)
	if got := s.get(t, sub.ID); got.Status != "active" {
		t.Errorf("a second before: %s", got.Status)
	}
	s.clock.add(time.Hour)
	if got := s.get(t, sub.ID); got.Status != "canceled" || got.EndedAt != sub.CurrentPeriodEnd ||
		got.LatestInvoice.ID != sub.LatestInvoice.ID {
		t.Errorf("at the end: %s, ended at %d", got.Status, got.EndedAt)
	}
	want := []string{"active false", "active true", "active false", "active true", "canceled true"}
	var got []string
	for _, st := range s.History(sub.Customer.ID) {
		got = append(got, fmt.Sprintf("%s %t", st.Status, st.CancelAtPeriodEnd))
	}
	if !slices.Equal(got, want) {
		t.Errorf("history %q", got)
	}
	_, err = s.stripe.Subscriptions.Update(sub.ID, &stripe.SubscriptionParams{CancelAtPeriodEnd: new(false)})
	refused(t, err, http.StatusBadRequest, "")
	s.drain(t)
	if n := count(s.hook.types(), "customer.subscription.deleted"); n != 1 {
		t.Errorf("%d subscription deleted events", n)
	}
}

func TestCancelAtADay(t *testing.T) {
	t.Parallel()
	s := start(t, nil)
	sub := s.subscribe(t, "price_pro_monthly", "pay")
	at := s.clock.now().Add(5 * 24 * time.Hour).Unix()
	for range 2 {
		got := must(s.stripe.Subscriptions.Update(sub.ID, &stripe.SubscriptionParams{CancelAt: new(at)}))(t)
		if got.CancelAt != at || got.CancelAtPeriodEnd {
			t.Errorf("%+v", got)
		}
		undo := &stripe.SubscriptionParams{}
		undo.AddExtra("cancel_at", "")
		if got := must(s.stripe.Subscriptions.Update(sub.ID, undo))(t); got.CancelAt != 0 {
			t.Errorf("after taking cancel_at back: %d", got.CancelAt)
		}
	}
	_ = must(s.stripe.Subscriptions.Update(sub.ID, &stripe.SubscriptionParams{CancelAt: new(at)}))(t)
	s.clock.add(6 * 24 * time.Hour)
	if got := s.get(t, sub.ID); got.Status != "canceled" || got.EndedAt != at {
		t.Errorf("%s at %d, want %d", got.Status, got.EndedAt, at)
	}
}

func TestCancelAtOnce(t *testing.T) {
	t.Parallel()
	s := start(t, nil)
	sub := s.subscribe(t, "price_pro_monthly", "pay")
	s.clock.add(14 * 24 * time.Hour)
	got := must(s.stripe.Subscriptions.Cancel(sub.ID, &stripe.SubscriptionCancelParams{
		Prorate: new(true), InvoiceNow: new(true),
	}))(t)
	if got.Status != "canceled" || got.EndedAt != s.clock.now().Unix() {
		t.Errorf("%+v", got)
	}
	if c := must(s.stripe.Customers.Get(sub.Customer.ID, nil))(t); c.Balance != -2500 {
		t.Errorf("credit %d", c.Balance)
	}
	_, err := s.stripe.Subscriptions.Cancel(sub.ID, nil)
	refused(t, err, http.StatusNotFound, "resource_missing")
	ids := func(status string) []string {
		var out []string
		p := &stripe.SubscriptionListParams{Customer: new(sub.Customer.ID)}
		if status != "" {
			p.Status = new(status)
		}
		l := s.stripe.Subscriptions.List(p)
		for l.Next() {
			out = append(out, l.Subscription().ID)
		}
		if l.Err() != nil {
			t.Error(l.Err())
		}
		return out
	}
	if len(ids("")) != 0 || len(ids("all")) != 1 || len(ids("canceled")) != 1 || len(ids("active")) != 0 {
		t.Errorf("lists: %v %v", ids(""), ids("all"))
	}
}

// onClock creates a customer with a test clock, and its subscription.
func (s *sim) onClock(t *testing.T, card string) (*stripe.TestHelpersTestClock, *stripe.Subscription) {
	t.Helper()
	at := time.Date(2026, 3, 31, 8, 0, 0, 0, time.UTC)
	tc := must(s.stripe.TestHelpersTestClocks.New(&stripe.TestHelpersTestClockParams{FrozenTime: new(at.Unix())}))(t)
	c := must(s.stripe.Customers.New(&stripe.CustomerParams{TestClock: new(tc.ID)}))(t)
	m := must(s.stripe.PaymentMethods.Attach(card, &stripe.PaymentMethodAttachParams{Customer: new(c.ID)}))(t)
	sub := must(s.stripe.Subscriptions.New(&stripe.SubscriptionParams{
		Customer: new(c.ID), DefaultPaymentMethod: new(m.ID),
		Items: []*stripe.SubscriptionItemsParams{{Price: new("price_pro_monthly")}},
	}))(t)
	return tc, sub
}

func (s *sim) advance(t *testing.T, tc *stripe.TestHelpersTestClock, at time.Time) {
	t.Helper()
	_ = must(s.stripe.TestHelpersTestClocks.Advance(tc.ID, &stripe.TestHelpersTestClockAdvanceParams{FrozenTime: new(at.Unix())}))(t)
	if got := must(s.stripe.TestHelpersTestClocks.Get(tc.ID, nil))(t); got.Status != "ready" || got.FrozenTime != at.Unix() {
		t.Fatalf("clock: %+v", got)
	}
}

func TestRenewalByTestClock(t *testing.T) {
	t.Parallel()
	s := start(t, nil)
	tc, sub := s.onClock(t, "pm_card_visa")
	if got := time.Unix(sub.CurrentPeriodEnd, 0).UTC(); !got.Equal(time.Date(2026, 4, 30, 8, 0, 0, 0, time.UTC)) {
		t.Errorf("first period ends %s", got)
	}
	// Four renewals at once; each falls on the 31st if the month has one.
	s.advance(t, tc, time.Date(2026, 7, 31, 8, 0, 0, 0, time.UTC))
	got := s.get(t, sub.ID)
	if end := time.Unix(got.CurrentPeriodEnd, 0).UTC(); !end.Equal(time.Date(2026, 8, 31, 8, 0, 0, 0, time.UTC)) {
		t.Errorf("period ends %s", end)
	}
	list := s.stripe.Invoices.List(&stripe.InvoiceListParams{Customer: new(sub.Customer.ID)})
	var days []string
	for list.Next() {
		inv := list.Invoice()
		if inv.AmountPaid != 5000 || inv.Charge == nil {
			t.Errorf("invoice %+v", inv)
		}
		days = append(days, time.Unix(inv.Created, 0).UTC().Format("01-02"))
	}
	if want := []string{"07-31", "06-30", "05-31", "04-30", "03-31"}; !slices.Equal(days, want) {
		t.Errorf("invoices of %v", days)
	}
	_, err := s.stripe.TestHelpersTestClocks.Advance(tc.ID, &stripe.TestHelpersTestClockAdvanceParams{FrozenTime: stripe.Int64(1)})
	refused(t, err, http.StatusBadRequest, "")
}

func TestRenewalWhosePaymentFails(t *testing.T) {
	t.Parallel()
	for _, after := range []string{"canceled", "unpaid"} {
		t.Run(after, func(t *testing.T) {
			t.Parallel()
			s := start(t, func(c *stripesim.Config) { c.AfterRetries = after })
			tc, sub := s.onClock(t, "pm_card_payLater")
			end := time.Unix(sub.CurrentPeriodEnd, 0)
			s.advance(t, tc, end)
			got := s.get(t, sub.ID)
			if got.Status != "past_due" || got.LatestInvoice.Status != "open" || got.LatestInvoice.AttemptCount != 1 ||
				got.LatestInvoice.NextPaymentAttempt != end.Add(3*24*time.Hour).Unix() {
				t.Fatalf("%s, invoice %+v", got.Status, got.LatestInvoice)
			}
			s.advance(t, tc, end.Add(15*24*time.Hour-time.Second))
			if got := s.get(t, sub.ID); got.Status != "past_due" || got.LatestInvoice.AttemptCount != 3 {
				t.Errorf("before the last attempt: %s after %d attempts", got.Status, got.LatestInvoice.AttemptCount)
			}
			s.advance(t, tc, end.Add(15*24*time.Hour))
			if got := s.get(t, sub.ID); string(got.Status) != after {
				t.Errorf("after the last attempt: %s", got.Status)
			}
			s.drain(t)
			if n := count(s.hook.types(), "invoice.payment_failed"); n != 4 {
				t.Errorf("%d failures, want 4", n)
			}
		})
	}
}

func TestPastDueRecovers(t *testing.T) {
	t.Parallel()
	s := start(t, nil)
	sub := s.subscribe(t, "price_pro_monthly", "later")
	s.clock.add(28 * 24 * time.Hour)
	if got := s.get(t, sub.ID); got.Status != "past_due" {
		t.Fatalf("status %s", got.Status)
	}
	if err := s.SetCard(sub.Customer.ID, "4242"); err != nil {
		t.Fatal(err)
	}
	s.clock.add(3 * 24 * time.Hour) // the next attempt
	got := s.get(t, sub.ID)
	if got.Status != "active" || got.LatestInvoice.Status != "paid" || got.LatestInvoice.AttemptCount != 2 {
		t.Errorf("%s, invoice %s after %d attempts", got.Status, got.LatestInvoice.Status, got.LatestInvoice.AttemptCount)
	}
}
