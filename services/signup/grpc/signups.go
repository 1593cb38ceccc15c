package grpc

import (
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
