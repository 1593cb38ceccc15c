package queue

import (
	"time"

	"github.com/google/uuid"
	"google.golang.org/protobuf/types/known/timestamppb"

	eventv1 "waitlist.internal/proto/gen/waitlist/event/v1"
	"waitlist.internal/services/signup/waitlist"
)

// NewEventID returns a UUIDv7.
func NewEventID() string { return uuid.Must(uuid.NewV7()).String() }

func newEvent(id string, at time.Time) *eventv1.Event {
	return &eventv1.Event{Id: id, OccurredAt: timestamppb.New(at)}
}

func signupCreated(in *Insert, o Outcome, eff *waitlist.Settings, id string) *eventv1.Event {
	ev := newEvent(id, in.CreatedAt)
	ev.Payload = &eventv1.Event_SignupCreated{SignupCreated: &eventv1.SignupCreated{
		WaitlistId: in.Waitlist.ID, OwnerId: in.Waitlist.OwnerID, Number: in.Number, Position: eff.Displayed(o.Position),
		UtmSource: in.UTMSource, UtmMedium: in.UTMMedium, UtmCampaign: in.UTMCampaign,
		Referred: in.Referred, VerificationRequired: eff.RequireEmailVerification, WaitlistName: in.Waitlist.Name,
		Channels: eff.Channels(waitlist.EventSignupCreated), Confirmation: eff.EmailTemplates.SignupConfirmation != "",
	}}
	if eff.RequireEmailVerification {
		ev.GetSignupCreated().Email = in.Email
	}
	return ev
}

// referralCredited announces that the referrer with a number has count credits, the last
// one for the signup with the number referred.
func referralCredited(w *waitlist.Waitlist, number, count, referred int64, eff *waitlist.Settings, at time.Time, id string) *eventv1.Event {
	ev := newEvent(id, at)
	ev.Payload = &eventv1.Event_ReferralCredited{ReferralCredited: &eventv1.ReferralCredited{
		WaitlistId: w.ID, OwnerId: w.OwnerID, Number: number,
		ReferralCount: count, ReferredNumber: referred, Channels: eff.Channels(waitlist.EventReferralCredited),
		NotifyReferrer: eff.NotifyReferrer, SmsNotifyReferrer: eff.SMSNotifyReferrer, Milestone: eff.Milestone(count),
	}}
	return ev
}

// SignupsImported announces the signups first to last, inclusive.
func SignupsImported(w *waitlist.Waitlist, first, last int64, at time.Time) *eventv1.Event {
	ev := newEvent(NewEventID(), at)
	ev.Payload = &eventv1.Event_SignupsImported{SignupsImported: &eventv1.SignupsImported{
		WaitlistId: w.ID, OwnerId: w.OwnerID, FirstNumber: first, LastNumber: last,
	}}
	return ev
}

// Verified announces a verified address.
func Verified(w *waitlist.Waitlist, number int64, at time.Time) *eventv1.Event {
	ev := newEvent(NewEventID(), at)
	ev.Payload = &eventv1.Event_SignupVerified{SignupVerified: &eventv1.SignupVerified{
		WaitlistId: w.ID, OwnerId: w.OwnerID, Number: number,
	}}
	return ev
}

// OptedOut announces an opt-out.
func OptedOut(w *waitlist.Waitlist, number int64, at time.Time) *eventv1.Event {
	ev := newEvent(NewEventID(), at)
	ev.Payload = &eventv1.Event_SignupOptedOut{SignupOptedOut: &eventv1.SignupOptedOut{
		WaitlistId: w.ID, OwnerId: w.OwnerID, Number: number,
	}}
	return ev
}

// LinkRequested asks for the mail with a signup's place and link; with number 0, for an address that is not on the list, for none.
func LinkRequested(w *waitlist.Waitlist, number int64, at time.Time) *eventv1.Event {
	ev := newEvent(NewEventID(), at)
	ev.Payload = &eventv1.Event_LinkRequested{LinkRequested: &eventv1.LinkRequested{
		WaitlistId: w.ID, OwnerId: w.OwnerID, Number: number,
	}}
	return ev
}
