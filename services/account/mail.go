package account

import (
	"context"
	"time"

	"waitlist.internal/libs/access"
	"waitlist.internal/libs/apierr"
)

// MailKind is the purpose of a mail about an account.
type MailKind int

// The kinds.
const (
	VerificationMail MailKind = iota + 1
	ResetMail
	CredentialMail
	InviteMail
	TrialEndingMail
)

// Mail says to whom a mail about an account goes, and what it contains.
type Mail struct {
	Recipient string
	// Generation is bound into the token of the mail's link.
	Generation int64
	// ExpiresAt is when the link or the trial ends; zero for other mails.
	ExpiresAt time.Time
	// OwnerEmail and Role are those of an invitation.
	OwnerEmail string
	Role       access.Role
}

// Mail returns a mail of a kind as the account is now, whatever the event said that asks for
// it. member is the invited address of an InviteMail. It returns NOT_FOUND if nothing asks
// for such a mail.
func (s *Service) Mail(ctx context.Context, accountID string, kind MailKind, member string) (Mail, error) {
	none := apierr.NotFoundf("Nothing asks for this mail.")
	a, err := s.Account(ctx, accountID)
	if err != nil {
		return Mail{}, err
	}
	now, m := s.now(), Mail{Recipient: a.Email}
	verified := !a.EmailVerifiedAt.IsZero()
	switch kind {
	case VerificationMail:
		m.Generation, m.ExpiresAt = a.Verification.Cycle, a.Verification.CycleStartedAt.Add(VerificationTTL)
		if resent := a.Verification.ResentAt.Add(VerificationTTL); resent.After(m.ExpiresAt) {
			m.ExpiresAt = resent
		}
		if verified || !now.Before(m.ExpiresAt) {
			return Mail{}, none
		}
	case ResetMail:
		m.Generation, m.ExpiresAt = a.PasswordGeneration, a.ResetSentAt.Add(ResetTTL)
		if a.ResetSentAt.IsZero() || !now.Before(m.ExpiresAt) {
			return Mail{}, none
		}
	case CredentialMail:
		if !verified {
			return Mail{}, none
		}
	case TrialEndingMail:
		m.ExpiresAt = a.Entitlement.ValidUntil
		if !verified || a.Entitlement.Status != access.Trialing || m.ExpiresAt.After(now.Add(TrialNotice)) {
			return Mail{}, none
		}
	case InviteMail:
		members, err := s.Store.Members(ctx, a.ID)
		if err != nil {
			return Mail{}, err
		}
		for _, one := range members {
			if one.Email == member {
				return Mail{Recipient: member, OwnerEmail: a.Email, Role: one.Role}, nil
			}
		}
		return Mail{}, none
	default:
		return Mail{}, none
	}
	return m, nil
}
