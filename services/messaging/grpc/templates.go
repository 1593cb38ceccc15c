package grpc

import (
	"context"

	messagingv1 "waitlist.internal/proto/gen/waitlist/messaging/v1"
	"waitlist.internal/services/messaging/templates"
)

// CheckTemplates implements messagingv1.MessagingServiceServer.
func (s *Server) CheckTemplates(ctx context.Context, r *messagingv1.CheckTemplatesRequest) (*messagingv1.CheckTemplatesResponse, error) {
	refs := make([]templates.Ref, 0, len(r.GetTemplates()))
	for _, t := range r.GetTemplates() {
		refs = append(refs, templates.Ref{ID: t.GetTemplateId(), Type: templates.Type(t.GetTemplateType())})
	}
	unknown, err := s.templates.Unknown(ctx, r.GetOwnerId(), refs)
	if err != nil {
		return nil, err
	}
	out := new(messagingv1.CheckTemplatesResponse)
	for _, t := range unknown {
		out.Unknown = append(out.Unknown, &messagingv1.TemplateRef{TemplateId: t.ID, TemplateType: string(t.Type)})
	}
	return out, nil
}
