package billing

import (
	"context"
	"fmt"

	"waitlist.internal/libs/access"
)

// Preview is what a change of plan would cost.
type Preview struct {
	// Already is set where the plan is the present one; nothing else counts then
	// but New.
	Already   bool
	Had, New  Plan
	Proration Money
	Recurring Money
	IsUpgrade bool
	// Charge reports whether something is charged at once.
	Charge bool
}

// Preview says what a change to a plan would cost now, as the provider works it
// out. Without a paid subscription it is VALIDATION_ERROR.
func (b *Billing) Preview(ctx context.Context, actor access.Actor, plan Plan) (Preview, error) {
	ctx, cancel := context.WithTimeout(ctx, workTime)
	defer cancel()
	p, err := b.preview(ctx, actor, plan)
	if err != nil {
		return Preview{}, outward(fmt.Errorf("preview: %w", err))
	}
	return p, nil
}

func (b *Billing) preview(ctx context.Context, actor access.Actor, plan Plan) (Preview, error) {
	none := invalid("subscription", "must be an active paid one")
	sub, err := b.Store.Subscriber(ctx, actor.AccountID)
	if err != nil {
		return Preview{}, err
	}
	if sub.CustomerID == "" {
		return Preview{}, none
	}
	list, err := b.Provider.Subscriptions(ctx, sub.CustomerID)
	if because(err, Missing) {
		return Preview{}, none
	}
	if err != nil {
		return Preview{}, err
	}
	live, _, _ := choose(b.ours(list))
	if live == nil {
		return Preview{}, none
	}
	had, known := b.Prices.Plan(live.PriceID)
	if !known {
		had = Plan{Tier: b.tier(ctx, sub, *live)}
	}
	if had == plan {
		return Preview{Already: true, New: plan}, nil
	}
	priceID := b.Prices.Sold(plan)
	price, err := b.Provider.Price(ctx, priceID)
	if err != nil {
		return Preview{}, err
	}
	quote, err := b.Provider.Quote(ctx, *live, priceID)
	if err != nil {
		return Preview{}, err
	}
	return Preview{
		Had: had, New: plan, Proration: Money{quote.Amount, quote.Currency}, Recurring: Money{price.Amount, price.Currency},
		IsUpgrade: plan.above(had), Charge: quote.Due > 0,
	}, nil
}
