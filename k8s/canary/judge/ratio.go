package judge

import (
	"fmt"
	"math"
)

// oddsRatios are the alternatives that a test considers. A candidate between two of them is found a little later. Their number costs
// little: evidence is divided by 6, which is less than one failed request's worth at a weight of 5 %.
var oddsRatios = [...]float64{1.25, 1.6, 2.5, 5, 20, 200}

// Counts are the requests of one side.
type Counts struct{ Bad, All uint64 }

// String returns the share and what it is made of.
func (c Counts) String() string {
	if c.All == 0 {
		return "no requests"
	}
	return fmt.Sprintf("%.3g %% (%d of %d)", 100*float64(c.Bad)/float64(c.All), c.Bad, c.All)
}

func (c *Counts) add(more Counts) {
	c.Bad += more.Bad
	c.All += more.All
}

// Ratio is the sequential two-sample test of a share; the package comment derives it.
type Ratio struct {
	tolerance         float64
	logs              [len(oddsRatios)]float64 // of the products of likelihood ratios
	candidate, stable Counts                   // all that was added
	open              [2]Counts                // of the window that has not ended: candidate's, stable's
}

// NewRatio returns a test with an evidence of 1. The candidate's odds may be tolerance times the stable version's.
func NewRatio(tolerance float64) *Ratio { return &Ratio{tolerance: tolerance} }

// Add takes what both sides did since the last call.
func (r *Ratio) Add(candidate, stable Counts) {
	r.candidate.add(candidate)
	r.stable.add(stable)
	r.open[0].add(candidate)
	r.open[1].add(stable)
	if r.open[0].All == 0 || r.open[1].All == 0 {
		return
	}
	x, n, m := r.open[0].Bad, r.open[0].All, r.open[1].All
	bad := x + r.open[1].Bad
	r.open = [2]Counts{}
	if bad == 0 || bad == n+m {
		return // X could not be anything else: every likelihood ratio is 1
	}
	null := logMoment(r.tolerance, n, m, bad)
	for i, omega := range oddsRatios {
		r.logs[i] += float64(x)*math.Log(omega) + null - logMoment(r.tolerance*omega, n, m, bad)
	}
}

// Evidence is the test's e-value.
func (r *Ratio) Evidence() float64 {
	var sum float64
	for _, l := range r.logs {
		sum += math.Exp(l)
	}
	return sum / float64(len(r.logs))
}

// logMoment returns log E[ω^X] for a hypergeometric X: the bad ones among n requests if bad of n+m are. It sums the terms from the
// largest one outwards, as far as they matter.
func logMoment(omega float64, n, m, bad uint64) float64 {
	if omega == 1 {
		return 0
	}
	low, high := uint64(0), min(n, bad)
	if bad > m {
		low = bad - m
	}
	// next is the term of x+1 over the term of x. It falls with x, so the largest term is where it gets below 1.
	next := func(x uint64) float64 {
		return omega * float64(n-x) * float64(bad-x) / (float64(x+1) * float64(m+x+1-bad))
	}
	mode, top := low, high
	for mode < top {
		if mid := (mode + top) / 2; next(mid) > 1 {
			mode = mid + 1
		} else {
			top = mid
		}
	}
	const negligible = 1e-17
	sum := 1.0
	for x, term := mode, 1.0; x < high && term > negligible; x++ {
		term *= next(x)
		sum += term
	}
	for x, term := mode, 1.0; x > low && term > negligible; x-- {
		term /= next(x - 1)
		sum += term
	}
	largest := logChoose(n, mode) + logChoose(m, bad-mode) - logChoose(n+m, bad) + float64(mode)*math.Log(omega)
	return largest + math.Log(sum)
}

// logChoose returns the logarithm of n over k.
func logChoose(n, k uint64) float64 {
	if k == 0 || k == n {
		return 0
	}
	a, _ := math.Lgamma(float64(n) + 1)
	b, _ := math.Lgamma(float64(k) + 1)
	c, _ := math.Lgamma(float64(n-k) + 1)
	return a - b - c
}
