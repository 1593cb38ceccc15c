package blasts

import (
	"context"
	"time"

	"waitlist.internal/libs/loop"
	"waitlist.internal/libs/telemetry"
	"waitlist.internal/libs/work"
	"waitlist.internal/services/messaging/mails"
)

const (
	// recordWait is how long an outcome waits for others to be recorded with.
	recordWait = 2 * time.Millisecond
	// keep is how long the recipients of an ended blast are kept.
	keep = 30 * 24 * time.Hour
)

// end hands a job with an outcome to the recorder. It blocks while the recorder is behind, which
// bounds the mails that are sent but not recorded.
func (b *Blaster) end(j job) {
	b.count(string(j.outcome))
	b.ended <- j
}

// record stores outcomes until b.ended is closed; those that arrive within recordWait are
// stored together.
func (b *Blaster) record(ctx context.Context) {
	wait := time.NewTimer(0)
	defer wait.Stop()
	for first := range b.ended {
		group, results := []job{first}, []Result{first.result()}
		wait.Reset(recordWait)
	fill:
		for len(group) < 2*b.Workers {
			select {
			case j, ok := <-b.ended:
				if !ok {
					break fill
				}
				group, results = append(group, j), append(results, j.result())
			case <-wait.C:
				break fill
			}
		}
		stored := b.store(ctx, results)
		for _, j := range group {
			if !stored {
				j.a.stop()
			}
			j.a.open.Done()
		}
	}
}

// store records results and tries again until it succeeds or ctx has been done for work.Drain. It
// reports whether it succeeded.
func (b *Blaster) store(ctx context.Context, results []Result) bool {
	work, stop := loop.Drain(ctx, work.Drain)
	defer stop()
	for backoff := (loop.Backoff{Min: 50 * time.Millisecond, Max: time.Second}); ; {
		err := b.Queue.Record(work, results)
		if err == nil {
			return true
		}
		b.Log.WarnContext(work, "outcomes of a blast not recorded", telemetry.Err(err))
		if !backoff.Wait(work) {
			return false
		}
	}
}

// Prune deletes the recipients of blasts that ended keep ago, until ctx is done.
func (b *Blaster) Prune(ctx context.Context) error {
	mails.PruneHourly(ctx, func() (int64, error) {
		n, err := b.Queue.PruneBlasts(ctx, b.Now().Add(-keep))
		if err != nil {
			b.Log.WarnContext(ctx, "blasts not pruned", telemetry.Err(err))
		}
		return n, err
	})
	return nil
}
