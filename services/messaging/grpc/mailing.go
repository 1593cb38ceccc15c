package grpc

import (
	"context"

	signupv1 "waitlist.internal/proto/gen/waitlist/signup/v1"
	"waitlist.internal/services/messaging/mails"
	"waitlist.internal/services/messaging/templates"
)

// Mailings implements mails.Mailings.
type Mailings struct{ client signupv1.SignupServiceClient }

// NewMailings returns Mailings over a client.
func NewMailings(client signupv1.SignupServiceClient) *Mailings { return &Mailings{client} }

// Mailing implements mails.Mailings.
func (m *Mailings) Mailing(ctx context.Context, waitlistID string, number int64) (mails.Mailing, error) {
	r, err := m.client.GetMailing(ctx, &signupv1.GetMailingRequest{WaitlistId: waitlistID, Number: number})
	if err != nil {
		return mails.Mailing{}, err
	}
	out := mails.Mailing{
		OwnerID: r.GetOwnerId(), WaitlistName: r.GetWaitlistName(), Pro: r.GetPro(),
		Templates: map[templates.Type]string{
			templates.Confirmation: r.GetSignupConfirmation(), templates.Milestone: r.GetReferralMilestone(),
			templates.Offboarding: r.GetOffboarding(),
		},
		Milestones: r.GetReferralMilestones(), NotifyReferrer: r.GetNotifyReferrer(), SMSNotifyReferrer: r.GetSmsNotifyReferrer(),
	}
	if p := r.GetSignup(); p != nil {
		out.Signup = &mails.Person{
			Email: p.GetEmail(), FirstName: p.GetFirstName(), LastName: p.GetLastName(), Phone: p.GetPhone(), Position: p.GetPosition(),
			ReferralCount: p.GetReferralCount(), ReferralToken: p.GetReferralToken(), OptedOut: p.GetEmailOptOut(),
		}
	}
	return out, nil
}
