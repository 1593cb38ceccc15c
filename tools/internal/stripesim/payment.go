package stripesim

import (
	"fmt"
	"net/http"
	"strconv"
)

func (s *Server) paymentRoutes() []route {
	return []route{
		{"POST /v1/payment_methods", "type card metadata billing_details", s.createMethod},
		{"GET /v1/payment_methods", pageParams + " customer type", s.listMethods},
		{"GET /v1/payment_methods/{id}", "", func(rq *request) (any, error) {
			m, ok := s.state.Methods.byID[rq.id]
			if !ok {
				return nil, noSuch("PaymentMethod", rq.id, "id")
			}
			return m, nil
		}},
		{"POST /v1/payment_methods/{id}/attach", "customer", s.attachMethod},
		{"POST /v1/payment_methods/{id}/detach", "", s.detachMethod},
		{"GET /v1/payment_intents", pageParams + " customer", func(rq *request) (any, error) {
			return page(rq, &s.state.Intents, func(p *paymentIntent) bool { return rq.is("customer", p.Customer) })
		}},
		{"GET /v1/payment_intents/{id}", "client_secret", func(rq *request) (any, error) {
			p, ok := s.state.Intents.byID[rq.id]
			if !ok {
				return nil, noSuch("payment_intent", rq.id, "id")
			}
			return p, nil
		}},
		{"GET /v1/charges", pageParams + " customer payment_intent", func(rq *request) (any, error) {
			return page(rq, &s.state.Charges, func(c *charge) bool {
				return rq.is("customer", c.Customer) && rq.is("payment_intent", c.PaymentIntent)
			})
		}},
		{"GET /v1/charges/{id}", "", func(rq *request) (any, error) {
			c, ok := s.state.Charges.byID[rq.id]
			if !ok {
				return nil, noSuch("charge", rq.id, "id")
			}
			return c, nil
		}},
		{"POST /v1/refunds", "charge payment_intent amount reason metadata", s.createRefund},
		{"GET /v1/refunds", pageParams + " charge payment_intent", func(rq *request) (any, error) {
			return page(rq, &s.state.Refunds, func(r *refund) bool {
				return rq.is("charge", r.Charge) && rq.is("payment_intent", r.PaymentIntent)
			})
		}},
		{"GET /v1/refunds/{id}", "", func(rq *request) (any, error) {
			r, ok := s.state.Refunds.byID[rq.id]
			if !ok {
				return nil, noSuch("refund", rq.id, "id")
			}
			return r, nil
		}},
	}
}

// is reports whether a filter is unset or matches.
func (rq *request) is(name string, have ref) bool {
	return rq.form[name] == "" || rq.form[name] == string(have)
}

// Cards that the hosted pages and the API accept, by the last four digits of their numbers.
const (
	// goodCard always pays, badCard is always declined, lateCard pays once and is declined afterwards.
	goodCard = "4242"
	badCard  = "0002"
	lateCard = "0341"
)

// cards maps the provider's test tokens and test payment methods to cards.
var cards = map[string]string{
	"tok_visa": goodCard, "pm_card_visa": goodCard,
	"tok_chargeDeclined": badCard, "pm_card_chargeDeclined": badCard, "pm_card_visa_chargeDeclined": badCard,
	"tok_chargeCustomerFail": badCard, "pm_card_chargeCustomerFail": badCard,
	"tok_payLater": lateCard, "pm_card_payLater": lateCard,
}

// newMethod creates a card without a customer.
func (s *Server) newMethod(last4 string, now int64) *paymentMethod {
	left := map[string]int{goodCard: -1, badCard: 0, lateCard: 1}[last4]
	m := &paymentMethod{
		ID: s.cfg.ID("pm_"), Object: "payment_method", Created: now, Metadata: map[string]string{}, Type: "card",
		Card: card{
			Brand: "visa", Country: "US", ExpMonth: 12, ExpYear: 2034, Fingerprint: "card_" + last4,
			Funding: "credit", Last4: last4,
		},
		Sim: cardState{Left: left},
	}
	s.state.Methods.add(m)
	return m
}

func (s *Server) createMethod(rq *request) (any, error) {
	if rq.form["type"] != "card" {
		return nil, invalid("type", "The simulator has cards only.")
	}
	last4, ok := cards[rq.form["card[token]"]]
	if !ok {
		return nil, noSuch("token", rq.form["card[token]"], "card[token]")
	}
	return s.newMethod(last4, rq.now), nil
}

func (s *Server) attachMethod(rq *request) (any, error) {
	c, err := s.living(rq.form["customer"], "customer")
	if err != nil {
		return nil, err
	}
	return s.attach(rq.id, c, s.timeOf(c))
}

// attach attaches a card to a customer: either a card made earlier or a new one of the provider's test cards.
func (s *Server) attach(id string, c *customer, now int64) (*paymentMethod, error) {
	m, ok := s.state.Methods.byID[id]
	if !ok {
		last4, known := cards[id]
		if !known {
			return nil, noSuch("PaymentMethod", id, "id")
		}
		m = s.newMethod(last4, now)
	}
	if m.Customer != "" && string(m.Customer) != c.ID {
		return nil, invalid("", "The payment method you provided has already been attached to a customer.")
	}
	m.Customer = ref(c.ID)
	m.Billing.Email = c.Email
	s.emit("payment_method.attached", m, now)
	return m, nil
}

func (s *Server) detachMethod(rq *request) (any, error) {
	m, ok := s.state.Methods.byID[rq.id]
	if !ok {
		return nil, noSuch("PaymentMethod", rq.id, "id")
	}
	if m.Customer == "" {
		return nil, invalid("", "The payment method you provided is not attached to a customer so detachment is impossible.")
	}
	c := s.owner(m.Customer)
	if string(c.Settings.DefaultPaymentMethod) == m.ID {
		c.Settings.DefaultPaymentMethod = ""
	}
	m.Customer = ""
	s.emit("payment_method.detached", m, s.timeOf(c))
	return m, nil
}

// method returns a card of a customer.
func (s *Server) method(id, customer, param string) (*paymentMethod, error) {
	m, ok := s.state.Methods.byID[id]
	if !ok {
		return nil, noSuch("PaymentMethod", id, param)
	}
	if string(m.Customer) != customer {
		return nil, invalid(param, "The customer does not have a payment method with the ID %s. "+
			"The payment method must be attached to the customer.", id)
	}
	return m, nil
}

func (s *Server) listMethods(rq *request) (any, error) {
	if id := rq.form["customer"]; id != "" {
		if _, err := s.customer(id, "customer"); err != nil {
			return nil, err
		}
	}
	return page(rq, &s.state.Methods, func(m *paymentMethod) bool {
		return m.Customer != "" && rq.is("customer", m.Customer) && rq.is("type", ref(m.Type))
	})
}

func (s *Server) listCustomerMethods(rq *request) (any, error) {
	if _, err := s.customer(rq.id, "id"); err != nil {
		return nil, err
	}
	return page(rq, &s.state.Methods, func(m *paymentMethod) bool {
		return string(m.Customer) == rq.id && rq.is("type", ref(m.Type))
	})
}

// cardOf returns the card that pays for a subscription: its own card, else its customer's default, else nil.
func (s *Server) cardOf(sub *subscription) *paymentMethod {
	for _, id := range []ref{sub.DefaultPaymentMethod, s.owner(sub.Customer).Settings.DefaultPaymentMethod} {
		if m, ok := s.state.Methods.byID[string(id)]; ok {
			return m
		}
	}
	return nil
}

// pays reports whether a charge to the card would succeed now.
func (m *paymentMethod) pays() bool { return m != nil && m.Sim.Left != 0 }

// collect charges an invoice to a card and reports whether the charge succeeded. Either way it creates a payment intent and
// a charge.
func (s *Server) collect(inv *invoice, m *paymentMethod, now int64) bool {
	intent, ok := s.state.Intents.byID[string(inv.PaymentIntent)]
	if !ok {
		intent = &paymentIntent{
			ID: s.cfg.ID("pi_"), Object: "payment_intent", Amount: inv.AmountRemaining, Created: now,
			Currency: inv.Currency, Customer: inv.Customer, Invoice: ref(inv.ID), Metadata: map[string]string{},
			Status: "requires_payment_method", Description: "Subscription update",
		}
		s.state.Intents.add(intent)
		inv.PaymentIntent = ref(intent.ID)
		s.emit("payment_intent.created", intent, now)
	}
	if m == nil {
		intent.LastPaymentError = &apiError{
			Type: invalidRequest, Code: missing,
			Message: "This customer has no attached payment source or default payment method.",
		}
		return false
	}
	intent.PaymentMethod = ref(m.ID)
	ch := &charge{
		ID: s.cfg.ID("ch_"), Object: "charge", Amount: intent.Amount, Created: now, Currency: inv.Currency,
		Customer: inv.Customer, Invoice: ref(inv.ID), Metadata: map[string]string{},
		PaymentIntent: ref(intent.ID), PaymentMethod: ref(m.ID), Captured: true, Status: "failed",
		Description: intent.Description,
	}
	s.state.Charges.add(ch)
	intent.LatestCharge, inv.Charge = ref(ch.ID), ref(ch.ID)
	if !m.pays() {
		ch.FailureCode, ch.FailureMessage = "card_declined", "Your card was declined."
		intent.LastPaymentError = declined()
		intent.LastPaymentError.Charge = ch.ID
		s.emit("charge.failed", ch, now)
		s.emit("payment_intent.payment_failed", intent, now)
		return false
	}
	if m.Sim.Left > 0 {
		m.Sim.Left--
	}
	ch.Paid, ch.Status, ch.AmountCaptured = true, "succeeded", ch.Amount
	intent.Status, intent.AmountReceived, intent.LastPaymentError = "succeeded", intent.Amount, nil
	s.emit("charge.succeeded", ch, now)
	s.emit("payment_intent.succeeded", intent, now)
	return true
}

func (s *Server) createRefund(rq *request) (any, error) {
	id := rq.form["charge"]
	if pi := rq.form["payment_intent"]; pi != "" {
		intent, ok := s.state.Intents.byID[pi]
		if !ok {
			return nil, noSuch("payment_intent", pi, "payment_intent")
		}
		if id = string(intent.LatestCharge); id == "" {
			return nil, invalid("payment_intent", "This PaymentIntent (%s) does not have a successful charge to refund.", pi)
		}
	}
	if id == "" {
		return nil, invalid("", "One of the following params should be provided for this request: payment_intent or charge.")
	}
	ch, ok := s.state.Charges.byID[id]
	if !ok {
		return nil, noSuch("charge", id, "charge")
	}
	if !ch.Paid {
		return nil, invalid("charge", "Charge %s has not been paid and cannot be refunded.", id)
	}
	left := ch.Amount - ch.AmountRefunded
	if left <= 0 {
		return nil, &apiError{
			Status: http.StatusBadRequest, Type: invalidRequest, Code: "charge_already_refunded",
			Message: fmt.Sprintf("Charge %s has already been refunded.", id),
		}
	}
	amount, err := rq.integer("amount", left)
	if err != nil {
		return nil, err
	}
	if amount <= 0 || amount > left {
		return nil, invalid("amount", "Refund amount (%s) is greater than unrefunded amount on charge (%s).",
			strconv.FormatInt(amount, 10), strconv.FormatInt(left, 10))
	}
	meta, err := rq.metadata("metadata", nil)
	if err != nil {
		return nil, err
	}
	now := s.timeOf(s.owner(ch.Customer))
	r := &refund{
		ID: s.cfg.ID("re_"), Object: "refund", Amount: amount, Charge: ref(ch.ID), Created: now, Currency: ch.Currency,
		Metadata: meta, PaymentIntent: ch.PaymentIntent, Reason: ref(rq.form["reason"]), Status: "succeeded",
	}
	s.state.Refunds.add(r)
	ch.AmountRefunded += amount
	ch.Refunded = ch.AmountRefunded == ch.Amount
	s.emit("charge.refunded", ch, now)
	return r, nil
}
