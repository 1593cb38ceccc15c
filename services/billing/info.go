package billing

import (
	"context"
	"fmt"
	"time"

	"waitlist.internal/libs/access"
)

// maxInvoices is how many invoices are shown, the newest first: eight years of
// monthly ones.
const maxInvoices = 100

// Info is what an owner sees of the payments.
type Info struct {
	Invoices []Invoice
	// Method is nil where there is none.
	Method *PaymentMethod
}

// Info returns the actor's invoices and payment method; without a customer there
// are none.
func (b *Billing) Info(ctx context.Context, actor access.Actor) (Info, error) {
	ctx, cancel := context.WithTimeout(ctx, workTime)
	defer cancel()
	sub, err := b.Store.Subscriber(ctx, actor.AccountID)
	if err != nil {
		return Info{}, fmt.Errorf("info: %w", err)
	}
	if sub.CustomerID == "" {
		return Info{}, nil
	}
	var info Info
	info.Invoices, err = b.Provider.Invoices(ctx, sub.CustomerID, maxInvoices)
	if err == nil {
		info.Method, err = b.Provider.PaymentMethod(ctx, sub.CustomerID)
	}
	if because(err, Missing) {
		return Info{}, nil
	}
	if err != nil {
		return Info{}, outward(fmt.Errorf("info: %w", err))
	}
	return info, nil
}

// Portal opens the provider's page where the actor looks after cards and
// invoices. VALIDATION_ERROR without a customer.
func (b *Billing) Portal(ctx context.Context, actor access.Actor) (url string, err error) {
	none := invalid("customer", "is none yet: subscribe first")
	err = b.locked(ctx, actor.AccountID, func(ctx context.Context, l Locked, sub *Subscriber) error {
		if sub.CustomerID == "" {
			return none
		}
		// A page that nobody got the address of harms nobody.
		return b.once(ctx, l, sub.AccountID, "portal", sub.CustomerID, time.Second, func(key string) (err error) {
			url, err = b.Provider.Portal(ctx, key, sub.CustomerID, b.URLs.Portal)
			return err
		})
	})
	if because(err, Missing) {
		return "", none
	}
	if err != nil {
		return "", outward(fmt.Errorf("portal: %w", err))
	}
	return url, nil
}
