package grpc

import (
	"context"
	"time"

	"waitlist.internal/libs/rpc"
	messagingv1 "waitlist.internal/proto/gen/waitlist/messaging/v1"
	"waitlist.internal/services/signup/waitlist"
)

// templatesTimeout leaves the rest of the request enough time.
const templatesTimeout = 3 * time.Second

// Templates implements owners.Templates with calls to messaging.
type Templates struct {
	Messaging messagingv1.MessagingServiceClient
}

// Unknown implements owners.Templates.
func (t Templates) Unknown(ctx context.Context, ownerID string, of []waitlist.Assignment) ([]waitlist.Assignment, error) {
	in := &messagingv1.CheckTemplatesRequest{OwnerId: ownerID}
	for _, a := range of {
		in.Templates = append(in.Templates, &messagingv1.TemplateRef{TemplateId: a.TemplateID, TemplateType: a.Mail})
	}
	out, err := t.Messaging.CheckTemplates(ctx, in, rpc.Deadline(templatesTimeout))
	if err != nil {
		return nil, err
	}
	var unknown []waitlist.Assignment
	for _, r := range out.GetUnknown() {
		unknown = append(unknown, waitlist.Assignment{Mail: r.GetTemplateType(), TemplateID: r.GetTemplateId()})
	}
	return unknown, nil
}
