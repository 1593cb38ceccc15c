// Package judge tells a candidate that is worse than the stable version from one that is not, while both serve. It looks as often as it
// likes, and still fails at most a share Alpha of the candidates that are no worse, over all looks of a release together. It knows
// nothing of Kubernetes and reads no clock.
//
// # Why not a threshold
//
// A test with a fixed number of requests keeps its level at one look. Looked at every second, a p-value of 1 % is passed by chance in
// many good releases. A release needs an e-process: a number that starts at 1, is never negative, and on average does not grow as long
// as the candidate is no worse. By Ville's inequality it ever reaches 1/Alpha with a probability of at most Alpha, whenever and however
// often one looks.
//
// # The test of a share
//
// Ratio compares the share of bad requests. Take a window in which the candidate answered n requests and the stable version m, and K of
// all n+m were bad. If a request is as likely to be bad on either side, then, given n, m and K, the number X of bad ones among the
// candidate's is hypergeometric, whatever that likelihood is: it cancels out, and it may be another one in each window, as when
// a database fails for both. If the odds of being bad are ω times as high on the candidate, X is Fisher's noncentral hypergeometric. So
//
//	L(ω) = ω^X / E[ω^X],   X hypergeometric(n+m, K, n)
//
// is their likelihood ratio, with an average of 1 if the candidate is as good and of less if it is better: X gets smaller, and ω^X
// increases in X for ω > 1. The product over windows is an e-process for each ω, and so is the mean over several ω (oddsRatios), which
// saves guessing how bad a candidate will be. With a tolerance t both odds are multiplied by t: L(ω) = ω^X E[t^X] / E[(tω)^X], an
// e-process as long as the candidate's odds are at most t times the stable version's.
//
// A window ends when both sides have answered a request, usually after a look. Where it ends depends on the numbers of requests, never on
// how they went; the level rests on that.
//
// # The test of latency
//
// Latency takes "slower than b" for bad, at each boundary b of a histogram, and the mean of these e-processes, which is one, too, however
// they depend on each other. It fails a candidate whose distribution is shifted to the right anywhere that boundaries can show.
//
// # Several checks
//
// A judge with k checks fails a candidate when one of them reaches k/Alpha.
//
// # What it assumes
//
// Requests fail independently of each other once the likelihood of their window is given. A client whose retries all go to one side, or
// a side whose only pod is on a bad machine, is a difference that this test finds and that is not the build's.
//
// # Sources
//
// Michael Lindon, Chris Sanden, Vaché Shirikian, "Rapid Regression Detection in Software Deployments through Sequential Testing" (KDD
// 2022): canaries judged by sequential tests of counts and of whole distributions of latency. Michael Lindon, Alan Malek, "Anytime-Valid
// Inference for Multinomial Count Data" (NeurIPS 2022): which side a failure belongs to, given that there is one, as a sequential test
// that does not mind rates that change in time; with a mixture over alternatives. Steven Howard, Aaditya Ramdas, "Sequential Estimation
// of Quantiles with Applications to A/B Testing and Best-Arm Identification" (Bernoulli 2022): quantiles by the counts on either side of
// them. The tests here differ in one thing: they condition on the number of requests and of failures of each window, which pods'
// counters give and which makes the level exact for small numbers.
package judge

import (
	"errors"
	"fmt"
	"math"
)

// State is what the data say so far.
type State int

const (
	// Insufficient means that there are not enough requests to say anything. It is neither failure nor success, however long it lasts.
	Insufficient State = iota
	// Passing means enough requests, and no sign that the candidate is worse.
	Passing
	// Failed means that the candidate is worse. It is final.
	Failed
)

// String returns the state's name.
func (s State) String() string { return [...]string{"Insufficient", "Passing", "Failed"}[s] }

// Spec is how a candidate is judged.
type Spec struct {
	// Alpha bounds the share of good candidates that fail, over all looks and checks: more than 0, less than 1.
	Alpha float64
	// MinSample is how many requests each side must have answered in each check before a candidate passes. A worse one may fail earlier.
	MinSample uint64
	// Checks has at least one entry.
	Checks []Check
}

// Check is one comparison.
type Check struct {
	// Name is for people and appears in reasons.
	Name string
	// Boundaries are the upper bounds of the buckets of a histogram, increasing, without the infinite one. With none, the check is of
	// a share.
	Boundaries []float64
	// Tolerance is how many times as high the candidate's odds may be, at least 1.
	Tolerance float64
	// MinSample is for this check, in place of the spec's. With 0 the check may fail a candidate but never holds one up: use it for what may
	// not happen at all during a release.
	MinSample *uint64
}

// Window is what one side did in a check since the last look: one entry in Buckets for each boundary and one for what is above, or
// Bad and All.
type Window struct {
	Bad, All uint64
	Buckets  []uint64
}

// Verdict is the state after a look.
type Verdict struct {
	State State
	// Check is the name of the check that failed or, before one has, of the one with the most evidence.
	Check string
	// Reason is a sentence with the figures of that check.
	Reason string
	// Evidence is that check's e-value; Limit is where it fails.
	Evidence, Limit float64
	// Candidate and Stable are the requests of the check that has seen the fewest, among those with a minimum sample.
	Candidate, Stable uint64
}

// Judge judges one candidate.
type Judge struct {
	spec  Spec
	tests [][]*Ratio // of each check: one, or one for each boundary
	last  Verdict
}

// New returns a Judge that has seen nothing.
func New(spec Spec) (*Judge, error) {
	if !(spec.Alpha > 0 && spec.Alpha < 1) {
		return nil, fmt.Errorf("alpha is %v: it must lie between 0 and 1", spec.Alpha)
	}
	if len(spec.Checks) == 0 {
		return nil, errors.New("there are no checks")
	}
	j := &Judge{spec: spec}
	for _, c := range spec.Checks {
		if !(c.Tolerance >= 1) || math.IsInf(c.Tolerance, 1) {
			return nil, fmt.Errorf("the tolerance of %s is %v: it must be at least 1", c.Name, c.Tolerance)
		}
		for i := 1; i < len(c.Boundaries); i++ {
			if !(c.Boundaries[i] > c.Boundaries[i-1]) {
				return nil, fmt.Errorf("the boundaries of %s do not increase: %v", c.Name, c.Boundaries)
			}
		}
		tests := make([]*Ratio, max(1, len(c.Boundaries)))
		for i := range tests {
			tests[i] = NewRatio(c.Tolerance)
		}
		j.tests = append(j.tests, tests)
	}
	return j, nil
}

// Look takes what both sides did since the last look, one window for each check in the order of the spec, and says how things stand.
// After a failure it changes nothing.
func (j *Judge) Look(candidate, stable []Window) (Verdict, error) {
	if j.last.State == Failed {
		return j.last, nil
	}
	if len(candidate) != len(j.tests) || len(stable) != len(j.tests) {
		return Verdict{}, fmt.Errorf("got %d and %d windows for %d checks", len(candidate), len(stable), len(j.tests))
	}
	for i, c := range j.spec.Checks {
		for _, w := range []Window{candidate[i], stable[i]} {
			if err := c.fits(w); err != nil {
				return Verdict{}, err
			}
		}
	}
	v := Verdict{Evidence: -1, Limit: float64(len(j.tests)) / j.spec.Alpha, Candidate: math.MaxUint64, Stable: math.MaxUint64}
	enough, held := true, false
	for i, tests := range j.tests {
		c := j.spec.Checks[i]
		for k, test := range tests {
			test.Add(c.counts(candidate[i], k), c.counts(stable[i], k))
		}
		seen, least := tests[0], j.spec.least(c)
		if least > 0 && !held {
			held, v.Candidate, v.Stable = true, math.MaxUint64, math.MaxUint64
		}
		if least > 0 || !held {
			v.Candidate, v.Stable = min(v.Candidate, seen.candidate.All), min(v.Stable, seen.stable.All)
		}
		enough = enough && seen.candidate.All >= least && seen.stable.All >= least
		if evidence, worst := mean(tests); evidence > v.Evidence {
			v.Evidence, v.Check, v.Reason = evidence, c.Name, c.sentence(tests[worst], worst)
		}
	}
	switch {
	case v.Evidence >= v.Limit:
		v.State = Failed
	case enough:
		v.State = Passing
	}
	j.last = v
	return v, nil
}

// least is how many requests each side must have answered in a check.
func (s Spec) least(c Check) uint64 {
	if c.MinSample != nil {
		return *c.MinSample
	}
	return s.MinSample
}

func (c Check) fits(w Window) error {
	switch {
	case len(c.Boundaries) > 0 && len(w.Buckets) != len(c.Boundaries)+1:
		return fmt.Errorf("%s: %d buckets for %d boundaries", c.Name, len(w.Buckets), len(c.Boundaries))
	case len(c.Boundaries) == 0 && w.Bad > w.All:
		return fmt.Errorf("%s: %d of %d are bad", c.Name, w.Bad, w.All)
	}
	return nil
}

// counts returns a window's counts. For a histogram, requests slower than the boundary are bad.
func (c Check) counts(w Window, boundary int) Counts {
	if len(c.Boundaries) == 0 {
		return Counts{Bad: w.Bad, All: w.All}
	}
	var out Counts
	for i, n := range w.Buckets {
		out.All += n
		if i > boundary {
			out.Bad += n
		}
	}
	return out
}

func (c Check) sentence(test *Ratio, boundary int) string {
	what := c.Name
	if len(c.Boundaries) > 0 {
		what = fmt.Sprintf("%s above %g", c.Name, c.Boundaries[boundary])
	}
	return fmt.Sprintf("%s: %s on the candidate, %s on the stable version.", what, test.candidate, test.stable)
}

// mean returns the mean of the tests' e-values, and which of them is the highest.
func mean(tests []*Ratio) (evidence float64, worst int) {
	highest := -1.0
	for i, t := range tests {
		e := t.Evidence()
		evidence += e / float64(len(tests))
		if e > highest {
			highest, worst = e, i
		}
	}
	return evidence, worst
}
