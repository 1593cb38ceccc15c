package grpc

import (
	"context"

	"waitlist.internal/libs/apierr"
	signupv1 "waitlist.internal/proto/gen/waitlist/signup/v1"
	"waitlist.internal/services/signup/owners"
	"waitlist.internal/services/signup/waitlist"
)

// Signups serves SignupService.
type Signups struct {
	signupv1.UnimplementedSignupServiceServer
	messages *owners.Messages
}

// NewSignups returns the server of messages.
func NewSignups(messages *owners.Messages) *Signups { return &Signups{messages: messages} }

// GetMailing implements the service.
func (s *Signups) GetMailing(ctx context.Context, r *signupv1.GetMailingRequest) (*signupv1.GetMailingResponse, error) {
	id, ok := waitlist.ParseID(r.GetWaitlistId())
	if !ok {
		return nil, waitlist.ErrNotFound()
	}
	m, err := s.messages.Mailing(ctx, id, r.GetNumber())
	if err != nil {
		return nil, err
	}
	out := &signupv1.GetMailingResponse{
		OwnerId: m.Waitlist.OwnerID, WaitlistName: m.Waitlist.Name, Pro: m.Pro,
		SignupConfirmation: m.Settings.EmailTemplates.SignupConfirmation,
		ReferralMilestone:  m.Settings.EmailTemplates.ReferralMilestone,
		Offboarding:        m.Settings.EmailTemplates.Offboarding,
		NotifyReferrer:     m.Settings.NotifyReferrer, SmsNotifyReferrer: m.Settings.SMSNotifyReferrer,
	}
	if r.GetDepartedEmail() != "" {
		if out.Offboarded, err = s.messages.Offboarded(ctx, id, r.GetNumber(), r.GetDepartedEmail()); err != nil {
			return nil, err
		}
	}
	for _, n := range m.Settings.ReferralMilestones {
		out.ReferralMilestones = append(out.ReferralMilestones, int64(n))
	}
	if p := m.Signup; p != nil {
		out.Signup = &signupv1.MailedSignup{
			Number: p.Number, Email: p.Email, FirstName: p.FirstName, LastName: p.LastName, Phone: p.Phone,
			Position: m.Position, ReferralCount: p.ReferralCount, ReferralToken: p.Token.String(),
			EmailVerified: !p.EmailVerifiedAt.IsZero(), EmailOptOut: !p.EmailOptOutAt.IsZero(),
			AwaitsVerification: m.Settings.RequireEmailVerification && p.EmailVerifiedAt.IsZero(),
		}
	}
	return out, nil
}

// WaitlistExists implements the service.
func (s *Signups) WaitlistExists(ctx context.Context, r *signupv1.WaitlistExistsRequest) (*signupv1.WaitlistExistsResponse, error) {
	id, ok := waitlist.ParseID(r.GetWaitlistId())
	if !ok {
		return &signupv1.WaitlistExistsResponse{}, nil
	}
	_, err := s.messages.Mailing(ctx, id, 0)
	if err != nil && !apierr.Is(err, apierr.NotFound) {
		return nil, err
	}
	return &signupv1.WaitlistExistsResponse{Exists: err == nil}, nil
}

// ListRecipients implements the service.
func (s *Signups) ListRecipients(ctx context.Context, r *signupv1.ListRecipientsRequest) (*signupv1.ListRecipientsResponse, error) {
	id, ok := waitlist.ParseID(r.GetWaitlistId())
	if !ok {
		return nil, waitlist.ErrNotFound()
	}
	numbers, err := s.messages.OptedIn(ctx, id, r.GetAfter(), int(r.GetLimit()))
	if err != nil {
		return nil, err
	}
	return &signupv1.ListRecipientsResponse{Numbers: numbers}, nil
}

// GetRecipients implements the service.
func (s *Signups) GetRecipients(ctx context.Context, r *signupv1.GetRecipientsRequest) (*signupv1.GetRecipientsResponse, error) {
	id, ok := waitlist.ParseID(r.GetWaitlistId())
	if !ok {
		return nil, waitlist.ErrNotFound()
	}
	a, err := s.messages.Recipients(ctx, id, r.GetNumbers())
	if err != nil {
		return nil, err
	}
	out := &signupv1.GetRecipientsResponse{WaitlistName: a.WaitlistName, Pro: a.Pro}
	for _, p := range a.Recipients {
		out.Recipients = append(out.Recipients, &signupv1.Recipient{Number: p.Number, Email: p.Email})
	}
	return out, nil
}
