package signup

import (
	"context"
	"sync"
	"time"
)

// lookTimeout bounds how long a shared look waits and reads. Requests end sooner.
const lookTimeout = 5 * time.Second

// looks reads waitlists without a signup. Requests for a waitlist that arrive while it is
// read share the next look, which begins after they came: each sees what it would have seen
// with a query of its own, and a crowd before one form costs one query at a time.
type looks struct {
	read func(ctx context.Context, waitlistID string) (View, error)

	mu sync.Mutex
	// under holds the waitlists that are being read.
	under map[string]*crowd
}

// crowd has the look under way at a waitlist, and the one after it if anybody waits for it.
type crowd struct{ now, next *look }

type look struct {
	// view and err are valid once done is closed.
	view View
	err  error
	done chan struct{}
}

func newLooks(read func(ctx context.Context, waitlistID string) (View, error)) *looks {
	return &looks{read: read, under: map[string]*crowd{}}
}

func (l *looks) look(ctx context.Context, waitlistID string) (View, error) {
	l.mu.Lock()
	c := l.under[waitlistID]
	switch {
	case c == nil:
		mine := &look{done: make(chan struct{})}
		l.under[waitlistID] = &crowd{now: mine}
		l.mu.Unlock()
		l.take(ctx, waitlistID, mine)
		return mine.view, mine.err
	case c.next == nil:
		mine, before := &look{done: make(chan struct{})}, c.now
		c.next = mine
		l.mu.Unlock()
		// Others rely on this look, so it goes on when its own client leaves.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lookTimeout)
		defer cancel()
		<-before.done
		l.take(ctx, waitlistID, mine)
		return mine.view, mine.err
	default:
		shared := c.next
		l.mu.Unlock()
		select {
		case <-shared.done:
			return shared.view, shared.err
		case <-ctx.Done():
			return View{}, ctx.Err()
		}
	}
}

// take reads for mine, which nobody joins any more.
func (l *looks) take(ctx context.Context, waitlistID string, mine *look) {
	mine.err = context.Canceled // for the others, should read panic
	defer func() {
		l.mu.Lock()
		if c := l.under[waitlistID]; c.next != nil {
			c.now, c.next = c.next, nil
		} else {
			delete(l.under, waitlistID)
		}
		l.mu.Unlock()
		close(mine.done)
	}()
	mine.view, mine.err = l.read(ctx, waitlistID)
}
