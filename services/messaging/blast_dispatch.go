package messaging

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"

	"waitlist.internal/libs/loop"
	"waitlist.internal/libs/telemetry"
	"waitlist.internal/libs/work"
)

// dispatch claims and runs batches, one per worker at a time. It returns when ctx is done and
// all batches have finished.
func (b *Blaster) dispatch(ctx context.Context) {
	var running sync.WaitGroup
	defer running.Wait()
	slots := make(chan struct{}, b.Workers)
	for ctx.Err() == nil {
		if pause := b.provider.Remaining(); pause > 0 {
			loop.Wait(ctx, pause)
			continue
		}
		free := take(ctx, slots)
		if free == 0 {
			return
		}
		until := time.Now().Add(b.Lease)
		batches, err := b.claim(ctx, free)
		if err != nil {
			b.Log.WarnContext(ctx, "batches not claimed", telemetry.Err(err))
		}
		for _, batch := range batches {
			running.Go(func() {
				defer func() { <-slots }()
				b.run(ctx, batch, until)
			})
		}
		for range free - len(batches) {
			<-slots
		}
		if len(batches) == 0 {
			loop.Idle(ctx, b.Poll, b.wakeSend)
		}
	}
}

// take waits for a free slot, and takes all slots that are free by then. It returns their
// number, 0 if ctx is done.
func take(ctx context.Context, slots chan<- struct{}) (n int) {
	select {
	case slots <- struct{}{}:
	case <-ctx.Done():
		return 0
	}
	for n = 1; ; n++ {
		select {
		case slots <- struct{}{}:
		default:
			return n
		}
	}
}

// claim claims one batch of each blast, beginning after the blast that was served last. The end
// of ctx does not interrupt it: a claim that Postgres committed unnoticed would hold its batches
// up for a whole lease.
func (b *Blaster) claim(ctx context.Context, limit int) ([]Batch, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), work.Drain)
	defer cancel()
	out, err := b.Queue.Claim(ctx, b.after, limit, uuid.NewString(), b.Lease)
	if first := uuid.Nil.String(); err == nil && len(out) == 0 && b.after != first {
		b.after = first
		out, err = b.Queue.Claim(ctx, b.after, limit, uuid.NewString(), b.Lease)
	}
	if err == nil && len(out) > 0 {
		b.after = out[len(out)-1].BlastID
	}
	return out, err
}

// claims are the attempts whose batches this process has claimed.
type claims struct {
	mu   sync.Mutex
	held map[*attempt]bool
}

// hold adds an attempt until release is called.
func (c *claims) hold(a *attempt) (release func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.held[a] = true
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.held, a)
	}
}

func (c *claims) all() []*attempt {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Collect(maps.Keys(c.held))
}

// renew keeps the claims of running batches alive, and stops the attempts whose claim is lost.
func (b *Blaster) renew(ctx context.Context) {
	for loop.Wait(ctx, b.Lease/3) {
		attempts := b.claims.all()
		if len(attempts) == 0 {
			continue
		}
		batches := make([]Batch, len(attempts))
		for i, a := range attempts {
			batches[i] = a.Batch
		}
		until := time.Now().Add(b.Lease)
		holds, err := b.Queue.Renew(ctx, batches, b.Lease)
		if err != nil {
			if ctx.Err() == nil {
				b.Log.WarnContext(ctx, "claims of batches not renewed", telemetry.Err(err))
			}
			continue
		}
		for i, a := range attempts {
			if holds[i] {
				a.renewed(until)
			} else {
				a.lost()
			}
		}
	}
}
