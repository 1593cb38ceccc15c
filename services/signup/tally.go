package signup

import (
	"context"
	"time"

	"waitlist.internal/libs/access"
	"waitlist.internal/libs/apierr"
)

// maxReferrers is the most top referrers that are given.
const maxReferrers = 10

// Referrer is a signup that others named.
type Referrer struct {
	Email         string
	FirstName     string
	ReferralCount int64
}

// Tally is a piece of what a waitlist's signups add up to, those that have left
// included.
type Tally struct {
	// LastNumber is set in the first piece: every signup up to it is counted.
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

// TallyStore reads what analytics need of the signups themselves.
type TallyStore interface {
	// TopReferrers returns the first limit signups that others named, most often
	// named first, then who reached that first.
	TopReferrers(ctx context.Context, waitlistID string, limit int) ([]Referrer, error)
	// WaitlistIDs calls next with the ids of all waitlists, in order, in pieces.
	WaitlistIDs(ctx context.Context, next func(ids []string) error) error
	// Tally calls next with the pieces of a waitlist's tally, all of one moment;
	// days and values come once each. NOT_FOUND where there is no such waitlist.
	Tally(ctx context.Context, waitlistID string, next func(Tally) error) error
}

// Analytics decides whether the actor may see a waitlist's analytics, and
// returns its id and the top referrers, at most limit. invalid is what is wrong
// with the request's parameters, nil for nothing.
func (a *Admin) Analytics(ctx context.Context, actor access.Actor, waitlistID string, limit int, invalid *apierr.Field) (id string, top []Referrer, err error) {
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

// Tally is TallyStore's.
func (a *Admin) Tally(ctx context.Context, waitlistID string, next func(Tally) error) error {
	id, ok := ParseID(waitlistID)
	if !ok {
		return ErrNoWaitlist()
	}
	return a.store.Tally(ctx, id, next)
}
