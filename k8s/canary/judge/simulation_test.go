package judge

import (
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// The simulated release: 40 s at each weight, looked at every second.
var weights = []float64{0.05, 0.25, 0.50}

const (
	stepSeconds = 40
	alpha       = 0.01
)

// buckets are those of http_server_request_duration_seconds (libs/httpapi).
var buckets = []float64{.005, .025, .1, .25, .5, 1, 2.5, 10}

// world is a release with load. Requests arrive by Poisson; latency is log-normal with a median of 20 ms and a spread (sigma) of 0.8.
type world struct {
	rate             float64   // requests a second
	base, candidate  float64   // error shares
	slower           float64   // the candidate's latency over the stable version's
	outage           bool      // both sides fail half of their requests for 10 s, and are slow
	seconds          int       // 0: until the steps end
	stay             bool      // at the first weight
	latency, shifted []float64 // shares of both sides' requests up to each bucket
}

// result is what users met.
type result struct {
	failed   bool
	at       int    // look of the verdict, from 1
	requests uint64 // of the candidate until then
	errors   uint64 // of the candidate until then
}

func (w *world) prepare() {
	w.latency, w.shifted = shares(1), shares(max(w.slower, 1))
}

// shares is the cumulated distribution of latency over the buckets.
func shares(factor float64) []float64 {
	var out []float64
	for _, b := range buckets {
		z := math.Log(b/(0.020*factor)) / 0.8
		out = append(out, 0.5*math.Erfc(-z/math.Sqrt2))
	}
	return append(out, 1)
}

func (w *world) run(r *rand.Rand) result {
	j, err := New(Spec{Alpha: alpha, MinSample: 50, Checks: []Check{
		{Name: "errors", Tolerance: 1}, {Name: "latency", Tolerance: 1, Boundaries: buckets},
	}})
	if err != nil {
		panic(err)
	}
	seconds := len(weights) * stepSeconds
	if w.seconds > 0 {
		seconds = w.seconds
	}
	var out result
	for s := range seconds {
		weight := weights[0]
		if !w.stay {
			weight = weights[s/stepSeconds]
		}
		base, candidate, latency, shifted := w.base, w.candidate, w.latency, w.shifted
		if w.outage && s >= 20 && s < 30 {
			base, candidate, latency, shifted = 0.5, 0.5, shares(20), shares(20)
		}
		c := traffic(r, w.rate*weight, candidate, shifted)
		v, err := j.Look(c, traffic(r, w.rate*(1-weight), base, latency))
		if err != nil {
			panic(err)
		}
		out.requests += c[0].All
		out.errors += c[0].Bad
		if v.State == Failed {
			out.failed, out.at = true, s+1
			return out
		}
	}
	out.at = seconds
	return out
}

// traffic is one side's second.
func traffic(r *rand.Rand, rate, errors float64, latency []float64) []Window {
	w := []Window{{}, {Buckets: make([]uint64, len(latency))}}
	for at := r.ExpFloat64(); at < rate; at += r.ExpFloat64() {
		w[0].All++
		if r.Float64() < errors {
			w[0].Bad++
		}
		u, i := r.Float64(), 0
		for u > latency[i] {
			i++
		}
		w[1].Buckets[i]++
	}
	return w
}

// many runs n releases on all processors. The results depend on the seed alone.
func (w *world) many(seed uint64, n int) []result {
	w.prepare()
	out := make([]result, n)
	var next atomic.Int64
	var group sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		group.Go(func() {
			for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
				out[i] = w.run(rand.New(rand.NewPCG(seed, uint64(i))))
			}
		})
	}
	group.Wait()
	return out
}

func falseAborts(results []result) (n int) {
	for _, r := range results {
		if r.failed {
			n++
		}
	}
	return n
}

// releases is how many releases to simulate at a rate, and their seed: $CANARY_SIMULATION with a new seed, else what seconds allow.
func releases(t *testing.T, rate float64) (n int, seed uint64) {
	t.Helper()
	if set := os.Getenv("CANARY_SIMULATION"); set != "" {
		n, err := strconv.Atoi(set)
		if err != nil {
			t.Fatalf("CANARY_SIMULATION is %q: it must be a number of releases", set)
		}
		return n, uint64(time.Now().UnixNano())
	}
	return int(max(10, min(200, 2_000/rate))), 20221101
}

// TestFalseAborts simulates releases that are as good as what they replace: at most 1 % may fail.
func TestFalseAborts(t *testing.T) {
	for _, rate := range []float64{1, 10, 100, 1000} {
		t.Run(fmt.Sprint(rate), func(t *testing.T) {
			n, seed := releases(t, rate)
			t.Logf("seed %d", seed)
			for _, w := range []world{{}, {base: 0.001}, {base: 0.02}, {base: 0.001, outage: true}} {
				w.rate, w.candidate = rate, w.base
				failed := falseAborts(w.many(seed, n))
				t.Logf("| %g | %g %% | %v | %d of %d | %.2f %% |", rate, 100*w.base, w.outage, failed, n, 100*float64(failed)/float64(n))
				// With a share of exactly 1 %, three standard deviations more are met once in a thousand runs.
				if bound := alpha*float64(n) + 3*math.Sqrt(alpha*float64(n)); float64(failed) > bound {
					t.Errorf("%g requests/s, base %g %%: %d of %d good releases failed", rate, 100*w.base, failed, n)
				}
			}
		})
	}
}

// TestExposure measures what a bad candidate does at 5 % of 100 requests/s before it fails.
func TestExposure(t *testing.T) {
	n, seed := releases(t, 50)
	t.Logf("seed %d", seed)
	for _, c := range []struct {
		name                    string
		candidate, base, slower float64
		errors                  float64 // at most this many failed requests on average; 0: not of interest
		look                    float64 // found after this many looks on average
	}{
		{"100 % errors", 1, 0, 1, 15, 2},
		{"50 % errors", .5, 0, 1, 8, 3},
		{"5 % errors", .05, 0, 1, 6, 25},
		{"1 % errors", .01, 0, 1, 6, 120},
		{"100 % errors, base 0.1 %", 1, .001, 1, 15, 2},
		{"50 % errors, base 0.1 %", .5, .001, 1, 8, 3},
		{"5 % errors, base 0.1 %", .05, .001, 1, 8, 30},
		{"1 % errors, base 0.1 %", .01, .001, 1, 15, 300},
		{"100 % errors, base 2 %", 1, .02, 1, 15, 2},
		{"50 % errors, base 2 %", .5, .02, 1, 10, 5},
		{"5 % errors, base 2 %", .05, .02, 1, 0, 400},
		{"latency + 50 %", 0, 0, 1.5, 0, 60},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := world{rate: 100, base: c.base, candidate: c.candidate, slower: c.slower, seconds: 3_600, stay: true}
			var requests, errors, looks, missed float64
			for _, r := range w.many(seed, n) {
				requests, errors, looks = requests+float64(r.requests), errors+float64(r.errors), looks+float64(r.at)
				if !r.failed {
					missed++
				}
			}
			requests, errors, looks = requests/float64(n), errors/float64(n), looks/float64(n)
			t.Logf("| %s | %.1f | %.0f | %.1f s |", c.name, errors, requests, looks)
			if missed > 0 || looks > c.look || (c.errors > 0 && errors > c.errors) {
				t.Errorf("%v missed; %v looks, want at most %v; %v errors, want at most %v", missed, looks, c.look, errors, c.errors)
			}
		})
	}
}
