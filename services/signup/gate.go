package signup

import (
	"context"
	"sync"
	"time"

	"waitlist.internal/libs/apierr"
)

// gate lets a few through at a time, and fewer for any one owner, so that
// nobody takes all the places.
type gate struct {
	what        string // for people, as in "Too many exports"
	total, each int
	// wait is how long somebody waits to be let in.
	wait time.Duration

	mu    sync.Mutex
	in    int
	byOne map[string]int
	// left is closed when somebody leaves.
	left chan struct{}
}

func newGate(what string, total, each int, wait time.Duration) *gate {
	return &gate{what: what, total: total, each: each, wait: wait, byOne: map[string]int{}, left: make(chan struct{})}
}

// enter waits for a place, else it is RATE_LIMITED. Who got one calls leave,
// once.
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
			return nil, apierr.New(apierr.RateLimited, "Too many "+g.what+" are under way. Please try again.").WithRetryAfter(g.wait)
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
