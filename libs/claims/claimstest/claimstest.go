// Package claimstest serves the calls of package claims in tests.
package claimstest

import (
	"context"
	"log/slog"
	"net"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"waitlist.internal/libs/apierr"
	"waitlist.internal/libs/rpc"
	accessv1 "waitlist.internal/proto/gen/waitlist/access/v1"
	accountv1 "waitlist.internal/proto/gen/waitlist/account/v1"
	messagingv1 "waitlist.internal/proto/gen/waitlist/messaging/v1"
	signupv1 "waitlist.internal/proto/gen/waitlist/signup/v1"
)

// Facts stands for a service that knows accounts, waitlists or templates: those that were
// added. It is safe for concurrent use.
type Facts struct {
	accountv1.UnimplementedAccountServiceServer
	signupv1.UnimplementedSignupServiceServer
	messagingv1.UnimplementedMessagingServiceServer
	// Target is the address of the service.
	Target string
	// Plan is that of all accounts.
	Plan *accessv1.Entitlement

	mu    sync.Mutex
	known map[string]bool
}

// Serve serves as callee until the test ends, to the services that keys name. At first
// everything is gone.
func Serve(t testing.TB, callee string, keys rpc.Keys) *Facts {
	t.Helper()
	f := &Facts{known: map[string]bool{}}
	server := rpc.NewServer(callee, keys, slog.New(slog.NewTextHandler(t.Output(), nil)))
	accountv1.RegisterAccountServiceServer(server, f)
	signupv1.RegisterSignupServiceServer(server, f)
	messagingv1.RegisterMessagingServiceServer(server, f)
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	f.Target = listener.Addr().String()
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	t.Cleanup(func() {
		server.Stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return f
}

// Add makes an account, waitlist or template exist.
func (f *Facts) Add(id string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.known[id] = true
}

func (f *Facts) knows(id string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.known[id]
}

// GetAccount implements AccountService.
func (f *Facts) GetAccount(_ context.Context, r *accountv1.GetAccountRequest) (*accountv1.GetAccountResponse, error) {
	if !f.knows(r.GetAccountId()) {
		return nil, apierr.NotFoundf("There is no such account.")
	}
	return &accountv1.GetAccountResponse{Entitlement: f.Plan}, nil
}

// GetAccountMail implements AccountService: every mail is true, and goes to the owner or the
// invited member.
func (f *Facts) GetAccountMail(_ context.Context, r *accountv1.GetAccountMailRequest) (*accountv1.GetAccountMailResponse, error) {
	out := &accountv1.GetAccountMailResponse{
		Email: "owner@example.com", Generation: 1, ExpiresAt: timestamppb.New(time.Now().Add(time.Hour)),
	}
	if r.GetMail() == accountv1.AccountMail_ACCOUNT_MAIL_TEAM_INVITE {
		out = &accountv1.GetAccountMailResponse{Email: r.GetMemberEmail(), OwnerEmail: "owner@example.com", Role: "admin"}
	}
	return out, nil
}

// GetMailing implements SignupService: every signup awaits the verification of
// asked@example.com.
func (f *Facts) GetMailing(context.Context, *signupv1.GetMailingRequest) (*signupv1.GetMailingResponse, error) {
	return &signupv1.GetMailingResponse{
		WaitlistName: "Käse", Signup: &signupv1.MailedSignup{Email: "asked@example.com", AwaitsVerification: true},
	}, nil
}

// WaitlistExists implements SignupService.
func (f *Facts) WaitlistExists(_ context.Context, r *signupv1.WaitlistExistsRequest) (*signupv1.WaitlistExistsResponse, error) {
	return &signupv1.WaitlistExistsResponse{Exists: f.knows(r.GetWaitlistId())}, nil
}

// CheckTemplates implements MessagingService. Existing templates are for offboarding.
func (f *Facts) CheckTemplates(_ context.Context, r *messagingv1.CheckTemplatesRequest) (*messagingv1.CheckTemplatesResponse, error) {
	out := new(messagingv1.CheckTemplatesResponse)
	for _, t := range r.GetTemplates() {
		if t.GetTemplateType() != "offboarding" || !f.knows(t.GetTemplateId()) {
			out.Unknown = append(out.Unknown, t)
		}
	}
	return out, nil
}
