// Package providertest is the payment provider that billing's tests share: what billing.Provider promises, in memory, with
// failures before and after a call's effect. The provider's own interface is simulated by stripesim, among the tools.
package providertest

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"waitlist.internal/services/billing"
)

// call is a call that changed something or tried to.
type call struct{ name, key string }

// Provider is a billing.Provider in memory. A test may use its fields while no call is under way.
type Provider struct {
	// Everyone are the customers, in order of creation, Deleted the ids of those that are gone.
	Everyone []billing.Customer
	Deleted  map[string]bool
	// Open are the checkouts that can be paid, by id.
	Open map[string]*billing.Session
	// Refunded are the subscriptions whose payments were refunded.
	Refunded []string
	// Fetches counts how often subscriptions were asked for.
	Fetches int
	// Declines makes every change of a plan fail for the card.
	Declines bool
	// Credit, Bills and Card are those of every customer; Credit is in the smallest unit.
	Credit int64
	Bills  []billing.Invoice
	Card   *billing.PaymentMethod

	mu     sync.Mutex
	now    func() time.Time
	number int
	subs   []billing.Subscription
	owner  map[string]string // session → customer
	keys   map[string]string // key → id that it made
	calls  []call
	before func(name string) error
	after  func(name string) error
}

// New returns a Provider without customers, on the clock now.
func New(now func() time.Time) *Provider {
	return &Provider{
		now: now, Deleted: map[string]bool{}, Open: map[string]*billing.Session{}, owner: map[string]string{}, keys: map[string]string{},
	}
}

func (p *Provider) id(prefix string) string {
	p.number++
	return fmt.Sprintf("%s_%04d", prefix, p.number)
}

// do makes a call that may fail before or after its effect.
func (p *Provider) do(name, key string, effect func() error) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if key != "" {
		p.calls = append(p.calls, call{name, key})
	}
	if p.before != nil {
		if err := p.before(name); err != nil {
			return err
		}
	}
	if err := effect(); err != nil {
		return err
	}
	if p.after != nil {
		return p.after(name)
	}
	return nil
}

func missing(name string) error { return &billing.ProviderError{Reason: billing.Missing, Call: name} }

func (p *Provider) there(customerID string) bool {
	return !p.Deleted[customerID] && slices.ContainsFunc(p.Everyone, func(c billing.Customer) bool { return c.ID == customerID })
}

// CreateCustomer implements billing.Provider.
func (p *Provider) CreateCustomer(_ context.Context, key, accountID, _ string) (id string, err error) {
	err = p.do("customer", key, func() error {
		if id = p.keys[key]; id == "" {
			id = p.id("cus")
			p.keys[key] = id
			p.Everyone = append(p.Everyone, billing.Customer{ID: id, AccountID: accountID})
		}
		return nil
	})
	return id, err
}

// Customer implements billing.Provider.
func (p *Provider) Customer(_ context.Context, id string) (c billing.Customer, err error) {
	err = p.do("get customer", "", func() error {
		if !p.there(id) {
			return missing("customer")
		}
		c = p.Everyone[slices.IndexFunc(p.Everyone, func(c billing.Customer) bool { return c.ID == id })]
		return nil
	})
	return c, err
}

// DeleteCustomer implements billing.Provider.
func (p *Provider) DeleteCustomer(_ context.Context, key, id string) error {
	return p.do("forget", key, func() error {
		if !p.there(id) {
			return missing("forget")
		}
		p.Deleted[id] = true
		for i := range p.subs {
			if p.subs[i].CustomerID == id {
				p.subs[i].Status = "canceled"
			}
		}
		return nil
	})
}

// Customers implements billing.Provider. A page has two.
func (p *Provider) Customers(_ context.Context, after string) (page []billing.Customer, more bool, err error) {
	err = p.do("customers", "", func() error {
		i := 0
		if after != "" {
			i = 1 + slices.IndexFunc(p.Everyone, func(c billing.Customer) bool { return c.ID == after })
		}
		for ; i < len(p.Everyone) && len(page) < 2; i++ {
			if !p.Deleted[p.Everyone[i].ID] {
				page = append(page, p.Everyone[i])
			}
		}
		more = i < len(p.Everyone)
		return nil
	})
	return page, more, err
}

// Subscriptions implements billing.Provider.
func (p *Provider) Subscriptions(_ context.Context, customerID string) (list []billing.Subscription, err error) {
	err = p.do("fetch", "", func() error {
		p.Fetches++
		for _, s := range p.subs {
			if s.CustomerID == customerID {
				list = append(list, s)
			}
		}
		return nil
	})
	return list, err
}

func (p *Provider) change(name, key, id string, f func(s *billing.Subscription)) error {
	return p.do(name, key, func() error {
		i := slices.IndexFunc(p.subs, func(s billing.Subscription) bool { return s.ID == id })
		if i < 0 || p.subs[i].Status == "canceled" {
			return missing(name)
		}
		if _, again := p.keys[key]; !again {
			p.keys[key] = id
			f(&p.subs[i])
		}
		return nil
	})
}

// ChangePlan implements billing.Provider.
func (p *Provider) ChangePlan(_ context.Context, key string, sub billing.Subscription, priceID string) error {
	if p.Declines {
		return p.do("plan", key, func() error { return &billing.ProviderError{Reason: billing.Card, Call: "plan"} })
	}
	return p.change("plan", key, sub.ID, func(s *billing.Subscription) { s.PriceID, s.CancelAtPeriodEnd = priceID, false })
}

// SetCanceling implements billing.Provider.
func (p *Provider) SetCanceling(_ context.Context, key string, sub billing.Subscription, yes bool) error {
	return p.change("canceling", key, sub.ID, func(s *billing.Subscription) { s.CancelAtPeriodEnd = yes })
}

// Cancel implements billing.Provider.
func (p *Provider) Cancel(_ context.Context, key, id string) error {
	return p.change("cancel", key, id, func(s *billing.Subscription) { s.Status = "canceled" })
}

// Refund implements billing.Provider.
func (p *Provider) Refund(_ context.Context, key, id string) error {
	return p.do("refund", key, func() error {
		if !slices.Contains(p.Refunded, id) {
			p.Refunded = append(p.Refunded, id)
		}
		return nil
	})
}

// OpenSessions implements billing.Provider.
func (p *Provider) OpenSessions(_ context.Context, customerID string) (list []billing.Session, err error) {
	err = p.do("sessions", "", func() error {
		for id, s := range p.Open {
			if p.owner[id] == customerID {
				list = append(list, *s)
			}
		}
		slices.SortFunc(list, func(x, y billing.Session) int { return strings.Compare(y.ID, x.ID) })
		return nil
	})
	return list, err
}

// CreateSession implements billing.Provider.
func (p *Provider) CreateSession(_ context.Context, key string, n billing.NewSession) (s billing.Session, err error) {
	err = p.do("session", key, func() error {
		if !p.there(n.CustomerID) {
			return missing("session")
		}
		id := p.keys[key]
		if id == "" {
			id = p.id("cs")
			p.keys[key] = id
			p.Open[id] = &billing.Session{
				ID: id, URL: "https://pay.example/" + id + "/" + n.PriceID + "?back=" + n.SuccessURL, PriceID: n.PriceID,
				ExpiresAt: p.now().Add(24 * time.Hour),
			}
			p.owner[id] = n.CustomerID
		}
		if open := p.Open[id]; open != nil {
			s = *open
		}
		return nil
	})
	return s, err
}

// ExpireSession implements billing.Provider.
func (p *Provider) ExpireSession(_ context.Context, key, id string) error {
	return p.do("expire", key, func() error {
		if p.Open[id] == nil {
			return &billing.ProviderError{Reason: billing.Refused, Call: "expire"}
		}
		delete(p.Open, id)
		return nil
	})
}

// Quote implements billing.Provider.
func (p *Provider) Quote(_ context.Context, sub billing.Subscription, priceID string) (q billing.Quote, err error) {
	err = p.do("quote", "", func() error {
		q = billing.Quote{Amount: amounts[priceID] - amounts[sub.PriceID], Currency: "usd"}
		q.Due = max(0, q.Amount-p.Credit)
		return nil
	})
	return q, err
}

var amounts = map[string]int64{"p_bm": 300, "p_by": 3000, "p_am": 1000, "p_ay": 10000, "p_pm": 5000, "p_py": 50000}

// Price implements billing.Provider.
func (p *Provider) Price(_ context.Context, id string) (price billing.Price, err error) {
	err = p.do("price", "", func() error { price = billing.Price{ID: id, Amount: amounts[id], Currency: "usd"}; return nil })
	return price, err
}

// Invoices implements billing.Provider.
func (p *Provider) Invoices(_ context.Context, _ string, limit int) (list []billing.Invoice, err error) {
	err = p.do("invoices", "", func() error { list = p.Bills[:min(len(p.Bills), limit)]; return nil })
	return list, err
}

// PaymentMethod implements billing.Provider.
func (p *Provider) PaymentMethod(context.Context, string) (card *billing.PaymentMethod, err error) {
	err = p.do("method", "", func() error { card = p.Card; return nil })
	return card, err
}

// Portal implements billing.Provider.
func (p *Provider) Portal(_ context.Context, key, customerID, returnURL string) (url string, err error) {
	err = p.do("portal", key, func() error {
		if !p.there(customerID) {
			return missing("portal")
		}
		url = "https://portal.example/" + customerID + "?back=" + returnURL
		return nil
	})
	return url, err
}

// Pay completes a checkout, as its page does.
func (p *Provider) Pay(t *testing.T, url string) billing.Subscription {
	t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	for id, s := range p.Open {
		if s.URL == url {
			delete(p.Open, id)
			return p.subscribe(p.owner[id], s.PriceID)
		}
	}
	t.Fatalf("no open checkout at %s", url)
	return billing.Subscription{}
}

// Subscribe starts a subscription without a checkout.
func (p *Provider) Subscribe(customerID, priceID string) billing.Subscription {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.subscribe(customerID, priceID)
}

func (p *Provider) subscribe(customerID, priceID string) billing.Subscription {
	now := p.now().Truncate(time.Second)
	sub := billing.Subscription{
		ID: p.id("sub"), CustomerID: customerID, Status: "active", PriceID: priceID, ItemID: "si",
		CreatedAt: now.Add(time.Duration(p.number) * time.Second), CurrentPeriodEnd: now.AddDate(0, 1, 0),
	}
	p.subs = append(p.subs, sub)
	return sub
}

// Set changes a subscription without telling billing.
func (p *Provider) Set(id string, f func(s *billing.Subscription)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := range p.subs {
		if p.subs[i].ID == id {
			f(&p.subs[i])
		}
	}
}

// Keys returns the idempotency keys of the calls of a name, also of those that failed.
func (p *Provider) Keys(name string) (keys []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.calls {
		if c.name == name {
			keys = append(keys, c.key)
		}
	}
	return keys
}

// Fail makes the calls of a name, or all if it is empty, fail before or after their effect, until the test calls end or Fail.
func (p *Provider) Fail(name string, after bool, err error) (end func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	hook := func(n string) error {
		if n == name || name == "" {
			return err
		}
		return nil
	}
	if p.before, p.after = hook, nil; after {
		p.before, p.after = nil, hook
	}
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.before, p.after = nil, nil
	}
}
