package stripesim

import (
	"fmt"
	"net/http"
	"slices"
	"time"
)

func (s *Server) invoiceRoutes() []route {
	return []route{
		{"GET /v1/invoices", pageParams + " customer subscription status", s.listInvoices},
		{
			"GET /v1/invoices/upcoming", "customer subscription subscription_items subscription_proration_behavior " +
				"subscription_proration_date subscription_cancel_at_period_end", s.upcoming,
		},
		{"GET /v1/invoices/{id}", "", func(rq *request) (any, error) { return s.invoice(rq.id) }},
		{"POST /v1/invoices/{id}/pay", "payment_method", s.payInvoice},
		{"POST /v1/invoices/{id}/void", "", s.voidInvoice},
	}
}

func (s *Server) invoice(id string) (*invoice, error) {
	inv, ok := s.state.Invoices.byID[id]
	if !ok {
		return nil, noSuch("invoice", id, "id")
	}
	return inv, nil
}

func (s *Server) listInvoices(rq *request) (any, error) {
	if id := rq.form["customer"]; id != "" {
		if _, err := s.customer(id, "customer"); err != nil {
			return nil, err
		}
	}
	return page(rq, &s.state.Invoices, func(i *invoice) bool {
		return rq.is("customer", i.Customer) && rq.is("subscription", i.Subscription) && rq.is("status", ref(i.Status))
	})
}

// draft returns an invoice as it would be made now, with the customer's balance applied. It stores nothing.
func (s *Server) draft(sub *subscription, lines []line, reason string, now int64) *invoice {
	c := s.owner(sub.Customer)
	inv := &invoice{
		Object: "invoice", AutoAdvance: true, BillingReason: reason, CollectionMethod: "charge_automatically",
		Created: now, Currency: sub.Currency, Customer: sub.Customer, CustomerEmail: c.Email,
		Metadata: map[string]string{}, PeriodStart: sub.CurrentPeriodStart, PeriodEnd: sub.CurrentPeriodEnd,
		StartingBalance: c.Balance, Status: "draft", Subscription: ref(sub.ID), Subtotal: total(lines),
		Total: total(lines), TestClock: sub.TestClock, Sim: invoiceInternal{Lines: lines},
	}
	ending := c.Balance + inv.Total // negative: the remaining credit
	switch {
	case inv.Total < 0 && c.Balance <= 0, c.Balance < 0 && ending <= 0:
		inv.AmountDue = 0
	case c.Balance > 0 && ending <= 0:
		inv.AmountDue = 0
	default:
		inv.AmountDue, ending = ending, 0
	}
	inv.AmountRemaining = inv.AmountDue
	inv.EndingBalance = new(ending)
	return inv
}

// issue stores and finalizes an invoice and updates the customer's balance.
func (s *Server) issue(sub *subscription, lines []line, reason, base string, now int64) *invoice {
	inv := s.draft(sub, lines, reason, now)
	inv.ID = s.cfg.ID("in_")
	inv.Number = ref(fmt.Sprintf("SIM-%06d", len(s.state.Invoices.rows)+1))
	inv.HostedURL = ref(base + "/invoice/" + inv.ID)
	inv.PDF = ref(base + "/invoice/" + inv.ID + "/pdf")
	inv.Status, inv.Transitions.FinalizedAt = "open", stamp(now)
	s.state.Invoices.add(inv)
	c := s.owner(sub.Customer)
	c.Balance = *inv.EndingBalance
	c.Currency = ref(sub.Currency)
	sub.LatestInvoice = ref(inv.ID)
	s.emit("invoice.created", inv, now)
	s.emit("invoice.finalized", inv, now)
	return inv
}

// pay tries to collect an open invoice. It reports whether the invoice is paid.
func (s *Server) pay(inv *invoice, m *paymentMethod, now int64) bool {
	inv.Attempted = true
	inv.NextPaymentAttempt = 0
	if inv.AmountRemaining > 0 {
		inv.AttemptCount++
		if !s.collect(inv, m, now) {
			s.emit("invoice.payment_failed", inv, now)
			return false
		}
	}
	inv.AmountPaid, inv.AmountRemaining = inv.AmountDue, 0
	inv.Paid, inv.Status, inv.Transitions.PaidAt = true, "paid", stamp(now)
	s.emit("invoice.paid", inv, now)
	s.emit("invoice.payment_succeeded", inv, now)
	return true
}

// payInvoice serves the call that collects an open invoice. If the invoice is its subscription's latest, the subscription
// becomes active.
func (s *Server) payInvoice(rq *request) (any, error) {
	inv, err := s.invoice(rq.id)
	if err != nil {
		return nil, err
	}
	if inv.Status != "open" {
		return nil, invalid("", "This invoice can no longer be paid: it is %s.", inv.Status)
	}
	sub := s.state.Subs.byID[string(inv.Subscription)]
	if sub == nil {
		return nil, noSuch("subscription", string(inv.Subscription), "")
	}
	m := s.cardOf(sub)
	if id := rq.form["payment_method"]; id != "" {
		if m, err = s.method(id, string(inv.Customer), "payment_method"); err != nil {
			return nil, err
		}
	}
	now := s.timeOf(s.owner(inv.Customer))
	if !s.pay(inv, m, now) {
		if m == nil {
			return nil, invalid("", "Cannot charge a customer that has no active card.")
		}
		e := declined()
		e.Charge = string(inv.Charge)
		return nil, e
	}
	s.recover(sub, inv, now)
	return inv, nil
}

func (s *Server) voidInvoice(rq *request) (any, error) {
	inv, err := s.invoice(rq.id)
	if err != nil {
		return nil, err
	}
	if inv.Status != "open" {
		return nil, invalid("", "You can only pass in open invoices. This invoice isn't open.")
	}
	s.void(inv, s.timeOf(s.owner(inv.Customer)))
	return inv, nil
}

func (s *Server) void(inv *invoice, now int64) {
	inv.Status, inv.NextPaymentAttempt, inv.Transitions.VoidedAt = "void", 0, stamp(now)
	s.emit("invoice.voided", inv, now)
}

// upcoming previews the next invoice, or the invoice that a change of the subscription would cause.
func (s *Server) upcoming(rq *request) (any, error) {
	sub, err := s.upcomingOf(rq)
	if err != nil {
		return nil, err
	}
	now := s.timeOf(s.owner(sub.Customer))
	c, err := s.changeOf(rq, sub, "subscription_items", "subscription_", now)
	if err != nil {
		return nil, err
	}
	atEnd, err := rq.boolean("subscription_cancel_at_period_end", sub.CancelAtPeriodEnd)
	if err != nil {
		return nil, err
	}
	none := &apiError{
		Status: http.StatusNotFound, Type: invalidRequest, Code: "invoice_upcoming_none",
		Message: fmt.Sprintf("No upcoming invoices for customer: '%s'", sub.Customer),
	}
	if ended(sub) || sub.Status == incomplete {
		return nil, none
	}
	out := s.plan(sub, c)
	lines := append(slices.Clone(sub.Sim.Pending), out.lines...)
	inv := s.draft(sub, lines, "upcoming", sub.CurrentPeriodEnd)
	switch {
	case out.immediate:
		inv = s.draft(sub, lines, "upcoming", now)
	case atEnd && len(lines) == 0:
		return nil, none
	case !atEnd:
		next := period{Start: sub.CurrentPeriodEnd, End: s.following(sub, c.price)}
		lines = append(lines, s.whole(sub, c.price, c.quantity, next))
		inv = s.draft(sub, lines, "upcoming", sub.CurrentPeriodEnd)
	}
	inv.NextPaymentAttempt = stamp(inv.Created)
	if len(out.lines) > 0 {
		inv.ProrationDate = c.at
	}
	return inv, nil
}

func (s *Server) upcomingOf(rq *request) (*subscription, error) {
	if id := rq.form["customer"]; id != "" {
		if _, err := s.living(id, "customer"); err != nil {
			return nil, err
		}
	}
	if id := rq.form["subscription"]; id != "" {
		sub, err := s.sub(id, "subscription")
		if err == nil && !rq.is("customer", sub.Customer) {
			err = invalid("subscription", "The subscription does not belong to the customer.")
		}
		return sub, err
	}
	id, err := rq.required("customer")
	if err != nil {
		return nil, err
	}
	for _, sub := range slices.Backward(s.state.Subs.rows) {
		if string(sub.Customer) == id && !ended(sub) {
			return sub, nil
		}
	}
	return nil, &apiError{
		Status: http.StatusNotFound, Type: invalidRequest, Code: "invoice_upcoming_none",
		Message: fmt.Sprintf("No upcoming invoices for customer: '%s'", id),
	}
}

// following returns the end of the period after the subscription's current one.
func (s *Server) following(sub *subscription, p price) int64 {
	if sub.Status == trialing {
		return nextPeriod(sub.CurrentPeriodEnd, 1, p.Recurring.Interval)
	}
	return nextPeriod(sub.BillingCycleAnchor, sub.Sim.Periods+1, p.Recurring.Interval)
}

// date formats a day as invoices show it.
func date(t int64) string { return time.Unix(t, 0).UTC().Format("2 January 2006") }
