// Package kafka applies the events of other services.
package kafka

import (
	"context"

	"github.com/jackc/pgx/v5"

	"waitlist.internal/libs/access"
	eventv1 "waitlist.internal/proto/gen/waitlist/event/v1"
	"waitlist.internal/services/signup/postgres"
)

// Handler applies the events about accounts: new entitlements, deleted templates and
// deleted accounts. account also announces a deletion by a call; the event covers a
// call that was lost.
func Handler(owners *postgres.Waitlists) func(ctx context.Context, tx pgx.Tx, ev *eventv1.Event) error {
	return func(ctx context.Context, tx pgx.Tx, ev *eventv1.Event) error {
		switch p := ev.GetPayload().(type) {
		case *eventv1.Event_EntitlementChanged:
			e := p.EntitlementChanged
			return owners.UpdateOwner(ctx, tx, e.GetAccountId(), access.EntitlementFromProto(e.GetEntitlement()))
		case *eventv1.Event_AccountDeleted:
			return owners.CloseOwnerIn(ctx, tx, p.AccountDeleted.GetAccountId())
		case *eventv1.Event_TemplateDeleted:
			return owners.RemoveTemplate(ctx, tx, p.TemplateDeleted.GetAccountId(), p.TemplateDeleted.GetTemplateId())
		default:
			return nil
		}
	}
}
