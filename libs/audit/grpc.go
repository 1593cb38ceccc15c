package audit

import (
	"context"

	"google.golang.org/protobuf/types/known/timestamppb"

	"waitlist.internal/libs/access"
	auditv1 "waitlist.internal/proto/gen/waitlist/audit/v1"
)

// maxLimit bounds the entries of one call.
const maxLimit = 1000

// Server serves AuditService from a trail.
type Server struct {
	auditv1.UnimplementedAuditServiceServer
	trail Trail
}

// NewServer returns a Server.
func NewServer(trail Trail) *Server { return &Server{trail: trail} }

// ListEntries implements auditv1.AuditServiceServer.
func (s *Server) ListEntries(ctx context.Context, in *auditv1.ListEntriesRequest) (*auditv1.ListEntriesResponse, error) {
	entries, err := s.trail.Entries(ctx, Query{
		OwnerID: in.GetOwnerId(), Action: Action(in.GetAction()), Before: in.GetBefore(), Limit: min(int(in.GetLimit()), maxLimit),
	})
	if err != nil {
		return nil, err
	}
	out := &auditv1.ListEntriesResponse{Entries: make([]*auditv1.Entry, len(entries))}
	for i, e := range entries {
		out.Entries[i] = &auditv1.Entry{
			Id: e.ID, At: timestamppb.New(e.At), Actor: e.Actor, Credential: e.Credential, Role: role(e.Role),
			Action: string(e.Action), Target: e.Target, RequestId: e.RequestID,
		}
	}
	return out, nil
}

// Remote is the trail of another service.
type Remote struct{ Client auditv1.AuditServiceClient }

// Entries implements Trail.
func (r Remote) Entries(ctx context.Context, q Query) ([]Entry, error) {
	out, err := r.Client.ListEntries(ctx, &auditv1.ListEntriesRequest{
		OwnerId: q.OwnerID, Action: string(q.Action), Before: q.Before, Limit: int32(q.Limit),
	})
	if err != nil {
		return nil, err
	}
	entries := make([]Entry, len(out.GetEntries()))
	for i, e := range out.GetEntries() {
		entries[i] = Entry{
			ID: e.GetId(), At: e.GetAt().AsTime(), OwnerID: q.OwnerID, Actor: e.GetActor(), Credential: e.GetCredential(),
			Role: access.ParseRole(e.GetRole()), Action: Action(e.GetAction()), Target: e.GetTarget(), RequestID: e.GetRequestId(),
		}
	}
	return entries, nil
}
