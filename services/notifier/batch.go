package notifier

import (
	"context"
	"log/slog"
	"time"

	"waitlist.internal/libs/loop"
	"waitlist.internal/libs/telemetry"
)

const (
	// batchRows bounds one statement.
	batchRows = 256
	// A failed statement is repeated after retryFirst, then after pauses that double
	// up to retryMax.
	retryFirst = 50 * time.Millisecond
	retryMax   = 2 * time.Second
)

// batch combines requests: those that arrive while a statement runs share the next
// one.
type batch[T, R any] struct {
	what string
	in   chan request[T, R]
	// run executes all requests or returns an error. It may be called again with the
	// same requests.
	run func(ctx context.Context, at time.Time, all []T) ([]R, error)
	log *slog.Logger
}

type request[T, R any] struct {
	value  T
	answer chan<- result[R]
}

type result[R any] struct {
	value R
	ok    bool
}

func newBatch[T, R any](what string, log *slog.Logger, run func(ctx context.Context, at time.Time, all []T) ([]R, error)) *batch[T, R] {
	return &batch[T, R]{what: what, in: make(chan request[T, R]), run: run, log: log}
}

// do waits until the request has run. It returns false if ctx or the loop ended
// first.
func (b *batch[T, R]) do(ctx context.Context, value T) (R, bool) {
	answer := make(chan result[R], 1)
	select {
	case b.in <- request[T, R]{value, answer}:
		r := <-answer
		return r.value, r.ok
	case <-ctx.Done():
		var none R
		return none, false
	}
}

// loop runs requests until ctx ends, and repeats failed statements until then.
func (b *batch[T, R]) loop(ctx context.Context) {
	for {
		var all []request[T, R]
		select {
		case r := <-b.in:
			all = append(all, r)
		case <-ctx.Done():
			return
		}
	fill:
		for len(all) < batchRows {
			select {
			case r := <-b.in:
				all = append(all, r)
			default:
				break fill
			}
		}
		values := make([]T, len(all))
		for i, r := range all {
			values[i] = r.value
		}
		out, ok := b.insist(ctx, values)
		for i, r := range all {
			if ok {
				r.answer <- result[R]{out[i], true}
			} else {
				r.answer <- result[R]{}
			}
		}
	}
}

func (b *batch[T, R]) insist(ctx context.Context, values []T) ([]R, bool) {
	at := time.Now()
	for backoff := (loop.Backoff{Min: retryFirst, Max: retryMax}); ; {
		out, err := b.run(ctx, at, values)
		if err == nil {
			return out, true
		}
		b.log.WarnContext(ctx, "deliveries not written; trying again", slog.String("what", b.what), telemetry.Err(err))
		if !backoff.Wait(ctx) {
			return nil, false
		}
	}
}
