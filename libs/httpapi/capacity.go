package httpapi

import (
	"math"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"waitlist.internal/libs/apierr"
)

const (
	// burst is how many requests are always admitted: the burst that the contract promises of an idle process. Fewer would
	// bound what waits for a slow database, not what waits for a processor.
	burst = 200
	// steadyWait is how long requests may take on average while they queue, and burstWait for behindFor.
	steadyWait = 50 * time.Millisecond
	burstWait  = 75 * time.Millisecond
	// behindFor is how long a queue may stand before the bound drains it.
	behindFor = 500 * time.Millisecond
	// window is the time over which requests are counted, memory that over which their rate is smoothed.
	window = 100 * time.Millisecond
	memory = time.Second

	// bodyBytes bounds the bytes of unfinished bodies. The first freeBody bytes of each do not count: its connection has
	// buffers of that size anyway, and so those who send large bodies slowly do not keep small ones out.
	bodyBytes = 32 << 20
	freeBody  = 4 << 10
)

// Capacity is what one process can bear: requests that it works on, and bytes of bodies that have not arrived as a whole. Beyond
// it requests are refused with 429 at once, so that those that are admitted are answered soon.
//
// The requests in flight are the rate at which they are done times the time that one takes (Little's law). So the bound is that
// rate times the time that a request may take; it grows with the machine. A queue that comes and goes may have burstWait. One
// that stands, that is, at whose end more than steadyWait lie all the time, is drained to steadyWait, until half of that is free:
// otherwise a process that fell behind would stay behind until its load falls.
type Capacity struct {
	now func() time.Time

	mu       sync.Mutex
	acquired int
	// since is when the window began. low is the lowest number taken in it, done the requests answered.
	since     time.Time
	low, done int
	rate      float64 // requests done a second, smoothed
	behind    time.Duration
	draining  bool
	bodies    int64

	limit   prometheus.Gauge
	held    prometheus.Gauge
	refused *prometheus.CounterVec
}

// NewCapacity returns the capacity of a process. registerer takes its metrics; nil means none.
func NewCapacity(registerer prometheus.Registerer) *Capacity {
	c := &Capacity{
		now: time.Now,
		limit: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "http_server_request_limit", Help: "HTTP requests that the process works on at a time; it refuses further ones.",
		}),
		held: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "http_server_unfinished_body_bytes", Help: "Bytes of HTTP bodies that have not arrived as a whole.",
		}),
		refused: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "http_server_refused_total", Help: "HTTP requests beyond the process' capacity, by what there was too much of.",
		}, []string{"reason"}),
	}
	c.since = c.now()
	c.limit.Set(burst)
	c.refused.WithLabelValues("requests")
	c.refused.WithLabelValues("bodies")
	if registerer != nil {
		registerer.MustRegister(c.limit, c.held, c.refused)
	}
	return c
}

// acquire reports whether one more request may be worked on.
func (c *Capacity) acquire() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.turn()
	if c.acquired >= c.bound() {
		c.refused.WithLabelValues("requests").Inc()
		return false
	}
	c.acquired++
	return true
}

// release gives a place back, which was acquired for a request that is done, or for one that waits for its body.
func (c *Capacity) release(done bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.turn()
	c.acquired--
	c.low = min(c.low, c.acquired)
	if done {
		c.done++
	}
	if c.draining && c.acquired < c.steady()/2 {
		c.draining = false
		c.limit.Set(float64(c.bound()))
	}
}

func (c *Capacity) bound() int {
	if c.draining {
		return c.steady()
	}
	return max(burst, int(c.rate*burstWait.Seconds()))
}

func (c *Capacity) steady() int { return max(burst, int(c.rate*steadyWait.Seconds())) }

// turn ends the window if it is over.
func (c *Capacity) turn() {
	now := c.now()
	took := now.Sub(c.since)
	if took < window {
		return
	}
	c.rate += (float64(c.done)/took.Seconds() - c.rate) * (1 - math.Exp(-took.Seconds()/memory.Seconds()))
	if c.low >= c.steady() {
		c.behind += took
	} else {
		c.behind = 0
	}
	c.draining = c.draining || c.behind >= behindFor
	c.since, c.low, c.done = now, c.acquired, 0
	c.limit.Set(float64(c.bound()))
}

// reserve reports whether an unfinished body may have n more bytes.
func (c *Capacity) reserve(n int) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if n > 0 && c.bodies+int64(n) > bodyBytes {
		c.refused.WithLabelValues("bodies").Inc()
		return false
	}
	c.bodies += int64(n)
	c.held.Set(float64(c.bodies))
	return true
}

// unreserve ends a reservation of n bytes.
func (c *Capacity) unreserve(n int) { c.reserve(-n) }

// tooMany is the error of a request beyond a limit.
func tooMany(retry time.Duration) *apierr.Error {
	return apierr.New(apierr.RateLimited, "Too many requests. Please try again later.").WithRetryAfter(retry)
}
