package signup

import (
	"context"
	"sync"
	"time"

	"waitlist.internal/libs/apierr"
)

// gate bounds how many calls run at a time, in total and by owner, so that no owner
// takes all places.
type gate struct {
	what        string // completes "Too many …"
	total, each int
	// wait is how long a call waits for a place.
	wait time.Duration

	mu    sync.Mutex
	in    int
	byOne map[string]int
	// left is closed when a call leaves.
	left chan struct{}
}

func newGate(what string, total, each int, wait time.Duration) *gate {
	return &gate{what: what, total: total, each: each, wait: wait, byOne: map[string]int{}, left: make(chan struct{})}
}

// enter waits for a place. The caller calls leave once when it is done. Without a
// place, enter returns RATE_LIMITED.
func (g *gate) enter(ctx context.Context, ownerID string) (leave func(), err error) {
	patience := time.NewTimer(g.wait)
	defer patience.Stop()
	for {
		left, ok := g.try(ownerID)
		if ok {
			return func() { g.leave(ownerID) }, nil
		}
		select {
		case <-left:
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-patience.C:
			return nil, apierr.New(apierr.RateLimited, "Too many "+g.what+" are running. Try again later.").WithRetryAfter(g.wait)
		}
	}
}

func (g *gate) try(ownerID string) (left <-chan struct{}, ok bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.in >= g.total || g.byOne[ownerID] >= g.each {
		return g.left, false
	}
	g.in++
	g.byOne[ownerID]++
	return nil, true
}

func (g *gate) leave(ownerID string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.in--
	if g.byOne[ownerID]--; g.byOne[ownerID] == 0 {
		delete(g.byOne, ownerID)
	}
	close(g.left)
	g.left = make(chan struct{})
}
