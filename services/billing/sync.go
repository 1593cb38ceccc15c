package billing

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"waitlist.internal/libs/access"
	"waitlist.internal/libs/apierr"
	"waitlist.internal/libs/telemetry"
)

const (
	// cancelGrace is how long a subscription that was canceled outlives its period
	// when no event of the provider comes; access.Entitlement.At says the same.
	cancelGrace = time.Hour
	// renewalGrace is how long after a period the provider has surely tried to
	// renew it: its invoice is a draft for an hour.
	renewalGrace = 2 * time.Hour
	// checkAgain is the pause after a look at the provider that failed.
	checkAgain = 5 * time.Minute
)

// sync fetches the account's subscriptions, stores what follows from them together
// with the events that were the reason, and tells account. It returns the
// subscription that counts, nil where there is none, and those that give nothing
// but have not ended. floor is a version that the entitlement has to be above.
func (b *Billing) sync(ctx context.Context, l Locked, sub *Subscriber, floor int64, events ...string) (live *Subscription, stale []Subscription, err error) {
	if sub.CustomerID == "" {
		if len(events) > 0 {
			return nil, nil, l.RecordEvents(ctx, events, b.now())
		}
		return nil, nil, nil
	}
	list, err := b.Provider.Subscriptions(ctx, sub.CustomerID)
	switch {
	case because(err, Missing):
		// Somebody deleted the customer at the provider, and so its subscriptions.
		list, sub.CustomerID, sub.PushCustomer = nil, "", true
	case err != nil:
		return nil, nil, err
	}
	live, extra, stale := choose(b.ours(list))
	// Two were paid. The later one is given back before it is canceled: what a
	// crash leaves undone is found again.
	for _, s := range extra {
		b.Log.LogAttrs(ctx, slog.LevelWarn, "a second subscription was paid; it is refunded and canceled",
			slog.String("account_id", sub.AccountID), slog.String("subscription_id", s.ID))
		if err := b.refund(ctx, l, sub.AccountID, s); err != nil {
			return nil, nil, err
		}
		if err := b.end(ctx, l, sub.AccountID, s); err != nil {
			return nil, nil, err
		}
	}
	now := b.now()
	sub.SyncedAt = now
	sub.Subscription = Subscription{}
	if live != nil {
		sub.Subscription = *live
	}
	b.decide(ctx, sub, live, floor, now)
	seen := make([]string, len(list))
	for i, s := range list {
		seen[i] = s.ID
	}
	if err := l.Save(ctx, *sub, events, seen); err != nil {
		return nil, nil, err
	}
	b.push(ctx, l, sub)
	return live, stale, nil
}

// ours are those of the subscriptions that are about our plans: the provider's
// account may sell other things, too.
func (b *Billing) ours(list []Subscription) []Subscription {
	return slices.DeleteFunc(slices.Clone(list), func(s Subscription) bool {
		_, known := b.Prices.Plan(s.PriceID)
		return !known && s.AccountID == ""
	})
}

// choose picks the subscription that counts: the first that was begun of those
// that give anything.
func choose(list []Subscription) (live *Subscription, extra, stale []Subscription) {
	var entitling []Subscription
	for _, s := range list {
		switch {
		case s.entitles():
			entitling = append(entitling, s)
		case !s.ended():
			stale = append(stale, s)
		}
	}
	if len(entitling) == 0 {
		return nil, nil, stale
	}
	slices.SortFunc(entitling, func(x, y Subscription) int {
		return cmp.Or(x.CreatedAt.Compare(y.CreatedAt), cmp.Compare(x.ID, y.ID))
	})
	return &entitling[0], entitling[1:], stale
}

// decide derives the entitlement, and notes what is to be told and looked at.
func (b *Billing) decide(ctx context.Context, sub *Subscriber, live *Subscription, floor int64, now time.Time) {
	e := sub.Entitlement
	sub.CheckAt = time.Time{}
	switch {
	case live != nil:
		e = access.Entitlement{Tier: b.tier(ctx, *sub, *live), Status: access.Active, ValidUntil: live.CurrentPeriodEnd}
		sub.CheckAt = live.CurrentPeriodEnd.Add(renewalGrace)
		if at, yes := live.canceling(); yes {
			e.Status, e.ValidUntil = access.Canceling, at
			sub.CheckAt = at.Add(cancelGrace)
		}
		if e = e.At(now); e.Status == access.Inactive {
			e.ValidUntil = time.Time{}
		}
		if !sub.CheckAt.After(now) {
			sub.CheckAt = now.Add(cancelGrace)
		}
	case e.Version > 0 && !e.Trial && e.Status != access.Inactive:
		// It was paid, and is not any more. The tier stays to be seen.
		e = access.Entitlement{Tier: e.Tier, Status: access.Inactive}
	}
	sub.set(e, floor, now)
}

// set makes e the entitlement, with the next version, unless it is that already.
func (sub *Subscriber) set(e access.Entitlement, floor int64, now time.Time) {
	if e.Version = sub.Entitlement.Version; !same(e, sub.Entitlement) || e.Version < floor && e.Version > 0 {
		e.Version = max(e.Version, floor) + 1
		sub.Entitlement, sub.PushEntitlement = e, true
	}
	if sub.PushEntitlement || sub.PushCustomer {
		sub.PushAt = now.Add(pushLease)
	}
}

// same reports whether two entitlements of one version say the same.
func same(x, y access.Entitlement) bool {
	return x.Tier == y.Tier && x.Status == y.Status && x.Trial == y.Trial && x.ValidUntil.Equal(y.ValidUntil)
}

// tier is what a price stands for. One that nobody told us of changes nothing.
func (b *Billing) tier(ctx context.Context, sub Subscriber, live Subscription) access.Tier {
	if plan, ok := b.Prices.Plan(live.PriceID); ok {
		return plan.Tier
	}
	b.Log.LogAttrs(ctx, slog.LevelError, "a subscription has a price that stands for no plan; name it in STRIPE_PRICES",
		slog.String("account_id", sub.AccountID), slog.String("price_id", live.PriceID))
	if sub.Entitlement.Tier.Valid() && !sub.Entitlement.Trial {
		return sub.Entitlement.Tier
	}
	return access.Basic
}

// push tells account what it does not know yet. What fails is in the row, and a
// worker goes on with it.
func (b *Billing) push(ctx context.Context, l Locked, sub *Subscriber) {
	if err := b.tryPush(ctx, l, sub); err != nil {
		b.Log.LogAttrs(ctx, slog.LevelWarn, "account was not told of an entitlement; it is tried again",
			slog.String("account_id", sub.AccountID), telemetry.Err(err))
	}
}

func (b *Billing) tryPush(ctx context.Context, l Locked, sub *Subscriber) error {
	if !sub.PushEntitlement && !sub.PushCustomer {
		return nil
	}
	if sub.PushCustomer {
		// Whoever is not there any more needs to be told nothing; that it was deleted
		// is told by an event.
		if err := b.Accounts.SetPaymentCustomer(ctx, sub.AccountID, sub.CustomerID); err != nil && !apierr.Is(err, apierr.NotFound) {
			return fmt.Errorf("set a payment customer: %w", err)
		}
	}
	if sub.PushEntitlement {
		if err := b.pushEntitlement(ctx, l, sub); err != nil {
			return err
		}
	}
	sub.PushCustomer, sub.PushEntitlement, sub.PushAt = false, false, time.Time{}
	return l.Save(ctx, *sub, nil, nil)
}

// pushEntitlement goes above what account has until account has ours.
func (b *Billing) pushEntitlement(ctx context.Context, l Locked, sub *Subscriber) error {
	for range 3 {
		inForce, err := b.Accounts.SetEntitlement(ctx, sub.AccountID, sub.Entitlement)
		switch {
		case apierr.Is(err, apierr.NotFound):
			return nil
		case err != nil:
			return fmt.Errorf("set an entitlement: %w", err)
		case inForce.Version == sub.Entitlement.Version && same(inForce, sub.Entitlement):
			return nil
		case sub.Entitlement.Status == access.Inactive && inForce.At(b.now()).Status == access.Trialing:
			// A trial that began meanwhile: that nothing is paid does not end it.
			sub.Entitlement = inForce
			return nil
		}
		sub.Entitlement.Version = inForce.Version + 1
		if err := l.Save(ctx, *sub, nil, nil); err != nil {
			return err
		}
	}
	return fmt.Errorf("account has another entitlement each time")
}

// refund gives back what a subscription took.
func (b *Billing) refund(ctx context.Context, l Locked, accountID string, s Subscription) error {
	err := b.once(ctx, l, accountID, "refund/"+s.ID, s.ID, keyKept, func(key string) error { return b.Provider.Refund(ctx, key, s.ID) })
	if because(err, Missing) {
		return nil
	}
	return err
}

// end cancels a subscription at once.
func (b *Billing) end(ctx context.Context, l Locked, accountID string, s Subscription) error {
	if s.ended() {
		return nil
	}
	err := b.once(ctx, l, accountID, "end/"+s.ID, s.ID, keyKept, func(key string) error { return b.Provider.Cancel(ctx, key, s.ID) })
	if because(err, Missing) {
		return nil
	}
	return err
}
