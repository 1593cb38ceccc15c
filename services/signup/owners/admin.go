package owners

import (
	"context"
	"fmt"
	"log/slog"
	"strconv"
	"time"

	"github.com/google/uuid"

	"waitlist.internal/libs/access"
	"waitlist.internal/libs/apierr"
	"waitlist.internal/libs/audit"
	"waitlist.internal/libs/body"
	"waitlist.internal/services/signup/join"
	"waitlist.internal/services/signup/queue"
	"waitlist.internal/services/signup/waitlist"
)

// maxPosition is the highest position of a request. JSON numbers are exact up to it.
const maxPosition = 1 << 53

// Page sizes of the list of signups.
const (
	pageDefault = 50
	pageMax     = 100
)

// Row is a signup as its owner sees it.
type Row struct {
	queue.Signup

	// Position does not include the offset.
	Position int64
	// ReferredBy is the token of the referrer, credited or not, nil without one.
	ReferredBy                                             *queue.Token
	UTMSource, UTMMedium, UTMCampaign, UTMTerm, UTMContent string
	// Answers is a JSON object by question id, nil without answers.
	Answers []byte
	Device  string
	// Flagged names what the referral guard found, "" if nothing; nil if the guard is off
	// and no signup of the waitlist is flagged.
	Flagged *string
}

// Page is a part of a waitlist's queue in one snapshot.
type Page struct {
	Rows []Row
	// Change is the number of the newest change in the snapshot.
	Change int64
	// Lost says that the store can no longer tell where the previous page ended. There
	// are no rows then.
	Lost bool
}

// AdminStore reads the signups of a waitlist for its owner.
type AdminStore interface {
	TallyStore
	ExportStore
	ImportStore
	// Page returns the first limit signups of a queue, or the first behind after. guarded
	// says that the referral guard is on.
	Page(ctx context.Context, waitlistID string, after *queue.PageEnd, limit int, guarded bool) (Page, error)
	// Counters returns the displayed counter and the number of live signups with a
	// credited referrer, read at one moment.
	Counters(ctx context.Context, waitlistID string) (total, credited int64, err error)
}

// Admin is the owners' side of the signups on a waitlist. Its methods check in the
// order of Owners, and whether the signup exists last.
type Admin struct {
	owners *Owners
	svc    *join.Service
	store  AdminStore
	// accounts is nil if nobody has to verify their address.
	accounts Accounts
	now      func() time.Time
	log      *slog.Logger
	// An export holds a connection, an import its body and its rows.
	exports, imports *gate
	held             held
}

// NewAdmin returns the owners' side of the signups of svc. owners authorizes. accounts is nil if blasts need no
// verified addresses.
func NewAdmin(
	owners *Owners, svc *join.Service, store AdminStore, accounts Accounts, now func() time.Time, log *slog.Logger,
) *Admin {
	return &Admin{
		owners: owners, svc: svc, store: store, accounts: accounts, now: now, log: log,
		exports: newGate("exports", 4, 1, 3*time.Second), imports: newGate("imports", 3, 1, 10*time.Second),
	}
}

// List returns a page of the queue, front first, and the cursor of the next page, ""
// on the last one. limit and lastKey are query parameters as sent. A signup that
// does not move appears on exactly one page, whatever happens between the pages.
func (a *Admin) List(ctx context.Context, actor access.Actor, waitlistID, limit, lastKey string) (rows []Row, next string, err error) {
	w, _, err := a.owners.Authorize(ctx, actor, waitlistID)
	if err != nil {
		return nil, "", err
	}
	id, err := uuid.Parse(w.ID)
	if err != nil {
		return nil, "", fmt.Errorf("parse waitlist id: %w", err)
	}
	var (
		faults []apierr.Field
		after  *queue.PageEnd
		n      = pageDefault
	)
	if limit != "" {
		if n, err = strconv.Atoi(limit); err != nil || n < 1 || n > pageMax {
			faults = append(faults, apierr.Field{Field: "limit", Message: fmt.Sprintf("This must be an integer from 1 to %d.", pageMax)})
		}
	}
	if lastKey != "" {
		place, fault := queue.ParseCursor(lastKey, id, a.now())
		if fault != "" {
			faults = append(faults, apierr.Field{Field: "last_key", Message: fault})
		}
		after = &place
	}
	if len(faults) > 0 {
		return nil, "", apierr.Validation(faults...)
	}
	// One more row tells whether there is another page.
	page, err := a.store.Page(ctx, w.ID, after, n+1, w.Settings.ReferralGuard.On())
	switch {
	case err != nil:
		return nil, "", err
	case page.Lost:
		return nil, "", apierr.Validation(apierr.Field{Field: "last_key", Message: queue.CursorOld})
	case len(page.Rows) <= n:
		return page.Rows, "", nil
	}
	return page.Rows[:n], queue.PageEnd{Key: page.Rows[n-1].QueueKey, Change: page.Change}.Cursor(id, a.now()), nil
}

// Remove takes a signup off the list.
func (a *Admin) Remove(ctx context.Context, actor access.Actor, waitlistID, email string) error {
	w, _, err := a.writable(ctx, actor, waitlistID)
	if err != nil {
		return err
	}
	return a.svc.Remove(ctx, w.ID, email, audit.By(actor, w.OwnerID, audit.SignupRemoved, ""))
}

// Move moves a signup to the position in the request body raw. It returns the
// signup's address and new position.
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
		in.Fail("position", body.Required)
	}
	if err := in.Err(); err != nil {
		return "", 0, err
	}
	if err := access.RequireTier(grant.Entitlement, access.Advanced, "Moving signups"); err != nil {
		return "", 0, err
	}
	return a.svc.Move(ctx, w.ID, email, position, audit.By(actor, w.OwnerID, audit.SignupMoved, ""))
}

// Credit gives a signup's referrer the credit that was withheld, as the request body raw
// says. It returns the signup's address.
func (a *Admin) Credit(ctx context.Context, actor access.Actor, waitlistID, email string, raw []byte) (string, error) {
	w, _, err := a.writable(ctx, actor, waitlistID)
	if err != nil {
		return "", err
	}
	in, err := body.Parse(raw)
	if err != nil {
		return "", err
	}
	switch credit, given := in.Bool("credit"); {
	case in.Failed("credit"):
	case !given:
		in.Fail("credit", body.Required)
	case !credit:
		in.Fail("credit", "This must be true: a credit cannot be taken back.")
	}
	if err := in.Err(); err != nil {
		return "", err
	}
	return a.svc.Credit(ctx, w.ID, email, audit.By(actor, w.OwnerID, audit.SignupCredited, ""))
}

// Stats holds the counters that an owner sees.
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

// MayRead returns an error if the actor may not read the waitlist.
func (a *Admin) MayRead(ctx context.Context, actor access.Actor, waitlistID string) error {
	_, _, err := a.owners.Authorize(ctx, actor, waitlistID)
	return err
}

// writable is Authorize for changes of the list.
func (a *Admin) writable(ctx context.Context, actor access.Actor, waitlistID string) (waitlist.Waitlist, access.Grant, error) {
	w, grant, err := a.owners.Authorize(ctx, actor, waitlistID)
	if err != nil {
		return waitlist.Waitlist{}, access.Grant{}, err
	}
	return w, grant, grant.RequireWrite()
}
