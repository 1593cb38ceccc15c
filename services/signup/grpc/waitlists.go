// Package grpc serves signup's internal interface.
package grpc

import (
	"context"

	"google.golang.org/protobuf/types/known/timestamppb"

	"waitlist.internal/libs/access"
	signupv1 "waitlist.internal/proto/gen/waitlist/signup/v1"
	"waitlist.internal/services/signup"
)

// Waitlists serves WaitlistService. Errors are those of package apierr; package rpc
// carries them.
type Waitlists struct {
	signupv1.UnimplementedWaitlistServiceServer
	owners *signup.Owners
}

// NewWaitlists returns the server of owners.
func NewWaitlists(owners *signup.Owners) *Waitlists { return &Waitlists{owners: owners} }

// CreateWaitlist implements the service.
func (s *Waitlists) CreateWaitlist(ctx context.Context, r *signupv1.CreateWaitlistRequest) (*signupv1.CreateWaitlistResponse, error) {
	w, replayed, err := s.owners.Create(ctx, access.ActorFromProto(r.GetActor()), r.GetAccountEmail(), r.GetBody(), r.GetIdempotencyKey())
	if err != nil {
		return nil, err
	}
	return &signupv1.CreateWaitlistResponse{Waitlist: message(w), Replayed: replayed}, nil
}

// ListWaitlists implements the service.
func (s *Waitlists) ListWaitlists(ctx context.Context, r *signupv1.ListWaitlistsRequest) (*signupv1.ListWaitlistsResponse, error) {
	lists, err := s.owners.List(ctx, access.ActorFromProto(r.GetActor()))
	if err != nil {
		return nil, err
	}
	out := &signupv1.ListWaitlistsResponse{Waitlists: make([]*signupv1.Waitlist, 0, len(lists))}
	for _, w := range lists {
		out.Waitlists = append(out.Waitlists, &signupv1.Waitlist{
			WaitlistId: w.ID, Name: w.Name, Role: w.Role.String(), SignupCount: w.SignupCount, CreatedAt: timestamppb.New(w.CreatedAt),
		})
	}
	return out, nil
}

// GetWaitlist implements the service.
func (s *Waitlists) GetWaitlist(ctx context.Context, r *signupv1.GetWaitlistRequest) (*signupv1.GetWaitlistResponse, error) {
	w, err := s.owners.Get(ctx, access.ActorFromProto(r.GetActor()), r.GetWaitlistId())
	if err != nil {
		return nil, err
	}
	return &signupv1.GetWaitlistResponse{Waitlist: message(w)}, nil
}

// UpdateWaitlist implements the service.
func (s *Waitlists) UpdateWaitlist(ctx context.Context, r *signupv1.UpdateWaitlistRequest) (*signupv1.UpdateWaitlistResponse, error) {
	w, err := s.owners.Update(ctx, access.ActorFromProto(r.GetActor()), r.GetWaitlistId(), r.GetBody())
	if err != nil {
		return nil, err
	}
	return &signupv1.UpdateWaitlistResponse{Waitlist: message(w)}, nil
}

// DeleteWaitlist implements the service.
func (s *Waitlists) DeleteWaitlist(ctx context.Context, r *signupv1.DeleteWaitlistRequest) (*signupv1.DeleteWaitlistResponse, error) {
	if err := s.owners.Delete(ctx, access.ActorFromProto(r.GetActor()), r.GetWaitlistId()); err != nil {
		return nil, err
	}
	return &signupv1.DeleteWaitlistResponse{}, nil
}

// CloseOwner implements the service.
func (s *Waitlists) CloseOwner(ctx context.Context, r *signupv1.CloseOwnerRequest) (*signupv1.CloseOwnerResponse, error) {
	if err := s.owners.CloseOwner(ctx, r.GetOwnerId()); err != nil {
		return nil, err
	}
	return &signupv1.CloseOwnerResponse{}, nil
}

func message(w signup.OwnedWaitlist) *signupv1.Waitlist {
	return &signupv1.Waitlist{
		WaitlistId: w.ID, OwnerId: w.OwnerID, Name: w.Name, Role: w.Role.String(), SettingsJson: w.SettingsJSON,
		SignupCount: w.SignupCount, CreatedAt: timestamppb.New(w.CreatedAt),
	}
}
