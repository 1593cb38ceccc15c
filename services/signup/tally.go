package signup

import (
	"context"
	"time"

	"waitlist.internal/libs/access"
	"waitlist.internal/libs/apierr"
)

// maxReferrers bounds the top referrers of an answer.
const maxReferrers = 10

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

// Analytics authorizes the actor to see a waitlist's analytics, and returns the id and
// at most limit top referrers. invalid is a fault of the request's parameters, or nil.
func (a *Admin) Analytics(
	ctx context.Context, actor access.Actor, waitlistID string, limit int, invalid *apierr.Field,
) (id string, top []Referrer, err error) {
	w, grant, err := a.owners.Authorize(ctx, actor, waitlistID)
	if err != nil {
		return "", nil, err
	}
	if invalid != nil {
		return "", nil, apierr.Validation(*invalid)
	}
	if err := access.RequireTier(grant.Entitlement, access.Pro, "Analytics"); err != nil {
		return "", nil, err
	}
	if limit = min(limit, maxReferrers); limit > 0 {
		top, err = a.store.TopReferrers(ctx, w.ID, limit)
	}
	return w.ID, top, err
}

// WaitlistIDs calls next with the ids of all waitlists, in order, in pieces.
func (a *Admin) WaitlistIDs(ctx context.Context, next func(ids []string) error) error {
	return a.store.WaitlistIDs(ctx, next)
}

// Tally calls next with the pieces of a waitlist's tally.
func (a *Admin) Tally(ctx context.Context, waitlistID string, next func(Tally) error) error {
	id, ok := ParseID(waitlistID)
	if !ok {
		return ErrNoWaitlist()
	}
	return a.store.Tally(ctx, id, next)
}
