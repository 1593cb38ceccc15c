package billing

import (
	"fmt"
	"strings"

	"waitlist.internal/libs/access"
)

// Interval is how often a plan is paid.
type Interval string

// The intervals.
const (
	Monthly Interval = "monthly"
	Yearly  Interval = "yearly"
)

// Valid reports whether i is one of the two.
func (i Interval) Valid() bool { return i == Monthly || i == Yearly }

// Plan is what is subscribed to.
type Plan struct {
	Tier     access.Tier
	Interval Interval
}

// String is tier.interval.
func (p Plan) String() string { return string(p.Tier) + "." + string(p.Interval) }

// above reports whether p is more than q: a higher tier, or the longer interval of
// the same.
func (p Plan) above(q Plan) bool {
	if p.Tier != q.Tier {
		return p.Tier.AtLeast(q.Tier)
	}
	return p.Interval == Yearly && q.Interval == Monthly
}

// Prices says which of the provider's prices stands for which plan.
type Prices struct {
	sold  map[Plan]string
	plans map[string]Plan
}

// ParsePrices reads tier.interval=id for each of the six plans. Where a plan has
// several prices the first is sold; the others are those of older subscriptions.
func ParsePrices(list []string) (Prices, error) {
	p := Prices{sold: map[Plan]string{}, plans: map[string]Plan{}}
	for _, entry := range list {
		name, id, ok := strings.Cut(strings.TrimSpace(entry), "=")
		tier, interval, dot := strings.Cut(name, ".")
		plan := Plan{access.Tier(tier), Interval(interval)}
		if !ok || !dot || id == "" || !plan.Tier.Valid() || !plan.Interval.Valid() {
			return Prices{}, fmt.Errorf("%q is not tier.interval=price, such as pro.monthly=price_123", entry)
		}
		if other, used := p.plans[id]; used {
			return Prices{}, fmt.Errorf("price %s stands for %s and %s", id, other, plan)
		}
		p.plans[id] = plan
		if p.sold[plan] == "" {
			p.sold[plan] = id
		}
	}
	for _, tier := range []access.Tier{access.Basic, access.Advanced, access.Pro} {
		for _, interval := range []Interval{Monthly, Yearly} {
			if plan := (Plan{tier, interval}); p.sold[plan] == "" {
				return Prices{}, fmt.Errorf("no price for %s", plan)
			}
		}
	}
	return p, nil
}

// Plan returns what a price stands for.
func (p Prices) Plan(priceID string) (Plan, bool) {
	plan, ok := p.plans[priceID]
	return plan, ok
}

// Sold returns the price of new subscriptions to a plan.
func (p Prices) Sold(plan Plan) string { return p.sold[plan] }
