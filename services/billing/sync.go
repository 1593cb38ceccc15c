package billing

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"waitlist.internal/libs/access"
	"waitlist.internal/libs/apierr"
	"waitlist.internal/libs/telemetry"
)

const (
	// cancelGrace is how long a canceled subscription outlives its period if the
	// provider sends no event, as in access.Entitlement.At.
	cancelGrace = time.Hour
	// renewalGrace is the time after a period by which the provider has attempted the
	// renewal. Its invoice is a draft for an hour.
	renewalGrace = 2 * time.Hour
	// checkAgain is the pause after a failed check.
	checkAgain = 5 * time.Minute
)

// sync fetches the account's subscriptions, saves the resulting state together with
// the events that caused the sync, and pushes it to account. It returns the
// subscription that counts, or nil, and the unpaid subscriptions that have not ended.
// A changed entitlement gets a version above floor.
func (b *Billing) sync(
	ctx context.Context, l Locked, sub *Subscriber, floor int64, events ...string,
) (live *Subscription, stale []Subscription, err error) {
	if sub.CustomerID == "" {
		if len(events) > 0 {
			return nil, nil, l.RecordEvents(ctx, events, b.now())
		}
		return nil, nil, nil
	}
	list, err := b.Provider.Subscriptions(ctx, sub.CustomerID)
	switch {
	case because(err, Missing):
		// The customer was deleted at the provider, and its subscriptions with it.
		list, sub.CustomerID, sub.PushCustomer = nil, "", true
	case err != nil:
		return nil, nil, err
	}
	live, extra, stale := choose(b.ours(list))
	// More than one was paid. Refund before canceling: after a crash in between, the
	// next sync finds the subscription again.
	for _, s := range extra {
		b.Log.LogAttrs(ctx, slog.LevelWarn, "a second subscription was paid; refunding and canceling it",
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

// ours filters out subscriptions to other products of the same provider account.
func (b *Billing) ours(list []Subscription) []Subscription {
	return slices.DeleteFunc(slices.Clone(list), func(s Subscription) bool {
		_, known := b.Prices.Plan(s.PriceID)
		return !known && s.AccountID == ""
	})
}

// choose splits subscriptions into the one that counts (the oldest that entitles),
// the others that entitle, and those that neither entitle nor have ended.
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

// decide derives the entitlement and schedules the next push and check.
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
		// The paid subscription has ended. Keep the tier for display.
		e = access.Entitlement{Tier: e.Tier, Status: access.Inactive}
	}
	sub.set(e, floor, now)
}

// set stores e as the entitlement under a new version, above floor. It keeps the
// present one if that equals e and its version is 0 or at least floor.
func (sub *Subscriber) set(e access.Entitlement, floor int64, now time.Time) {
	if e.Version = sub.Entitlement.Version; !same(e, sub.Entitlement) || e.Version < floor && e.Version > 0 {
		e.Version = max(e.Version, floor) + 1
		sub.Entitlement, sub.PushEntitlement = e, true
	}
	if sub.PushEntitlement || sub.PushCustomer {
		sub.PushAt = now.Add(pushLease)
	}
}

// same reports whether two entitlements differ at most in their version.
func same(x, y access.Entitlement) bool {
	return x.Tier == y.Tier && x.Status == y.Status && x.Trial == y.Trial && x.ValidUntil.Equal(y.ValidUntil)
}

// tier returns the tier of a subscription's price. An unknown price does not change
// the tier of a paid entitlement.
func (b *Billing) tier(ctx context.Context, sub Subscriber, live Subscription) access.Tier {
	if plan, ok := b.Prices.Plan(live.PriceID); ok {
		return plan.Tier
	}
	b.Log.LogAttrs(ctx, slog.LevelError, "subscription has an unknown price; add it to STRIPE_PRICES",
		slog.String("account_id", sub.AccountID), slog.String("price_id", live.PriceID))
	if sub.Entitlement.Tier.Valid() && !sub.Entitlement.Trial {
		return sub.Entitlement.Tier
	}
	return access.Basic
}

// push sends pending changes to account. RunPushes retries after a failure.
func (b *Billing) push(ctx context.Context, l Locked, sub *Subscriber) {
	if err := b.tryPush(ctx, l, sub); err != nil {
		b.Log.LogAttrs(ctx, slog.LevelWarn, "failed to push to account; retrying later",
			slog.String("account_id", sub.AccountID), telemetry.Err(err))
	}
}

func (b *Billing) tryPush(ctx context.Context, l Locked, sub *Subscriber) error {
	if !sub.PushEntitlement && !sub.PushCustomer {
		return nil
	}
	if sub.PushCustomer {
		// A deleted account needs no push. An event reports the deletion.
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

// pushEntitlement raises the version above account's until account accepts the
// entitlement.
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
			// A trial started meanwhile. The lack of a subscription does not end it.
			sub.Entitlement = inForce
			return nil
		}
		sub.Entitlement.Version = inForce.Version + 1
		if err := l.Save(ctx, *sub, nil, nil); err != nil {
			return err
		}
	}
	return errors.New("account returned a different entitlement each time")
}

// refund refunds the payment for a subscription.
func (b *Billing) refund(ctx context.Context, l Locked, accountID string, s Subscription) error {
	return b.finally(ctx, l, accountID, "refund/", s.ID, b.Provider.Refund)
}

// end cancels a subscription immediately.
func (b *Billing) end(ctx context.Context, l Locked, accountID string, s Subscription) error {
	if s.ended() {
		return nil
	}
	return b.finally(ctx, l, accountID, "end/", s.ID, b.Provider.Cancel)
}
