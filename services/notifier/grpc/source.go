// Package grpc reads the content of messages from the signup service.
package grpc

import (
	"context"

	"waitlist.internal/libs/apierr"
	signupv1 "waitlist.internal/proto/gen/waitlist/signup/v1"
	"waitlist.internal/services/notifier"
)

// Source implements notifier.Source.
type Source struct{ client signupv1.SignupServiceClient }

// NewSource returns the Source of a client.
func NewSource(client signupv1.SignupServiceClient) *Source { return &Source{client} }

// Notice implements notifier.Source.
func (s *Source) Notice(ctx context.Context, waitlistID string, number int64, withPosition bool) (notifier.Notice, error) {
	r, err := s.client.GetNotice(ctx, &signupv1.GetNoticeRequest{WaitlistId: waitlistID, Number: number, WithPosition: withPosition})
	if apierr.Is(err, apierr.NotFound) {
		return notifier.Notice{}, notifier.ErrGone
	}
	if err != nil {
		return notifier.Notice{}, err
	}
	n := notifier.Notice{
		URLs: map[notifier.Channel]string{
			notifier.Webhook: r.GetWebhookUrl(), notifier.Slack: r.GetSlackWebhookUrl(), notifier.Discord: r.GetDiscordWebhookUrl(),
		},
		Email: r.GetEmail(), FirstName: r.GetFirstName(), LastName: r.GetLastName(),
		ReferralToken: r.GetReferralToken(), Position: r.GetPosition(),
	}
	for _, e := range r.GetWebhookEvents() {
		n.WebhookEvents = append(n.WebhookEvents, notifier.Event(e))
	}
	return n, nil
}
