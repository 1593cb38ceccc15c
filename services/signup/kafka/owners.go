// Package kafka applies what other services publish.
package kafka

import (
	"context"

	"github.com/jackc/pgx/v5"

	"waitlist.internal/libs/access"
	eventv1 "waitlist.internal/proto/gen/waitlist/event/v1"
)

// Owners keeps the projection of owners; every method works within tx.
// *postgres.Waitlists is one.
type Owners interface {
	// UpdateOwner stores an entitlement unless the stored one is as new.
	UpdateOwner(ctx context.Context, tx pgx.Tx, ownerID string, e access.Entitlement) error
	// CloseOwnerIn deletes everything of an owner. Again is harmless.
	CloseOwnerIn(ctx context.Context, tx pgx.Tx, ownerID string) error
	// RemoveTemplate takes a deleted template out of an owner's settings. Again is
	// harmless.
	RemoveTemplate(ctx context.Context, tx pgx.Tx, ownerID, templateID string) error
}

// Handler applies the accounts' events to owners: what they may use, which of
// their templates have gone, and that they have gone themselves. The last is
// also called by account directly; the event is for when that call did not come
// through.
func Handler(owners Owners) func(ctx context.Context, tx pgx.Tx, ev *eventv1.Event) error {
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
