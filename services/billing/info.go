package billing

import (
	"context"
	"fmt"
	"time"

	"waitlist.internal/libs/access"
)

// maxInvoices bounds the invoices shown: eight years of monthly ones.
const maxInvoices = 100

// Info is the payment information of an account.
type Info struct {
	// Invoices are the newest maxInvoices, newest first.
	Invoices []Invoice
	// Method is nil if there is none.
	Method *PaymentMethod
}

// Info returns the actor's invoices and payment method. It returns neither if the
// account has no customer.
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

// Portal returns the address of the provider's page where the actor manages cards
// and invoices. It returns VALIDATION_ERROR if the account has no customer.
func (b *Billing) Portal(ctx context.Context, actor access.Actor) (url string, err error) {
	none := invalid("customer", "There are no payments to manage yet. Please subscribe first.")
	err = b.withActiveAccount(ctx, actor.AccountID, func(ctx context.Context, l Locked, sub *Subscriber) error {
		if sub.CustomerID == "" {
			return none
		}
		// The key is kept for a short time because a portal page whose address was lost is harmless.
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
