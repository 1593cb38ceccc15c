package grpc

import (
	"context"

	signupv1 "waitlist.internal/proto/gen/waitlist/signup/v1"
	"waitlist.internal/services/signup"
)

// Signups serves SignupService.
type Signups struct {
	signupv1.UnimplementedSignupServiceServer
	svc     *signup.Service
	notices *signup.Notices
}

// NewSignups returns the server of svc and notices.
func NewSignups(svc *signup.Service, notices *signup.Notices) *Signups {
	return &Signups{svc: svc, notices: notices}
}

// GetSignup implements the service.
func (s *Signups) GetSignup(ctx context.Context, r *signupv1.GetSignupRequest) (*signupv1.GetSignupResponse, error) {
	if _, ok := signup.ParseID(r.GetWaitlistId()); !ok {
		return nil, signup.ErrNoWaitlist()
	}
	p, err := s.svc.Person(ctx, r.GetWaitlistId(), r.GetNumber())
	if err != nil {
		return nil, err
	}
	out := &signupv1.GetSignupResponse{
		WaitlistId: p.Waitlist.ID, WaitlistName: p.Waitlist.Name, OwnerId: p.Waitlist.OwnerID, Number: p.Signup.Number,
		Email: p.Signup.Email, FirstName: p.Signup.FirstName, LastName: p.Signup.LastName, Phone: p.Signup.Phone,
		OwnerPosition: p.Position, ReferralCount: p.Signup.ReferralCount, ReferralToken: p.Signup.Token.String(),
		EmailVerified: !p.Signup.EmailVerifiedAt.IsZero(), EmailOptOut: !p.Signup.EmailOptOutAt.IsZero(),
	}
	if !p.HidePosition {
		out.Position = p.Position
	}
	return out, nil
}
