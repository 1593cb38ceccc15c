package grpc

import (
	"context"
	"time"

	"google.golang.org/grpc"

	"waitlist.internal/libs/access"
	"waitlist.internal/libs/apierr"
	signupv1 "waitlist.internal/proto/gen/waitlist/signup/v1"
	"waitlist.internal/services/signup"
)

// AuthorizeAnalytics implements the service.
func (s *Admin) AuthorizeAnalytics(
	ctx context.Context, r *signupv1.AuthorizeAnalyticsRequest,
) (*signupv1.AuthorizeAnalyticsResponse, error) {
	var invalid *apierr.Field
	if r.GetInvalidParameter() != "" {
		invalid = &apierr.Field{Field: r.GetInvalidParameter(), Message: r.GetInvalidMessage()}
	}
	id, top, err := s.admin.Analytics(ctx, access.ActorFromProto(r.GetActor()), r.GetWaitlistId(), int(r.GetReferrers()), invalid)
	if err != nil {
		return nil, err
	}
	out := &signupv1.AuthorizeAnalyticsResponse{WaitlistId: id, TopReferrers: make([]*signupv1.Referrer, 0, len(top))}
	for _, t := range top {
		out.TopReferrers = append(out.TopReferrers, &signupv1.Referrer{Email: t.Email, FirstName: t.FirstName, ReferralCount: t.ReferralCount})
	}
	return out, nil
}

// ListWaitlistIds implements the service.
func (s *Admin) ListWaitlistIds(
	_ *signupv1.ListWaitlistIdsRequest, out grpc.ServerStreamingServer[signupv1.ListWaitlistIdsResponse],
) error {
	return s.admin.WaitlistIDs(out.Context(), func(ids []string) error {
		return out.Send(&signupv1.ListWaitlistIdsResponse{WaitlistIds: ids})
	})
}

// TallySignups implements the service.
func (s *Admin) TallySignups(r *signupv1.TallySignupsRequest, out grpc.ServerStreamingServer[signupv1.TallySignupsResponse]) error {
	return s.admin.Tally(out.Context(), r.GetWaitlistId(), func(t signup.Tally) error {
		m := &signupv1.TallySignupsResponse{LastNumber: t.LastNumber}
		for _, d := range t.Days {
			m.Days = append(m.Days, &signupv1.DayTally{Day: d.Day.Format(time.DateOnly), Signups: d.Signups, ReferralSignups: d.Referrals})
		}
		for _, v := range t.Values {
			m.Values = append(m.Values, &signupv1.ValueTally{Field: v.Field, Value: v.Value, Count: v.Count, LastNumber: v.LastNumber})
		}
		return out.Send(m)
	})
}
