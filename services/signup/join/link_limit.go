package join

import (
	"sync"
	"time"

	"waitlist.internal/services/signup/queue"
)

// A client's network may request maxLinkRequests mails with links in linkWindow, whoever they are for.
const (
	maxLinkRequests = 20
	linkWindow      = 10 * time.Minute
)

// linkRequests counts each network's requests to this process in the present window. The global rate limit bounds its size.
type linkRequests struct {
	mu    sync.Mutex
	since time.Time
	by    map[queue.Network]int
}

// count adds one request, or returns how long to wait.
func (a *linkRequests) count(n queue.Network, now time.Time) time.Duration {
	a.mu.Lock()
	defer a.mu.Unlock()
	if now.Sub(a.since) >= linkWindow {
		a.since, a.by = now, map[queue.Network]int{}
	}
	if a.by[n] >= maxLinkRequests {
		return a.since.Add(linkWindow).Sub(now)
	}
	a.by[n]++
	return 0
}
