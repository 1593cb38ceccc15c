package join

import (
	"context"
	"sync"
	"time"

	"go.opentelemetry.io/otel/trace"
)

const (
	// groupTimeout bounds how long a group waits and reads, so that also the request that reads for it is answered within
	// five seconds.
	groupTimeout = 4500 * time.Millisecond
	// groupWait bounds how long a group waits for the read before it: one that waits for Redis holds nobody up.
	groupWait = 50 * time.Millisecond
)

// groups makes requests about the same waitlist read together. The first one reads at once. Those that arrive while it reads
// form a group, whose read begins after they came: each sees what it would have seen with a read of its own. There is
// no timer: a crowd costs one read at a time, and whoever comes alone does not wait.
type groups[A, R any] struct {
	// name is that of the span of a group.
	name string
	// most bounds the size of a group.
	most int
	// read returns an answer for each of args. Its error is everybody's.
	read func(ctx context.Context, waitlistID string, args []A) ([]R, error)
	// measured is called with the size of each read.
	measured func(size int)

	mu sync.Mutex
	// last holds each waitlist's newest group, until it has read.
	last map[string]*group[A, R]
}

type group[A, R any] struct {
	args    []A
	callers []trace.Span // those that are sampled
	// begun: nobody joins it any more.
	begun bool

	// answers and err are valid once done is closed.
	answers []R
	err     error
	done    chan struct{}
}

func newGroups[A, R any](
	name string, most int, measured func(int), read func(ctx context.Context, waitlistID string, args []A) ([]R, error),
) *groups[A, R] {
	return &groups[A, R]{name: name, most: most, read: read, measured: measured, last: map[string]*group[A, R]{}}
}

// ask returns the answer to arg about a waitlist.
func (r *groups[A, R]) ask(ctx context.Context, waitlistID string, arg A) (R, error) {
	r.mu.Lock()
	before := r.last[waitlistID]
	g := before
	if g == nil || g.begun || len(g.args) == r.most {
		g = &group[A, R]{begun: before == nil, done: make(chan struct{})}
		r.last[waitlistID] = g
	}
	at := len(g.args)
	g.args = append(g.args, arg)
	if span := trace.SpanFromContext(ctx); span.IsRecording() {
		g.callers = append(g.callers, span)
	}
	r.mu.Unlock()
	if at > 0 {
		select {
		case <-g.done:
			return g.answer(at)
		case <-ctx.Done():
			var none R
			return none, ctx.Err()
		}
	}
	if before != nil {
		// Others rely on this read, so it goes on when its own client leaves.
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(context.WithoutCancel(ctx), groupTimeout)
		defer cancel()
		patience := time.NewTimer(groupWait)
		defer patience.Stop()
		select {
		case <-before.done:
		case <-patience.C:
		}
	}
	r.run(ctx, waitlistID, g)
	return g.answer(0)
}

// run makes a group's read.
func (r *groups[A, R]) run(ctx context.Context, waitlistID string, g *group[A, R]) {
	g.err = context.Canceled // for the others, should read panic
	defer func() {
		r.mu.Lock()
		if r.last[waitlistID] == g {
			delete(r.last, waitlistID)
		}
		r.mu.Unlock()
		close(g.done)
	}()
	r.mu.Lock()
	g.begun = true
	r.mu.Unlock()
	r.measured(len(g.args))
	if len(g.args) > 1 {
		var span trace.Span
		ctx, span = traceTogether(ctx, r.name, waitlistID, len(g.args), g.callers)
		defer span.End()
	}
	g.answers, g.err = r.read(ctx, waitlistID, g.args)
}

func (g *group[A, R]) answer(at int) (answer R, err error) {
	if g.err != nil {
		return answer, g.err
	}
	return g.answers[at], nil
}
