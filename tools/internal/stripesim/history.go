package stripesim

import "slices"

// State is one state in a subscription's history.
type State struct {
	Subscription      string `json:"subscription"`
	Status            string `json:"status"`
	Price             string `json:"price"`
	CancelAtPeriodEnd bool   `json:"cancel_at_period_end"`
	CurrentPeriodEnd  int64  `json:"current_period_end"` // epoch seconds
	// At is when the state began, in epoch seconds.
	At int64 `json:"at"`
}

// same reports whether two states are equal except for their time.
func (a State) same(b State) bool {
	a.At = b.At
	return a == b
}

// remember appends the subscription's state to its history if it changed. The caller holds the lock.
func (s *Server) remember(sub *subscription, now int64) {
	st := State{
		Subscription: sub.ID, Status: sub.Status, Price: sub.Sim.Item.Price.ID,
		CancelAtPeriodEnd: sub.CancelAtPeriodEnd, CurrentPeriodEnd: sub.CurrentPeriodEnd, At: now,
	}
	all := s.state.History[sub.ID]
	if len(all) > 0 && all[len(all)-1].same(st) {
		return
	}
	s.state.History[sub.ID] = append(all, st)
}

// History returns every state that the customer's subscriptions ever had: by subscription in the order of creation, then by
// time. It is an oracle for tests: no service may ever show a state that is not in it.
func (s *Server) History(customer string) []State {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []State
	for _, sub := range s.state.Subs.rows {
		if string(sub.Customer) == customer {
			out = append(out, s.state.History[sub.ID]...)
		}
	}
	return slices.Clip(out)
}

// Current returns the present state of each of the customer's subscriptions, canceled ones included, after everything that
// is due has happened.
func (s *Server) Current(customer string) []State {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.settle()
	var out []State
	for _, sub := range s.state.Subs.rows {
		if all := s.state.History[sub.ID]; string(sub.Customer) == customer && len(all) > 0 {
			out = append(out, all[len(all)-1])
		}
	}
	return out
}

// Find returns the ids of the customers whose metadata has the value under key, deleted customers included, in the order of
// creation.
func (s *Server) Find(key, value string) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []string
	for _, c := range s.state.Customers.rows {
		if c.Metadata[key] == value {
			out = append(out, c.ID)
		}
	}
	return out
}

// Deleted reports whether a customer was deleted or never existed.
func (s *Server) Deleted(customer string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	c, ok := s.state.Customers.byID[customer]
	return !ok || c.Deleted
}

// Payment is a successful charge.
type Payment struct {
	Charge, Subscription string
	// Amount and Refunded are in the currency's smallest unit, At in epoch seconds.
	Amount, Refunded, At int64
}

// Payments returns all payments of a customer in the order in which they were made.
func (s *Server) Payments(customer string) []Payment {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []Payment
	for _, c := range s.state.Charges.rows {
		if !c.Paid || string(c.Customer) != customer {
			continue
		}
		p := Payment{Charge: c.ID, Amount: c.Amount, Refunded: c.AmountRefunded, At: c.Created}
		if inv, ok := s.state.Invoices.byID[string(c.Invoice)]; ok {
			p.Subscription = string(inv.Subscription)
		}
		out = append(out, p)
	}
	return out
}
