package stripesim

func (s *Server) portalRoutes() []route {
	return []route{{"POST /v1/billing_portal/sessions", "customer return_url configuration locale", s.createPortal}}
}

func (s *Server) createPortal(rq *request) (any, error) {
	id, err := rq.required("customer")
	if err != nil {
		return nil, err
	}
	c, err := s.living(id, "customer")
	if err != nil {
		return nil, err
	}
	p := &portal{
		ID: s.cfg.ID("bps_"), Object: "billing_portal.session", Created: rq.now, Customer: c.ID,
		ReturnURL: ref(rq.form["return_url"]),
	}
	p.URL = rq.base + "/p/session/" + p.ID
	s.state.Portals.add(p)
	return p, nil
}

// change switches all of a customer's subscriptions to another card, for SetCard and the portal.
func (s *Server) change(c *customer, last4 string, now int64) {
	m := s.newMethod(last4, now)
	m.Customer, m.Billing.Email = ref(c.ID), c.Email
	s.emit("payment_method.attached", m, now)
	c.Settings.DefaultPaymentMethod = ref(m.ID)
	s.emit("customer.updated", c, now)
	for _, sub := range s.state.Subs.rows {
		if string(sub.Customer) == c.ID && !ended(sub) {
			sub.DefaultPaymentMethod = ref(m.ID)
			s.emit("customer.subscription.updated", sub, now)
		}
	}
}

// SetCard gives a customer another card, which pays for all subscriptions from now on. The card's number ends in 4242
// (pays), 0002 (is declined) or 0341 (pays once). Other cards and missing or deleted customers are errors.
func (s *Server) SetCard(customer, last4 string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.settle()
	c, err := s.living(customer, "customer")
	if err != nil {
		return err
	}
	if last4 != goodCard && last4 != badCard && last4 != lateCard {
		return invalid("card", "No such card: %s", last4)
	}
	s.change(c, last4, s.timeOf(c))
	s.dirty = true
	return s.save()
}
