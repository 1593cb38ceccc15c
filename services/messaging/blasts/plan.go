package blasts

import (
	"context"
	"fmt"
	"log/slog"

	"waitlist.internal/libs/apierr"
	"waitlist.internal/libs/loop"
	"waitlist.internal/libs/telemetry"
)

const (
	// recipientPage is how many recipients one transaction of a plan stores, which takes a few
	// hundred milliseconds.
	recipientPage = 10_000
	// firstPage is the smaller first page of a plan, so that sending starts early.
	firstPage = 1000
)

// Plan extends the plans of blasts, one page of each blast in turn, until ctx is done.
func (b *Blaster) Plan(ctx context.Context) error {
	for ctx.Err() == nil {
		p, ok, err := b.Queue.ClaimPlan(ctx, b.Lease)
		if err == nil && ok {
			err = b.extend(ctx, p)
		}
		switch {
		case ctx.Err() != nil:
		case err != nil:
			b.Log.WarnContext(ctx, "blast not planned", slog.String("blast_id", p.BlastID), telemetry.Err(err))
			if ok {
				// If this fails too, the plan is due when its lease expires.
				_ = b.Queue.PausePlan(ctx, p, b.PauseMin)
			}
			loop.Wait(ctx, b.PauseMin)
		case !ok:
			loop.Idle(ctx, b.Poll, b.wakePlan)
		}
	}
	return nil
}

// extend adds the next page of recipients to a plan.
func (b *Blaster) extend(ctx context.Context, p Plan) error {
	limit := recipientPage
	if p.To == 0 {
		limit = firstPage
	}
	numbers, err := b.Lists.Numbers(ctx, p.WaitlistID, p.To, limit)
	if apierr.Is(err, apierr.NotFound) {
		return b.Queue.Gone(ctx, p.WaitlistID)
	}
	if err != nil {
		return fmt.Errorf("list recipients: %w", err)
	}
	last := len(numbers) < limit
	if int64(len(numbers)) >= p.Left {
		// People joined the list after the blast was counted towards the owner's quota.
		numbers, last = numbers[:p.Left], true
	}
	if err := b.Queue.Extend(ctx, p, numbers, last); err != nil {
		return err
	}
	b.engine.Wake()
	return nil
}
