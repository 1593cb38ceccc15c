// Package loop is the one home of waiting: pauses, wake-ups, back-offs, periodic
// work, and the time that work under way gets after a shutdown has begun.
//
//	Wait, Idle    one pause, cut short by the context or by a Signal
//	Every         an iteration at a fixed rate
//	Job           periodic work that finds more, fails and is tried again
//	Backoff       pauses that double, with jitter
//	Drain         a context for finishing what is under way
//
// A select over several channels that mean different things stays a select.
package loop

import (
	"context"
	"iter"
	"log/slog"
	"time"

	"github.com/cenkalti/backoff/v5"

	"waitlist.internal/libs/telemetry"
)

// Wait waits for d and reports whether ctx is still alive.
func Wait(ctx context.Context, d time.Duration) bool { return Idle(ctx, d, nil) }

// Signal wakes one loop. Signals sent before the loop looks count as one. The nil
// Signal never wakes anything.
type Signal chan struct{}

// NewSignal returns a Signal.
func NewSignal() Signal { return make(Signal, 1) }

// Send wakes the loop, now or at its next pause. It never blocks.
func (s Signal) Send() {
	select {
	case s <- struct{}{}:
	default: // already sent
	}
}

// Idle waits for d or for wake, whichever comes first, and reports whether ctx is
// still alive.
func Idle(ctx context.Context, d time.Duration, wake Signal) bool {
	if d <= 0 || ctx.Err() != nil {
		return ctx.Err() == nil
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-wake:
	case <-ctx.Done():
	}
	return ctx.Err() == nil
}

// Every iterates once per interval until ctx ends. The first iteration is one
// interval away. A tick that arrives during an iteration starts the next one at
// once; further ticks are dropped.
func Every(ctx context.Context, interval time.Duration) iter.Seq[time.Time] {
	return func(yield func(time.Time) bool) {
		t := time.NewTicker(interval)
		defer t.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case now := <-t.C:
				if ctx.Err() != nil || !yield(now) {
					return
				}
			}
		}
	}
}

// Job is periodic work.
type Job struct {
	// Name says what the job does, in its log lines.
	Name string
	// Every is the pause between the end of one run and the start of the next.
	Every time.Duration
	// Wake, if set, ends the pause.
	Wake Signal
	Log  *slog.Logger
	// Do does some of the work. It returns more to be called again without a pause.
	Do func(ctx context.Context) (more bool, err error)
}

// Run calls Do at once and after each pause, until ctx ends. It logs a failure
// and calls Do again after the pause. It returns nil.
func (j Job) Run(ctx context.Context) error {
	for ctx.Err() == nil {
		more, err := j.Do(ctx)
		if err != nil && ctx.Err() == nil {
			j.Log.ErrorContext(ctx, "background work failed; trying it again", slog.String("work", j.Name), telemetry.Err(err))
		}
		if !more || err != nil {
			Idle(ctx, j.Every, j.Wake)
		}
	}
	return nil
}

// Whole makes a Job's Do of a function that leaves no work behind when it
// succeeds.
func Whole(fn func(context.Context) error) func(context.Context) (bool, error) {
	return func(ctx context.Context) (bool, error) { return false, fn(ctx) }
}

// Backoff is a sequence of pauses that double from Min up to Max. Each is shortened
// by a random part, up to a half, so that callers that failed together do not
// return together. Copies continue independently. It is not safe for concurrent
// use.
type Backoff struct {
	Min, Max time.Duration

	next backoff.ExponentialBackOff
}

// Next returns the next pause.
func (b *Backoff) Next() time.Duration {
	if b.next.Multiplier == 0 {
		// The library spreads a pause around its mean: a third around 3/4 is 1/2 to 1.
		b.next = backoff.ExponentialBackOff{
			InitialInterval: b.Min * 3 / 4, MaxInterval: b.Max * 3 / 4, Multiplier: 2, RandomizationFactor: 1. / 3,
		}
	}
	return b.next.NextBackOff()
}

// Wait waits for the next pause and reports whether ctx is still alive.
func (b *Backoff) Wait(ctx context.Context) bool { return Wait(ctx, b.Next()) }

// Reset starts over with Min.
func (b *Backoff) Reset() { b.next.Reset() }

// Drain returns a context that stays alive for d after ctx has ended. It keeps
// ctx's values. Call stop when the work is done.
func Drain(ctx context.Context, d time.Duration) (work context.Context, stop context.CancelFunc) {
	work, cancel := context.WithCancel(context.WithoutCancel(ctx))
	unhook := context.AfterFunc(ctx, func() {
		t := time.AfterFunc(d, cancel)
		context.AfterFunc(work, func() { t.Stop() })
	})
	return work, func() { unhook(); cancel() }
}
