// Package kafka turns events into requests for mails.
package kafka

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"go.opentelemetry.io/otel/propagation"
	"google.golang.org/protobuf/types/known/timestamppb"

	"waitlist.internal/libs/emailaddr"
	eventv1 "waitlist.internal/proto/gen/waitlist/event/v1"
	"waitlist.internal/services/messaging"
)

// Ledger keeps requests; every method works within tx. *postgres.Ledger is one.
type Ledger interface {
	Queue(ctx context.Context, tx pgx.Tx, r messaging.Request) error
	// Forget ends all mails of a deleted account or waitlist.
	Forget(ctx context.Context, tx pgx.Tx, id string) error
	CancelSignup(ctx context.Context, tx pgx.Tx, waitlistID string, number int64) error
}

// Handler queues the mails that accounts and signups ask for, and takes back
// what is queued for those that have gone or need it no more.
func Handler(l Ledger) func(ctx context.Context, tx pgx.Tx, ev *eventv1.Event) error {
	return func(ctx context.Context, tx pgx.Tx, ev *eventv1.Event) error {
		r := messaging.Request{EventID: ev.GetId(), RequestedAt: ev.GetOccurredAt().AsTime(), Traceparent: traceparent(ctx)}
		switch p := ev.GetPayload().(type) {
		case *eventv1.Event_AccountVerificationRequested:
			e := p.AccountVerificationRequested
			r.Kind, r.Recipient, r.AccountID, r.Generation, r.ExpiresAt = messaging.AccountVerification, e.GetEmail(), e.GetAccountId(), e.GetCycle(), moment(e.GetExpiresAt())
		case *eventv1.Event_PasswordResetRequested:
			e := p.PasswordResetRequested
			r.Kind, r.Recipient, r.AccountID, r.Generation, r.ExpiresAt = messaging.PasswordReset, e.GetEmail(), e.GetAccountId(), e.GetGeneration(), moment(e.GetExpiresAt())
		case *eventv1.Event_TeamMemberInvited:
			e := p.TeamMemberInvited
			r.Kind, r.Recipient, r.AccountID, r.OwnerEmail, r.Role = messaging.TeamInvite, e.GetEmail(), e.GetAccountId(), e.GetOwnerEmail(), e.GetRole()
		case *eventv1.Event_SignupCreated:
			e := p.SignupCreated
			if !e.GetVerificationRequired() {
				return nil
			}
			r.Kind, r.Recipient, r.WaitlistID, r.WaitlistName, r.Number = messaging.SignupVerification, e.GetEmail(), e.GetWaitlistId(), e.GetWaitlistName(), e.GetNumber()
		case *eventv1.Event_SignupVerified:
			return l.CancelSignup(ctx, tx, p.SignupVerified.GetWaitlistId(), p.SignupVerified.GetNumber())
		case *eventv1.Event_SignupRemoved:
			return l.CancelSignup(ctx, tx, p.SignupRemoved.GetWaitlistId(), p.SignupRemoved.GetNumber())
		case *eventv1.Event_WaitlistDeleted:
			return l.Forget(ctx, tx, p.WaitlistDeleted.GetWaitlistId())
		case *eventv1.Event_AccountDeleted:
			return l.Forget(ctx, tx, p.AccountDeleted.GetAccountId())
		default:
			return nil
		}
		// Nothing but one plain address may reach a mail's header.
		to, err := emailaddr.Parse(r.Recipient)
		if err != nil {
			return fmt.Errorf("recipient of %s: %w", r.Kind, err)
		}
		r.Recipient = to
		return l.Queue(ctx, tx, r)
	}
}

// moment is zero for a timestamp that is not set.
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
