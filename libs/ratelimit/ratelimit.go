// Package ratelimit is the global rate limit: one token bucket in Redis for all
// services, replicas and endpoints.
//
//	request → denied until t? ─yes→ refuse without asking
//	              │no
//	        breaker open? ─yes→ local bucket of limit ÷ replicas
//	              │no
//	        one EVALSHA for all waiting requests ─error or 50 ms→ local bucket
//
// The bucket is exact: after a pause it admits the burst, then the rate, however
// many processes ask. It counts in integers by the clock of Redis. An example with
// 100 requests a second and a burst of 200: of 250 simultaneous requests, 200 pass
// and 50 are told to retry in 10 ms, when the next token comes; a second later, 100
// more pass.
//
// Tokens that Redis grants to this process are taken from the local bucket, too,
// so that an occasional late answer admits hardly any request twice.
package ratelimit

import (
	"cmp"
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
	// Timeout bounds how long a request waits for the bucket.
	Timeout = 50 * time.Millisecond
	// key holds the bucket.
	key = "ratelimit:{global}"
	// late is how long after its deadline a failed call may be noticed and still count
	// against Redis. If it takes longer, this process itself is too slow.
	late = Timeout / 2
	// breakAfter consecutive failures of Redis open the breaker for openFor; then one
	// request tries again.
	breakAfter = 3
	openFor    = time.Second
	// maxBurst keeps the bucket's numbers exact as Lua doubles.
	maxBurst = 1_000_000_000
)

//go:embed bucket.lua
var bucketScript string

// Limiter decides whether a request may pass.
type Limiter interface {
	// Allow takes a token. If there is none, retryAfter is the time until there may be
	// one. Allow answers within about 50 ms, whatever the state of Redis.
	Allow(ctx context.Context) (ok bool, retryAfter time.Duration)
}

// Options configures New.
type Options struct {
	// RPS tokens a second flow into a bucket that holds Burst tokens.
	RPS, Burst int
	// Replicas is the number of processes that share the limit; without Redis, each
	// admits an equal part.
	Replicas int
	// Key is the bucket's key in Redis; empty means the key that all services share.
	Key string
	// Timeout bounds the wait for Redis; 0 means the constant Timeout.
	Timeout time.Duration
	// Registerer receives the metrics; nil means none.
	Registerer prometheus.Registerer
	// Log records when Redis becomes unavailable and available; nil means no log.
	Log *slog.Logger
}

// OpenRedis returns a client for New: one attempt within Timeout and few connections.
// caFile is redisconn's Options.CAFile.
func OpenRedis(url, caFile string) (redis.UniversalClient, error) {
	return redisconn.Open(url, redisconn.Options{Timeout: Timeout, PoolSize: 2, CAFile: caFile})
}

type answer struct {
	granted int
	retry   time.Duration
}

// batch holds the requests that wait for one call of the script. The first
// granted requests pass, in order of arrival.
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

// New returns a limiter on a bucket in rdb. RPS, Burst and Replicas are at least 1.
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
			Name: "ratelimit_call_duration_seconds", Help: "Duration of a call to the bucket in Redis.",
			Buckets: []float64{.00025, .001, .005, .025, .05, .1},
		}),
	}
	l.key, l.timeout = cmp.Or(l.key, key), cmp.Or(l.timeout, Timeout)
	l.allowed, l.denied, l.memo = l.requests.WithLabelValues("allowed"),
		l.requests.WithLabelValues("denied"), l.requests.WithLabelValues("denied_locally")
	for _, decision := range []string{"allowed", "denied"} {
		l.fallback.WithLabelValues(decision) // so that rate() sees the first
	}
	open := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "ratelimit_breaker_open", Help: "1 while the breaker keeps requests from Redis.",
	})
	if o.Registerer != nil {
		o.Registerer.MustRegister(l.requests, l.fallback, l.calls, open)
	}
	l.breaker = gobreaker.NewCircuitBreaker[answer](gobreaker.Settings{
		Name:        "ratelimit",
		MaxRequests: 1,
		Timeout:     openFor,
		IsExcluded:  func(err error) bool { return errors.Is(err, errSlow) },
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
					o.Log.Warn("rate limit: Redis does not answer; limiting locally")
				}
			}
		},
	})
	return l
}

// Allow implements Limiter. Requests that arrive during a call share the next one:
// under load, Redis gets far fewer calls than there are requests, and still counts
// each request once.
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
		l.run(b, now) //nolint:contextcheck // it serves other callers, too
	} else {
		select {
		case <-b.done:
		case <-ctx.Done():
			// If this request got a token, the token is lost.
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

// run waits until no other call is in flight, closes b to further requests, and
// takes tokens for all of b.
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
	a, err := l.breaker.Execute(func() (answer, error) { return l.takeFromRedis(ctx, n) })
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

// errSlow says that a call failed because this process was slow, which says nothing about
// Redis.
var errSlow = errors.New("this process is slow")

func (l *limiter) takeFromRedis(ctx context.Context, n int) (answer, error) {
	start := time.Now()
	got, err := l.script.Run(ctx, l.rdb, []string{l.key}, l.rps, l.burst, n).Int64Slice()
	l.calls.Observe(time.Since(start).Seconds())
	if end, ok := ctx.Deadline(); err != nil && ok && (end.Sub(start) < l.timeout/2 || time.Since(end) > late) {
		return answer{}, fmt.Errorf("take from bucket: %w: %w", errSlow, err)
	}
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
	rate     int64 // nanotokens a second, so that a part of the rate is exact
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

// take takes one token. If there is none, it returns the time until the next.
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

// spend removes n tokens, or all if there are fewer, because Redis granted n. A
// process that got its part from Redis thus has no second part to grant when a
// single call is late.
func (b *bucket) spend(now time.Time, n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.refill(now)
	b.tokens = max(0, b.tokens-int64(n)*nano)
}

func (b *bucket) refill(now time.Time) {
	if d := now.Sub(b.last); d > 0 {
		// In floating point, since the product overflows after a long pause.
		b.tokens = int64(min(float64(b.capacity), float64(b.tokens)+d.Seconds()*float64(b.rate)))
		b.last = now
	}
}

// Local is a limiter of one process, for tests and systems without Redis.
type Local struct{ b *bucket }

// NewLocal returns a limiter whose bucket is full.
func NewLocal(rps, burst int) *Local {
	return &Local{newBucket(max(rps, 1), max(burst, 1), 1)}
}

// Allow implements Limiter.
func (l *Local) Allow(context.Context) (bool, time.Duration) { return l.b.take(time.Now()) }
