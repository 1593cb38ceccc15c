package grpc

import (
	"context"

	signupv1 "waitlist.internal/proto/gen/waitlist/signup/v1"
	"waitlist.internal/services/signup/waitlist"
)

// GetNotice implements the service.
func (s *Signups) GetNotice(ctx context.Context, r *signupv1.GetNoticeRequest) (*signupv1.GetNoticeResponse, error) {
	if _, ok := waitlist.ParseID(r.GetWaitlistId()); !ok {
		return nil, waitlist.ErrNotFound()
	}
	n, err := s.messages.Notice(ctx, r.GetWaitlistId(), r.GetNumber(), r.GetWithPosition())
	if err != nil {
		return nil, err
	}
	return &signupv1.GetNoticeResponse{
		WebhookUrl: n.WebhookURL, SlackWebhookUrl: n.SlackURL, DiscordWebhookUrl: n.DiscordURL, WebhookEvents: n.Events,
		Email: n.Signup.Email, FirstName: n.Signup.FirstName, LastName: n.Signup.LastName, ReferralToken: n.Signup.Token.String(),
		Position: n.Position,
	}, nil
}
