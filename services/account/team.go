package account

import (
	"context"
	"errors"
	"fmt"
	"time"

	"waitlist.internal/libs/access"
	"waitlist.internal/libs/apierr"
	"waitlist.internal/libs/audit"
	"waitlist.internal/libs/body"
	"waitlist.internal/libs/emailaddr"
)

// InviteLimit is how many invitations an account may send within InviteWindow.
// Each one is an unsolicited mail.
const (
	InviteLimit  = 100
	InviteWindow = 24 * time.Hour
)

// ErrMemberExists means that the address is already on the team.
var ErrMemberExists = errors.New("account: member exists")

// Member is an address that may act for an account besides its owner. The role
// applies once an account has verified the address.
type Member struct {
	// Email is normalized by package emailaddr.
	Email     string
	Role      access.Role
	InvitedAt time.Time
}

// memberStore lists teams.
type memberStore interface {
	// Members returns an account's team in order of invitation.
	Members(ctx context.Context, ownerID string) ([]Member, error)
}

// memberTx changes teams.
type memberTx interface {
	// InsertMember returns the id of the membership, or ErrMemberExists if the address is on
	// the team.
	InsertMember(ctx context.Context, ownerID string, m Member) (id string, err error)
	// DeleteMember returns the id of the membership.
	DeleteMember(ctx context.Context, ownerID, email string) (id string, err error)
	// DeleteTeam deletes the team of a locked account. It returns the ids of the memberships.
	DeleteTeam(ctx context.Context, ownerID string) (ids []string, err error)
	// CountMembers returns the size of a locked account's team.
	CountMembers(ctx context.Context, ownerID string) (int64, error)
	// CountInvitation counts an invitation that a locked account sends at now. It
	// returns the number in the current window and the start of the window. A
	// window that started at or before oldest has ended.
	CountInvitation(ctx context.Context, ownerID string, now, oldest time.Time) (n int, since time.Time, err error)
}

// Invite adds a member to the team of the actor's own account and requests an
// invitation mail. raw is the request body: email and role, which defaults to
// viewer. Invite checks in the order of the API: the actor's verified address (with
// EnforceVerification), the subscription, the body, the tier, DUPLICATE for a
// member, CONFLICT above MaxMembers, RATE_LIMITED above InviteLimit.
func (s *Service) Invite(ctx context.Context, actor access.Actor, raw []byte) (Member, error) {
	if s.EnforceVerification && !actor.EmailVerified {
		return Member{}, apierr.New(apierr.EmailNotVerified, "Please verify your email address first.")
	}
	own, err := s.team(actor)
	if err != nil {
		return Member{}, err
	}
	m, err := readMember(raw, actor.Email)
	if err != nil {
		return Member{}, err
	}
	if err := requireTeam(own); err != nil {
		return Member{}, err
	}
	m.InvitedAt = s.now()
	err = s.Store.InTx(ctx, func(tx Tx) error {
		a, err := lockCaller(ctx, tx, actor)
		if err != nil {
			return err
		}
		id, err := tx.InsertMember(ctx, a.ID, m)
		if err != nil {
			return err
		}
		members, err := tx.CountMembers(ctx, a.ID)
		if err != nil {
			return err
		}
		if members > int64(s.MaxMembers) {
			return apierr.New(apierr.Conflict, fmt.Sprintf("A team has at most %d members. Remove one first.", s.MaxMembers))
		}
		n, since, err := tx.CountInvitation(ctx, a.ID, m.InvitedAt, m.InvitedAt.Add(-InviteWindow))
		if err != nil {
			return err
		}
		if n > InviteLimit {
			return apierr.New(apierr.RateLimited, "Too many invitations. Please try again later.").
				WithRetryAfter(since.Add(InviteWindow).Sub(m.InvitedAt))
		}
		if err := tx.Publish(ctx, a.ID, memberInvited(a, m)); err != nil {
			return err
		}
		return tx.Record(ctx, audit.By(actor, a.ID, audit.MemberInvited, id))
	})
	switch {
	case errors.Is(err, ErrMemberExists):
		return Member{}, apierr.New(apierr.Duplicate, "This address is already a member of your team.")
	case errors.Is(err, ErrNotFound):
		return Member{}, errCredentials()
	case err != nil:
		return Member{}, fmt.Errorf("invite a team member: %w", err)
	}
	return m, nil
}

// Members returns the team of the actor's own account, in order of invitation.
func (s *Service) Members(ctx context.Context, actor access.Actor) ([]Member, error) {
	own, err := s.team(actor)
	if err == nil {
		err = requireTeam(own)
	}
	if err != nil {
		return nil, err
	}
	members, err := s.Store.Members(ctx, actor.AccountID)
	if err != nil {
		return nil, fmt.Errorf("list team members: %w", err)
	}
	return members, nil
}

// RemoveMember removes a member from the team of the actor's own account. It takes
// effect on the member's next request. It returns NOT_FOUND if the address is not
// on the team.
func (s *Service) RemoveMember(ctx context.Context, actor access.Actor, email string) error {
	own, err := s.team(actor)
	if err == nil {
		err = requireTeam(own)
	}
	if err != nil {
		return err
	}
	unknown := apierr.NotFoundf("There is no such team member.")
	address, err := emailaddr.Parse(email)
	if err != nil {
		return unknown
	}
	err = s.dismiss(ctx, actor.AccountID, address, audit.By(actor, actor.AccountID, audit.MemberRemoved, ""))
	if errors.Is(err, ErrNotFound) {
		return unknown
	}
	if err != nil {
		return fmt.Errorf("remove a team member: %w", err)
	}
	return nil
}

// Leave removes the actor from the team of another account, at once. It returns
// NOT_FOUND if the actor is not on it. A membership counts only for a verified
// address, so an actor without one is on no team.
func (s *Service) Leave(ctx context.Context, actor access.Actor, ownerEmail string) error {
	unknown := apierr.NotFoundf("You are not on this team.")
	address, err := emailaddr.Parse(ownerEmail)
	if err != nil || !actor.EmailVerified {
		return unknown
	}
	g, err := actor.GrantByEmail(address)
	if err != nil {
		return unknown
	}
	err = s.dismiss(ctx, g.OwnerID, actor.Email, audit.By(actor, g.OwnerID, audit.MemberLeft, ""))
	if errors.Is(err, ErrNotFound) {
		return unknown
	}
	if err != nil {
		return fmt.Errorf("leave a team: %w", err)
	}
	return nil
}

// dismiss deletes a membership. It completes and records e.
func (s *Service) dismiss(ctx context.Context, ownerID, address string, e audit.Entry) error {
	return s.Store.InTx(ctx, func(tx Tx) error {
		id, err := tx.DeleteMember(ctx, ownerID, address)
		if err != nil {
			return err
		}
		return tx.Record(ctx, e.On(id))
	})
}

// team returns the actor's grant on its own account if the subscription allows
// access. No role lets an actor manage the team of another account.
func (s *Service) team(actor access.Actor) (access.Grant, error) {
	own, ok := actor.Grant(actor.AccountID)
	if !ok {
		return access.Grant{}, errCredentials()
	}
	return own, actor.MemberGate(own, s.now())
}

func requireTeam(own access.Grant) error {
	return access.RequireTier(own.Entitlement, access.Pro, "A team")
}

// readMember reads the body of an invitation. own is the address of the inviting
// account.
func readMember(raw []byte, own string) (Member, error) {
	o, err := body.Parse(raw)
	if err != nil {
		return Member{}, err
	}
	m := Member{Role: access.Viewer}
	email := o.RequiredString("email", 0)
	if !o.Failed("email") {
		switch m.Email, err = emailaddr.Parse(email); {
		case err != nil:
			o.Fail("email", "Enter a valid email address.")
		case m.Email == own:
			o.Fail("email", "You cannot invite yourself.")
		}
	}
	if role, ok := o.String("role", 0); ok {
		if m.Role = access.ParseRole(role); m.Role != access.Admin && m.Role != access.Viewer {
			o.Fail("role", "Choose admin or viewer.")
		}
	}
	return m, o.Err()
}
