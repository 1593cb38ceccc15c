// Package ratelimit is the global limit: one token bucket over all services,
// replicas and endpoints, kept in Redis.
//
//	request → denied until t? ─yes→ refuse, nobody is asked
//	              │no
//	        breaker open? ─yes→ local bucket of limit ÷ replicas
//	              │no
//	        one EVALSHA for all that wait now ─error or 50 ms→ local bucket
//
// The bucket is exact: after a pause it admits the burst, then the rate, no
// matter how many processes ask. The count is integer and the clock is Redis'.
// Worked example, 100/s and burst 200: 250 requests at once admit 200; of the
// others each is told to come back when the next token comes, in 10 ms; a second
// later 100 more pass.
//
// The local bucket also pays for what Redis granted to this process, so that a
// late answer now and then admits next to nothing twice.
package ratelimit

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"
	"github.com/sony/gobreaker/v2"

	"waitlist.internal/libs/redisconn"
)

const (
	// Timeout is how long a request waits for the bucket at most.
	Timeout = 50 * time.Millisecond
	// key holds the bucket.
	key = "ratelimit:{global}"
	// breakAfter failures in a row open the breaker for openFor; then one
	// request tries again.
	breakAfter = 3
	openFor    = time.Second
	// maxBurst keeps the bucket's numbers exact in Lua's doubles.
	maxBurst = 1_000_000_000
)

//go:embed bucket.lua
var bucketScript string

// Limiter decides whether a request may pass.
type Limiter interface {
	// Allow takes a token. Without one, retryAfter is when there may be one. It
	// answers within about 50 ms, whatever state Redis is in.
	Allow(ctx context.Context) (ok bool, retryAfter time.Duration)
}

// Options configures New.
type Options struct {
	// RPS tokens a second flow into a bucket that holds Burst.
	RPS, Burst int
	// Replicas is the number of processes that share the limit; without Redis
	// each admits its part.
	Replicas int
	// Key is the bucket's key in Redis; empty means the one that all services
	// share.
	Key string
	// Timeout bounds the wait for Redis; 0 means the constant of that name.
	Timeout time.Duration
	// Registerer takes the metrics; nil means none.
	Registerer prometheus.Registerer
	// Log is told when Redis goes and comes; nil means nobody is.
	Log *slog.Logger
}

// OpenRedis returns a client for New's own use: one try, no longer than
// Timeout, few connections. caFile is redisconn's.
func OpenRedis(url, caFile string) (redis.UniversalClient, error) {
	return redisconn.Open(url, redisconn.Options{Timeout: Timeout, PoolSize: 2, CAFile: caFile})
}

type answer struct {
	granted int
	retry   time.Duration
}

// batch is the requests that wait for one call of the script. The first
// granted of them pass, in the order of their arrival.
type batch struct {
	n    int
	done chan struct{}
	answer
	failed bool
}

type limiter struct {
	rdb     redis.Scripter
	script  *redis.Script
	key     string
	timeout time.Duration
	rps     int
	burst   int
	breaker *gobreaker.CircuitBreaker[answer]
	local   *bucket
	flight  chan struct{}

	mu          sync.Mutex
	next        *batch
	deniedUntil time.Time

	requests *prometheus.CounterVec
	allowed  prometheus.Counter
	denied   prometheus.Counter
	memo     prometheus.Counter
	fallback *prometheus.CounterVec
	calls    prometheus.Histogram
}

// New returns a limiter on the bucket in rdb. RPS, Burst and Replicas below 1
// count as 1.
func New(rdb redis.Scripter, o Options) Limiter {
	o.RPS, o.Burst, o.Replicas = max(o.RPS, 1), min(max(o.Burst, 1), maxBurst), max(o.Replicas, 1)
	l := &limiter{
		rdb: rdb, script: redis.NewScript(bucketScript), key: o.Key, timeout: o.Timeout, rps: o.RPS, burst: o.Burst,
		local:  newBucket(o.RPS, o.Burst, o.Replicas),
		flight: make(chan struct{}, 1),
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "ratelimit_requests_total", Help: "Requests by the limiter's decision.",
		}, []string{"decision"}),
		fallback: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "ratelimit_fallback_total", Help: "Requests decided by the local bucket because Redis did not answer.",
		}, []string{"decision"}),
		calls: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "ratelimit_call_duration_seconds", Help: "Duration of a call of the bucket in Redis.",
			Buckets: []float64{.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1},
		}),
	}
	if l.key == "" {
		l.key = key
	}
	if l.timeout == 0 {
		l.timeout = Timeout
	}
	l.allowed, l.denied, l.memo = l.requests.WithLabelValues("allowed"),
		l.requests.WithLabelValues("denied"), l.requests.WithLabelValues("denied_locally")
	open := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "ratelimit_breaker_open", Help: "1 while Redis is not asked.",
	})
	if o.Registerer != nil {
		o.Registerer.MustRegister(l.requests, l.fallback, l.calls, open)
	}
	l.breaker = gobreaker.NewCircuitBreaker[answer](gobreaker.Settings{
		Name:        "ratelimit",
		MaxRequests: 1,
		Timeout:     openFor,
		ReadyToTrip: func(c gobreaker.Counts) bool { return c.ConsecutiveFailures >= breakAfter },
		OnStateChange: func(_ string, from, to gobreaker.State) {
			switch {
			case to == gobreaker.StateClosed:
				open.Set(0)
				if o.Log != nil {
					o.Log.Info("rate limit: Redis is back")
				}
			case from == gobreaker.StateClosed:
				open.Set(1)
				if o.Log != nil {
					o.Log.Warn("rate limit: Redis does not answer, limiting locally")
				}
			}
		},
	})
	return l
}

// Allow implements Limiter. Requests that arrive while a call is under way go
// with the next one together: under load Redis sees far fewer calls than there
// are requests, and each still counts exactly once.
func (l *limiter) Allow(ctx context.Context) (bool, time.Duration) {
	now := time.Now()
	l.mu.Lock()
	if wait := l.deniedUntil.Sub(now); wait > 0 {
		l.mu.Unlock()
		l.memo.Inc()
		return false, wait
	}
	b := l.next
	lead := b == nil
	if lead {
		b = &batch{done: make(chan struct{})}
		l.next = b
	}
	place := b.n
	b.n++
	l.mu.Unlock()

	if lead {
		l.run(b, now) //nolint:contextcheck // it serves others than its own caller
	} else {
		select {
		case <-b.done:
		case <-ctx.Done():
			// The token, if it got one, is spent on a caller who has gone.
			return false, 0
		}
	}
	switch {
	case b.failed:
		return l.allowLocally(now)
	case place < b.granted:
		l.allowed.Inc()
		return true, 0
	default:
		l.denied.Inc()
		return false, b.retry
	}
}

// run closes b for further requests once no other call is under way, and asks
// for all of it.
func (l *limiter) run(b *batch, since time.Time) {
	defer close(b.done)
	ctx, cancel := context.WithDeadline(context.Background(), since.Add(l.timeout))
	defer cancel()
	inFlight := true
	select {
	case l.flight <- struct{}{}:
	default:
		select {
		case l.flight <- struct{}{}:
		case <-ctx.Done():
			inFlight = false
		}
	}
	l.mu.Lock()
	l.next = nil
	n := b.n
	l.mu.Unlock()
	if !inFlight {
		b.failed = true
		return
	}
	defer func() { <-l.flight }()
	a, err := l.breaker.Execute(func() (answer, error) { return l.take(ctx, n) })
	if err != nil {
		b.failed = true
		return
	}
	b.answer = a
	l.local.spend(time.Now(), a.granted)
	if a.granted < n {
		l.mu.Lock()
		l.deniedUntil = time.Now().Add(a.retry)
		l.mu.Unlock()
	}
}

func (l *limiter) take(ctx context.Context, n int) (answer, error) {
	start := time.Now()
	got, err := l.script.Run(ctx, l.rdb, []string{l.key}, l.rps, l.burst, n).Int64Slice()
	l.calls.Observe(time.Since(start).Seconds())
	if err != nil {
		return answer{}, fmt.Errorf("take from bucket: %w", err)
	}
	if len(got) != 2 {
		return answer{}, errors.New("take from bucket: unexpected answer")
	}
	return answer{granted: int(got[0]), retry: time.Duration(got[1]) * time.Microsecond}, nil
}

func (l *limiter) allowLocally(now time.Time) (bool, time.Duration) {
	ok, retry := l.local.take(now)
	if ok {
		l.fallback.WithLabelValues("allowed").Inc()
	} else {
		l.fallback.WithLabelValues("denied").Inc()
	}
	return ok, retry
}

// bucket is the token bucket of one process.
type bucket struct {
	mu       sync.Mutex
	rate     int64 // nanotokens a second; so that a part of the rate stays exact
	capacity int64
	tokens   int64
	last     time.Time
}

const nano = 1_000_000_000

func newBucket(rps, burst, parts int) *bucket {
	b := &bucket{
		rate:     int64(rps) * nano / int64(parts),
		capacity: max(int64(min(burst, maxBurst))*nano/int64(parts), nano),
	}
	b.tokens = b.capacity
	return b
}

// take is a request that this process decides.
func (b *bucket) take(now time.Time) (bool, time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.refill(now)
	if b.tokens >= nano {
		b.tokens -= nano
		return true, 0
	}
	return false, time.Duration(float64(nano-b.tokens) / float64(b.rate) * float64(time.Second))
}

// spend takes n tokens that were granted elsewhere, as far as there are any. A
// process that has had its part from Redis has no second one to give away when
// a single call is late.
func (b *bucket) spend(now time.Time, n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.refill(now)
	b.tokens = max(0, b.tokens-int64(n)*nano)
}

func (b *bucket) refill(now time.Time) {
	if d := now.Sub(b.last); d > 0 {
		// In floating point, since the product of a long pause overflows.
		b.tokens = int64(min(float64(b.capacity), float64(b.tokens)+d.Seconds()*float64(b.rate)))
		b.last = now
	}
}

// Local is a limiter of this process alone, for tests and where there is no
// Redis.
type Local struct{ b *bucket }

// NewLocal returns a full bucket.
func NewLocal(rps, burst int) *Local {
	return &Local{newBucket(max(rps, 1), max(burst, 1), 1)}
}

// Allow implements Limiter.
func (l *Local) Allow(context.Context) (bool, time.Duration) { return l.b.take(time.Now()) }
