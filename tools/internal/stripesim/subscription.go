package stripesim

import (
	"net/http"
	"slices"
	"time"
)

// Values of payment_behavior.
const (
	allowIncomplete   = "allow_incomplete"
	errorIfIncomplete = "error_if_incomplete"
	pendingIncomplete = "pending_if_incomplete"
	defaultIncomplete = "default_incomplete"
)

const (
	// unfinishedFor is how long a first payment may be outstanding and a pending update lasts, in seconds.
	unfinishedFor = 23 * 60 * 60

	createParams = "customer items default_payment_method metadata payment_behavior trial_period_days trial_end " +
		"cancel_at_period_end description off_session"
	updateParams = "items proration_behavior proration_date payment_behavior cancel_at_period_end cancel_at metadata " +
		"default_payment_method description cancellation_details trial_end off_session"
)

func (s *Server) subscriptionRoutes() []route {
	return []route{
		{"POST /v1/subscriptions", createParams, s.createSubscription},
		{"GET /v1/subscriptions", pageParams + " customer status price test_clock", s.listSubscriptions},
		{"GET /v1/subscriptions/{id}", "", func(rq *request) (any, error) { return s.sub(rq.id, "id") }},
		{"POST /v1/subscriptions/{id}", updateParams, s.updateSubscription},
		{"DELETE /v1/subscriptions/{id}", "prorate invoice_now cancellation_details", s.cancelSubscription},
	}
}

func (s *Server) sub(id, param string) (*subscription, error) {
	sub, ok := s.state.Subs.byID[id]
	if !ok {
		return nil, noSuch("subscription", id, param)
	}
	return sub, nil
}

// ended reports whether a subscription has ended for good.
func ended(sub *subscription) bool {
	return sub.Status == canceled || sub.Status == incompleteExpired
}

func (s *Server) listSubscriptions(rq *request) (any, error) {
	if id := rq.form["customer"]; id != "" {
		if _, err := s.customer(id, "customer"); err != nil {
			return nil, err
		}
	}
	status, err := rq.oneOf("status", "", "all", "ended", active, trialing, pastDue, unpaid, incomplete, incompleteExpired, canceled)
	if err != nil {
		return nil, err
	}
	bad := error(nil)
	l, err := page(rq, &s.state.Subs, func(sub *subscription) bool {
		ok, err := rq.created(sub.Created)
		if err != nil {
			bad = err
		}
		return ok && rq.is("customer", sub.Customer) && rq.is("price", ref(sub.Sim.Item.Price.ID)) &&
			(status == "all" || status == sub.Status || status == "" && sub.Status != canceled || status == "ended" && ended(sub))
	})
	if bad != nil {
		return nil, bad
	}
	return l, err
}

// itemOf returns the price and quantity of the request's one item, or the subscription's present ones.
func (s *Server) itemOf(rq *request, sub *subscription, name string) (price, int64, error) {
	n := rq.items(name)
	if n > 1 {
		return price{}, 0, invalid(name, "The simulator knows subscriptions with one item only.")
	}
	p, quantity := price{}, int64(1)
	if sub != nil {
		p, quantity = sub.Sim.Item.Price, sub.Sim.Item.Quantity
	}
	if n == 0 {
		if sub == nil {
			_, err := rq.required(name)
			return p, 0, err
		}
		return p, quantity, nil
	}
	if sub != nil {
		switch id := rq.form[name+"[0][id]"]; id {
		case sub.Sim.Item.ID:
		case "":
			return p, 0, invalid(name+"[0][id]",
				"Without the id of an item this adds a second one; the simulator knows subscriptions with one item only.")
		default:
			return p, 0, noSuch("subscription_item", id, name+"[0][id]")
		}
	}
	if id := rq.form[name+"[0][price]"]; id != "" {
		found, err := s.price(id, name+"[0][price]")
		if err != nil {
			return p, 0, err
		}
		p = *found
	} else if sub == nil {
		_, err := rq.required(name + "[0][price]")
		return p, 0, err
	}
	quantity, err := rq.integer(name+"[0][quantity]", quantity)
	if err == nil && quantity < 1 {
		err = invalid(name+"[0][quantity]", "Quantity must be at least 1.")
	}
	if err == nil && sub != nil && p.Currency != sub.Currency {
		err = invalid(name+"[0][price]", "The price specified uses a different currency than the subscription.")
	}
	return p, quantity, err
}

// changeOf reads the price change of an update, or of its preview, whose parameters have a prefix.
func (s *Server) changeOf(rq *request, sub *subscription, items, prefix string, now int64) (change, error) {
	p, quantity, err := s.itemOf(rq, sub, items)
	if err != nil {
		return change{}, err
	}
	behavior, err := rq.oneOf(prefix+"proration_behavior", createProrations, alwaysInvoice, noProration)
	if err != nil {
		return change{}, err
	}
	at, err := rq.integer(prefix+"proration_date", now)
	if err != nil {
		return change{}, err
	}
	if rq.form[prefix+"proration_date"] != "" && (at < sub.CurrentPeriodStart || at > sub.CurrentPeriodEnd) {
		return change{}, invalid(prefix+"proration_date", "Cannot specify proration date outside of current subscription period: %d to %d.",
			sub.CurrentPeriodStart, sub.CurrentPeriodEnd)
	}
	return change{price: p, quantity: quantity, behavior: behavior, at: at, now: now}, nil
}

func (s *Server) createSubscription(rq *request) (any, error) {
	id, err := rq.required("customer")
	if err != nil {
		return nil, err
	}
	c, err := s.living(id, "customer")
	if err != nil {
		return nil, err
	}
	p, quantity, err := s.itemOf(rq, nil, "items")
	if err != nil {
		return nil, err
	}
	behavior, err := rq.oneOf("payment_behavior", allowIncomplete, errorIfIncomplete, defaultIncomplete, pendingIncomplete)
	if err != nil {
		return nil, err
	}
	card := s.state.Methods.byID[string(c.Settings.DefaultPaymentMethod)]
	own := rq.form["default_payment_method"]
	if own != "" {
		if card, err = s.method(own, c.ID, "default_payment_method"); err != nil {
			return nil, err
		}
	}
	meta, err := rq.metadata("metadata", nil)
	if err != nil {
		return nil, err
	}
	atEnd, err := rq.boolean("cancel_at_period_end", false)
	if err != nil {
		return nil, err
	}
	now := s.timeOf(c)
	trialEnd, err := trialOf(rq, "", now)
	if err != nil {
		return nil, err
	}
	due := max(0, p.UnitAmount*quantity+min(0, c.Balance))
	if trialEnd == 0 && due > 0 {
		if card == nil && behavior != defaultIncomplete {
			return nil, &apiError{
				Status: http.StatusBadRequest, Type: invalidRequest, Code: missing,
				Message: "This customer has no attached payment source or default payment method. Please consider adding a default payment method.",
			}
		}
		if behavior == errorIfIncomplete && !card.pays() {
			return nil, declined()
		}
	}
	if behavior == defaultIncomplete {
		card = nil // the first payment is confirmed by the customer
	}
	sub := s.newSubscription(c, p, quantity, meta, trialEnd, now)
	sub.DefaultPaymentMethod, sub.CancelAtPeriodEnd = ref(own), atEnd
	if atEnd {
		sub.CancelAt = stamp(sub.CurrentPeriodEnd)
	}
	s.start(sub, card, rq.base, now)
	return sub, nil
}

// trialOf returns the end of the trial; 0 means no trial.
func trialOf(rq *request, prefix string, now int64) (int64, error) {
	name := func(n string) string {
		if prefix == "" {
			return n
		}
		return prefix + "[" + n + "]"
	}
	days, err := rq.integer(name("trial_period_days"), 0)
	if err != nil {
		return 0, err
	}
	if days < 0 || days > 730 {
		return 0, invalid(name("trial_period_days"), "Trials have at most 730 days.")
	}
	end, err := rq.integer(name("trial_end"), 0)
	if err != nil {
		return 0, err
	}
	if end != 0 && end <= now {
		return 0, invalid(name("trial_end"), "Trial end must be in the future.")
	}
	if days > 0 {
		end = now + days*int64(day/time.Second)
	}
	return end, nil
}

// newSubscription creates a subscription, which start begins.
func (s *Server) newSubscription(c *customer, p price, quantity int64, meta map[string]string, trialEnd, now int64) *subscription {
	sub := &subscription{
		ID: s.cfg.ID("sub_"), Object: "subscription", BillingCycleAnchor: now, CollectionMethod: "charge_automatically",
		Created: now, Currency: p.Currency, CurrentPeriodStart: now, CurrentPeriodEnd: nextPeriod(now, 1, p.Recurring.Interval),
		Customer: ref(c.ID), Metadata: meta, StartDate: now, Status: incomplete, TestClock: c.TestClock,
	}
	if trialEnd != 0 {
		sub.Status, sub.TrialStart, sub.TrialEnd = trialing, stamp(now), stamp(trialEnd)
		sub.CurrentPeriodEnd, sub.BillingCycleAnchor = trialEnd, trialEnd
	} else {
		sub.Sim.Periods = 1
	}
	sub.Sim.Item = subscriptionItem{
		ID: s.cfg.ID("si_"), Object: "subscription_item", Created: now, Metadata: map[string]string{},
		Price: p, Quantity: quantity, Subscription: sub.ID,
	}
	return sub
}

// start stores a new subscription and collects its first invoice. The subscription becomes active if the invoice is paid,
// else incomplete.
func (s *Server) start(sub *subscription, card *paymentMethod, base string, now int64) *invoice {
	s.state.Subs.add(sub)
	first := s.whole(sub, sub.Sim.Item.Price, sub.Sim.Item.Quantity, period{Start: now, End: sub.CurrentPeriodEnd})
	if sub.Status == trialing {
		first.Amount, first.Description = 0, "Trial period for "+s.name(sub.Sim.Item.Price)
	}
	inv := s.issue(sub, []line{first}, "subscription_create", base, now)
	if s.pay(inv, card, now) && sub.Status == incomplete {
		sub.Status = active
	}
	s.emit("customer.subscription.created", sub, now)
	return inv
}

func (s *Server) updateSubscription(rq *request) (any, error) {
	sub, err := s.sub(rq.id, "id")
	if err != nil {
		return nil, err
	}
	meta, err := rq.metadata("metadata", sub.Metadata)
	if err != nil {
		return nil, err
	}
	if ended(sub) {
		for name := range rq.form {
			if !slices.Contains([]string{"metadata", "cancellation_details", "expand"}, topOf(name)) {
				return nil, invalid("", "A canceled subscription can only update its cancellation_details and metadata.")
			}
		}
		sub.Metadata = meta
		return sub, nil
	}
	now := s.timeOf(s.owner(sub.Customer))
	c, err := s.changeOf(rq, sub, "items", "", now)
	if err != nil {
		return nil, err
	}
	behavior, err := rq.oneOf("payment_behavior", allowIncomplete, errorIfIncomplete, pendingIncomplete, defaultIncomplete)
	if err != nil {
		return nil, err
	}
	atEnd, err := rq.boolean("cancel_at_period_end", sub.CancelAtPeriodEnd)
	if err != nil {
		return nil, err
	}
	cancelAt, err := rq.integer("cancel_at", 0)
	if err != nil {
		return nil, err
	}
	if rq.has("cancel_at") && (rq.has("cancel_at_period_end") || cancelAt != 0 && cancelAt <= now) {
		return nil, invalid("cancel_at", "cancel_at is a time in the future, and stands without cancel_at_period_end.")
	}
	own := sub.DefaultPaymentMethod
	if rq.has("default_payment_method") {
		own = ref(rq.form["default_payment_method"])
		if own != "" {
			if _, err := s.method(string(own), string(sub.Customer), "default_payment_method"); err != nil {
				return nil, err
			}
		}
	}
	endTrial := false
	switch v := rq.form["trial_end"]; {
	case v == "now":
		endTrial = sub.Status == trialing
	case v != "":
		return nil, invalid("trial_end", "The simulator knows trial_end=now only.")
	}
	if sub.Status == incomplete && c.price.ID != sub.Sim.Item.Price.ID {
		return nil, invalid("", "This subscription cannot be updated: its first invoice is not paid.")
	}
	if behavior == pendingIncomplete && (rq.has("metadata") || rq.has("cancel_at_period_end")) {
		return nil, invalid("payment_behavior", "pending_if_incomplete goes with items and prorations only.")
	}
	out := s.plan(sub, c)
	if endTrial {
		out = outcome{immediate: true, reset: true, period: period{Start: now, End: nextPeriod(now, 1, c.price.Recurring.Interval)}}
		out.lines = []line{s.whole(sub, c.price, c.quantity, out.period)}
	}
	trial := *sub
	trial.DefaultPaymentMethod = own
	payer := s.cardOf(&trial)
	lines := append(slices.Clone(sub.Sim.Pending), out.lines...)
	fails := out.immediate && s.draft(sub, lines, "subscription_update", now).AmountDue > 0 && !payer.pays()
	if fails && behavior == errorIfIncomplete {
		if payer == nil {
			return nil, &apiError{
				Status: http.StatusBadRequest, Type: invalidRequest, Code: missing,
				Message: "This customer has no attached payment source or default payment method.",
			}
		}
		return nil, declined()
	}
	sub.DefaultPaymentMethod, sub.Metadata = own, meta
	if rq.has("description") {
		sub.Description = ref(rq.form["description"])
	}
	if rq.has("cancel_at_period_end") && (atEnd != sub.CancelAtPeriodEnd || !atEnd && sub.CancelAt != 0) {
		s.setAtEnd(sub, atEnd, now)
	}
	if rq.has("cancel_at") {
		s.setAtEnd(sub, false, now)
		if sub.CancelAt = stamp(cancelAt); cancelAt != 0 {
			sub.CanceledAt, sub.CancellationDetails.Reason = stamp(now), "cancellation_requested"
		}
	}
	if fails && behavior == pendingIncomplete {
		s.pendUpdate(sub, c, out, lines, rq.base, payer, now)
		return sub, nil
	}
	s.apply(sub, c, out, now)
	if out.immediate && len(lines) > 0 {
		sub.Sim.Pending = nil
		inv := s.issue(sub, lines, "subscription_update", rq.base, now)
		if behavior == defaultIncomplete && inv.AmountDue > 0 {
			payer = nil
		}
		if !s.pay(inv, payer, now) {
			s.failed(sub, inv, now)
			return sub, nil
		}
	}
	s.emit("customer.subscription.updated", sub, now)
	return sub, nil
}

// setAtEnd sets whether a subscription ends with its period.
func (s *Server) setAtEnd(sub *subscription, atEnd bool, now int64) {
	sub.CancelAtPeriodEnd = atEnd
	sub.CancelAt, sub.CanceledAt, sub.CancellationDetails = 0, 0, cancellation{}
	if atEnd {
		sub.CancelAt, sub.CanceledAt = stamp(sub.CurrentPeriodEnd), stamp(now)
		sub.CancellationDetails.Reason = "cancellation_requested"
	}
}

// apply gives a subscription its new price and the lines for its next invoice.
func (s *Server) apply(sub *subscription, c change, out outcome, _ int64) {
	sub.Sim.Item.Price, sub.Sim.Item.Quantity = c.price, c.quantity
	sub.PendingUpdate = nil
	if out.reset {
		sub.BillingCycleAnchor, sub.Sim.Periods = out.period.Start, 1
		sub.CurrentPeriodStart, sub.CurrentPeriodEnd = out.period.Start, out.period.End
		if sub.Status == trialing {
			sub.Status, sub.TrialEnd = active, stamp(out.period.Start)
		}
		if sub.CancelAtPeriodEnd {
			sub.CancelAt = stamp(sub.CurrentPeriodEnd)
		}
	}
	if !out.immediate {
		sub.Sim.Pending = append(sub.Sim.Pending, out.lines...)
	}
}

// pendUpdate keeps an update pending until its invoice is paid, for at most 23 hours.
func (s *Server) pendUpdate(sub *subscription, c change, out outcome, lines []line, base string, payer *paymentMethod, now int64) {
	item := sub.Sim.Item
	item.Price, item.Quantity = c.price, c.quantity
	sub.PendingUpdate = &pendingUpdate{ExpiresAt: now + unfinishedFor, Items: []subscriptionItem{item}}
	if out.reset {
		sub.PendingUpdate.BillingCycleAnchor = stamp(out.period.Start)
	}
	inv := s.issue(sub, lines, "subscription_update", base, now)
	s.pay(inv, payer, now)
	s.emit("customer.subscription.updated", sub, now)
}

// failed sets the subscription's status after a failed payment of one of its invoices.
func (s *Server) failed(sub *subscription, inv *invoice, now int64) {
	if sub.Status == active || sub.Status == trialing {
		sub.Status = pastDue
	}
	if inv.Sim.Tries < len(s.cfg.Retries) {
		inv.NextPaymentAttempt = stamp(now + int64(s.cfg.Retries[inv.Sim.Tries]/time.Second))
	}
	s.owner(sub.Customer).Delinquent = true
	s.emit("customer.subscription.updated", sub, now)
}

// recover sets the subscription's status after an open invoice has been paid.
func (s *Server) recover(sub *subscription, inv *invoice, now int64) {
	if ended(sub) || string(sub.LatestInvoice) != inv.ID {
		return
	}
	if u := sub.PendingUpdate; u != nil {
		c := change{price: u.Items[0].Price, quantity: u.Items[0].Quantity}
		out := outcome{immediate: true}
		if u.BillingCycleAnchor != 0 {
			out.reset, out.period = true, period{Start: now, End: nextPeriod(now, 1, c.price.Recurring.Interval)}
		}
		s.apply(sub, c, out, now)
	}
	sub.Status = active
	s.owner(sub.Customer).Delinquent = false
	s.emit("customer.subscription.updated", sub, now)
}

func (s *Server) cancelSubscription(rq *request) (any, error) {
	sub, err := s.sub(rq.id, "id")
	if err != nil {
		return nil, err
	}
	if ended(sub) {
		return nil, noSuch("subscription", rq.id, "id")
	}
	prorate, err := rq.boolean("prorate", false)
	if err != nil {
		return nil, err
	}
	invoiceNow, err := rq.boolean("invoice_now", false)
	if err != nil {
		return nil, err
	}
	now := s.timeOf(s.owner(sub.Customer))
	if prorate && (sub.Status == active || sub.Status == pastDue) {
		sub.Sim.Pending = append(sub.Sim.Pending, s.prorated(sub, sub.Sim.Item.Price, sub.Sim.Item.Quantity, now, -1))
	}
	if lines := sub.Sim.Pending; invoiceNow && len(lines) > 0 {
		sub.Sim.Pending = nil
		s.pay(s.issue(sub, lines, "subscription_update", rq.base, now), s.cardOf(sub), now)
	}
	s.cancel(sub, now, "cancellation_requested")
	return sub, nil
}

// cancel ends a subscription at once. Its open invoices stay open and are no longer collected.
func (s *Server) cancel(sub *subscription, now int64, why ref) {
	sub.Status, sub.EndedAt = canceled, stamp(now)
	if sub.CanceledAt == 0 {
		sub.CanceledAt = stamp(now)
	}
	sub.CancellationDetails.Reason, sub.PendingUpdate = why, nil
	for _, inv := range s.state.Invoices.rows {
		if string(inv.Subscription) == sub.ID && inv.Status == "open" {
			inv.NextPaymentAttempt, inv.AutoAdvance = 0, false
		}
	}
	s.emit("customer.subscription.deleted", sub, now)
}

func topOf(name string) string {
	for i, r := range name {
		if r == '[' {
			return name[:i]
		}
	}
	return name
}
