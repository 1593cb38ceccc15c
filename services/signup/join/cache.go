package join

import (
	"sync"

	"waitlist.internal/services/signup/waitlist"
)

// cacheSize bounds the waitlists in the cache.
const cacheSize = 10_000

// waitlistCache keeps decoded waitlists by id. They may be outdated: every user
// compares their versions with the stored ones.
type waitlistCache struct {
	mu   sync.RWMutex
	byID map[string]*waitlist.Waitlist
}

func newWaitlistCache() *waitlistCache { return &waitlistCache{byID: map[string]*waitlist.Waitlist{}} }

func (c *waitlistCache) get(id string) *waitlist.Waitlist {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.byID[id]
}

func (c *waitlistCache) put(w *waitlist.Waitlist) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, ok := c.byID[w.ID]; !ok && len(c.byID) >= cacheSize {
		for id := range c.byID { // a random one
			delete(c.byID, id)
			break
		}
	}
	c.byID[w.ID] = w
}
