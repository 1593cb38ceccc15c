package grpc

import (
	"time"

	"google.golang.org/grpc"

	signupv1 "waitlist.internal/proto/gen/waitlist/signup/v1"
	"waitlist.internal/services/signup/owners"
)

// Admin serves AdminService. Errors are those of package apierr; package rpc carries
// them.
type Admin struct {
	signupv1.UnimplementedAdminServiceServer
	admin *owners.Admin
}

// NewAdmin returns the server of admin.
func NewAdmin(admin *owners.Admin) *Admin { return &Admin{admin: admin} }

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
	return s.admin.Tally(out.Context(), r.GetWaitlistId(), func(t owners.Tally) error {
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
