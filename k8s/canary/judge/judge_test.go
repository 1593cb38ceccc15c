package judge

import (
	"fmt"
	"math"
	"strings"
	"testing"
)

// TestLevel enumerates what can happen in a window: on average the evidence of a candidate that is as good stays as it is, and that of
// a better one falls. All claims about the level rest on this.
func TestLevel(t *testing.T) {
	t.Parallel()
	for _, w := range []struct{ n, m, bad uint64 }{{1, 1, 1}, {1, 19, 1}, {5, 95, 3}, {50, 50, 60}, {40, 3, 20}, {200, 700, 35}} {
		for _, tolerance := range []float64{1, 1.5} {
			t.Run(fmt.Sprintf("%d and %d with %d bad, tolerance %g", w.n, w.m, w.bad, tolerance), func(t *testing.T) {
				t.Parallel()
				for _, odds := range []float64{tolerance, 0.8 * tolerance, 0.2 * tolerance} {
					got := expected(odds, tolerance, w.n, w.m, w.bad)
					if got > 1+1e-9 || (odds == tolerance && math.Abs(got-1) > 1e-9) {
						t.Errorf("odds %g times as high multiply the evidence by %v on average", odds, got)
					}
				}
				if got := expected(4*tolerance, tolerance, w.n, w.m, w.bad); got <= 1 {
					t.Errorf("odds four times the tolerated ones multiply the evidence by %v on average", got)
				}
			})
		}
	}
}

// expected is the mean evidence after a window whose odds on the candidate are so many times as high, by enumeration.
func expected(odds, tolerance float64, n, m, bad uint64) float64 {
	var total, out float64
	for x := uint64(0); x <= min(n, bad); x++ {
		if bad-x > m {
			continue
		}
		p := choose(n, x) * choose(m, bad-x) * math.Pow(odds, float64(x))
		r := NewRatio(tolerance)
		r.Add(Counts{x, n}, Counts{bad - x, m})
		total += p
		out += p * r.Evidence()
	}
	return out / total
}

func choose(n, k uint64) float64 {
	out := 1.0
	for i := range k {
		out = out * float64(n-i) / float64(i+1)
	}
	return out
}

// TestMomentOfManyRequests holds the sum that stops early against one that does not, at sizes where factorials no longer fit a float.
func TestMomentOfManyRequests(t *testing.T) {
	t.Parallel()
	for _, omega := range oddsRatios {
		const n, m, bad = 5_000, 90_000, 3_000
		var terms []float64
		for x := uint64(0); x <= bad; x++ {
			terms = append(terms, logChoose(n, x)+logChoose(m, bad-x)-logChoose(n+m, bad)+float64(x)*math.Log(omega))
		}
		var sum, largest float64 = 0, terms[0]
		for _, l := range terms {
			largest = max(largest, l)
		}
		for _, l := range terms {
			sum += math.Exp(l - largest)
		}
		if want, got := largest+math.Log(sum), logMoment(omega, n, m, bad); math.Abs(want-got) > 1e-6 {
			t.Errorf("log E[%g^X] is %v, want %v", omega, got, want)
		}
	}
}

func spec() Spec {
	return Spec{Alpha: 0.01, MinSample: 50, Checks: []Check{
		{Name: "errors", Tolerance: 1},
		{Name: "latency", Tolerance: 1, Boundaries: []float64{0.1, 1}},
	}}
}

// side is what answered so many requests, of which some failed and some took between 0.1 s and 1 s.
func side(all, bad, slow uint64) []Window {
	return []Window{{Bad: bad, All: all}, {Buckets: []uint64{all - slow, slow, 0}}}
}

func look(t *testing.T, j *Judge, candidate, stable []Window) Verdict {
	t.Helper()
	v, err := j.Look(candidate, stable)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func newJudge(t *testing.T) *Judge {
	t.Helper()
	j, err := New(spec())
	if err != nil {
		t.Fatal(err)
	}
	return j
}

func TestStates(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		candidate, stable []Window // at each of 20 looks
		want              State
		check             string
	}{
		"no traffic":                              {side(0, 0, 0), side(0, 0, 0), Insufficient, ""},
		"no traffic on the candidate":             {side(0, 0, 0), side(100, 0, 0), Insufficient, ""},
		"no traffic on the stable version":        {side(10, 10, 0), side(0, 0, 0), Insufficient, ""},
		"little traffic":                          {side(1, 0, 0), side(9, 0, 0), Insufficient, ""},
		"good":                                    {side(10, 0, 0), side(90, 0, 0), Passing, ""},
		"both fail, as when their database is":    {side(10, 5, 0), side(90, 45, 0), Passing, ""},
		"both fail always":                        {side(10, 10, 0), side(90, 90, 0), Passing, ""},
		"better than the stable version":          {side(10, 0, 0), side(90, 9, 40), Passing, ""},
		"every answer an error":                   {side(10, 10, 0), side(90, 0, 0), Failed, "errors"},
		"every answer an error, one in 20 looks":  {side(1, 1, 0), side(1, 0, 0), Failed, "errors"},
		"half of the answers slow":                {side(10, 0, 5), side(90, 0, 4), Failed, "latency"},
		"half of the answers errors, base 2 in 9": {side(10, 5, 0), side(90, 20, 0), Failed, "errors"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			j := newJudge(t)
			var v Verdict
			for range 20 {
				v = look(t, j, c.candidate, c.stable)
			}
			if v.State != c.want || (c.check != "" && v.Check != c.check) {
				t.Errorf("%s by %s after %d and %d requests, evidence %.3g of %.3g: want %s %s",
					v.State, v.Check, v.Candidate, v.Stable, v.Evidence, v.Limit, c.want, c.check)
			}
		})
	}
}

// TestSampleOfACheck has a check whose events may not come during a release: it never holds a candidate up, and fails one all the same.
func TestSampleOfACheck(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		optional []bool // of errors and latency
		errors   uint64
		bad      uint64
		want     State
		counted  uint64
	}{
		"both must be seen":               {[]bool{false, false}, 0, 0, Insufficient, 0},
		"errors may be away":              {[]bool{true, false}, 0, 0, Passing, 100},
		"errors may be away but fail":     {[]bool{true, false}, 10, 10, Failed, 0},
		"what must be seen may not":       {[]bool{false, true}, 0, 0, Insufficient, 0},
		"nothing need be seen":            {[]bool{true, true}, 0, 0, Passing, 0},
		"nothing need be seen, and fails": {[]bool{true, true}, 10, 10, Failed, 0},
	} {
		s := spec()
		for i, optional := range c.optional {
			if optional {
				s.Checks[i].MinSample = new(uint64(0))
			}
		}
		j, err := New(s)
		if err != nil {
			t.Fatal(err)
		}
		var v Verdict
		for range 10 {
			v = look(t, j, []Window{{Bad: c.bad, All: c.errors}, {Buckets: []uint64{10, 0, 0}}},
				[]Window{{All: c.errors}, {Buckets: []uint64{90, 0, 0}}})
		}
		if v.State != c.want || c.want != Failed && v.Candidate != c.counted {
			t.Errorf("%s: %s after %d requests, want %s after %d", name, v.State, v.Candidate, c.want, c.counted)
		}
	}
}

// TestFailureIsFinal has a candidate recover after it failed.
func TestFailureIsFinal(t *testing.T) {
	t.Parallel()
	j := newJudge(t)
	failed := look(t, j, side(10, 10, 0), side(90, 0, 0))
	for range 1_000 {
		if v := look(t, j, side(100, 0, 0), side(100, 10, 0)); v != failed {
			t.Fatalf("after %+v: %+v", failed, v)
		}
	}
	if want := "errors: 100 % (10 of 10) on the candidate, 0 % (0 of 90) on the stable version."; failed.Reason != want {
		t.Errorf("the reason is %q, want %q", failed.Reason, want)
	}
}

// TestReasonOfLatency expects the boundary that tells the sides apart.
func TestReasonOfLatency(t *testing.T) {
	t.Parallel()
	j := newJudge(t)
	got := look(t, j, side(20, 0, 10), side(180, 0, 9)).Reason
	if want := "latency above 0.1: 50 % (10 of 20) on the candidate, 5 % (9 of 180) on the stable version."; got != want {
		t.Errorf("the reason is %q, want %q", got, want)
	}
}

// TestOneSideAtATime has requests arrive so slowly that no look sees both sides.
func TestOneSideAtATime(t *testing.T) {
	t.Parallel()
	j := newJudge(t)
	var v Verdict
	for range 15 {
		look(t, j, side(1, 1, 0), side(0, 0, 0))
		v = look(t, j, side(0, 0, 0), side(1, 0, 0))
	}
	if v.State != Failed {
		t.Errorf("after 15 failures here and 15 successes there: %+v", v)
	}
}

func TestRefusals(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*Spec){
		"alpha is 0":            func(s *Spec) { s.Alpha = 0 },
		"alpha is NaN":          func(s *Spec) { s.Alpha = math.NaN() },
		"there are no checks":   func(s *Spec) { s.Checks = nil },
		"the tolerance":         func(s *Spec) { s.Checks[0].Tolerance = 0.5 },
		"the boundaries":        func(s *Spec) { s.Checks[1].Boundaries = []float64{1, 1} },
		"the boundaries of lat": func(s *Spec) { s.Checks[1].Boundaries = []float64{1, math.NaN()} },
	} {
		s := spec()
		change(&s)
		if _, err := New(s); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: got %v", name, err)
		}
	}
	j := newJudge(t)
	for _, w := range [][]Window{nil, side(0, 1, 0), {{}, {Buckets: []uint64{1}}}} {
		if _, err := j.Look(w, side(1, 0, 0)); err == nil {
			t.Errorf("%+v was taken", w)
		}
	}
	if v := look(t, j, side(1, 0, 0), side(1, 0, 0)); v.Candidate != 1 || v.Stable != 1 {
		t.Errorf("refused windows were counted: %+v", v)
	}
}
