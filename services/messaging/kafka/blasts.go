package kafka

import (
	"context"

	"github.com/jackc/pgx/v5"

	eventv1 "waitlist.internal/proto/gen/waitlist/event/v1"
)

// Batches stores the batches of blasts. *postgres.Blasts implements it.
type Batches interface {
	// Ready makes a batch claimable in tx. It has no effect on batches that are ready already,
	// or whose blast has ended.
	Ready(ctx context.Context, tx pgx.Tx, blastID string, batch int64) error
}

// BlastHandler makes the batches of blasts claimable. Kafka spreads the events over the members of
// the consumer group, so all of them start sending.
func BlastHandler(b Batches) func(ctx context.Context, tx pgx.Tx, ev *eventv1.Event) error {
	return func(ctx context.Context, tx pgx.Tx, ev *eventv1.Event) error {
		if e := ev.GetBlastBatchReady(); e != nil {
			return b.Ready(ctx, tx, e.GetBlastId(), e.GetBatch())
		}
		return nil
	}
}
