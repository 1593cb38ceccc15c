package billing

import (
	"context"
	"errors"
	"fmt"
	"time"

	"waitlist.internal/libs/access"
	"waitlist.internal/libs/apierr"
)

// sessionLeft is the remaining lifetime that a checkout session needs to be reused.
const sessionLeft = 10 * time.Minute

// Checkout is the outcome of a checkout: a payment page, a changed subscription or,
// if it has neither, a failed payment.
type Checkout struct {
	// URL is the payment page for an account without a subscription.
	URL string
	// Upgraded is set if the subscription has changed. Tier and Status are then in
	// force.
	Upgraded bool
	Tier     access.Tier
	Status   access.Status
}

// Checkout subscribes the actor to a plan or changes the plan of the subscription.
// It ends a trial. It changes a subscription and charges for the change at once. For
// the current plan it returns VALIDATION_ERROR on tier, or resumes the subscription
// if it is canceling.
func (b *Billing) Checkout(ctx context.Context, actor access.Actor, plan Plan) (out Checkout, err error) {
	err = b.withActiveAccount(ctx, actor.AccountID, func(ctx context.Context, l Locked, sub *Subscriber) error {
		out, err = b.checkout(ctx, l, sub, actor, plan)
		return err
	})
	if err != nil {
		return Checkout{}, outward(fmt.Errorf("checkout: %w", err))
	}
	return out, nil
}

func (b *Billing) checkout(ctx context.Context, l Locked, sub *Subscriber, actor access.Actor, plan Plan) (Checkout, error) {
	price := b.Prices.Sold(plan)
	// List sessions before subscriptions: a session that is paid in between then
	// appears as a subscription.
	open, err := b.onlySession(ctx, l, sub, price)
	if err != nil {
		return Checkout{}, err
	}
	floor := b.present(actor, *sub).Version
	live, stale, err := b.sync(ctx, l, sub, floor)
	if err != nil {
		return Checkout{}, err
	}
	if live != nil {
		if err := b.expire(ctx, l, sub.AccountID, open); err != nil {
			return Checkout{}, err
		}
		return b.change(ctx, l, sub, *live, plan)
	}
	// An unpaid subscription must not become active beside the new one.
	for _, s := range stale {
		if err := b.end(ctx, l, sub.AccountID, s); err != nil {
			return Checkout{}, err
		}
	}
	if sub.CustomerID == "" {
		if err := b.register(ctx, l, sub, actor); err != nil {
			return Checkout{}, err
		}
		open = nil
	}
	if e := b.present(actor, *sub); e.Status == access.Trialing {
		if err := b.endTrial(ctx, l, sub, e); err != nil {
			return Checkout{}, err
		}
	}
	if open == nil {
		open, err = b.open(ctx, l, sub, price)
	} else {
		// A session outlives its customer, and cannot be paid then.
		_, err = b.Provider.Customer(ctx, sub.CustomerID)
	}
	if because(err, Missing) {
		// Either the price is missing, because of a wrong setting, or the customer.
		if _, lookErr := b.Provider.Customer(ctx, sub.CustomerID); !because(lookErr, Missing) {
			return Checkout{}, errors.Join(err, lookErr)
		}
		// The customer was deleted at the provider.
		sub.CustomerID = ""
		if err = b.register(ctx, l, sub, actor); err == nil {
			open, err = b.open(ctx, l, sub, price)
		}
	}
	if err != nil {
		return Checkout{}, err
	}
	return Checkout{URL: open.URL}, nil
}

// register creates the account's customer at the provider.
func (b *Billing) register(ctx context.Context, l Locked, sub *Subscriber, actor access.Actor) error {
	err := b.once(ctx, l, sub.AccountID, "customer", "customer", keyKept, func(key string) (err error) {
		sub.CustomerID, err = b.Provider.CreateCustomer(ctx, key, sub.AccountID, actor.Email)
		if err != nil {
			return err
		}
		// Save the customer before the operation ends: until then, a repeated call
		// returns the same customer.
		sub.PushCustomer, sub.PushAt = true, b.now().Add(pushLease)
		return l.Save(ctx, *sub, nil, nil)
	})
	if err != nil {
		return err
	}
	b.push(ctx, l, sub)
	return nil
}

// onlySession returns the open checkout session for a price, or nil. It expires all
// others, so that no two can be paid.
func (b *Billing) onlySession(ctx context.Context, l Locked, sub *Subscriber, priceID string) (*Session, error) {
	if sub.CustomerID == "" {
		return nil, nil
	}
	list, err := b.Provider.OpenSessions(ctx, sub.CustomerID)
	if because(err, Missing) {
		return nil, nil // the next call also reports that the customer is missing
	}
	if err != nil {
		return nil, err
	}
	var kept *Session
	for _, s := range list {
		if kept == nil && s.PriceID == priceID && s.URL != "" && s.ExpiresAt.Sub(b.now()) >= sessionLeft {
			kept = &s
			continue
		}
		if err := b.expire(ctx, l, sub.AccountID, &s); err != nil {
			return nil, err
		}
	}
	return kept, nil
}

// expire expires a checkout session. It ignores one that was just completed.
func (b *Billing) expire(ctx context.Context, l Locked, accountID string, s *Session) error {
	if s == nil {
		return nil
	}
	err := b.finally(ctx, l, accountID, "expire/", s.ID, b.Provider.ExpireSession)
	if because(err, Refused) {
		return nil
	}
	return err
}

// open creates a checkout session. An earlier attempt whose response was lost may
// have created one that was completed or expired since. Its key then returns that
// session, without a page, and open tries once more under another key.
func (b *Billing) open(ctx context.Context, l Locked, sub *Subscriber, priceID string) (s *Session, err error) {
	for attempt := 0; attempt < 2 && (s == nil || s.URL == "") && err == nil; attempt++ {
		err = b.once(ctx, l, sub.AccountID, "session", priceID, settled, func(key string) error {
			made, err := b.Provider.CreateSession(ctx, key, NewSession{
				CustomerID: sub.CustomerID, AccountID: sub.AccountID, PriceID: priceID,
				SuccessURL: b.URLs.Success, CancelURL: b.URLs.Cancel,
			})
			s = &made
			return err
		})
	}
	if err == nil && s.URL == "" {
		err = &ProviderError{Reason: Away, Call: "session", Code: "no page"}
	}
	return s, err
}

// change moves a subscription to another plan, or resumes a canceling one.
func (b *Billing) change(ctx context.Context, l Locked, sub *Subscriber, live Subscription, plan Plan) (Checkout, error) {
	price := b.Prices.Sold(plan)
	had, known := b.Prices.Plan(live.PriceID)
	_, ending := live.canceling()
	var err error
	switch {
	case known && had == plan && !ending:
		return Checkout{}, invalid("tier", "You already have this plan.")
	case had != plan && live.Status == statusPastDue:
		// The provider would credit a period that was not paid.
		return Checkout{}, nil
	case known && had == plan:
		err = b.once(ctx, l, sub.AccountID, "change", live.ID+"/go on", settled, func(key string) error {
			return b.Provider.SetCanceling(ctx, key, live, false)
		})
	default:
		err = b.once(ctx, l, sub.AccountID, "change", live.ID+"/"+price, settled, func(key string) error {
			return b.Provider.ChangePlan(ctx, key, live, price)
		})
	}
	if err != nil && !because(err, Card) && !because(err, Away) {
		return Checkout{}, err
	}
	// The provider's present state decides, whatever the call returned.
	now, _, syncErr := b.sync(ctx, l, sub, 0)
	if syncErr != nil {
		if err == nil || because(err, Card) {
			err = syncErr
		}
		return Checkout{}, err
	}
	done := now != nil
	if done {
		is, known := b.Prices.Plan(now.PriceID)
		_, ending := now.canceling()
		done = known && is == plan && !ending
	}
	switch {
	case done:
		return Checkout{Upgraded: true, Tier: sub.Entitlement.Tier, Status: sub.Entitlement.Status}, nil
	case because(err, Card):
		return Checkout{}, nil
	case err != nil:
		return Checkout{}, err
	}
	return Checkout{}, &ProviderError{Reason: Away, Call: "change", Code: "no effect"}
}

// invalid returns a VALIDATION_ERROR on one field. Its message stands alone, because
// most of these fields describe the account's state and are not in the body.
func invalid(field, message string) error {
	e := apierr.Validation(apierr.Field{Field: field, Message: message})
	e.Message = message
	return e
}
