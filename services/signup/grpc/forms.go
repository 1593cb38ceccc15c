package grpc

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/google/uuid"

	"waitlist.internal/libs/apierr"
	"waitlist.internal/libs/views"
	signupv1 "waitlist.internal/proto/gen/waitlist/signup/v1"
	"waitlist.internal/services/signup/join"
	"waitlist.internal/services/signup/waitlist"
)

// Forms serves FormService.
type Forms struct {
	signupv1.UnimplementedFormServiceServer

	Service *join.Service
	// Views takes the counts.
	Views views.Store
}

// GetForm implements the service.
func (s *Forms) GetForm(ctx context.Context, r *signupv1.GetFormRequest) (*signupv1.GetFormResponse, error) {
	id, ok := waitlist.ParseID(r.GetWaitlistId())
	if !ok {
		return nil, waitlist.ErrNotFound()
	}
	f, err := s.Service.Form(ctx, id)
	if err != nil {
		return nil, err
	}
	out := &signupv1.GetFormResponse{Version: f.Version, SignupCount: f.Count}
	if f.Version == r.GetKnownVersion() {
		return out, nil
	}
	f.Count = nil
	if out.ConfigJson, err = json.Marshal(f.Config()); err != nil {
		return nil, fmt.Errorf("encode the form: %w", err)
	}
	return out, nil
}

// CountViews implements the service.
func (s *Forms) CountViews(ctx context.Context, r *signupv1.CountViewsRequest) (*signupv1.CountViewsResponse, error) {
	if n := len(r.GetCounts()); n < 1 || n > views.AtOnce {
		return nil, invalidCounts(fmt.Sprintf("Send 1 to %d counts.", views.AtOnce))
	}
	counts := make([]views.Count, len(r.GetCounts()))
	for i, c := range r.GetCounts() {
		id, ok := waitlist.ParseID(c.GetWaitlistId())
		if !ok || uuid.Validate(c.GetId()) != nil || c.GetViews() < 1 || !c.GetAt().IsValid() {
			return nil, invalidCounts("Each count needs an id, a waitlist, a number above 0 and a time.")
		}
		counts[i] = views.Count{ID: c.GetId(), WaitlistID: id, Views: c.GetViews(), At: c.GetAt().AsTime()}
	}
	return &signupv1.CountViewsResponse{}, s.Views.CountViews(ctx, counts)
}

func invalidCounts(message string) error {
	return apierr.Validation(apierr.Field{Field: "counts", Message: message})
}
