package stripesim

import (
	"net/url"
	"strings"
)

// sessionFor is how long a checkout page accepts payment, in seconds.
const sessionFor = 24 * 60 * 60

const sessionParams = "mode customer customer_email line_items success_url cancel_url client_reference_id metadata subscription_data " +
	"expires_at payment_method_types payment_method_collection allow_promotion_codes billing_address_collection locale " +
	"customer_update automatic_tax"

func (s *Server) checkoutRoutes() []route {
	return []route{
		{"POST /v1/checkout/sessions", sessionParams, s.createSession},
		{"GET /v1/checkout/sessions", pageParams + " customer status subscription", s.listSessions},
		{"GET /v1/checkout/sessions/{id}", "", func(rq *request) (any, error) { return s.session(rq.id) }},
		{"POST /v1/checkout/sessions/{id}/expire", "", s.expireSession},
		{"GET /v1/checkout/sessions/{id}/line_items", pageParams, func(rq *request) (any, error) {
			cs, err := s.session(rq.id)
			if err != nil {
				return nil, err
			}
			return s.sessionLines(cs), nil
		}},
	}
}

func (s *Server) session(id string) (*session, error) {
	cs, ok := s.state.Sessions.byID[id]
	if !ok {
		return nil, noSuch("checkout.session", id, "id")
	}
	return cs, nil
}

func (s *Server) createSession(rq *request) (any, error) {
	if rq.form["mode"] != "subscription" {
		return nil, invalid("mode", "The simulator knows mode subscription only.")
	}
	for _, name := range []string{"success_url", "cancel_url"} {
		u, err := url.Parse(rq.form[name])
		if rq.form[name] == "" && name == "cancel_url" {
			continue
		}
		if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
			return nil, &apiError{Status: 400, Type: invalidRequest, Code: "url_invalid", Param: name, Message: "Not a valid URL"}
		}
	}
	now := rq.now
	if id := rq.form["customer"]; id != "" {
		c, err := s.living(id, "customer")
		if err != nil {
			return nil, err
		}
		if rq.form["customer_email"] != "" {
			return nil, invalid("customer_email", "You may only specify one of these parameters: customer, customer_email.")
		}
		now = s.timeOf(c)
	}
	p, quantity, err := s.itemOf(rq, nil, "line_items")
	if err != nil {
		return nil, err
	}
	meta, err := rq.metadata("metadata", nil)
	if err != nil {
		return nil, err
	}
	subMeta, err := rq.metadata("subscription_data[metadata]", nil)
	if err != nil {
		return nil, err
	}
	days, err := rq.integer("subscription_data[trial_period_days]", 0)
	if err != nil {
		return nil, err
	}
	trialEnd, err := trialOf(rq, "subscription_data", now)
	if err != nil {
		return nil, err
	}
	expires, err := rq.integer("expires_at", rq.now+sessionFor)
	if err != nil {
		return nil, err
	}
	if expires < rq.now+30*60 || expires > rq.now+sessionFor {
		return nil, invalid("expires_at", "The expires_at timestamp must be between 30 minutes and 24 hours from Checkout Session creation.")
	}
	cs := &session{
		ID: s.cfg.ID("cs_test_"), Object: "checkout.session", AmountSubtotal: p.UnitAmount * quantity,
		AmountTotal: p.UnitAmount * quantity, CancelURL: ref(rq.form["cancel_url"]),
		ClientReference: ref(rq.form["client_reference_id"]), Created: rq.now, Currency: p.Currency,
		Customer: ref(rq.form["customer"]), CustomerEmail: ref(rq.form["customer_email"]), ExpiresAt: expires,
		Metadata: meta, Mode: "subscription", PaymentStatus: "unpaid", Status: "open",
		SuccessURL: ref(rq.form["success_url"]), PaymentMethodTyp: []string{"card"},
		Sim: sessionPlan{Price: p.ID, Quantity: quantity, Metadata: subMeta, TrialDays: days, TrialEnd: trialEnd},
	}
	if trialEnd != 0 {
		cs.AmountTotal, cs.AmountSubtotal = 0, 0
	}
	cs.URL = ref(rq.base + "/c/pay/" + cs.ID)
	s.state.Sessions.add(cs)
	return cs, nil
}

func (s *Server) listSessions(rq *request) (any, error) {
	return page(rq, &s.state.Sessions, func(cs *session) bool {
		return rq.is("customer", cs.Customer) && rq.is("status", ref(cs.Status)) && rq.is("subscription", cs.Subscription)
	})
}

func (s *Server) sessionLines(cs *session) *list {
	p := s.state.Prices.byID[cs.Sim.Price]
	return &list{Object: "list", URL: "/v1/checkout/sessions/" + cs.ID + "/line_items", Data: []any{map[string]any{
		"id": "li_" + cs.ID, "object": "item", "amount_subtotal": cs.AmountSubtotal, "amount_total": cs.AmountTotal,
		"currency": cs.Currency, "description": s.name(*p), "price": p, "quantity": cs.Sim.Quantity,
	}}}
}

func (s *Server) expireSession(rq *request) (any, error) {
	cs, err := s.session(rq.id)
	if err != nil {
		return nil, err
	}
	if cs.Status != "open" {
		return nil, invalid("", "Only Checkout Sessions with a status in [\"open\"] can be expired. "+
			"This Checkout Session has a status of %s.", cs.Status)
	}
	s.expire(cs, rq.now)
	return cs, nil
}

// expire ends an unpaid session.
func (s *Server) expire(cs *session, now int64) {
	cs.Status, cs.URL = "expired", ""
	s.emit("checkout.session.expired", cs, now)
}

// complete pays a session with a card and creates the subscription, its first invoice and its payment. It reports whether
// the card was accepted. A session that is already complete stays unchanged.
func (s *Server) complete(cs *session, last4, base string) bool {
	now := s.now()
	c := s.state.Customers.byID[string(cs.Customer)]
	if c != nil {
		now = s.timeOf(c)
	}
	m := s.newMethod(last4, now)
	p := s.state.Prices.byID[cs.Sim.Price]
	if !m.pays() {
		s.state.Methods.drop(m.ID)
		return false
	}
	if c == nil {
		c = &customer{
			ID: s.cfg.ID("cus_"), Object: "customer", Created: now, Email: cs.CustomerEmail, Metadata: map[string]string{},
		}
		s.state.Customers.add(c)
		s.emit("customer.created", c, now)
		cs.Customer = ref(c.ID)
	}
	m.Customer, m.Billing.Email = ref(c.ID), c.Email
	s.emit("payment_method.attached", m, now)
	trialEnd := cs.Sim.TrialEnd
	if cs.Sim.TrialDays > 0 {
		trialEnd = now + cs.Sim.TrialDays*24*60*60
	}
	sub := s.newSubscription(c, *p, cs.Sim.Quantity, cs.Sim.Metadata, trialEnd, now)
	sub.DefaultPaymentMethod = ref(m.ID)
	inv := s.start(sub, m, base, now)
	cs.Status, cs.PaymentStatus, cs.URL = "complete", "paid", ""
	if inv.AmountDue == 0 {
		cs.PaymentStatus = "no_payment_required"
	}
	cs.Subscription, cs.Invoice = ref(sub.ID), ref(inv.ID)
	cs.CustomerDetails = &customerDetails{Email: c.Email, Name: c.Name}
	s.emit("checkout.session.completed", cs, now)
	return true
}

// landing returns the URL that the customer is sent to after paying.
func (cs *session) landing() string {
	return strings.ReplaceAll(string(cs.SuccessURL), "{CHECKOUT_SESSION_ID}", url.QueryEscape(cs.ID))
}
