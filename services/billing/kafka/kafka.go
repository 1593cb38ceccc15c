// Package kafka handles the events of other services.
package kafka

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	eventv1 "waitlist.internal/proto/gen/waitlist/event/v1"
)

// Graves records deleted accounts. *postgres.Store implements it.
type Graves interface {
	InsertDeletion(ctx context.Context, tx pgx.Tx, accountID string, at time.Time) error
}

// Wants reports whether Handler does anything about an event.
func Wants(ev *eventv1.Event) bool { return ev.GetAccountDeleted() != nil }

// Handler records deleted accounts. A worker then removes them at the provider.
func Handler(g Graves) func(ctx context.Context, tx pgx.Tx, ev *eventv1.Event) error {
	return func(ctx context.Context, tx pgx.Tx, ev *eventv1.Event) error {
		if e := ev.GetAccountDeleted(); e != nil {
			return g.InsertDeletion(ctx, tx, e.GetAccountId(), ev.GetOccurredAt().AsTime())
		}
		return nil
	}
}
