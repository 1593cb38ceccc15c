package grpc_test

import (
	"context"
	"testing"

	googlegrpc "google.golang.org/grpc"

	signupv1 "waitlist.internal/proto/gen/waitlist/signup/v1"
	"waitlist.internal/services/messaging/grpc"
	"waitlist.internal/services/messaging/mails"
)

// signups answers GetMailing, about an owner with or without Pro.
type signups struct {
	signupv1.SignupServiceClient

	pro bool
}

func (s signups) GetMailing(context.Context, *signupv1.GetMailingRequest, ...googlegrpc.CallOption) (*signupv1.GetMailingResponse, error) {
	return &signupv1.GetMailingResponse{
		Pro: s.pro, Offboarded: true, Signup: &signupv1.MailedSignup{Email: "ann@example.com", AwaitsVerification: true},
	}, nil
}

// Mails about signups leave the owner's domain with the plan that includes it.
func TestWithoutProMailsHaveTheDefaultSender(t *testing.T) {
	t.Parallel()
	for _, kind := range []mails.Kind{mails.SignupVerification, mails.Offboarding} {
		for _, pro := range []bool{false, true} {
			r, err := grpc.Facts{Signups: signups{pro: pro}}.Ask(t.Context(), mails.Request{Kind: kind, WaitlistID: "x"})
			if err != nil || r.DefaultSender == pro {
				t.Errorf("%s, Pro %t: default sender %t, %v", kind, pro, r.DefaultSender, err)
			}
		}
	}
}
