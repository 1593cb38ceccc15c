package stripesim

import (
	"fmt"
	"slices"
)

const customerParams = "email name phone description metadata invoice_settings payment_method balance test_clock address preferred_locales"

func (s *Server) customerRoutes() []route {
	return []route{
		{"POST /v1/customers", customerParams, s.createCustomer},
		{"GET /v1/customers", pageParams + " email test_clock", s.listCustomers},
		{"GET /v1/customers/{id}", "", func(rq *request) (any, error) { return s.customer(rq.id, "id") }},
		{"POST /v1/customers/{id}", customerParams, s.updateCustomer},
		{"DELETE /v1/customers/{id}", "", s.deleteCustomer},
		{"GET /v1/customers/{id}/payment_methods", pageParams + " type", s.listCustomerMethods},
	}
}

// customer returns a customer, deleted or not. param names the parameter that held the id.
func (s *Server) customer(id, param string) (*customer, error) {
	c, ok := s.state.Customers.byID[id]
	if !ok {
		return nil, noSuch("customer", id, param)
	}
	return c, nil
}

// living returns a customer that has not been deleted.
func (s *Server) living(id, param string) (*customer, error) {
	c, err := s.customer(id, param)
	if err == nil && c.Deleted {
		return nil, noSuch("customer", id, param)
	}
	return c, err
}

func (s *Server) createCustomer(rq *request) (any, error) {
	c := &customer{ID: s.cfg.ID("cus_"), Object: "customer", Metadata: map[string]string{}}
	if id := rq.form["test_clock"]; id != "" {
		clock, ok := s.state.Clocks.byID[id]
		if !ok {
			return nil, noSuch("billing clock", id, "test_clock")
		}
		c.TestClock, rq.now = ref(id), clock.FrozenTime
	}
	c.Created = rq.now
	if err := s.setCustomer(rq, c); err != nil {
		return nil, err
	}
	s.state.Customers.add(c)
	if id := rq.form["payment_method"]; id != "" {
		if _, err := s.attach(id, c, rq.now); err != nil {
			s.state.Customers.drop(c.ID)
			return nil, err
		}
	}
	s.emit("customer.created", c, c.Created)
	return c, nil
}

// setCustomer applies the parameters of create and update: all of them, or none after an error.
func (s *Server) setCustomer(rq *request, c *customer) error {
	next := *c
	var err error
	if next.Metadata, err = rq.metadata("metadata", c.Metadata); err != nil {
		return err
	}
	for name, field := range map[string]*ref{
		"email": &next.Email, "name": &next.Name, "phone": &next.Phone, "description": &next.Description,
	} {
		if rq.has(name) {
			*field = ref(rq.form[name])
		}
	}
	if len(next.Email) > 512 {
		return invalid("email", "Invalid email address: %s", next.Email)
	}
	if next.Balance, err = rq.integer("balance", c.Balance); err != nil {
		return err
	}
	if name := "invoice_settings[default_payment_method]"; rq.has(name) {
		if id := rq.form[name]; id != "" {
			if _, err := s.method(id, c.ID, name); err != nil {
				return err
			}
		}
		next.Settings.DefaultPaymentMethod = ref(rq.form[name])
	}
	*c = next
	return nil
}

func (s *Server) updateCustomer(rq *request) (any, error) {
	c, err := s.living(rq.id, "id")
	if err != nil {
		return nil, err
	}
	if err := s.setCustomer(rq, c); err != nil {
		return nil, err
	}
	s.emit("customer.updated", c, s.timeOf(c))
	return c, nil
}

func (s *Server) deleteCustomer(rq *request) (any, error) {
	c, err := s.living(rq.id, "id")
	if err != nil {
		return nil, err
	}
	now := s.timeOf(c)
	for _, sub := range s.state.Subs.rows {
		if string(sub.Customer) == c.ID && !ended(sub) {
			s.cancel(sub, now, "cancellation_requested")
		}
	}
	for _, m := range s.state.Methods.rows {
		if string(m.Customer) == c.ID {
			m.Customer = ""
		}
	}
	s.emit("customer.deleted", c, now)
	c.Deleted = true
	return c, nil
}

func (s *Server) listCustomers(rq *request) (any, error) {
	email, clock := rq.form["email"], rq.form["test_clock"]
	return page(rq, &s.state.Customers, func(c *customer) bool {
		return !c.Deleted && (email == "" || string(c.Email) == email) && string(c.TestClock) == clock
	})
}

func (t *table[T]) drop(id string) {
	delete(t.byID, id)
	t.rows = slices.DeleteFunc(t.rows, func(o T) bool { return o.ident() == id })
}

// timeOf returns the customer's current time, which its test clock overrides.
func (s *Server) timeOf(c *customer) int64 {
	if clock, ok := s.state.Clocks.byID[string(c.TestClock)]; ok {
		return clock.FrozenTime
	}
	return s.now()
}

// owner returns the customer of an object that exists.
func (s *Server) owner(id ref) *customer {
	c, ok := s.state.Customers.byID[string(id)]
	if !ok {
		return &customer{ID: string(id), Object: "customer", Description: ref(fmt.Sprintf("unknown %s", id))}
	}
	return c
}
