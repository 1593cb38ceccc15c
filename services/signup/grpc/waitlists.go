// Package grpc serves signup's internal interface.
package grpc

import (
	"context"

	signupv1 "waitlist.internal/proto/gen/waitlist/signup/v1"
	"waitlist.internal/services/signup/owners"
)

// Waitlists serves WaitlistService. Errors are those of package apierr; package rpc
// carries them.
type Waitlists struct {
	signupv1.UnimplementedWaitlistServiceServer
	owners *owners.Owners
}

// NewWaitlists returns the server of owners.
func NewWaitlists(s *owners.Owners) *Waitlists { return &Waitlists{owners: s} }

// CloseOwner implements the service.
func (s *Waitlists) CloseOwner(ctx context.Context, r *signupv1.CloseOwnerRequest) (*signupv1.CloseOwnerResponse, error) {
	if err := s.owners.CloseOwner(ctx, r.GetOwnerId()); err != nil {
		return nil, err
	}
	return &signupv1.CloseOwnerResponse{}, nil
}
