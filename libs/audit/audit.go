// Package audit keeps the trail of who did what in an owner's account.
//
//	effect ─┐
//	        ├─ one transaction ─► table audit of the service's schema ─► AuditService ─► account
//	entry  ─┘                     append-only; Prune after the retention
//
// An entry names accounts, credentials and things by their ids, and a signup by its
// waitlist and its number. It never holds an address, a token or a text that somebody
// wrote: a reader of the trail need not be allowed to see those.
//
// Entries are ordered by their ids, which are UUIDv7: by time, over all services. An entry
// becomes visible when its transaction commits, so an entry of a long transaction may
// appear behind newer ones.
package audit

import (
	"context"
	"slices"
	"time"

	"waitlist.internal/libs/access"
)

// Action is what was done. The names are part of the API: never change one.
type Action string

// The actions. A comment names the target, if there is one.
const (
	Registered      Action = "account.registered"
	AddressVerified Action = "account.verified"

	Login        Action = "auth.login"         // session
	LoginRefused Action = "auth.login_refused" // a wrong password, wherever one is asked for
	// RefreshRefused is the second use of a refresh token, which ends its session.
	RefreshRefused  Action = "auth.refresh_refused" // session
	SessionEnded    Action = "auth.session_ended"   // session
	APIKeyRotated   Action = "auth.api_key_rotated" // the new key's lookup part
	PasswordChanged Action = "auth.password_changed"
	PasswordReset   Action = "auth.password_reset"
	MemberInvited   Action = "team.invited" // membership
	MemberRemoved   Action = "team.removed" // membership
	MemberLeft      Action = "team.left"    // membership
	WaitlistCreated Action = "waitlist.created"
	WaitlistUpdated Action = "waitlist.updated"
	WaitlistDeleted Action = "waitlist.deleted"
	SignupRemoved   Action = "signup.removed"   // waitlist/number
	SignupMoved     Action = "signup.moved"     // waitlist/number
	SignupCredited  Action = "signup.credited"  // waitlist/number
	SignupsExported Action = "signups.exported" // waitlist
	SignupsImported Action = "signups.imported" // waitlist
	TemplateCreated Action = "template.created"
	TemplateUpdated Action = "template.updated"
	TemplateDeleted Action = "template.deleted"
	BlastCreated    Action = "blast.created"
	DomainCreated   Action = "domain.created"
	DomainDeleted   Action = "domain.deleted"
)

// Known reports whether a is one of the actions.
func (a Action) Known() bool {
	return slices.Contains([]Action{
		Registered, AddressVerified, Login, LoginRefused, RefreshRefused, SessionEnded, APIKeyRotated, PasswordChanged, PasswordReset,
		MemberInvited, MemberRemoved, MemberLeft, WaitlistCreated, WaitlistUpdated, WaitlistDeleted, SignupRemoved, SignupMoved,
		SignupCredited, SignupsExported, SignupsImported, TemplateCreated, TemplateUpdated, TemplateDeleted, BlastCreated, DomainCreated,
		DomainDeleted,
	}, a)
}

// Entry is one line of a trail.
type Entry struct {
	// ID is a UUIDv7 and At its time. Insert sets both, and RequestID.
	ID string
	At time.Time
	// OwnerID is the account to whose trail the entry belongs.
	OwnerID string
	// Actor is the acting account. It is empty if the caller did not prove who it is.
	Actor string
	// Credential is the session of a token, or the lookup part of an API key. It is empty
	// if there was neither.
	Credential string
	// Role is the actor's role in the owner's account, 0 without an actor.
	Role      access.Role
	Action    Action
	Target    string
	RequestID string
}

// By returns the entry for an actor's action in an owner's account.
func By(actor access.Actor, ownerID string, action Action, target string) Entry {
	g, _ := actor.Grant(ownerID)
	return Entry{
		OwnerID: ownerID, Actor: actor.AccountID, Credential: actor.CredentialID, Role: g.Role, Action: action, Target: target,
	}
}

// On returns e with a target that became known later.
func (e Entry) On(target string) Entry {
	e.Target = target
	return e
}

// Query asks for a part of an owner's trail.
type Query struct {
	OwnerID string
	// Action is the action of the entries; empty means all.
	Action Action
	// Before is an exclusive upper bound of the entries' ids; empty means from the newest on.
	Before string
	Limit  int
}

// Trail is the trail of one service. *Table and Remote implement it.
type Trail interface {
	// Entries returns entries newest first. Fewer than the limit means that there are no more.
	Entries(ctx context.Context, q Query) ([]Entry, error)
}
