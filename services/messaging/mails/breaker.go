package mails

import (
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"waitlist.internal/libs/work"
)

// doubters is how many recipients in a row must get a DoubtfulError until the provider counts as away.
// Some providers answer so for an unknown mailbox; a few of these must not hold up the others.
const doubters = 3

// ProviderBreaker is the breaker of a provider.
type ProviderBreaker struct {
	*work.Breaker

	mu sync.Mutex
	// doubted are the first recipients of a DoubtfulError since the provider last accepted a mail.
	doubted []string
}

// NewProviderBreaker returns a ProviderBreaker whose first pause is first.
func NewProviderBreaker(first time.Duration) *ProviderBreaker {
	return &ProviderBreaker{Breaker: work.NewBreaker(first, pauseMax)}
}

// Accepted notes that the provider accepted a mail.
func (b *ProviderBreaker) Accepted() {
	b.mu.Lock()
	b.doubted = nil
	b.mu.Unlock()
	b.Report(true)
}

// Doubt notes a DoubtfulError for a recipient. It reports whether the provider refuses us, and not
// this mail alone.
func (b *ProviderBreaker) Doubt(to string) bool {
	b.mu.Lock()
	if len(b.doubted) < doubters && !slices.Contains(b.doubted, to) {
		b.doubted = append(b.doubted, to)
	}
	away := len(b.doubted) == doubters
	b.mu.Unlock()
	b.Report(!away)
	return away
}

// Deferral returns the pause after a number of earlier deferrals: first, doubled with each of them
// up to most. It adds up to a quarter at random, so that mails deferred together do not return
// together.
func Deferral(first, most time.Duration, deferrals int) time.Duration {
	pause := min(first<<min(deferrals, 20), most)
	return pause + rand.N(pause/4+1) //nolint:gosec // no secret
}
