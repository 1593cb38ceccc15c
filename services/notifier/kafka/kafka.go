// Package kafka turns events into deliveries.
package kafka

import (
	"context"

	"github.com/jackc/pgx/v5"
	"go.opentelemetry.io/otel/propagation"

	eventv1 "waitlist.internal/proto/gen/waitlist/event/v1"
	"waitlist.internal/services/notifier"
)

// Queue stores deliveries within the transaction of an event. *postgres.Deliveries
// implements it.
type Queue interface {
	Queue(ctx context.Context, tx pgx.Tx, ds ...notifier.Delivery) error
	// Forget deletes every delivery of a waitlist.
	Forget(ctx context.Context, tx pgx.Tx, waitlistID string) error
}

// Wants reports whether Handler does anything about an event.
func Wants(ev *eventv1.Event) bool {
	switch p := ev.GetPayload().(type) {
	case *eventv1.Event_SignupCreated:
		return len(p.SignupCreated.GetChannels()) > 0
	case *eventv1.Event_ReferralCredited:
		return len(p.ReferralCredited.GetChannels()) > 0
	case *eventv1.Event_WaitlistDeleted:
		return true
	}
	return false
}

// Handler queues a delivery for each channel that an event names and passes them to
// stage. stage sees them again if the transaction is repeated, and may see deliveries
// that are never committed.
func Handler(q Queue, stage func(...notifier.Delivery)) func(ctx context.Context, tx pgx.Tx, ev *eventv1.Event) error {
	return func(ctx context.Context, tx pgx.Tx, ev *eventv1.Event) error {
		d := notifier.Delivery{OccurredAt: ev.GetOccurredAt().AsTime(), Traceparent: traceparent(ctx)}
		d.EventID = ev.GetId()
		var channels []eventv1.Channel
		switch p := ev.GetPayload().(type) {
		case *eventv1.Event_SignupCreated:
			e := p.SignupCreated
			d.Event, d.WaitlistID, d.OwnerID = notifier.SignupCreated, e.GetWaitlistId(), e.GetOwnerId()
			d.Number, d.Position = e.GetNumber(), e.GetPosition()
			channels = e.GetChannels()
		case *eventv1.Event_ReferralCredited:
			e := p.ReferralCredited
			d.Event, d.WaitlistID, d.OwnerID = notifier.ReferralCredited, e.GetWaitlistId(), e.GetOwnerId()
			d.Number, d.ReferralCount = e.GetNumber(), e.GetReferralCount()
			channels = e.GetChannels()
		case *eventv1.Event_WaitlistDeleted:
			return q.Forget(ctx, tx, p.WaitlistDeleted.GetWaitlistId())
		}
		var ds []notifier.Delivery
		for _, c := range channels {
			if d.Channel = channel(c); d.Channel != "" {
				ds = append(ds, d)
			}
		}
		if len(ds) == 0 {
			return nil
		}
		if err := q.Queue(ctx, tx, ds...); err != nil {
			return err
		}
		stage(ds...)
		return nil
	}
}

// channel returns "" for a channel that this version does not know.
func channel(c eventv1.Channel) notifier.Channel {
	switch c {
	case eventv1.Channel_CHANNEL_WEBHOOK:
		return notifier.Webhook
	case eventv1.Channel_CHANNEL_SLACK:
		return notifier.Slack
	case eventv1.Channel_CHANNEL_DISCORD:
		return notifier.Discord
	}
	return ""
}

func traceparent(ctx context.Context) string {
	carrier := propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(ctx, carrier)
	return carrier["traceparent"]
}
