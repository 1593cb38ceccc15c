package stripesim

import "slices"

// State is a state that a subscription had.
type State struct {
	Subscription      string `json:"subscription"`
	Status            string `json:"status"`
	Price             string `json:"price"`
	CancelAtPeriodEnd bool   `json:"cancel_at_period_end"`
	CurrentPeriodEnd  int64  `json:"current_period_end"` // epoch seconds
	// At is when it began, in epoch seconds.
	At int64 `json:"at"`
}

// same says whether two states differ in nothing but their time.
func (a State) same(b State) bool {
	a.At = b.At
	return a == b
}

// remember keeps the state of a subscription, if it is new. The lock is held.
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

// History returns every state that the subscriptions of a customer ever had, in
// the order in which the subscriptions were made and the states began. It is an
// oracle: what was never in it nobody may have shown.
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

// Current returns the present state of each subscription of a customer, canceled
// ones too, after what is due has happened.
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

// Find returns the ids of the customers with a value in their metadata, deleted
// ones too, in the order in which they were made.
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

// Deleted says whether a customer was deleted, or never was.
func (s *Server) Deleted(customer string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	c, ok := s.state.Customers.byID[customer]
	return !ok || c.Deleted
}

// Payment is a charge that succeeded.
type Payment struct {
	Charge, Subscription string
	// Amount and Refunded are in the smallest unit, At in epoch seconds.
	Amount, Refunded, At int64
}

// Payments returns what a customer ever paid, in order.
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
