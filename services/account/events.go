package account

import (
	"context"
	"time"

	"github.com/google/uuid"
	"google.golang.org/protobuf/types/known/timestamppb"

	"waitlist.internal/libs/access"
	eventv1 "waitlist.internal/proto/gen/waitlist/event/v1"
)

// newEvent returns an event without a payload. Its id is a UUIDv7.
func newEvent(at time.Time) *eventv1.Event {
	return &eventv1.Event{Id: uuid.Must(uuid.NewV7()).String(), OccurredAt: timestamppb.New(at)}
}

func verificationRequested(a Account, at time.Time) *eventv1.Event {
	ev := newEvent(at)
	ev.Payload = &eventv1.Event_AccountVerificationRequested{AccountVerificationRequested: &eventv1.AccountVerificationRequested{
		AccountId: a.ID, Email: a.Email, Cycle: a.Verification.Cycle, ExpiresAt: timestamppb.New(at.Add(VerificationTTL)),
	}}
	return ev
}

func resetRequested(a Account, at time.Time) *eventv1.Event {
	ev := newEvent(at)
	ev.Payload = &eventv1.Event_PasswordResetRequested{PasswordResetRequested: &eventv1.PasswordResetRequested{
		AccountId: a.ID, Email: a.Email, Generation: a.PasswordGeneration, ExpiresAt: timestamppb.New(at.Add(ResetTTL)),
	}}
	return ev
}

// The credentials that mails to owners are about.
const (
	passwordChanged   = eventv1.CredentialChanged_CREDENTIAL_PASSWORD
	passwordRecovered = eventv1.CredentialChanged_CREDENTIAL_PASSWORD_RESET
	keyChanged        = eventv1.CredentialChanged_CREDENTIAL_API_KEY
)

// notify requests the mail that tells an account's owner about another credential. An
// address that is not verified may be a stranger's, so nothing goes to it.
func notify(ctx context.Context, tx Tx, a Account, c eventv1.CredentialChanged_Credential, at time.Time) error {
	if a.EmailVerifiedAt.IsZero() {
		return nil
	}
	ev := newEvent(at)
	ev.Payload = &eventv1.Event_CredentialChanged{CredentialChanged: &eventv1.CredentialChanged{
		AccountId: a.ID, Email: a.Email, Credential: c,
	}}
	return tx.Publish(ctx, a.ID, ev)
}

func entitlementChanged(accountID string, e access.Entitlement, at time.Time) *eventv1.Event {
	ev := newEvent(at)
	ev.Payload = &eventv1.Event_EntitlementChanged{EntitlementChanged: &eventv1.EntitlementChanged{
		AccountId: accountID, Entitlement: e.Proto(),
	}}
	return ev
}

func trialEnding(e TrialEnding, at time.Time) *eventv1.Event {
	ev := newEvent(at)
	ev.Payload = &eventv1.Event_TrialEnding{TrialEnding: &eventv1.TrialEnding{
		AccountId: e.AccountID, Email: e.Email, EndsAt: timestamppb.New(e.EndsAt),
	}}
	return ev
}

func memberInvited(owner Account, m Member) *eventv1.Event {
	ev := newEvent(m.InvitedAt)
	ev.Payload = &eventv1.Event_TeamMemberInvited{TeamMemberInvited: &eventv1.TeamMemberInvited{
		AccountId: owner.ID, OwnerEmail: owner.Email, Email: m.Email, Role: m.Role.String(),
	}}
	return ev
}

func accountDeleted(accountID string, at time.Time) *eventv1.Event {
	ev := newEvent(at)
	ev.Payload = &eventv1.Event_AccountDeleted{AccountDeleted: &eventv1.AccountDeleted{AccountId: accountID}}
	return ev
}
