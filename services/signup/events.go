package signup

import (
	"slices"
	"time"

	"github.com/google/uuid"
	"google.golang.org/protobuf/types/known/timestamppb"

	"waitlist.internal/libs/views"
	eventv1 "waitlist.internal/proto/gen/waitlist/event/v1"
)

// NewEventID returns a UUIDv7.
func NewEventID() string { return uuid.Must(uuid.NewV7()).String() }

func newEvent(id string, at time.Time) *eventv1.Event {
	return &eventv1.Event{Id: id, OccurredAt: timestamppb.New(at)}
}

func signupCreated(in *Insert, o Outcome, eff *Settings, id string) *eventv1.Event {
	ev := newEvent(id, in.CreatedAt)
	ev.Payload = &eventv1.Event_SignupCreated{SignupCreated: &eventv1.SignupCreated{
		WaitlistId: in.Waitlist.ID, OwnerId: in.Waitlist.OwnerID, Number: in.Number, Position: eff.Displayed(o.Position),
		UtmSource: in.UTMSource, UtmMedium: in.UTMMedium, UtmCampaign: in.UTMCampaign,
		Referred: in.Referred, VerificationRequired: eff.RequireEmailVerification, WaitlistName: in.Waitlist.Name,
		Channels: eff.Channels(EventSignupCreated), Confirmation: eff.EmailTemplates.SignupConfirmation != "",
	}}
	if eff.RequireEmailVerification {
		ev.GetSignupCreated().Email = in.Email
	}
	return ev
}

// referralCredited announces that the referrer with a number has count credits, the last
// one for the signup with the number referred.
func referralCredited(w *Waitlist, number, count, referred int64, eff *Settings, at time.Time, id string) *eventv1.Event {
	ev := newEvent(id, at)
	ev.Payload = &eventv1.Event_ReferralCredited{ReferralCredited: &eventv1.ReferralCredited{
		WaitlistId: w.ID, OwnerId: w.OwnerID, Number: number,
		ReferralCount: count, ReferredNumber: referred, Channels: eff.Channels(EventReferralCredited),
		NotifyReferrer: eff.NotifyReferrer, SmsNotifyReferrer: eff.SMSNotifyReferrer, Milestone: eff.Milestone(count),
	}}
	return ev
}

// SignupsImported announces the signups first to last, inclusive.
func SignupsImported(w *Waitlist, first, last int64, at time.Time) *eventv1.Event {
	ev := newEvent(NewEventID(), at)
	ev.Payload = &eventv1.Event_SignupsImported{SignupsImported: &eventv1.SignupsImported{
		WaitlistId: w.ID, OwnerId: w.OwnerID, FirstNumber: first, LastNumber: last,
	}}
	return ev
}

// Verified announces a verified address.
func Verified(w *Waitlist, number int64, at time.Time) *eventv1.Event {
	ev := newEvent(NewEventID(), at)
	ev.Payload = &eventv1.Event_SignupVerified{SignupVerified: &eventv1.SignupVerified{
		WaitlistId: w.ID, OwnerId: w.OwnerID, Number: number,
	}}
	return ev
}

// OptedOut announces an opt-out.
func OptedOut(w *Waitlist, number int64, at time.Time) *eventv1.Event {
	ev := newEvent(NewEventID(), at)
	ev.Payload = &eventv1.Event_SignupOptedOut{SignupOptedOut: &eventv1.SignupOptedOut{
		WaitlistId: w.ID, OwnerId: w.OwnerID, Number: number,
	}}
	return ev
}

// LinkRequested asks for the mail with a signup's place and link; number 0 asks for none.
func LinkRequested(w *Waitlist, number int64, at time.Time) *eventv1.Event {
	ev := newEvent(NewEventID(), at)
	ev.Payload = &eventv1.Event_LinkRequested{LinkRequested: &eventv1.LinkRequested{
		WaitlistId: w.ID, OwnerId: w.OwnerID, Number: number,
	}}
	return ev
}

// WaitlistDeleted announces a deleted waitlist.
func WaitlistDeleted(id, ownerID string, at time.Time) *eventv1.Event {
	ev := newEvent(NewEventID(), at)
	ev.Payload = &eventv1.Event_WaitlistDeleted{WaitlistDeleted: &eventv1.WaitlistDeleted{WaitlistId: id, OwnerId: ownerID}}
	return ev
}

// ViewsEvent is the event that publishes c. It keeps c's id, so that consumers drop
// repeats.
func ViewsEvent(c views.Count) *eventv1.Event {
	ev := newEvent(c.ID, c.At)
	ev.Payload = &eventv1.Event_PageViewsCounted{PageViewsCounted: &eventv1.PageViewsCounted{WaitlistId: c.WaitlistID, Views: c.Views}}
	return ev
}

// Channels returns the channels that receive an event. s must be effective.
// Slack and Discord receive new signups only.
func (s *Settings) Channels(event string) (out []eventv1.Channel) {
	created := event == EventSignupCreated
	if s.WebhookURL != "" && slices.Contains(s.WebhookEvents, event) {
		out = append(out, eventv1.Channel_CHANNEL_WEBHOOK)
	}
	if created && s.SlackWebhookURL != "" {
		out = append(out, eventv1.Channel_CHANNEL_SLACK)
	}
	if created && s.DiscordWebhookURL != "" {
		out = append(out, eventv1.Channel_CHANNEL_DISCORD)
	}
	return out
}

// Milestone returns count if it is a milestone whose mail a referrer gets on
// reaching it, else 0. s must be effective.
func (s *Settings) Milestone(count int64) int64 {
	if s.EmailTemplates.ReferralMilestone == "" || !slices.Contains(s.ReferralMilestones, int(count)) {
		return 0
	}
	return count
}

// Displayed returns the position that people see for a rank. s must be effective.
func (s *Settings) Displayed(rank int64) int64 { return rank + s.PositionOffset }
