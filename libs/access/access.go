// Package access says who calls and what they may do: actors, their grants,
// and the entitlements of the accounts behind them.
package access

import (
	"fmt"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"waitlist.internal/libs/apierr"
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

// Name is the tier as plans are named to people.
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

// cancelGrace is how long a canceling subscription outlives its period when
// the provider's event does not come.
const cancelGrace = time.Hour

// Entitlement is what an account may use. Stored values do not change when
// time passes; At gives them their meaning at a moment.
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

// At returns e as it is at now: a trial is inactive from its end on, a
// canceling subscription one hour after it.
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

// Gate returns nil where the owner may use authenticated endpoints at now,
// TRIAL_EXPIRED after a trial, else FORBIDDEN.
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

// EffectiveTier is the tier whose features the public side of the owner's
// waitlists has at now: basic while the owner is inactive.
func (e Entitlement) EffectiveTier(now time.Time) Tier {
	if e.At(now).Status == Inactive {
		return Basic
	}
	return e.Tier
}

// RequireTier returns TIER_REQUIRED, naming the plan and what needs it, where
// e is below want.
func RequireTier(e Entitlement, want Tier, what string) error {
	if e.Tier.AtLeast(want) {
		return nil
	}
	return apierr.New(apierr.TierRequired, fmt.Sprintf("%s requires the %s plan.", what, want.Name()))
}

// Role is what an actor is to an owner. Higher includes lower.
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

// ParseRole returns the role that String names so, or 0.
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
	return apierr.New(apierr.Forbidden, "Your role allows reading only.")
}

// Actor is an authenticated caller. Its first grant is its own account.
type Actor struct {
	AccountID     string
	Email         string
	EmailVerified bool
	// APIKey is set when the caller used an API key instead of a token.
	APIKey bool
	Grants []Grant
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

// GrantByEmail returns the actor's grant for an owner's address; an empty
// address means the actor's own account.
func (a Actor) GrantByEmail(email string) (Grant, bool) {
	if email == "" {
		return a.Grant(a.AccountID)
	}
	for _, g := range a.Grants {
		if g.OwnerEmail == email {
			return g, true
		}
	}
	return Grant{}, false
}

// MemberGate is the subscription gate as a route applies it to a grant: the
// owner's own state decides, and a member needs a verified address and an
// owner on Pro.
func (a Actor) MemberGate(g Grant, now time.Time) error {
	if g.Role != Owner && !a.EmailVerified {
		return apierr.New(apierr.EmailNotVerified, "Please verify your e-mail address first.")
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

// EntitlementFromProto reads m; nil is the zero entitlement.
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

// ActorFromProto reads m; nil is an actor without grants.
func ActorFromProto(m *accessv1.Actor) Actor {
	a := Actor{
		AccountID: m.GetAccountId(), Email: m.GetEmail(), EmailVerified: m.GetEmailVerified(),
		APIKey: m.GetMethod() == accessv1.Method_METHOD_API_KEY,
	}
	for _, g := range m.GetGrants() {
		a.Grants = append(a.Grants, Grant{
			OwnerID: g.GetOwnerId(), OwnerEmail: g.GetOwnerEmail(), Role: Role(g.GetRole()),
			Entitlement: EntitlementFromProto(g.GetEntitlement()),
		})
	}
	return a
}
