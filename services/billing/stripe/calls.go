package stripe

import (
	"context"
	"time"

	api "github.com/stripe/stripe-go/v76"

	"waitlist.internal/services/billing"
)

const (
	// accountKey and priceKey are the metadata keys that calls write.
	accountKey = "account_id"
	priceKey   = "price_id"
	// page is Stripe's maximum page size.
	page = 100
	// maxSubscriptions bounds the subscriptions to read per customer.
	maxSubscriptions = 1000
	all              = "all"
	// sessionOpen is the lifetime of a checkout session (24 h) plus an hour for clock
	// skew.
	sessionOpen = 25 * time.Hour
)

// CreateCustomer implements billing.Provider.
func (p *Provider) CreateCustomer(ctx context.Context, key, accountID, email string) (string, error) {
	return call(ctx, p, "create customer", func(ctx context.Context) (string, error) {
		params := &api.CustomerParams{Params: keyed(ctx, key), Email: new(email)}
		params.AddMetadata(accountKey, accountID)
		c, err := p.api.Customers.New(params)
		if err != nil {
			return "", err
		}
		return c.ID, nil
	})
}

// Customer implements billing.Provider.
func (p *Provider) Customer(ctx context.Context, id string) (billing.Customer, error) {
	return call(ctx, p, "get customer", func(ctx context.Context) (billing.Customer, error) {
		c, err := p.api.Customers.Get(id, &api.CustomerParams{Params: api.Params{Context: ctx}})
		if err != nil {
			return billing.Customer{}, err
		}
		if c.Deleted {
			return billing.Customer{}, &api.Error{Code: api.ErrorCodeResourceMissing, HTTPStatusCode: 404}
		}
		return customer(c), nil
	})
}

func customer(c *api.Customer) billing.Customer {
	return billing.Customer{ID: c.ID, AccountID: c.Metadata[accountKey]}
}

// DeleteCustomer implements billing.Provider.
func (p *Provider) DeleteCustomer(ctx context.Context, key, id string) error {
	_, err := call(ctx, p, "delete customer", func(ctx context.Context) (*api.Customer, error) {
		return p.api.Customers.Del(id, &api.CustomerParams{Params: keyed(ctx, key)})
	})
	return err
}

// Customers implements billing.Provider.
func (p *Provider) Customers(ctx context.Context, after string) ([]billing.Customer, bool, error) {
	type found struct {
		page []billing.Customer
		more bool
	}
	f, err := call(ctx, p, "list customers", func(ctx context.Context) (found, error) {
		params := &api.CustomerListParams{ListParams: single(ctx)}
		if after != "" {
			params.StartingAfter = new(after)
		}
		var f found
		it := p.api.Customers.List(params)
		for it.Next() {
			f.page = append(f.page, customer(it.Customer()))
		}
		f.more = it.Meta() != nil && it.Meta().HasMore
		return f, it.Err()
	})
	return f.page, f.more, err
}

// Subscriptions implements billing.Provider.
func (p *Provider) Subscriptions(ctx context.Context, customerID string) ([]billing.Subscription, error) {
	return call(ctx, p, "list subscriptions", func(ctx context.Context) ([]billing.Subscription, error) {
		var list []billing.Subscription
		params := &api.SubscriptionListParams{ListParams: paged(ctx), Customer: new(customerID), Status: new(all)}
		it := p.api.Subscriptions.List(params)
		for len(list) < maxSubscriptions && it.Next() {
			list = append(list, subscription(it.Subscription()))
		}
		return list, it.Err()
	})
}

func subscription(s *api.Subscription) billing.Subscription {
	out := billing.Subscription{
		ID: s.ID, AccountID: s.Metadata[accountKey], Status: string(s.Status), CreatedAt: moment(s.Created),
		CurrentPeriodEnd: moment(s.CurrentPeriodEnd), CancelAtPeriodEnd: s.CancelAtPeriodEnd, CancelAt: moment(s.CancelAt),
	}
	if s.Customer != nil {
		out.CustomerID = s.Customer.ID
	}
	if s.Items != nil && len(s.Items.Data) > 0 {
		item := s.Items.Data[0]
		out.ItemID = item.ID
		if item.Price != nil {
			out.PriceID = item.Price.ID
		}
	}
	return out
}

// ChangePlan implements billing.Provider.
func (p *Provider) ChangePlan(ctx context.Context, key string, sub billing.Subscription, priceID string) error {
	return p.update(ctx, "change plan", sub, &api.SubscriptionParams{
		Params: keyed(ctx, key),
		Items:  []*api.SubscriptionItemsParams{{ID: new(sub.ItemID), Price: new(priceID)}},
		// Charge the difference now, or fail without a change.
		ProrationBehavior: api.String(string(api.SubscriptionSchedulePhaseProrationBehaviorAlwaysInvoice)),
		PaymentBehavior:   new("error_if_incomplete"),
	}, false)
}

// SetCanceling implements billing.Provider.
func (p *Provider) SetCanceling(ctx context.Context, key string, sub billing.Subscription, yes bool) error {
	return p.update(ctx, "set canceling", sub, &api.SubscriptionParams{Params: keyed(ctx, key)}, yes)
}

func (p *Provider) update(
	ctx context.Context, name string, sub billing.Subscription, params *api.SubscriptionParams, canceling bool,
) error {
	_, err := call(ctx, p, name, func(ctx context.Context) (*api.Subscription, error) {
		params.Context = ctx
		if !canceling && !sub.CancelAt.IsZero() && !sub.CancelAtPeriodEnd {
			params.AddExtra("cancel_at", "") // a custom date, set in Stripe's dashboard
		} else {
			params.CancelAtPeriodEnd = new(canceling)
		}
		return p.api.Subscriptions.Update(sub.ID, params)
	})
	return err
}

// Cancel implements billing.Provider.
func (p *Provider) Cancel(ctx context.Context, key, id string) error {
	_, err := call(ctx, p, "cancel subscription", func(ctx context.Context) (*api.Subscription, error) {
		return p.api.Subscriptions.Cancel(id, &api.SubscriptionCancelParams{Params: keyed(ctx, key)})
	})
	return err
}

// Refund implements billing.Provider.
func (p *Provider) Refund(ctx context.Context, key, subscriptionID string) error {
	intent, err := call(ctx, p, "get payment", func(ctx context.Context) (string, error) {
		params := &api.SubscriptionParams{Params: api.Params{Context: ctx}}
		params.AddExpand("latest_invoice")
		s, err := p.api.Subscriptions.Get(subscriptionID, params)
		if err != nil || s.LatestInvoice == nil || s.LatestInvoice.AmountPaid <= 0 || s.LatestInvoice.PaymentIntent == nil {
			return "", err
		}
		return s.LatestInvoice.PaymentIntent.ID, nil
	})
	if err != nil || intent == "" {
		return err
	}
	_, err = call(ctx, p, "refund", func(ctx context.Context) (*api.Refund, error) {
		r, err := p.api.Refunds.New(&api.RefundParams{Params: keyed(ctx, key), PaymentIntent: new(intent)})
		if refused(err, api.ErrorCodeChargeAlreadyRefunded) {
			return nil, nil
		}
		return r, err
	})
	return err
}

// OpenSessions implements billing.Provider. Stripe lists sessions newest first, so
// reading stops at the first one older than sessionOpen.
func (p *Provider) OpenSessions(ctx context.Context, customerID string) ([]billing.Session, error) {
	return call(ctx, p, "list sessions", func(ctx context.Context) ([]billing.Session, error) {
		var list []billing.Session
		oldest := p.now().Add(-sessionOpen)
		it := p.api.CheckoutSessions.List(&api.CheckoutSessionListParams{ListParams: paged(ctx), Customer: new(customerID)})
		for it.Next() {
			s := it.CheckoutSession()
			if moment(s.Created).Before(oldest) {
				break
			}
			if s.Status == api.CheckoutSessionStatusOpen {
				list = append(list, session(s))
			}
		}
		return list, it.Err()
	})
}

func session(s *api.CheckoutSession) billing.Session {
	return billing.Session{ID: s.ID, URL: s.URL, PriceID: s.Metadata[priceKey], ExpiresAt: moment(s.ExpiresAt)}
}

// CreateSession implements billing.Provider.
func (p *Provider) CreateSession(ctx context.Context, key string, n billing.NewSession) (billing.Session, error) {
	return call(ctx, p, "create session", func(ctx context.Context) (billing.Session, error) {
		params := &api.CheckoutSessionParams{
			Params: keyed(ctx, key), Mode: api.String(string(api.CheckoutSessionModeSubscription)),
			Customer: new(n.CustomerID), ClientReferenceID: new(n.AccountID),
			LineItems:        []*api.CheckoutSessionLineItemParams{{Price: new(n.PriceID), Quantity: api.Int64(1)}},
			SubscriptionData: &api.CheckoutSessionSubscriptionDataParams{Metadata: map[string]string{accountKey: n.AccountID}},
			SuccessURL:       new(n.SuccessURL), CancelURL: new(n.CancelURL),
		}
		params.AddMetadata(accountKey, n.AccountID)
		params.AddMetadata(priceKey, n.PriceID)
		s, err := p.api.CheckoutSessions.New(params)
		if err != nil {
			return billing.Session{}, err
		}
		return session(s), nil
	})
}

// ExpireSession implements billing.Provider.
func (p *Provider) ExpireSession(ctx context.Context, key, id string) error {
	_, err := call(ctx, p, "expire session", func(ctx context.Context) (*api.CheckoutSession, error) {
		return p.api.CheckoutSessions.Expire(id, &api.CheckoutSessionExpireParams{Params: keyed(ctx, key)})
	})
	return err
}

// Quote implements billing.Provider. It sums the lines of the invoice that the change
// would create now. Lines of later periods are not charged yet.
func (p *Provider) Quote(ctx context.Context, sub billing.Subscription, priceID string) (billing.Quote, error) {
	return call(ctx, p, "preview invoice", func(ctx context.Context) (billing.Quote, error) {
		in, err := p.api.Invoices.Upcoming(&api.InvoiceUpcomingParams{
			Params: api.Params{Context: ctx}, Customer: new(sub.CustomerID), Subscription: new(sub.ID),
			SubscriptionItems:             []*api.SubscriptionItemsParams{{ID: new(sub.ItemID), Price: new(priceID)}},
			SubscriptionProrationBehavior: api.String(string(api.SubscriptionSchedulePhaseProrationBehaviorAlwaysInvoice)),
		})
		if err != nil {
			return billing.Quote{}, err
		}
		q := billing.Quote{Currency: string(in.Currency)}
		for _, line := range in.Lines.Data {
			if line.Proration || line.Period != nil && moment(line.Period.Start).Before(sub.CurrentPeriodEnd) {
				q.Amount += line.Amount
			}
		}
		q.Due = max(0, q.Amount+in.StartingBalance) // the balance is negative for a credit
		return q, nil
	})
}

// Price implements billing.Provider.
func (p *Provider) Price(ctx context.Context, id string) (billing.Price, error) {
	return call(ctx, p, "get price", func(ctx context.Context) (billing.Price, error) {
		price, err := p.api.Prices.Get(id, &api.PriceParams{Params: api.Params{Context: ctx}})
		if err != nil {
			return billing.Price{}, err
		}
		return billing.Price{ID: price.ID, Amount: price.UnitAmount, Currency: string(price.Currency)}, nil
	})
}

// Invoices implements billing.Provider.
func (p *Provider) Invoices(ctx context.Context, customerID string, limit int) ([]billing.Invoice, error) {
	return call(ctx, p, "list invoices", func(ctx context.Context) ([]billing.Invoice, error) {
		var list []billing.Invoice
		it := p.api.Invoices.List(&api.InvoiceListParams{ListParams: paged(ctx), Customer: new(customerID)})
		for len(list) < limit && it.Next() {
			in := it.Invoice()
			out := billing.Invoice{
				ID: in.ID, CreatedAt: moment(in.Created), Amount: in.Total, Currency: string(in.Currency),
				Status: string(in.Status), Description: in.Description, PDF: in.InvoicePDF, URL: in.HostedInvoiceURL,
			}
			if out.Description == "" && in.Lines != nil && len(in.Lines.Data) > 0 {
				out.Description = in.Lines.Data[len(in.Lines.Data)-1].Description
			}
			list = append(list, out)
		}
		return list, it.Err()
	})
}

// PaymentMethod implements billing.Provider. It returns the card of a current
// subscription, else the customer's default card.
func (p *Provider) PaymentMethod(ctx context.Context, customerID string) (*billing.PaymentMethod, error) {
	return call(ctx, p, "get payment method", func(ctx context.Context) (*billing.PaymentMethod, error) {
		list := &api.SubscriptionListParams{ListParams: paged(ctx), Customer: new(customerID)}
		list.AddExpand("data.default_payment_method")
		subs := p.api.Subscriptions.List(list)
		for subs.Next() {
			if m := card(subs.Subscription().DefaultPaymentMethod); m != nil {
				return m, nil
			}
		}
		if err := subs.Err(); err != nil {
			return nil, err
		}
		params := &api.CustomerParams{Params: api.Params{Context: ctx}}
		params.AddExpand("invoice_settings.default_payment_method")
		c, err := p.api.Customers.Get(customerID, params)
		if err != nil || c.Deleted || c.InvoiceSettings == nil {
			return nil, err
		}
		return card(c.InvoiceSettings.DefaultPaymentMethod), nil
	})
}

func card(m *api.PaymentMethod) *billing.PaymentMethod {
	if m == nil || m.Card == nil {
		return nil
	}
	return &billing.PaymentMethod{Brand: string(m.Card.Brand), Last4: m.Card.Last4, ExpMonth: m.Card.ExpMonth, ExpYear: m.Card.ExpYear}
}

// Portal implements billing.Provider.
func (p *Provider) Portal(ctx context.Context, key, customerID, returnURL string) (string, error) {
	return call(ctx, p, "open portal", func(ctx context.Context) (string, error) {
		s, err := p.api.BillingPortalSessions.New(&api.BillingPortalSessionParams{
			Params: keyed(ctx, key), Customer: new(customerID), ReturnURL: new(returnURL),
		})
		if err != nil {
			return "", err
		}
		return s.URL, nil
	})
}

// keyed returns the parameters of a call with an effect.
func keyed(ctx context.Context, key string) api.Params {
	return api.Params{Context: ctx, IdempotencyKey: new(key)}
}

// paged returns the parameters of a list to read page by page.
func paged(ctx context.Context) api.ListParams {
	return api.ListParams{Context: ctx, Limit: api.Int64(page)}
}

// single returns the parameters of one page of a list.
func single(ctx context.Context) api.ListParams {
	return api.ListParams{Context: ctx, Limit: api.Int64(page), Single: true}
}

// moment converts Unix seconds. It returns the zero time for 0.
func moment(unix int64) time.Time {
	if unix == 0 {
		return time.Time{}
	}
	return time.Unix(unix, 0).UTC()
}
