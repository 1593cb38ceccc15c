package owners

import (
	"context"
	"slices"
	"sync"
	"time"

	"waitlist.internal/libs/apierr"
)

// gate bounds how many calls run at a time, in total and by owner, so that no owner
// takes all places. Calls wait in the order in which they come; one whose owner has all
// its places lets others pass.
type gate struct {
	what        string // completes "Too many …"
	total, each int
	// wait is how long a call waits for a place.
	wait time.Duration

	mu    sync.Mutex
	in    int
	byOne map[string]int
	queue []*waiting
}

// waiting is a call without a place.
type waiting struct {
	ownerID string
	// in is closed when the call gets a place.
	in chan struct{}
}

func newGate(what string, total, each int, wait time.Duration) *gate {
	return &gate{what: what, total: total, each: each, wait: wait, byOne: map[string]int{}}
}

// enter waits for a place. The caller calls leave once when it is done. Without a
// place, enter returns RATE_LIMITED.
func (g *gate) enter(ctx context.Context, ownerID string) (leave func(), err error) {
	w := &waiting{ownerID, make(chan struct{})}
	g.mu.Lock()
	g.queue = append(g.queue, w)
	g.admit()
	g.mu.Unlock()
	patience := time.NewTimer(g.wait)
	defer patience.Stop()
	select {
	case <-w.in:
		return func() { g.leave(ownerID) }, nil
	case <-ctx.Done():
		err = ctx.Err()
	case <-patience.C:
		err = apierr.New(apierr.RateLimited, "Too many "+g.what+" are running. Try again later.").WithRetryAfter(g.wait)
	}
	if !g.giveUp(w) {
		g.leave(ownerID) // the place came at the same moment
	}
	return nil, err
}

// admit gives free places to the calls that wait. The caller holds mu.
func (g *gate) admit() {
	g.queue = slices.DeleteFunc(g.queue, func(w *waiting) bool {
		if g.in >= g.total || g.byOne[w.ownerID] >= g.each {
			return false
		}
		g.in++
		g.byOne[w.ownerID]++
		close(w.in)
		return true
	})
}

// giveUp takes a call out of the queue. It returns false if the call has a place.
func (g *gate) giveUp(w *waiting) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	i := slices.Index(g.queue, w)
	if i < 0 {
		return false
	}
	g.queue = slices.Delete(g.queue, i, i+1)
	return true
}

func (g *gate) leave(ownerID string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.in--
	if g.byOne[ownerID]--; g.byOne[ownerID] == 0 {
		delete(g.byOne, ownerID)
	}
	g.admit()
}
