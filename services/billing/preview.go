package billing

import (
	"context"
	"fmt"

	"waitlist.internal/libs/access"
)

// Preview is the cost of a change of plan.
type Preview struct {
	// Already is set if New is the current plan. The other fields are then zero.
	Already   bool
	Had, New  Plan
	Proration Money
	Recurring Money
	IsUpgrade bool
	// Charge is set if the change charges something immediately.
	Charge bool
}

// Preview returns the cost of changing to a plan now, as the provider calculates it.
// It returns VALIDATION_ERROR if there is no paid subscription.
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
	none := invalid("subscription", "You need an active paid subscription.")
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
