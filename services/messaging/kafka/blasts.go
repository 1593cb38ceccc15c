package kafka

import (
	"context"

	"github.com/jackc/pgx/v5"

	eventv1 "waitlist.internal/proto/gen/waitlist/event/v1"
)

// Batches are those of blasts. *postgres.Blasts is one.
type Batches interface {
	// Ready makes a batch claimable in tx. Again, or of a blast that has gone, it is
	// harmless.
	Ready(ctx context.Context, tx pgx.Tx, blastID string, batch int64) error
}

// BlastHandler makes the batches of blasts claimable. The group's members have
// a share of them each, and so begin side by side.
func BlastHandler(b Batches) func(ctx context.Context, tx pgx.Tx, ev *eventv1.Event) error {
	return func(ctx context.Context, tx pgx.Tx, ev *eventv1.Event) error {
		if e := ev.GetBlastBatchReady(); e != nil {
			return b.Ready(ctx, tx, e.GetBlastId(), e.GetBatch())
		}
		return nil
	}
}
