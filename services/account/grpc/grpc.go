// Package grpc serves AccountService and calls signup.
package grpc

import (
	"context"

	"google.golang.org/protobuf/types/known/timestamppb"

	"waitlist.internal/libs/access"
	accountv1 "waitlist.internal/proto/gen/waitlist/account/v1"
	signupv1 "waitlist.internal/proto/gen/waitlist/signup/v1"
	"waitlist.internal/services/account"
)

// Server serves AccountService.
type Server struct {
	accountv1.UnimplementedAccountServiceServer
	svc *account.Service
}

// New returns a Server.
func New(svc *account.Service) *Server { return &Server{svc: svc} }

// Authorize implements accountv1.AccountServiceServer.
func (s *Server) Authorize(ctx context.Context, in *accountv1.AuthorizeRequest) (*accountv1.AuthorizeResponse, error) {
	authorize := s.svc.Authorize
	if in.GetUnderWay() {
		authorize = s.svc.AuthorizeUnderWay
	}
	actor, err := authorize(ctx, in.GetBearerToken(), in.GetApiKey())
	if err != nil {
		return nil, err
	}
	return &accountv1.AuthorizeResponse{Actor: actor.Proto()}, nil
}

// GetAccount implements accountv1.AccountServiceServer.
func (s *Server) GetAccount(ctx context.Context, in *accountv1.GetAccountRequest) (*accountv1.GetAccountResponse, error) {
	a, err := s.svc.Account(ctx, in.GetAccountId())
	if err != nil {
		return nil, err
	}
	return &accountv1.GetAccountResponse{EmailVerified: !a.EmailVerifiedAt.IsZero(), Entitlement: a.Entitlement.Proto()}, nil
}

// GetAccountMail implements accountv1.AccountServiceServer.
func (s *Server) GetAccountMail(ctx context.Context, in *accountv1.GetAccountMailRequest) (*accountv1.GetAccountMailResponse, error) {
	kind := map[accountv1.AccountMail]account.MailKind{
		accountv1.AccountMail_ACCOUNT_MAIL_VERIFICATION:       account.VerificationMail,
		accountv1.AccountMail_ACCOUNT_MAIL_PASSWORD_RESET:     account.ResetMail,
		accountv1.AccountMail_ACCOUNT_MAIL_CREDENTIAL_CHANGED: account.CredentialMail,
		accountv1.AccountMail_ACCOUNT_MAIL_TEAM_INVITE:        account.InviteMail,
		accountv1.AccountMail_ACCOUNT_MAIL_TRIAL_ENDING:       account.TrialEndingMail,
	}[in.GetMail()]
	m, err := s.svc.Mail(ctx, in.GetAccountId(), kind, in.GetMemberEmail())
	if err != nil {
		return nil, err
	}
	out := &accountv1.GetAccountMailResponse{Email: m.Recipient, Generation: m.Generation, OwnerEmail: m.OwnerEmail}
	if kind == account.InviteMail {
		out.Role = m.Role.String()
	}
	if !m.ExpiresAt.IsZero() {
		out.ExpiresAt = timestamppb.New(m.ExpiresAt)
	}
	return out, nil
}

// SetEntitlement implements accountv1.AccountServiceServer.
func (s *Server) SetEntitlement(ctx context.Context, in *accountv1.SetEntitlementRequest) (*accountv1.SetEntitlementResponse, error) {
	e, err := s.svc.SetEntitlement(ctx, in.GetAccountId(), access.EntitlementFromProto(in.GetEntitlement()))
	if err != nil {
		return nil, err
	}
	return &accountv1.SetEntitlementResponse{Entitlement: e.Proto()}, nil
}

// StartTrial implements accountv1.AccountServiceServer.
func (s *Server) StartTrial(ctx context.Context, in *accountv1.StartTrialRequest) (*accountv1.StartTrialResponse, error) {
	e, err := s.svc.StartTrial(ctx, in.GetAccountId())
	if err != nil {
		return nil, err
	}
	return &accountv1.StartTrialResponse{Entitlement: e.Proto()}, nil
}

// SetPaymentCustomer implements accountv1.AccountServiceServer.
func (s *Server) SetPaymentCustomer(
	ctx context.Context, in *accountv1.SetPaymentCustomerRequest,
) (*accountv1.SetPaymentCustomerResponse, error) {
	if err := s.svc.SetPaymentCustomer(ctx, in.GetAccountId(), in.GetCustomerId()); err != nil {
		return nil, err
	}
	return &accountv1.SetPaymentCustomerResponse{}, nil
}

// OwnerCloser implements account.OwnerCloser with a call to signup.
type OwnerCloser struct {
	Waitlists signupv1.WaitlistServiceClient
}

// CloseOwner implements account.OwnerCloser.
func (o OwnerCloser) CloseOwner(ctx context.Context, accountID string) error {
	_, err := o.Waitlists.CloseOwner(ctx, &signupv1.CloseOwnerRequest{OwnerId: accountID})
	return err
}
