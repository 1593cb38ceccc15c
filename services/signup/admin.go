package signup

import (
	"context"
	"time"

	"waitlist.internal/libs/access"
	"waitlist.internal/libs/body"
)

// maxPosition is the highest position that may be asked for: JSON numbers are
// exact up to here.
const maxPosition = 1 << 53

// AdminStore keeps the signups of a waitlist for its owner.
type AdminStore interface {
	// Counters returns the displayed counter and the number of live signups with a
	// credited referrer, of one moment.
	Counters(ctx context.Context, waitlistID string) (total, credited int64, err error)
}

// Admin is the owners' side of the signups on a waitlist. Its methods decide in
// the order that Owners does; a signup that is not there comes last.
type Admin struct {
	owners *Owners
	svc    *Service
	store  AdminStore
	now    func() time.Time
}

// NewAdmin returns the owners' side of the signups of svc. owners decides who
// may do what.
func NewAdmin(owners *Owners, svc *Service, store AdminStore, now func() time.Time) *Admin {
	return &Admin{owners: owners, svc: svc, store: store, now: now}
}

// Remove takes a signup off the list.
func (a *Admin) Remove(ctx context.Context, actor access.Actor, waitlistID, email string) error {
	w, _, err := a.writable(ctx, actor, waitlistID)
	if err != nil {
		return err
	}
	return a.svc.Remove(ctx, w.ID, email)
}

// Move puts a signup where the body raw says, and returns its address and the
// position that it then has.
func (a *Admin) Move(ctx context.Context, actor access.Actor, waitlistID, email string, raw []byte) (string, int64, error) {
	w, grant, err := a.writable(ctx, actor, waitlistID)
	if err != nil {
		return "", 0, err
	}
	in, err := body.Parse(raw)
	if err != nil {
		return "", 0, err
	}
	position, given := in.IntIn("position", 1, maxPosition)
	if !given && !in.Failed("position") {
		in.Fail("position", "is required")
	}
	if err := in.Err(); err != nil {
		return "", 0, err
	}
	if err := access.RequireTier(grant.Entitlement, access.Advanced, "Moving signups"); err != nil {
		return "", 0, err
	}
	return a.svc.Move(ctx, w.ID, email, position)
}

// Stats are the counters that an owner sees.
type Stats struct {
	WaitlistID string
	Total      int64
	// Referrals counts live signups with a credited referrer.
	Referrals int64
	CreatedAt time.Time
}

// Stats returns a waitlist's counters.
func (a *Admin) Stats(ctx context.Context, actor access.Actor, waitlistID string) (Stats, error) {
	w, _, err := a.owners.Authorize(ctx, actor, waitlistID)
	if err != nil {
		return Stats{}, err
	}
	total, credited, err := a.store.Counters(ctx, w.ID)
	if err != nil {
		return Stats{}, err
	}
	return Stats{WaitlistID: w.ID, Total: total, Referrals: credited, CreatedAt: w.CreatedAt}, nil
}

// writable is Authorize for what changes the list.
func (a *Admin) writable(ctx context.Context, actor access.Actor, waitlistID string) (Waitlist, access.Grant, error) {
	w, grant, err := a.owners.Authorize(ctx, actor, waitlistID)
	if err != nil {
		return Waitlist{}, access.Grant{}, err
	}
	return w, grant, grant.RequireWrite()
}
