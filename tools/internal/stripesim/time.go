package stripesim

import (
	"fmt"
	"math"
	"time"
)

func (s *Server) clockRoutes() []route {
	return []route{
		{"POST /v1/test_helpers/test_clocks", "frozen_time name", s.createClock},
		{"GET /v1/test_helpers/test_clocks", pageParams, func(rq *request) (any, error) {
			return page(rq, &s.state.Clocks, func(*testClock) bool { return true })
		}},
		{"GET /v1/test_helpers/test_clocks/{id}", "", func(rq *request) (any, error) { return s.clock(rq.id) }},
		{"POST /v1/test_helpers/test_clocks/{id}/advance", "frozen_time", s.advanceClock},
	}
}

func (s *Server) clock(id string) (*testClock, error) {
	c, ok := s.state.Clocks.byID[id]
	if !ok {
		return nil, noSuch("billing clock", id, "id")
	}
	return c, nil
}

func (s *Server) createClock(rq *request) (any, error) {
	if _, err := rq.required("frozen_time"); err != nil {
		return nil, err
	}
	at, err := rq.integer("frozen_time", 0)
	if err != nil {
		return nil, err
	}
	c := &testClock{
		ID: s.cfg.ID("clock_"), Object: "test_helpers.test_clock", Created: rq.now, FrozenTime: at,
		DeletesAfter: rq.now + int64(30*day/time.Second), Name: ref(rq.form["name"]), Status: "ready",
	}
	s.state.Clocks.add(c)
	return c, nil
}

// advanceClock advances a test clock. What falls due happens before the answer, which still says advancing, as the
// provider's does.
func (s *Server) advanceClock(rq *request) (any, error) {
	c, err := s.clock(rq.id)
	if err != nil {
		return nil, err
	}
	at, err := rq.integer("frozen_time", 0)
	if err != nil {
		return nil, err
	}
	if at <= c.FrozenTime {
		return nil, invalid("frozen_time", "A test clock can only advance to a time after its current one (%d).", c.FrozenTime)
	}
	c.FrozenTime = at
	s.settle()
	shown := *c
	shown.Status = "advancing"
	return &shown, nil
}

// Advance moves the time of everything without a test clock ahead by d, relative to Config.Now. What falls due happens
// before it returns. Event signatures keep the time of Config.Now.
func (s *Server) Advance(d time.Duration) error {
	if d < 0 {
		return fmt.Errorf("advance by %s: time cannot go back", -d)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.state.Offset += d
	s.dirty = true
	s.settle()
	return s.save()
}

// Time returns the current time of everything without a test clock.
func (s *Server) Time() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return time.Unix(s.now(), 0)
}

// Tick lets everything happen that has become due since the last call or request.
func (s *Server) Tick() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.settle()
	return s.save()
}

// settle lets everything happen that is due, in the order of its time. The caller holds the lock.
func (s *Server) settle() {
	for {
		do := s.due()
		if do == nil {
			return
		}
		s.dirty = true
		do()
	}
}

// due returns the action that falls due first, or nil if none is due yet.
func (s *Server) due() func() {
	first := int64(math.MaxInt64)
	var do func()
	consider := func(at, now int64, what func()) {
		if at > 0 && at <= now && at < first {
			first, do = at, what
		}
	}
	for _, sub := range s.state.Subs.rows {
		if ended(sub) {
			continue
		}
		now := s.timeOf(s.owner(sub.Customer))
		if sub.Status == incomplete {
			at := sub.Created + unfinishedFor
			consider(at, now, func() { s.giveUp(sub, at) })
			continue
		}
		if at := int64(sub.CancelAt); at > 0 && !sub.CancelAtPeriodEnd {
			consider(at, now, func() { s.cancel(sub, at, "cancellation_requested") })
		}
		end := sub.CurrentPeriodEnd
		consider(end, now, func() { s.renew(sub, end) })
		if u := sub.PendingUpdate; u != nil {
			consider(u.ExpiresAt, now, func() { s.dropUpdate(sub, u.ExpiresAt) })
		}
	}
	for _, inv := range s.state.Invoices.rows {
		if at := int64(inv.NextPaymentAttempt); inv.Status == "open" && at > 0 {
			consider(at, s.timeOf(s.owner(inv.Customer)), func() { s.retry(inv, at) })
		}
	}
	for _, cs := range s.state.Sessions.rows {
		if cs.Status == "open" {
			at := cs.ExpiresAt
			consider(at, s.now(), func() { s.expire(cs, at) })
		}
	}
	return do
}

// renew ends a period: either the subscription ends too, or the next period begins and is invoiced.
func (s *Server) renew(sub *subscription, at int64) {
	if sub.CancelAtPeriodEnd {
		s.cancel(sub, at, "cancellation_requested")
		return
	}
	if sub.Status == trialing {
		sub.Status, sub.BillingCycleAnchor, sub.Sim.Periods = active, at, 0
	}
	p := sub.Sim.Item.Price
	sub.Sim.Periods++
	sub.CurrentPeriodStart, sub.CurrentPeriodEnd = at, nextPeriod(sub.BillingCycleAnchor, sub.Sim.Periods, p.Recurring.Interval)
	lines := append(sub.Sim.Pending, s.whole(sub, p, sub.Sim.Item.Quantity, period{Start: at, End: sub.CurrentPeriodEnd}))
	sub.Sim.Pending = nil
	inv := s.issue(sub, lines, "subscription_cycle", s.state.Base, at)
	if sub.Status == unpaid { // its invoices stay open until the customer pays them
		s.emit("customer.subscription.updated", sub, at)
		return
	}
	if !s.pay(inv, s.cardOf(sub), at) {
		s.failed(sub, inv, at)
		return
	}
	sub.Status = active
	s.owner(sub.Customer).Delinquent = false
	s.emit("customer.subscription.updated", sub, at)
}

// retry tries again to collect an open invoice. When the last attempt fails, the subscription ends as configured.
func (s *Server) retry(inv *invoice, at int64) {
	sub := s.state.Subs.byID[string(inv.Subscription)]
	inv.Sim.Tries++
	if sub == nil || ended(sub) {
		inv.NextPaymentAttempt = 0
		return
	}
	if s.pay(inv, s.cardOf(sub), at) {
		s.recover(sub, inv, at)
		return
	}
	if inv.Sim.Tries < len(s.cfg.Retries) {
		inv.NextPaymentAttempt = stamp(at + int64(s.cfg.Retries[inv.Sim.Tries]/time.Second))
		return
	}
	if s.cfg.AfterRetries == canceled {
		s.cancel(sub, at, "payment_failed")
		return
	}
	sub.Status = unpaid
	s.emit("customer.subscription.updated", sub, at)
}

// giveUp ends a subscription whose first invoice was never paid.
func (s *Server) giveUp(sub *subscription, at int64) {
	sub.Status, sub.EndedAt = incompleteExpired, stamp(at)
	if inv := s.state.Invoices.byID[string(sub.LatestInvoice)]; inv != nil && inv.Status == "open" {
		s.void(inv, at)
	}
	s.emit("customer.subscription.updated", sub, at)
}

// dropUpdate discards a pending update whose invoice was never paid.
func (s *Server) dropUpdate(sub *subscription, at int64) {
	sub.PendingUpdate = nil
	if inv := s.state.Invoices.byID[string(sub.LatestInvoice)]; inv != nil && inv.Status == "open" {
		s.void(inv, at)
	}
	s.emit("customer.subscription.pending_update_expired", sub, at)
}
