// Package grpc serves messaging's internal interface, and calls signup's.
package grpc

import (
	"context"

	"google.golang.org/protobuf/types/known/timestamppb"

	"waitlist.internal/libs/access"
	messagingv1 "waitlist.internal/proto/gen/waitlist/messaging/v1"
	"waitlist.internal/services/messaging/blasts"
	"waitlist.internal/services/messaging/templates"
)

// Server serves MessagingService. Package rpc transports its apierr errors.
type Server struct {
	messagingv1.UnimplementedMessagingServiceServer
	blasts    *blasts.Service
	templates *templates.Service
}

// NewServer returns a Server.
func NewServer(blasts *blasts.Service, templates *templates.Service) *Server {
	return &Server{blasts: blasts, templates: templates}
}

// CreateBlast implements messagingv1.MessagingServiceServer.
func (s *Server) CreateBlast(ctx context.Context, r *messagingv1.CreateBlastRequest) (*messagingv1.CreateBlastResponse, error) {
	b, replayed, err := s.blasts.Create(ctx, blasts.Request{
		Content:    blasts.Content{Subject: r.GetSubject(), HTML: r.GetHtmlBody(), Text: r.GetTextBody()},
		WaitlistID: r.GetWaitlistId(), OwnerID: r.GetOwnerId(), Trial: r.GetTrial(),
		AccountID: r.GetAccountId(), CredentialID: r.GetCredentialId(), Role: access.Role(r.GetRole()),
		Key: r.GetIdempotencyKey(), Fingerprint: r.GetFingerprint(),
	})
	if err != nil {
		return nil, err
	}
	return &messagingv1.CreateBlastResponse{Blast: blast(b), Replayed: replayed}, nil
}

// ListBlasts implements messagingv1.MessagingServiceServer.
func (s *Server) ListBlasts(ctx context.Context, r *messagingv1.ListBlastsRequest) (*messagingv1.ListBlastsResponse, error) {
	list, err := s.blasts.List(ctx, r.GetWaitlistId())
	if err != nil {
		return nil, err
	}
	out := &messagingv1.ListBlastsResponse{Blasts: make([]*messagingv1.Blast, len(list))}
	for i, b := range list {
		out.Blasts[i] = blast(b)
	}
	return out, nil
}

func blast(b blasts.Blast) *messagingv1.Blast {
	return &messagingv1.Blast{
		BlastId: b.ID, Subject: b.Subject, Status: string(b.State), RecipientCount: b.Recipients,
		FailedCount: b.Failed, SentAt: timestamppb.New(b.At),
	}
}
