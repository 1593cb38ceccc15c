// Package owners is the owners' side of waitlists, and what other services ask about them.
package owners

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"waitlist.internal/libs/access"
	"waitlist.internal/libs/apierr"
	"waitlist.internal/libs/audit"
	"waitlist.internal/libs/body"
	"waitlist.internal/libs/seal"
	"waitlist.internal/services/signup/waitlist"
)

// maxWaitlistName is the longest name of a waitlist, in code points.
const maxWaitlistName = 200

// WaitlistStore stores waitlists. Its methods return NOT_FOUND for a missing or
// deleted waitlist.
type WaitlistStore interface {
	templateStore
	// Waitlist returns one waitlist.
	Waitlist(ctx context.Context, id string) (*waitlist.Waitlist, error)
	// Waitlists returns the waitlists of an owner in order of creation, and, if there
	// are any, the version of the owner's stored entitlement.
	Waitlists(ctx context.Context, ownerID string) (lists []ListedWaitlist, ownerVersion int64, err error)
	// CreateWaitlist inserts what build returns. If an earlier request with the same
	// key created a waitlist, it returns that one and sets replayed. It may call build
	// more than once. The error is AUTHENTICATION_REQUIRED for a closed owner, and
	// CONFLICT for an owner of c.MaxWaitlists waitlists.
	CreateWaitlist(
		ctx context.Context, c Creation, build func(templatesDeleted int64) (Draft, error),
	) (w *waitlist.Waitlist, replayed bool, err error)
	// ChangeWaitlist locks a waitlist and stores what change returns for it. It
	// increments the version and writes by if anything differs. It may call change more than once.
	ChangeWaitlist(
		ctx context.Context, id string, by audit.Entry, change func(w waitlist.Waitlist, templatesDeleted int64) (Draft, error),
	) (*waitlist.Waitlist, error)
	// DeleteWaitlist hides a waitlist and announces its deletion. The purge deletes
	// the rows later.
	DeleteWaitlist(ctx context.Context, id string, by audit.Entry) error
	// CloseOwner deletes all waitlists of an owner for good.
	CloseOwner(ctx context.Context, ownerID string) error
}

// Draft is the part of a waitlist that its owner edits.
type Draft struct {
	Name string
	// Settings are in their stored form; see DecodeSettings.
	Settings []byte
}

// Creation is a request for a new waitlist.
type Creation struct {
	// ID becomes the id of the new waitlist.
	ID        string
	CreatedAt time.Time
	OwnerID   string
	Owner     access.Entitlement
	// AccountID identifies the caller, to whom the idempotency keys belong.
	AccountID string
	// Key is the Idempotency-Key or empty. Content identifies the request.
	Key     string
	Content []byte
	// MaxWaitlists bounds the owner's waitlists; 0 means no bound.
	MaxWaitlists int64
	// By is the entry of the audit trail.
	By audit.Entry
}

// WithinBound returns CONFLICT if an owner of have waitlists may not create another.
func (c Creation) WithinBound(have int64) error {
	if c.MaxWaitlists == 0 || have < c.MaxWaitlists {
		return nil
	}
	return apierr.New(apierr.Conflict, fmt.Sprintf("An account can have at most %d waitlists. Delete one first.", c.MaxWaitlists))
}

// Bounds keep one owner from slowing the others; 0 means no bound.
type Bounds struct {
	// Waitlists bounds the waitlists of an owner.
	Waitlists int64
	// SettingsBytes bounds a waitlist's settings as they are stored.
	SettingsBytes int
}

// OwnedWaitlist is a waitlist as seen by a member with a role.
type OwnedWaitlist struct {
	*waitlist.Waitlist
	Role access.Role
	// SettingsJSON is the settings object of the API.
	SettingsJSON []byte
}

// ListedWaitlist is a waitlist in a member's list. It is small because a list may have
// a thousand.
type ListedWaitlist struct {
	ID          string
	Name        string
	Role        access.Role
	SignupCount int64
	CreatedAt   time.Time
}

// Owners is the owners' side of waitlists. Its methods check in this order: the
// waitlist exists, the actor has access to it, the owner's subscription, the role,
// the body, the tier that the change needs.
type Owners struct {
	store   WaitlistStore
	secrets *seal.Ring
	checker templateChecker
	bounds  Bounds
	now     func() time.Time
}

// NewOwners returns the owners' side of the waitlists in store. secrets seals the
// channel URLs.
func NewOwners(store WaitlistStore, secrets *seal.Ring, templates Templates, bounds Bounds, now func() time.Time) *Owners {
	return &Owners{store: store, secrets: secrets, checker: templateChecker{store, templates}, bounds: bounds, now: now}
}

// Create makes a waitlist for the owner with the address accountEmail, or for the
// actor if that is empty. raw is the request body, key its Idempotency-Key. replayed
// says that an earlier request with that key made the waitlist.
func (o *Owners) Create(
	ctx context.Context, actor access.Actor, accountEmail string, raw []byte, key string,
) (w OwnedWaitlist, replayed bool, err error) {
	grant, err := actor.GrantByEmail(accountEmail)
	if err != nil {
		return w, false, err
	}
	if err := o.writable(actor, grant); err != nil {
		return w, false, err
	}
	id, err := uuid.NewV7()
	if err != nil {
		return w, false, fmt.Errorf("create waitlist id: %w", err)
	}
	type result struct {
		w        *waitlist.Waitlist
		replayed bool
	}
	created, err := withTemplateCheck(ctx, o.checker, grant, raw, func(check templateCheck) (result, error) {
		w, replayed, err := o.store.CreateWaitlist(ctx, Creation{
			ID: id.String(), CreatedAt: o.now().UTC().Truncate(time.Millisecond),
			OwnerID: grant.OwnerID, Owner: grant.Entitlement,
			AccountID: actor.AccountID, Key: key, Content: append([]byte(grant.OwnerID+"\n"), raw...),
			MaxWaitlists: o.bounds.Waitlists, By: audit.By(actor, grant.OwnerID, audit.WaitlistCreated, id.String()),
		}, func(templatesDeleted int64) (Draft, error) {
			if err := check.stillValid(templatesDeleted); err != nil {
				return Draft{}, err
			}
			return o.draft(raw, waitlist.Waitlist{ID: id.String(), Settings: waitlist.DefaultSettings()}, grant.Entitlement.Tier, check)
		})
		return result{w, replayed}, err
	})
	if err != nil {
		return w, false, err
	}
	return OwnedWaitlist{Waitlist: created.w, Role: grant.Role}, created.replayed, nil
}

// List returns the actor's own waitlists and then those of each
// owner whose team the actor is in. It leaves out owners whose waitlists the actor
// may not see at present. If it leaves out all of them, it returns the error of the
// actor's own account.
func (o *Owners) List(ctx context.Context, actor access.Actor) ([]ListedWaitlist, error) {
	var (
		out     []ListedWaitlist
		first   error
		visible bool
	)
	for _, grant := range actor.Grants {
		if err := actor.MemberGate(grant, o.now()); err != nil {
			if grant.Role == access.Owner {
				first = err
			}
			continue
		}
		visible = true
		lists, ownerVersion, err := o.store.Waitlists(ctx, grant.OwnerID)
		if err != nil {
			return nil, err
		}
		for i := range lists {
			lists[i].Role = grant.Role
		}
		out = append(out, lists...)
		if len(lists) > 0 {
			if err := o.storeNewerEntitlement(ctx, ownerVersion, grant); err != nil {
				return nil, err
			}
		}
	}
	if !visible {
		return nil, first
	}
	return out, nil
}

// Get returns a waitlist with its settings.
func (o *Owners) Get(ctx context.Context, actor access.Actor, id string) (OwnedWaitlist, error) {
	w, grant, err := o.Authorize(ctx, actor, id)
	if err != nil {
		return OwnedWaitlist{}, err
	}
	return o.owned(&w, grant)
}

// Update applies the request body raw to the name and the settings.
func (o *Owners) Update(ctx context.Context, actor access.Actor, id string, raw []byte) (OwnedWaitlist, error) {
	w, grant, err := o.Authorize(ctx, actor, id)
	if err != nil {
		return OwnedWaitlist{}, err
	}
	if err := grant.RequireWrite(); err != nil {
		return OwnedWaitlist{}, err
	}
	changed, err := withTemplateCheck(ctx, o.checker, grant, raw, func(check templateCheck) (*waitlist.Waitlist, error) {
		by := audit.By(actor, w.OwnerID, audit.WaitlistUpdated, w.ID)
		return o.store.ChangeWaitlist(ctx, w.ID, by, func(w waitlist.Waitlist, templatesDeleted int64) (Draft, error) {
			if err := check.stillValid(templatesDeleted); err != nil {
				return Draft{}, err
			}
			return o.draft(raw, w, grant.Entitlement.Tier, check)
		})
	})
	if err != nil {
		return OwnedWaitlist{}, err
	}
	return o.owned(changed, grant)
}

// Delete hides a waitlist with everything on it at once. The purge deletes the rows
// soon after.
func (o *Owners) Delete(ctx context.Context, actor access.Actor, id string) error {
	w, grant, err := o.Authorize(ctx, actor, id)
	if err != nil {
		return err
	}
	if err := grant.RequireWrite(); err != nil {
		return err
	}
	return o.store.DeleteWaitlist(ctx, w.ID, audit.By(actor, w.OwnerID, audit.WaitlistDeleted, w.ID))
}

// CloseOwner deletes all waitlists of an account. It may be called again.
func (o *Owners) CloseOwner(ctx context.Context, ownerID string) error {
	return o.store.CloseOwner(ctx, ownerID)
}

// Authorize returns waitlist id and the actor's grant. It is the first step of every
// route on a waitlist. Errors, in this order: NOT_FOUND for an unknown waitlist,
// FORBIDDEN without a grant, and the errors of the owner's subscription.
func (o *Owners) Authorize(ctx context.Context, actor access.Actor, id string) (waitlist.Waitlist, access.Grant, error) {
	w, grant, err := o.find(ctx, actor, id)
	if err == nil {
		err = o.admit(ctx, actor, w, grant)
	}
	return w, grant, err
}

// find is Authorize without the owner's subscription, which admit checks.
func (o *Owners) find(ctx context.Context, actor access.Actor, id string) (waitlist.Waitlist, access.Grant, error) {
	id, ok := waitlist.ParseID(id)
	if !ok {
		return waitlist.Waitlist{}, access.Grant{}, waitlist.ErrNotFound()
	}
	w, err := o.store.Waitlist(ctx, id)
	if err != nil {
		return waitlist.Waitlist{}, access.Grant{}, err
	}
	grant, ok := actor.Grant(w.OwnerID)
	if !ok {
		return waitlist.Waitlist{}, access.Grant{}, apierr.New(apierr.Forbidden, "This waitlist belongs to somebody else.")
	}
	return *w, grant, nil
}

// admit checks the subscription of w's owner, and stores it if it is newer than the stored one.
func (o *Owners) admit(ctx context.Context, actor access.Actor, w waitlist.Waitlist, grant access.Grant) error {
	if err := actor.MemberGate(grant, o.now()); err != nil {
		return err
	}
	return o.storeNewerEntitlement(ctx, w.Owner.Version, grant)
}

// writable checks whether the actor may write for the owner.
func (o *Owners) writable(actor access.Actor, grant access.Grant) error {
	if err := actor.MemberGate(grant, o.now()); err != nil {
		return err
	}
	return grant.RequireWrite()
}

// storeNewerEntitlement stores grant's entitlement if its version is above stored: it may be
// newer than the last event's.
func (o *Owners) storeNewerEntitlement(ctx context.Context, stored int64, grant access.Grant) error {
	if grant.Entitlement.Version <= stored {
		return nil
	}
	return o.store.UpsertEntitlement(ctx, grant.OwnerID, grant.Entitlement)
}

// draft applies a request body to w. A waitlist without a name is new. draft reports
// all field errors at once, and before a tier that is too low.
func (o *Owners) draft(raw []byte, w waitlist.Waitlist, tier access.Tier, check templateCheck) (Draft, error) {
	in, err := body.Parse(raw)
	if err != nil {
		return Draft{}, err
	}
	name, given := in.String("name", 0)
	name = strings.TrimSpace(name)
	switch {
	case in.Failed("name"):
	case !given:
		name = w.Name
		if name == "" {
			in.Fail("name", body.Required)
		}
	case name == "":
		in.Fail("name", body.Required)
	case len([]rune(name)) > maxWaitlistName:
		in.Fail("name", fmt.Sprintf("This must have at most %d characters.", maxWaitlistName))
	}
	draft := Draft{Name: name}
	var tierErr, templateErr error
	if patch, ok := in.Object("settings"); ok {
		draft.Settings, tierErr, err = w.Settings.Merge(patch, w.ID, tier, o.secrets, func(a waitlist.Assignment) bool {
			templateErr = check.err
			return !slices.Contains(check.unknown, a)
		})
	} else {
		draft.Settings, err = w.Settings.Stored()
	}
	if err != nil {
		return Draft{}, err
	}
	if _, sent := in.Raw("settings"); sent && o.bounds.SettingsBytes > 0 && len(draft.Settings) > o.bounds.SettingsBytes {
		in.Fail("settings", fmt.Sprintf("All settings together must have at most %d bytes.", o.bounds.SettingsBytes))
	}
	if err := in.Err(); err != nil {
		return Draft{}, err
	}
	if templateErr != nil {
		return Draft{}, templateErr
	}
	return draft, tierErr
}

func (o *Owners) owned(w *waitlist.Waitlist, grant access.Grant) (OwnedWaitlist, error) {
	settings, err := w.Settings.JSONFor(w.ID, grant.Role, o.secrets)
	if err != nil {
		return OwnedWaitlist{}, err
	}
	return OwnedWaitlist{Waitlist: w, Role: grant.Role, SettingsJSON: settings}, nil
}
