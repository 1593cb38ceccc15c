package owners

import (
	"cmp"
	"context"
	"time"

	"waitlist.internal/libs/access"
	"waitlist.internal/libs/apierr"
	"waitlist.internal/services/signup/waitlist"
)

// topReferrers is how many referrers analytics show.
const topReferrers = 10

// Referrer is a signup that referred others.
type Referrer struct {
	Email         string
	FirstName     string
	ReferralCount int64
}

// Tally is a piece of the sums over a waitlist's signups, removed ones included.
type Tally struct {
	// LastNumber is set in the first piece. Every signup up to it is counted.
	LastNumber int64
	Days       []DayTally
	Values     []ValueTally
}

// DayTally counts the signups of one UTC day.
type DayTally struct {
	Day       time.Time
	Signups   int64
	Referrals int64
}

// ValueTally counts the signups with a value in a field.
type ValueTally struct {
	// Field is utm_source, utm_medium or utm_campaign.
	Field      string
	Value      string
	Count      int64
	LastNumber int64
}

// TallyStore reads signups for analytics.
type TallyStore interface {
	// TopReferrers returns the limit signups with the most referrals, highest first.
	// Of equals, the one that reached its count first comes first.
	TopReferrers(ctx context.Context, waitlistID string, limit int) ([]Referrer, error)
	// WaitlistIDs calls next with the ids of all waitlists, in order, in pieces.
	WaitlistIDs(ctx context.Context, next func(ids []string) error) error
	// Tally calls next with the pieces of a waitlist's tally, read at one moment. Each
	// day and each value comes once. NOT_FOUND: there is no such waitlist.
	Tally(ctx context.Context, waitlistID string, next func(Tally) error) error
}

// Analytics is what signup knows of a waitlist's analytics.
type Analytics struct {
	WaitlistID string
	// Range is what was asked for: 7d, 30d or 90d.
	Range        string
	Days         int32
	TopReferrers []Referrer
}

// Analytics authorizes the actor to see a waitlist's analytics over the range of a query,
// 30d if it is empty.
func (a *Admin) Analytics(ctx context.Context, actor access.Actor, waitlistID, within string) (Analytics, error) {
	w, grant, err := a.owners.Authorize(ctx, actor, waitlistID)
	if err != nil {
		return Analytics{}, err
	}
	out := Analytics{WaitlistID: w.ID, Range: cmp.Or(within, "30d")}
	switch out.Range {
	case "7d":
		out.Days = 7
	case "30d":
		out.Days = 30
	case "90d":
		out.Days = 90
	default:
		return Analytics{}, apierr.Validation(apierr.Field{Field: "range", Message: "Choose 7d, 30d or 90d."})
	}
	if err := requireAnalytics(grant); err != nil {
		return Analytics{}, err
	}
	out.TopReferrers, err = a.store.TopReferrers(ctx, w.ID, topReferrers)
	return out, err
}

// Origins authorizes the actor to see what brought a waitlist's signups, and returns its id.
func (a *Admin) Origins(ctx context.Context, actor access.Actor, waitlistID string) (id string, err error) {
	w, grant, err := a.owners.Authorize(ctx, actor, waitlistID)
	if err != nil {
		return "", err
	}
	return w.ID, requireAnalytics(grant)
}

func requireAnalytics(grant access.Grant) error {
	return access.RequireTier(grant.Entitlement, access.Pro, "Analytics")
}

// WaitlistIDs calls next with the ids of all waitlists, in order, in pieces.
func (a *Admin) WaitlistIDs(ctx context.Context, next func(ids []string) error) error {
	return a.store.WaitlistIDs(ctx, next)
}

// Tally calls next with the pieces of a waitlist's tally.
func (a *Admin) Tally(ctx context.Context, waitlistID string, next func(Tally) error) error {
	id, ok := waitlist.ParseID(waitlistID)
	if !ok {
		return waitlist.ErrNotFound()
	}
	return a.store.Tally(ctx, id, next)
}
