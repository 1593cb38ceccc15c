package billing

import (
	"fmt"
	"strings"

	"waitlist.internal/libs/access"
)

// Interval is the billing interval of a plan.
type Interval string

// The intervals.
const (
	Monthly Interval = "monthly"
	Yearly  Interval = "yearly"
)

// Valid reports whether i is one of the intervals.
func (i Interval) Valid() bool { return i == Monthly || i == Yearly }

// Plan is a tier and how often it is paid.
type Plan struct {
	Tier     access.Tier
	Interval Interval
}

// String returns tier.interval.
func (p Plan) String() string { return string(p.Tier) + "." + string(p.Interval) }

// above reports whether p is an upgrade from q: a higher tier, or the same tier with
// a longer interval.
func (p Plan) above(q Plan) bool {
	if p.Tier != q.Tier {
		return p.Tier.AtLeast(q.Tier)
	}
	return p.Interval == Yearly && q.Interval == Monthly
}

// Prices maps plans to the provider's prices and back.
type Prices struct {
	sold  map[Plan]string
	plans map[string]Plan
}

// ParsePrices parses entries of the form tier.interval=id, at least one for each of
// the six plans. New subscriptions get the first price of a plan. Its other prices
// belong to older subscriptions.
func ParsePrices(list []string) (Prices, error) {
	p := Prices{sold: map[Plan]string{}, plans: map[string]Plan{}}
	for _, entry := range list {
		name, id, ok := strings.Cut(strings.TrimSpace(entry), "=")
		tier, interval, dot := strings.Cut(name, ".")
		plan := Plan{access.Tier(tier), Interval(interval)}
		if !ok || !dot || id == "" || !plan.Tier.Valid() || !plan.Interval.Valid() {
			return Prices{}, fmt.Errorf("%q does not have the form tier.interval=price, such as pro.monthly=price_123", entry)
		}
		if other, used := p.plans[id]; used {
			return Prices{}, fmt.Errorf("price %s belongs to both %s and %s", id, other, plan)
		}
		p.plans[id] = plan
		if p.sold[plan] == "" {
			p.sold[plan] = id
		}
	}
	for _, tier := range []access.Tier{access.Basic, access.Advanced, access.Pro} {
		for _, interval := range []Interval{Monthly, Yearly} {
			if plan := (Plan{tier, interval}); p.sold[plan] == "" {
				return Prices{}, fmt.Errorf("%s has no price", plan)
			}
		}
	}
	return p, nil
}

// Plan returns the plan of a price.
func (p Prices) Plan(priceID string) (Plan, bool) {
	plan, ok := p.plans[priceID]
	return plan, ok
}

// Sold returns the price for new subscriptions to a plan.
func (p Prices) Sold(plan Plan) string { return p.sold[plan] }
