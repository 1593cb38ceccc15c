package billing

import (
	"context"
	"errors"
	"fmt"
	"time"

	"waitlist.internal/libs/access"
	"waitlist.internal/libs/apierr"
)

// sessionLeft is how long a checkout has to be open yet to be given out again.
const sessionLeft = 10 * time.Minute

// Checkout is what became of the wish for a plan: a page to pay at, a change, or
// a payment that failed.
type Checkout struct {
	// URL is set for who has no subscription.
	URL string
	// Upgraded and what is in force now, for who has one.
	Upgraded bool
	Tier     access.Tier
	Status   access.Status
}

// Checkout subscribes the actor to a plan or changes the plan. Whoever is in a
// trial loses it; whoever subscribed gets the change at once, paid at once.
// VALIDATION_ERROR on tier for the plan that one has, unless it ends: then it goes
// on.
func (b *Billing) Checkout(ctx context.Context, actor access.Actor, plan Plan) (out Checkout, err error) {
	err = b.locked(ctx, actor.AccountID, func(ctx context.Context, l Locked, sub *Subscriber) error {
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
	// The open checkouts before the subscriptions: one that is paid in between is
	// among the latter.
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
	// What was never paid, or not any more, must not come back beside the new one.
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
	}
	if because(err, Missing) {
		// The price, as a wrong setting names it, or the customer.
		if _, lookErr := b.Provider.Customer(ctx, sub.CustomerID); !because(lookErr, Missing) {
			return Checkout{}, errors.Join(err, lookErr)
		}
		// Somebody deleted the customer at the provider.
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

// register makes the account a customer of the provider's.
func (b *Billing) register(ctx context.Context, l Locked, sub *Subscriber, actor access.Actor) error {
	err := b.once(ctx, l, sub.AccountID, "customer", "customer", keyKept, func(key string) (err error) {
		sub.CustomerID, err = b.Provider.CreateCustomer(ctx, key, sub.AccountID, actor.Email)
		if err != nil {
			return err
		}
		// Before the call counts as over: until then its repetition finds the customer.
		sub.PushCustomer, sub.PushAt = true, b.now().Add(pushLease)
		return l.Save(ctx, *sub, nil, nil)
	})
	if err != nil {
		return err
	}
	b.push(ctx, l, sub)
	return nil
}

// onlySession returns the open checkout for a price, nil where there is none, and
// expires all others: no two can be paid.
func (b *Billing) onlySession(ctx context.Context, l Locked, sub *Subscriber, priceID string) (*Session, error) {
	if sub.CustomerID == "" {
		return nil, nil
	}
	list, err := b.Provider.OpenSessions(ctx, sub.CustomerID)
	if because(err, Missing) {
		return nil, nil // the customer has gone, as the next call finds, too
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

// expire closes a checkout. One that was just paid stays so.
func (b *Billing) expire(ctx context.Context, l Locked, accountID string, s *Session) error {
	if s == nil {
		return nil
	}
	err := b.once(ctx, l, accountID, "expire/"+s.ID, s.ID, keyKept, func(key string) error { return b.Provider.ExpireSession(ctx, key, s.ID) })
	if because(err, Refused) || because(err, Missing) {
		return nil
	}
	return err
}

// open opens a checkout. An attempt whose answer got lost may have opened one that
// was paid or left since, which its key then answers with: the next is another.
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
		err = &ProviderError{Reason: Away, Call: "session", Code: "without a page"}
	}
	return s, err
}

// change moves a subscription to another plan, or lets one go on that was to end.
func (b *Billing) change(ctx context.Context, l Locked, sub *Subscriber, live Subscription, plan Plan) (Checkout, error) {
	price := b.Prices.Sold(plan)
	had, known := b.Prices.Plan(live.PriceID)
	_, ending := live.canceling()
	var err error
	switch {
	case known && had == plan && !ending:
		return Checkout{}, invalid("tier", "is the plan that you have")
	case had != plan && live.Status == statusPastDue:
		// The provider would give credit for a period that was not paid.
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
	// Whatever the answer was, or none: what is there now counts.
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
	return Checkout{}, &ProviderError{Reason: Away, Call: "change", Code: "without effect"}
}

// invalid is a VALIDATION_ERROR on one field.
func invalid(field, message string) error {
	return apierr.Validation(apierr.Field{Field: field, Message: message})
}
