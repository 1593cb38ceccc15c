package owners

import (
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"waitlist.internal/libs/views"
	eventv1 "waitlist.internal/proto/gen/waitlist/event/v1"
	"waitlist.internal/services/signup/queue"
)

// WaitlistDeleted announces a deleted waitlist.
func WaitlistDeleted(id, ownerID string, at time.Time) *eventv1.Event {
	return &eventv1.Event{Id: queue.NewEventID(), OccurredAt: timestamppb.New(at), Payload: &eventv1.Event_WaitlistDeleted{
		WaitlistDeleted: &eventv1.WaitlistDeleted{WaitlistId: id, OwnerId: ownerID},
	}}
}

// ViewsEvent is the event that publishes c. It keeps c's id, so that consumers drop
// repeats.
func ViewsEvent(c views.Count) *eventv1.Event {
	return &eventv1.Event{Id: c.ID, OccurredAt: timestamppb.New(c.At), Payload: &eventv1.Event_PageViewsCounted{
		PageViewsCounted: &eventv1.PageViewsCounted{WaitlistId: c.WaitlistID, Views: c.Views},
	}}
}
