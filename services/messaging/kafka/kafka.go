// Package kafka turns events into requests for mails.
package kafka

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"go.opentelemetry.io/otel/propagation"
	"google.golang.org/protobuf/types/known/timestamppb"

	"waitlist.internal/libs/emailaddr"
	eventv1 "waitlist.internal/proto/gen/waitlist/event/v1"
	"waitlist.internal/services/messaging/mails"
	"waitlist.internal/services/messaging/postgres"
)

// Wants reports whether Handler does anything about an event.
func Wants(ev *eventv1.Event) bool {
	switch ev.GetPayload().(type) {
	case *eventv1.Event_WaitlistDeleted, *eventv1.Event_AccountDeleted:
		return true
	}
	asked, err := requests(ev)
	return err != nil || len(asked) > 0
}

// Handler queues the mails that events about accounts and signups ask for, and stops those of a deleted
// account or waitlist. Whether the others are still needed is asked when they are sent.
func Handler(l *postgres.Mails) func(ctx context.Context, tx pgx.Tx, ev *eventv1.Event) error {
	return func(ctx context.Context, tx pgx.Tx, ev *eventv1.Event) error {
		switch p := ev.GetPayload().(type) {
		case *eventv1.Event_WaitlistDeleted:
			return l.Forget(ctx, tx, p.WaitlistDeleted.GetWaitlistId())
		case *eventv1.Event_AccountDeleted:
			return l.Forget(ctx, tx, p.AccountDeleted.GetAccountId())
		}
		asked, err := requests(ev)
		if err != nil {
			return err
		}
		for _, r := range asked {
			r.RequestedAt, r.Traceparent = ev.GetOccurredAt().AsTime(), traceparent(ctx)
			if err := queue(ctx, tx, l, r); err != nil {
				return err
			}
		}
		return nil
	}
}

// queue queues one request, unless it is the second within an hour where one is enough.
func queue(ctx context.Context, tx pgx.Tx, l *postgres.Mails, r mails.Request) error {
	if r.Kind == mails.ReferralNotification || r.Kind == mails.ReferralSMS || r.Kind == mails.SignupLink {
		if told, err := l.Notified(ctx, tx, r.WaitlistID, r.Number, r.Kind); err != nil || told {
			return err
		}
	}
	if r.Kind.Addressed() {
		// Only a single plain address may reach the header of a mail.
		to, err := emailaddr.Parse(r.Recipient)
		if err != nil {
			return fmt.Errorf("recipient of %s: %w", r.Kind, err)
		}
		r.Recipient = to
	}
	return l.Queue(ctx, tx, r)
}

// requests returns the mails that an event asks for.
func requests(ev *eventv1.Event) ([]mails.Request, error) {
	var out []mails.Request
	switch p := ev.GetPayload().(type) {
	case *eventv1.Event_AccountVerificationRequested:
		e := p.AccountVerificationRequested
		out = append(out, mails.Request{
			Kind: mails.AccountVerification, Recipient: e.GetEmail(), AccountID: e.GetAccountId(),
			Generation: e.GetCycle(), ExpiresAt: moment(e.GetExpiresAt()),
		})
	case *eventv1.Event_PasswordResetRequested:
		e := p.PasswordResetRequested
		out = append(out, mails.Request{
			Kind: mails.PasswordReset, Recipient: e.GetEmail(), AccountID: e.GetAccountId(),
			Generation: e.GetGeneration(), ExpiresAt: moment(e.GetExpiresAt()),
		})
	case *eventv1.Event_CredentialChanged:
		e := p.CredentialChanged
		r := mails.Request{Kind: mails.PasswordChanged, Recipient: e.GetEmail(), AccountID: e.GetAccountId()}
		switch e.GetCredential() { // the others are about a password, too
		case eventv1.CredentialChanged_CREDENTIAL_API_KEY:
			r.Kind = mails.APIKeyChanged
		case eventv1.CredentialChanged_CREDENTIAL_PASSWORD_RESET:
			r.Kind = mails.PasswordRecovered
		}
		out = append(out, r)
	case *eventv1.Event_TeamMemberInvited:
		e := p.TeamMemberInvited
		out = append(out, mails.Request{
			Kind: mails.TeamInvite, Recipient: e.GetEmail(), AccountID: e.GetAccountId(),
			OwnerEmail: e.GetOwnerEmail(), Role: e.GetRole(),
		})
	case *eventv1.Event_TrialEnding:
		e := p.TrialEnding
		out = append(out, mails.Request{
			Kind: mails.TrialEnding, Recipient: e.GetEmail(), AccountID: e.GetAccountId(), ExpiresAt: moment(e.GetEndsAt()),
		})
	case *eventv1.Event_SignupCreated:
		e := p.SignupCreated
		r := mails.Request{AccountID: e.GetOwnerId(), WaitlistID: e.GetWaitlistId(), Number: e.GetNumber()}
		if e.GetVerificationRequired() {
			v := r
			v.Kind, v.Recipient, v.WaitlistName = mails.SignupVerification, e.GetEmail(), e.GetWaitlistName()
			out = append(out, v)
		}
		if e.GetConfirmation() {
			r.Kind = mails.SignupConfirmation
			out = append(out, r)
		}
	case *eventv1.Event_ReferralCredited:
		e := p.ReferralCredited
		r := mails.Request{AccountID: e.GetOwnerId(), WaitlistID: e.GetWaitlistId(), Number: e.GetNumber()}
		if e.GetNotifyReferrer() {
			r.Kind = mails.ReferralNotification
			out = append(out, r)
		}
		if e.GetSmsNotifyReferrer() {
			r.Kind = mails.ReferralSMS
			out = append(out, r)
		}
		if e.GetMilestone() > 0 {
			r.Kind, r.Milestone = mails.ReferralMilestone, e.GetMilestone()
			out = append(out, r)
		}
	case *eventv1.Event_LinkRequested:
		e := p.LinkRequested
		if e.GetNumber() > 0 {
			out = append(out, mails.Request{
				Kind: mails.SignupLink, AccountID: e.GetOwnerId(), WaitlistID: e.GetWaitlistId(), Number: e.GetNumber(),
			})
		}
	case *eventv1.Event_SignupRemoved:
		e := p.SignupRemoved
		if e.GetReason() == eventv1.RemovalReason_REMOVAL_REASON_ADMIN && e.GetOffboarding() {
			out = append(out, mails.Request{
				Kind: mails.Offboarding, Recipient: e.GetEmail(), AccountID: e.GetOwnerId(),
				WaitlistID: e.GetWaitlistId(), Number: e.GetNumber(), FirstName: e.GetFirstName(), LastName: e.GetLastName(),
			})
		}
	}
	for i := range out {
		var err error
		if out[i].EventID, err = mailID(ev.GetId(), i, out[i]); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// mailID returns the id of the i-th mail that an event asks for. It is the same for every delivery of
// the event. A milestone's mail has the same id whichever event reports it, so nobody gets it twice.
func mailID(eventID string, i int, r mails.Request) (string, error) {
	space, name := eventID, string(r.Kind)
	switch {
	case r.Kind == mails.ReferralMilestone:
		space, name = r.WaitlistID, fmt.Sprintf("%s/%d/%d", r.Kind, r.Number, r.Milestone)
	case i == 0:
		return eventID, nil
	}
	id, err := uuid.Parse(space)
	if err != nil {
		return "", fmt.Errorf("id of %s: %w", r.Kind, err)
	}
	return uuid.NewSHA1(id, []byte(name)).String(), nil
}

// moment converts a timestamp; nil becomes the zero time.
func moment(t *timestamppb.Timestamp) time.Time {
	if t == nil {
		return time.Time{}
	}
	return t.AsTime()
}

func traceparent(ctx context.Context) string {
	carrier := propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(ctx, carrier)
	return carrier["traceparent"]
}
