package billing

import (
	"context"
	"fmt"
	"time"

	"waitlist.internal/libs/access"
)

// Cancellation is the outcome of a cancellation. A trial ends immediately, a
// subscription at the end of its period.
type Cancellation struct {
	Immediately bool
	// EndsAt is the end of the period.
	EndsAt time.Time
}

// Cancel cancels the actor's subscription or trial. It is idempotent for a
// subscription. It returns VALIDATION_ERROR if there is neither.
func (b *Billing) Cancel(ctx context.Context, actor access.Actor) (out Cancellation, err error) {
	err = b.withActiveAccount(ctx, actor.AccountID, func(ctx context.Context, l Locked, sub *Subscriber) error {
		out, err = b.cancel(ctx, l, sub, actor)
		return err
	})
	if err != nil {
		return Cancellation{}, outward(fmt.Errorf("cancel: %w", err))
	}
	return out, nil
}

func (b *Billing) cancel(ctx context.Context, l Locked, sub *Subscriber, actor access.Actor) (Cancellation, error) {
	live, _, err := b.sync(ctx, l, sub, 0)
	if err != nil {
		return Cancellation{}, err
	}
	if live == nil {
		e := b.present(actor, *sub)
		if e.Status != access.Trialing {
			return Cancellation{}, invalid("subscription", "There is no subscription to cancel.")
		}
		return Cancellation{Immediately: true}, b.endTrial(ctx, l, sub, e)
	}
	if at, yes := live.canceling(); yes {
		return Cancellation{EndsAt: at}, nil
	}
	err = b.once(ctx, l, sub.AccountID, "change", live.ID+"/end", settled, func(key string) error {
		return b.Provider.SetCanceling(ctx, key, *live, true)
	})
	if err != nil && !because(err, Away) {
		return Cancellation{}, err
	}
	now, _, syncErr := b.sync(ctx, l, sub, 0)
	switch {
	case err == nil && syncErr != nil:
		return Cancellation{}, syncErr
	case syncErr == nil && now != nil:
		if at, yes := now.canceling(); yes {
			return Cancellation{EndsAt: at}, nil
		}
	}
	if err == nil {
		err = &ProviderError{Reason: Away, Call: "cancel", Code: "no effect"}
	}
	return Cancellation{}, err
}

// endTrial ends a trial immediately.
func (b *Billing) endTrial(ctx context.Context, l Locked, sub *Subscriber, trial access.Entitlement) error {
	now := b.now()
	sub.set(access.Entitlement{Tier: trial.Tier, Status: access.Inactive}, trial.Version, now)
	if err := l.Save(ctx, *sub, nil, nil); err != nil {
		return err
	}
	b.push(ctx, l, sub)
	return nil
}
