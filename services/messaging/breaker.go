package messaging

import (
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"waitlist.internal/libs/loop"
)

// doubters is how many recipients in a row must get a DoubtfulError until the provider counts as away.
// Some providers answer so for an unknown mailbox; a few of these must not hold up the others.
const doubters = 3

// breaker holds senders off a dependency that does not answer, for a pause that doubles with
// every further failure up to pauseMax.
type breaker struct {
	mu      sync.Mutex
	backoff loop.Backoff
	resume  time.Time // zero while the dependency answers
	// doubted are the first recipients of a DoubtfulError since the provider last accepted a mail.
	doubted []string
}

func newBreaker(first time.Duration) *breaker {
	return &breaker{backoff: loop.Backoff{Min: first, Max: pauseMax}}
}

// remaining returns the rest of the current pause.
func (b *breaker) remaining() time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	return max(0, time.Until(b.resume))
}

// report notes whether the dependency answered.
func (b *breaker) report(answered bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case answered:
		b.backoff.Reset()
		b.resume = time.Time{}
	case time.Now().After(b.resume): // calls that fail at the same time count once
		b.resume = time.Now().Add(b.backoff.Next())
	}
}

// accepted notes that the dependency accepted a mail.
func (b *breaker) accepted() {
	b.mu.Lock()
	b.doubted = nil
	b.mu.Unlock()
	b.report(true)
}

// doubt notes a DoubtfulError for a recipient. It reports whether the dependency refuses us, and not
// this mail alone.
func (b *breaker) doubt(to string) bool {
	b.mu.Lock()
	if len(b.doubted) < doubters && !slices.Contains(b.doubted, to) {
		b.doubted = append(b.doubted, to)
	}
	away := len(b.doubted) == doubters
	b.mu.Unlock()
	b.report(!away)
	return away
}

// deferral returns the pause after a number of earlier deferrals: first, doubled with each of them
// up to most. It adds up to a quarter at random, so that mails deferred together do not return
// together.
func deferral(first, most time.Duration, deferrals int) time.Duration {
	pause := min(first<<min(deferrals, 20), most)
	return pause + rand.N(pause/4+1) //nolint:gosec // no secret
}
