package grpc

import (
	"context"

	signupv1 "waitlist.internal/proto/gen/waitlist/signup/v1"
	"waitlist.internal/services/messaging/blasts"
)

// Lists implements blasts.Lists.
type Lists struct{ client signupv1.SignupServiceClient }

// NewLists returns Lists over a client.
func NewLists(client signupv1.SignupServiceClient) *Lists { return &Lists{client} }

// Numbers implements blasts.Lists.
func (l *Lists) Numbers(ctx context.Context, waitlistID string, after int64, limit int) ([]int64, error) {
	r, err := l.client.ListRecipients(ctx, &signupv1.ListRecipientsRequest{WaitlistId: waitlistID, After: after, Limit: int32(limit)})
	return r.GetNumbers(), err
}

// Recipients implements blasts.Lists.
func (l *Lists) Recipients(ctx context.Context, waitlistID string, numbers []int64) (blasts.Audience, error) {
	r, err := l.client.GetRecipients(ctx, &signupv1.GetRecipientsRequest{WaitlistId: waitlistID, Numbers: numbers})
	if err != nil {
		return blasts.Audience{}, err
	}
	out := blasts.Audience{
		WaitlistName: r.GetWaitlistName(), Pro: r.GetPro(), Recipients: make([]blasts.Recipient, len(r.GetRecipients())),
	}
	for i, p := range r.GetRecipients() {
		out.Recipients[i] = blasts.Recipient{Number: p.GetNumber(), Email: p.GetEmail()}
	}
	return out, nil
}
