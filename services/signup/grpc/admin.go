package grpc

import (
	"context"

	"google.golang.org/protobuf/types/known/timestamppb"

	"waitlist.internal/libs/access"
	signupv1 "waitlist.internal/proto/gen/waitlist/signup/v1"
	"waitlist.internal/services/signup"
)

// Admin serves AdminService. Errors are those of package apierr; package rpc carries
// them.
type Admin struct {
	signupv1.UnimplementedAdminServiceServer
	admin *signup.Admin
}

// NewAdmin returns the server of admin.
func NewAdmin(admin *signup.Admin) *Admin { return &Admin{admin: admin} }

// ListSignups implements the service.
func (s *Admin) ListSignups(ctx context.Context, r *signupv1.ListSignupsRequest) (*signupv1.ListSignupsResponse, error) {
	rows, next, err := s.admin.List(ctx, access.ActorFromProto(r.GetActor()), r.GetWaitlistId(), r.GetLimit(), r.GetLastKey())
	if err != nil {
		return nil, err
	}
	out := &signupv1.ListSignupsResponse{LastKey: next, Signups: make([]*signupv1.AdminSignup, len(rows))}
	for i, row := range rows {
		m := &signupv1.AdminSignup{
			Email: row.Email, FirstName: row.FirstName, LastName: row.LastName, Phone: row.Phone, Position: row.Position,
			ReferralToken: row.Token.String(), ReferralCount: row.ReferralCount,
			UtmSource: row.UTMSource, UtmMedium: row.UTMMedium, UtmCampaign: row.UTMCampaign, UtmTerm: row.UTMTerm, UtmContent: row.UTMContent,
			CustomAnswersJson: row.Answers, EmailVerified: !row.EmailVerifiedAt.IsZero(), EmailOptOut: !row.EmailOptOutAt.IsZero(),
			DeviceType: row.Device, CreatedAt: timestamppb.New(row.CreatedAt), Flagged: row.Flagged,
		}
		if row.ReferredBy != nil {
			m.ReferredBy = row.ReferredBy.String()
		}
		if m.GetEmailOptOut() {
			m.EmailOptOutAt = timestamppb.New(row.EmailOptOutAt)
		}
		out.Signups[i] = m
	}
	return out, nil
}

// RemoveSignup implements the service.
func (s *Admin) RemoveSignup(ctx context.Context, r *signupv1.RemoveSignupRequest) (*signupv1.RemoveSignupResponse, error) {
	if err := s.admin.Remove(ctx, access.ActorFromProto(r.GetActor()), r.GetWaitlistId(), r.GetEmail()); err != nil {
		return nil, err
	}
	return &signupv1.RemoveSignupResponse{}, nil
}

// MoveSignup implements the service.
func (s *Admin) MoveSignup(ctx context.Context, r *signupv1.MoveSignupRequest) (*signupv1.MoveSignupResponse, error) {
	email, position, err := s.admin.Move(ctx, access.ActorFromProto(r.GetActor()), r.GetWaitlistId(), r.GetEmail(), r.GetBody())
	if err != nil {
		return nil, err
	}
	return &signupv1.MoveSignupResponse{Email: email, Position: position}, nil
}

// CreditSignup implements the service.
func (s *Admin) CreditSignup(ctx context.Context, r *signupv1.CreditSignupRequest) (*signupv1.CreditSignupResponse, error) {
	email, err := s.admin.Credit(ctx, access.ActorFromProto(r.GetActor()), r.GetWaitlistId(), r.GetEmail(), r.GetBody())
	if err != nil {
		return nil, err
	}
	return &signupv1.CreditSignupResponse{Email: email}, nil
}

// GetStats implements the service.
func (s *Admin) GetStats(ctx context.Context, r *signupv1.GetStatsRequest) (*signupv1.GetStatsResponse, error) {
	st, err := s.admin.Stats(ctx, access.ActorFromProto(r.GetActor()), r.GetWaitlistId())
	if err != nil {
		return nil, err
	}
	return &signupv1.GetStatsResponse{
		WaitlistId: st.WaitlistID, TotalSignups: st.Total, ReferralSignups: st.Referrals, CreatedAt: timestamppb.New(st.CreatedAt),
	}, nil
}
