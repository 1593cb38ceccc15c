package ratelimit_test

import (
	"context"
	"errors"
	"math"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"waitlist.internal/libs/devservers"
	"waitlist.internal/libs/ratelimit"
	"waitlist.internal/libs/redisconn"
	"waitlist.internal/libs/testenv"
)

func TestMain(m *testing.M) {
	// While Redis is unavailable, the driver's pool probes it once a second, and only
	// then notices that the pool was closed.
	testenv.Main(m, goleak.IgnoreAnyFunction("github.com/redis/go-redis/v9/internal/pool.(*ConnPool).tryDial"))
}

func open(t testing.TB, url string) redis.UniversalClient {
	t.Helper()
	c, err := ratelimit.OpenRedis(url, "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// patient returns a client for tests in which Redis must answer, however busy the
// machine is.
func patient(t testing.TB, url string) redis.UniversalClient {
	t.Helper()
	c, err := redisconn.Open(url, redisconn.Options{Timeout: time.Minute, PoolSize: 2})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// TestBurstIsExact floods one bucket from as many limiters as four processes have
// and compares the number of admitted requests with what the time allows.
func TestBurstIsExact(t *testing.T) {
	url := testenv.Redis(t)
	const rps, burst, processes, clients = 100, 200, 4, 8
	var admitted atomic.Int64
	start := time.Now()
	// A client stops at its first refusal after the end, so that the bucket is empty
	// when the test reads the clock, however late that is.
	end := start.Add(2 * time.Second)
	var wg sync.WaitGroup
	for range processes {
		l := ratelimit.New(patient(t, url), ratelimit.Options{RPS: rps, Burst: burst, Replicas: processes, Timeout: time.Minute})
		for range clients {
			wg.Go(func() {
				for {
					ok, retry := l.Allow(t.Context())
					if ok {
						admitted.Add(1)
						continue
					}
					if retry <= 0 || retry > time.Second {
						t.Errorf("retry after %v", retry)
					}
					if time.Now().After(end) {
						return
					}
					wait(t.Context(), min(retry, time.Millisecond))
				}
			})
		}
	}
	wg.Wait()
	want := burst + rps*time.Since(start).Seconds()
	if got := float64(admitted.Load()); math.Abs(got-want) > 0.02*want+3 {
		t.Fatalf("admitted %v in %v, want about %.0f", got, time.Since(start), want)
	}
}

func wait(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// TestScriptCountsBatches takes from a bucket whose refill is too slow to
// matter, with many requests in each call.
func TestScriptCountsBatches(t *testing.T) {
	l := ratelimit.New(patient(t, testenv.Redis(t)), ratelimit.Options{RPS: 1, Burst: 50, Replicas: 1, Timeout: time.Minute})
	var admitted, refused atomic.Int64
	var wg sync.WaitGroup
	for range 400 {
		wg.Go(func() {
			if ok, _ := l.Allow(t.Context()); ok {
				admitted.Add(1)
			} else {
				refused.Add(1)
			}
		})
	}
	wg.Wait()
	if a := admitted.Load(); a < 50 || a > 51 || a+refused.Load() != 400 {
		t.Fatalf("admitted %d, refused %d", a, refused.Load())
	}
}

func TestDenialIsRemembered(t *testing.T) {
	reg := prometheus.NewRegistry()
	l := ratelimit.New(patient(t, testenv.Redis(t)), ratelimit.Options{RPS: 1, Burst: 1, Replicas: 1, Registerer: reg, Timeout: time.Minute})
	start := time.Now()
	for range 1000 {
		if ok, retry := l.Allow(t.Context()); !ok && (retry <= 0 || retry > time.Second) {
			t.Fatalf("retry after %v", retry)
		}
	}
	// Each second brings one token and then one denial.
	asked := counter(t, reg, "allowed") + counter(t, reg, "denied")
	if highest := 2 * (1 + math.Ceil(time.Since(start).Seconds())); asked > highest {
		t.Errorf("asked Redis for %v of 1000 requests", asked)
	}
	if got := counter(t, reg, "denied_locally"); got != 1000-asked {
		t.Errorf("denied locally %v, asked for %v", got, asked)
	}
}

func counter(t *testing.T, reg *prometheus.Registry, decision string) float64 {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			for _, l := range m.GetLabel() {
				if f.GetName() == "ratelimit_requests_total" && l.GetValue() == decision {
					return m.GetCounter().GetValue()
				}
			}
		}
	}
	return 0
}

func TestRefillAfterPause(t *testing.T) {
	rdb := open(t, testenv.Redis(t))
	l := ratelimit.New(rdb, ratelimit.Options{RPS: 1000, Burst: 5, Replicas: 1})
	for range 5 {
		if ok, _ := l.Allow(t.Context()); !ok {
			t.Fatal("the burst is refused")
		}
	}
	// The script survives an old state, a state from the future, and rubbish.
	for _, state := range []string{"0:1", "0:9000000000000000", "rubbish"} {
		if err := rdb.Set(t.Context(), "ratelimit:{global}", state, 0).Err(); err != nil {
			t.Fatal(err)
		}
		testenv.Eventually(t, "admitted", func() bool { ok, _ := l.Allow(t.Context()); return ok })
	}
	if ttl := rdb.PTTL(t.Context(), "ratelimit:{global}").Val(); ttl <= 0 || ttl > 3*time.Second {
		t.Errorf("the key stays %v", ttl)
	}
}

func TestRedisAwayAndBack(t *testing.T) {
	dir := t.TempDir()
	server := testenv.RedisServer(t, devservers.RedisOptions{Volatile: true, Dir: dir})
	rdb := open(t, server.URL)
	l := ratelimit.New(rdb, ratelimit.Options{RPS: 40, Burst: 80, Replicas: 4})
	if ok, _ := l.Allow(t.Context()); !ok {
		t.Fatal("refused with Redis")
	}
	server.Kill()
	var admitted int
	var waits []time.Duration
	start := time.Now()
	for range 100 {
		before := time.Now()
		if ok, _ := l.Allow(t.Context()); ok {
			admitted++
		}
		waits = append(waits, time.Since(before))
	}
	waitedAtMost(t, 200*time.Millisecond, waits)
	// A quarter of 80, less the one from Redis, and of 40 a second.
	if highest := 20 + 10*time.Since(start).Seconds(); admitted < 19 || float64(admitted) > highest {
		t.Errorf("admitted %d without Redis, want 19 to %.0f", admitted, highest)
	}
	testenv.RedisServer(t, devservers.RedisOptions{Volatile: true, Dir: dir, Port: port(t, server.URL)})
	// The new bucket in Redis is full: more than the local part passes.
	testenv.Eventually(t, "the bucket is in Redis", func() bool {
		_, _ = l.Allow(t.Context())
		return rdb.Exists(t.Context(), "ratelimit:{global}").Val() == 1
	})
}

// TestBlipGivesNoSecondPart checks that the local bucket does not grant tokens again
// that Redis granted before it became unavailable.
func TestBlipGivesNoSecondPart(t *testing.T) {
	server := testenv.RedisServer(t, devservers.RedisOptions{Volatile: true})
	l := ratelimit.New(open(t, server.URL), ratelimit.Options{RPS: 1, Burst: 30, Replicas: 1})
	for range 30 {
		l.Allow(t.Context())
	}
	server.Kill()
	start, admitted := time.Now(), 0
	for range 60 {
		if ok, _ := l.Allow(t.Context()); ok {
			admitted++
		}
	}
	if highest := 2 + int(time.Since(start).Seconds()); admitted > highest {
		t.Errorf("admitted %d more, want at most %d", admitted, highest)
	}
}

func port(t *testing.T, url string) int {
	t.Helper()
	o, err := redis.ParseURL(url)
	if err != nil {
		t.Fatal(err)
	}
	_, p, err := net.SplitHostPort(o.Addr)
	if err != nil {
		t.Fatal(err)
	}
	n, err := strconv.Atoi(p)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// waitedAtMost judges 19 of 20 requests: others of the machine hold up a few.
func waitedAtMost(t *testing.T, most time.Duration, waits []time.Duration) {
	t.Helper()
	slices.Sort(waits)
	if d := waits[len(waits)*19/20]; d > most {
		t.Errorf("one of twenty requests waited %v or more", d)
	}
}

// TestRedisStalled withholds the answers of Redis and measures how long requests
// wait.
func TestRedisStalled(t *testing.T) {
	url := testenv.Redis(t)
	l := ratelimit.New(open(t, url), ratelimit.Options{RPS: 1_000_000, Burst: 1_000_000, Replicas: 1})
	if ok, _ := l.Allow(t.Context()); !ok {
		t.Fatal("refused")
	}
	o, err := redis.ParseURL(url)
	if err != nil {
		t.Fatal(err)
	}
	admin := redis.NewClient(o)
	defer admin.Close()
	if err := admin.Do(t.Context(), "CLIENT", "PAUSE", "1500", "ALL").Err(); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	waits := make([]time.Duration, 1000)
	for i := range 50 {
		wg.Go(func() {
			for j := range 20 {
				before := time.Now()
				if ok, _ := l.Allow(t.Context()); !ok {
					t.Error("refused while Redis is stalled")
				}
				waits[i*20+j] = time.Since(before)
			}
		})
	}
	wg.Wait()
	waitedAtMost(t, 150*time.Millisecond, waits)
}

func TestCallerWhoLeaves(t *testing.T) {
	l := ratelimit.New(failing{}, ratelimit.Options{RPS: 1, Burst: 1, Replicas: 1})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if ok, _ := l.Allow(ctx); !ok {
		t.Error("the first of a full local bucket is refused")
	}
	if ok, retry := l.Allow(ctx); ok || retry <= 0 || retry > time.Second {
		t.Errorf("Allow = %v, %v", ok, retry)
	}
}

// failing is a client whose every command fails.
type failing struct{ redis.Scripter }

func (failing) EvalSha(ctx context.Context, _ string, _ []string, _ ...any) *redis.Cmd {
	c := redis.NewCmd(ctx)
	c.SetErr(errors.New("away"))
	return c
}

func BenchmarkAllow(b *testing.B) {
	l := ratelimit.New(open(b, testenv.Redis(b)), ratelimit.Options{RPS: 1_000_000, Burst: 1_000_000_000, Replicas: 1})
	b.ReportAllocs()
	b.SetParallelism(64)
	b.RunParallel(func(p *testing.PB) {
		for p.Next() {
			l.Allow(b.Context())
		}
	})
}

// tardy is a client whose calls fail when their time is over, or later than that.
type tardy struct {
	redis.Scripter

	by time.Duration
}

func (c tardy) EvalSha(ctx context.Context, _ string, _ []string, _ ...any) *redis.Cmd {
	<-ctx.Done()
	<-time.After(c.by)
	cmd := redis.NewCmd(ctx)
	cmd.SetErr(ctx.Err())
	return cmd
}

// TestSlowProcess: calls that fail because nobody noticed their answer in time do not open
// the breaker, those without an answer do.
func TestSlowProcess(t *testing.T) {
	open := func(by time.Duration) func() bool {
		reg := prometheus.NewRegistry()
		l := ratelimit.New(tardy{by: by}, ratelimit.Options{RPS: 1_000_000, Burst: 1_000_000, Replicas: 1, Registerer: reg})
		return func() bool {
			if ok, _ := l.Allow(t.Context()); !ok {
				t.Error("refused")
			}
			n, err := testutil.GatherAndCount(reg, "ratelimit_breaker_open")
			if err != nil || n != 1 {
				t.Fatal(n, err)
			}
			return testutil.GatherAndCompare(reg, strings.NewReader(
				"# HELP ratelimit_breaker_open 1 while the breaker keeps requests from Redis.\n"+
					"# TYPE ratelimit_breaker_open gauge\nratelimit_breaker_open 1\n"), "ratelimit_breaker_open") == nil
		}
	}
	slow := open(2 * ratelimit.Timeout)
	for range 5 {
		if slow() {
			t.Fatal("the breaker opened, though the process was slow")
		}
	}
	testenv.Eventually(t, "the breaker is open", open(0))
}
