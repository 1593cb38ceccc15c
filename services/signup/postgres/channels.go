package postgres

import (
	"context"

	eventv1 "waitlist.internal/proto/gen/waitlist/event/v1"
	"waitlist.internal/services/signup"
)

// Numbered implements signup.NoticeStore. By waitlist_pkey, signup_pkey and
// change_pkey; where it ranks, by signup_queue_key and queue_bucket_pkey too.
func (s *Signups) Numbered(ctx context.Context, waitlistID string, number, rankUpTo int64) (signup.View, error) {
	return s.view(ctx, viewSQL+`number = $2
WHERE w.id = $1 AND w.deleted_at IS NULL`, waitlistID, number, rankUpTo)
}

// channels are those that are told of an event with effective settings.
func channels(eff signup.Settings, event string) (out []eventv1.Channel) {
	webhook, slack, discord := eff.Told(event)
	if webhook {
		out = append(out, eventv1.Channel_CHANNEL_WEBHOOK)
	}
	if slack {
		out = append(out, eventv1.Channel_CHANNEL_SLACK)
	}
	if discord {
		out = append(out, eventv1.Channel_CHANNEL_DISCORD)
	}
	return out
}
