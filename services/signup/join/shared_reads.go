package join

import (
	"context"
	"sync"
	"time"

	"waitlist.internal/services/signup/queue"
)

// sharedReadTimeout bounds how long a shared read waits and runs. Requests end sooner.
const sharedReadTimeout = 5 * time.Second

// sharedReads reads waitlists without a signup. Requests for a waitlist that arrive while it is
// read share the next read, which begins after they came: each sees what it would have seen
// with a query of its own, and a crowd before one form costs one query at a time.
type sharedReads struct {
	view func(ctx context.Context, waitlistID string) (queue.View, error)

	mu sync.Mutex
	// groups holds the waitlists that are being read.
	groups map[string]*readGroup
}

// readGroup has the running read of a waitlist, and the one that later callers join; nil without any.
type readGroup struct{ running, next *sharedRead }

type sharedRead struct {
	// view and err are valid once done is closed.
	view queue.View
	err  error
	done chan struct{}
}

func newSharedReads(view func(ctx context.Context, waitlistID string) (queue.View, error)) *sharedReads {
	return &sharedReads{view: view, groups: map[string]*readGroup{}}
}

func (r *sharedReads) read(ctx context.Context, waitlistID string) (queue.View, error) {
	r.mu.Lock()
	g := r.groups[waitlistID]
	switch {
	case g == nil:
		mine := &sharedRead{done: make(chan struct{})}
		r.groups[waitlistID] = &readGroup{running: mine}
		r.mu.Unlock()
		r.run(ctx, waitlistID, mine)
		return mine.view, mine.err
	case g.next == nil:
		mine, before := &sharedRead{done: make(chan struct{})}, g.running
		g.next = mine
		r.mu.Unlock()
		// Others rely on this read, so it goes on when its own client leaves.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), sharedReadTimeout)
		defer cancel()
		<-before.done
		r.run(ctx, waitlistID, mine)
		return mine.view, mine.err
	default:
		shared := g.next
		r.mu.Unlock()
		select {
		case <-shared.done:
			return shared.view, shared.err
		case <-ctx.Done():
			return queue.View{}, ctx.Err()
		}
	}
}

// run makes a read that nobody joins any more.
func (r *sharedReads) run(ctx context.Context, waitlistID string, mine *sharedRead) {
	mine.err = context.Canceled // for the others, should read panic
	defer func() {
		r.mu.Lock()
		if g := r.groups[waitlistID]; g.next != nil {
			g.running, g.next = g.next, nil
		} else {
			delete(r.groups, waitlistID)
		}
		r.mu.Unlock()
		close(mine.done)
	}()
	mine.view, mine.err = r.view(ctx, waitlistID)
}
