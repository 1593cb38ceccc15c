// Package access holds callers and their rights: actors, their grants, and the
// entitlements of the accounts that they act for.
package access

import (
	"fmt"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"waitlist.internal/libs/apierr"
	"waitlist.internal/libs/emailaddr"
	accessv1 "waitlist.internal/proto/gen/waitlist/access/v1"
)

// Tier is a subscription tier. The zero value is below every tier.
type Tier string

// The tiers, lowest first.
const (
	Basic    Tier = "basic"
	Advanced Tier = "advanced"
	Pro      Tier = "pro"
)

func (t Tier) rank() int {
	switch t {
	case Basic:
		return 1
	case Advanced:
		return 2
	case Pro:
		return 3
	default:
		return 0
	}
}

// Valid reports whether t is one of the three tiers.
func (t Tier) Valid() bool { return t.rank() > 0 }

// AtLeast reports whether t includes the features of want.
func (t Tier) AtLeast(want Tier) bool { return t.rank() >= want.rank() }

// Name returns the name of the plan for people.
func (t Tier) Name() string {
	switch t {
	case Advanced:
		return "Advanced"
	case Pro:
		return "Pro"
	case Basic:
		return "Basic"
	default:
		return string(t)
	}
}

// Status is a subscription status.
type Status string

// The statuses of the contract.
const (
	Trialing  Status = "trialing"
	Active    Status = "active"
	Canceling Status = "canceling"
	Inactive  Status = "inactive"
)

// cancelGrace is how long a canceling subscription outlives its period while
// the provider's event is missing.
const cancelGrace = time.Hour

// Entitlement is what an account may use. A stored value does not change as
// time passes; At evaluates it at a moment.
type Entitlement struct {
	Tier   Tier
	Status Status
	// ValidUntil is the end of the trial or paid period; zero means none known.
	ValidUntil time.Time
	// Trial is set when the entitlement is, or was, a trial.
	Trial bool
	// Version orders entitlements of one account.
	Version int64
}

// At evaluates e at now: a trial becomes inactive at its end, a canceling
// subscription one hour after it.
func (e Entitlement) At(now time.Time) Entitlement {
	if e.ValidUntil.IsZero() {
		return e
	}
	switch {
	case e.Status == Trialing && !now.Before(e.ValidUntil):
		e.Status = Inactive
	case e.Status == Canceling && !now.Before(e.ValidUntil.Add(cancelGrace)):
		e.Status = Inactive
	}
	return e
}

// Gate returns nil if the owner may use authenticated endpoints at now. If not,
// it returns TRIAL_EXPIRED after a trial and FORBIDDEN otherwise.
func (e Entitlement) Gate(now time.Time) error {
	e = e.At(now)
	if e.Status != Inactive {
		return nil
	}
	if e.Trial {
		return apierr.New(apierr.TrialExpired, "Your trial has ended. Please subscribe to continue.")
	}
	return apierr.New(apierr.Forbidden, "Your subscription is inactive. Please subscribe to continue.")
}

// EffectiveTier returns the tier whose features the owner's public pages have at
// now: basic while the owner is inactive.
func (e Entitlement) EffectiveTier(now time.Time) Tier {
	if e.At(now).Status == Inactive {
		return Basic
	}
	return e.Tier
}

// RequireTier returns TIER_REQUIRED if e is below want. The message names the
// plan and what needs it.
func RequireTier(e Entitlement, want Tier, what string) error {
	if e.Tier.AtLeast(want) {
		return nil
	}
	return apierr.New(apierr.TierRequired, fmt.Sprintf("%s requires the %s plan.", what, want.Name()))
}

// Role is an actor's role in an owner's account. A higher role includes the lower
// ones.
type Role int

// The roles, lowest first.
const (
	Viewer Role = iota + 1
	Admin
	Owner
)

// String returns the contract's word for r.
func (r Role) String() string {
	switch r {
	case Viewer:
		return "viewer"
	case Admin:
		return "admin"
	case Owner:
		return "owner"
	default:
		return "none"
	}
}

// ParseRole is the inverse of String; it returns 0 for any other word.
func ParseRole(s string) Role {
	for _, r := range []Role{Viewer, Admin, Owner} {
		if s == r.String() {
			return r
		}
	}
	return 0
}

// Grant is one account that an actor may act for.
type Grant struct {
	OwnerID     string
	OwnerEmail  string
	Role        Role
	Entitlement Entitlement
}

// RequireWrite returns FORBIDDEN to a viewer.
func (g Grant) RequireWrite() error {
	if g.Role >= Admin {
		return nil
	}
	return apierr.New(apierr.Forbidden, "Your role lets you read but not change anything.")
}

// Actor is an authenticated caller. Its first grant is its own account.
type Actor struct {
	AccountID     string
	Email         string
	EmailVerified bool
	// APIKey is set when the caller used an API key instead of a token.
	APIKey bool
	// CredentialID is the session of a token, or the lookup part of an API key.
	CredentialID string
	Grants       []Grant
}

// Grant returns the actor's grant for an owner's account id.
func (a Actor) Grant(ownerID string) (Grant, bool) {
	for _, g := range a.Grants {
		if g.OwnerID == ownerID {
			return g, true
		}
	}
	return Grant{}, false
}

// GrantByEmail returns the actor's grant for an owner's address as people write it; an
// empty address means the actor's own account. The error is FORBIDDEN outside the owner's team.
func (a Actor) GrantByEmail(email string) (Grant, error) {
	if parsed, err := emailaddr.Parse(email); err == nil {
		email = parsed
	}
	email = strings.TrimSpace(email)
	for _, g := range a.Grants {
		if email == "" && g.OwnerID == a.AccountID || email != "" && g.OwnerEmail == email {
			return g, nil
		}
	}
	return Grant{}, apierr.New(apierr.Forbidden, "You are not a member of this account's team.")
}

// MemberGrant is GrantByEmail and MemberGate.
func (a Actor) MemberGrant(email string, now time.Time) (Grant, error) {
	g, err := a.GrantByEmail(email)
	if err == nil {
		err = a.MemberGate(g, now)
	}
	return g, err
}

// MemberGate applies the subscription gate to a grant. The owner's entitlement
// decides; a member also needs a verified address and an owner on Pro.
func (a Actor) MemberGate(g Grant, now time.Time) error {
	if g.Role != Owner && !a.EmailVerified {
		return apierr.New(apierr.EmailNotVerified, "Please verify your email address first.")
	}
	if err := g.Entitlement.Gate(now); err != nil {
		return err
	}
	if g.Role != Owner {
		return RequireTier(g.Entitlement, Pro, "Team access")
	}
	return nil
}

// Proto returns e as a message.
func (e Entitlement) Proto() *accessv1.Entitlement {
	m := &accessv1.Entitlement{
		Tier: string(e.Tier), Status: string(e.Status), Trial: e.Trial, Version: e.Version,
	}
	if !e.ValidUntil.IsZero() {
		m.ValidUntil = timestamppb.New(e.ValidUntil)
	}
	return m
}

// EntitlementFromProto converts m; nil becomes the zero entitlement.
func EntitlementFromProto(m *accessv1.Entitlement) Entitlement {
	e := Entitlement{
		Tier: Tier(m.GetTier()), Status: Status(m.GetStatus()), Trial: m.GetTrial(), Version: m.GetVersion(),
	}
	if m.GetValidUntil() != nil {
		e.ValidUntil = m.GetValidUntil().AsTime()
	}
	return e
}

// Proto returns a as a message.
func (a Actor) Proto() *accessv1.Actor {
	m := &accessv1.Actor{
		AccountId: a.AccountID, Email: a.Email, EmailVerified: a.EmailVerified, Method: accessv1.Method_METHOD_JWT,
		CredentialId: a.CredentialID,
	}
	if a.APIKey {
		m.Method = accessv1.Method_METHOD_API_KEY
	}
	for _, g := range a.Grants {
		m.Grants = append(m.Grants, &accessv1.Grant{
			OwnerId: g.OwnerID, OwnerEmail: g.OwnerEmail, Entitlement: g.Entitlement.Proto(),
			Role: accessv1.Role(g.Role),
		})
	}
	return m
}

// ActorFromProto converts m; nil becomes an actor without grants.
func ActorFromProto(m *accessv1.Actor) Actor {
	a := Actor{
		AccountID: m.GetAccountId(), Email: m.GetEmail(), EmailVerified: m.GetEmailVerified(),
		APIKey: m.GetMethod() == accessv1.Method_METHOD_API_KEY, CredentialID: m.GetCredentialId(),
	}
	for _, g := range m.GetGrants() {
		a.Grants = append(a.Grants, Grant{
			OwnerID: g.GetOwnerId(), OwnerEmail: g.GetOwnerEmail(), Role: Role(g.GetRole()),
			Entitlement: EntitlementFromProto(g.GetEntitlement()),
		})
	}
	return a
}
