package work

import (
	"sync"
	"time"

	"waitlist.internal/libs/loop"
)

// Breaker holds work off a dependency that does not answer, for a pause that doubles with every further failure. It is
// safe for concurrent use.
type Breaker struct {
	mu      sync.Mutex
	backoff loop.Backoff
	resume  time.Time // zero while the dependency answers
}

// NewBreaker returns a Breaker whose pauses double from first to most.
func NewBreaker(first, most time.Duration) *Breaker {
	return &Breaker{backoff: loop.Backoff{Min: first, Max: most}}
}

// Remaining returns the rest of the current pause, 0 if there is none.
func (b *Breaker) Remaining() time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	return max(0, time.Until(b.resume))
}

// Report notes whether the dependency answered.
func (b *Breaker) Report(answered bool) {
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
