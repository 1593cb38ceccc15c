package stripesim

import (
	"fmt"
	"time"
)

// Values of proration_behavior.
const (
	createProrations = "create_prorations" // charged on the next invoice
	alwaysInvoice    = "always_invoice"    // invoiced immediately
	noProration      = "none"
)

// change describes how an update changes a subscription's price.
type change struct {
	price    price
	quantity int64
	behavior string
	at       int64 // proration date, epoch seconds
	now      int64
}

// outcome is the cost of a change: lines of an invoice made now or of the next one, and the period that it starts, if any.
type outcome struct {
	lines     []line
	immediate bool
	reset     bool // a new period begins now
	period    period
}

// plan computes the cost of a change without changing anything. Previews and updates both call it, so that an update charges
// what the preview showed.
func (s *Server) plan(sub *subscription, c change) outcome {
	item := sub.Sim.Item
	if item.Price.ID == c.price.ID && item.Quantity == c.quantity || sub.Status == trialing {
		return outcome{}
	}
	var out outcome
	reset := item.Price.Recurring != c.price.Recurring
	if c.behavior != noProration && (sub.Status == active || sub.Status == pastDue) {
		out.lines = append(out.lines, s.prorated(sub, item.Price, item.Quantity, c.at, -1))
		if !reset {
			out.lines = append(out.lines, s.prorated(sub, c.price, c.quantity, c.at, 1))
		}
	}
	if reset {
		out.reset, out.immediate = true, true
		out.period = period{Start: c.now, End: nextPeriod(c.now, 1, c.price.Recurring.Interval)}
		out.lines = append(out.lines, s.whole(sub, c.price, c.quantity, out.period))
		return out
	}
	out.immediate = c.behavior == alwaysInvoice
	return out
}

// prorated returns the part of a price for the rest of the period, computed by the second and rounded to the nearest unit. A
// sign of -1 makes it a credit.
func (s *Server) prorated(sub *subscription, p price, quantity, at int64, sign int64) line {
	whole := p.UnitAmount * quantity
	length := sub.CurrentPeriodEnd - sub.CurrentPeriodStart
	rest := min(max(0, sub.CurrentPeriodEnd-at), length)
	amount := sign * divide(whole*rest, length)
	what := "Remaining time on"
	if sign < 0 {
		what = "Unused time on"
	}
	l := s.whole(sub, p, quantity, period{Start: at, End: sub.CurrentPeriodEnd})
	l.Amount, l.Proration, l.Type = amount, true, "invoiceitem"
	l.Description = fmt.Sprintf("%s %s after %s", what, s.name(p), time.Unix(at, 0).UTC().Format("02 Jan 2006"))
	return l
}

// whole returns the line for a full period.
func (s *Server) whole(sub *subscription, p price, quantity int64, of period) line {
	return line{
		ID: s.cfg.ID("il_"), Object: "line_item", Amount: p.UnitAmount * quantity, Currency: p.Currency,
		Description:  fmt.Sprintf("%d × %s (at %s / %s)", quantity, s.name(p), money(p.UnitAmount, p.Currency), p.Recurring.Interval),
		Discountable: true, Metadata: sub.Metadata, Period: of, Price: p, Quantity: quantity,
		Subscription: ref(sub.ID), SubscriptionItem: ref(sub.Sim.Item.ID), Type: "subscription",
	}
}

func (s *Server) name(p price) string {
	if prod, ok := s.state.Products.byID[string(p.Product)]; ok {
		return prod.Name
	}
	return p.ID
}

// divide divides integers of the same sign and rounds halves up.
func divide(a, b int64) int64 {
	if b == 0 {
		return 0
	}
	return (2*a + b) / (2 * b)
}

// nextPeriod returns the time n intervals after the anchor: the same time of day on the same day of the month, or on the
// month's last day if it is shorter.
func nextPeriod(anchor int64, n int, interval string) int64 {
	t := time.Unix(anchor, 0).UTC()
	months := n
	if interval == "year" {
		months = 12 * n
	}
	first := time.Date(t.Year(), t.Month()+time.Month(months), 1, t.Hour(), t.Minute(), t.Second(), 0, time.UTC)
	last := first.AddDate(0, 1, -1).Day()
	return first.AddDate(0, 0, min(t.Day(), last)-1).Unix()
}

// total sums the lines.
func total(lines []line) int64 {
	var sum int64
	for _, l := range lines {
		sum += l.Amount
	}
	return sum
}

// money formats an amount in the smallest unit for people.
func money(amount int64, currency string) string {
	sign := ""
	if amount < 0 {
		sign, amount = "-", -amount
	}
	switch currency {
	case "usd":
		return fmt.Sprintf("%s$%d.%02d", sign, amount/100, amount%100)
	case "jpy":
		return fmt.Sprintf("%s¥%d", sign, amount)
	case "bif", "clp", "djf", "gnf", "kmf", "krw", "mga", "pyg", "rwf", "ugx", "vnd", "vuv", "xaf", "xof", "xpf":
		return fmt.Sprintf("%s%d %s", sign, amount, currency)
	}
	return fmt.Sprintf("%s%d.%02d %s", sign, amount/100, amount%100, currency)
}
