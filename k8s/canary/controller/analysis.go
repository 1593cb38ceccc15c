package controller

import (
	"context"
	"encoding/json"
	"fmt"
	"regexp"
	"strconv"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"waitlist.internal/k8s/canary/api/v1alpha1"
	"waitlist.internal/k8s/canary/judge"
	"waitlist.internal/k8s/canary/scrape"
)

// lookEvery is the least time between two looks. It is shorter than a second, so that a reconcile each second never misses one.
const lookEvery = 900 * time.Millisecond

// Analyst looks at the pods of a candidate and of the stable version, given by the addresses of their metrics, and says how the judge
// sees the candidate now. A new revision, a new analysis or a nil candidate starts anew.
type Analyst interface {
	Look(ctx context.Context, of types.NamespacedName, revision string, a v1alpha1.Analysis, candidate, stable []string) (judge.Verdict, error)
	// Forget drops what is known of a Canary.
	Forget(of types.NamespacedName)
}

// Pods is the Analyst that reads pods.
type Pods struct {
	mu    sync.Mutex
	cases map[types.NamespacedName]*trial
}

// trial is the judgement of one candidate.
type trial struct {
	revision, analysis string
	judge              *judge.Judge
	watch              *scrape.Watch
	last               time.Time
	verdict            judge.Verdict
}

// Look implements Analyst. The reconciler calls it for one Canary at a time.
func (p *Pods) Look(
	ctx context.Context, of types.NamespacedName, revision string, a v1alpha1.Analysis, candidate, stable []string,
) (judge.Verdict, error) {
	t, err := p.trial(of, revision, a)
	if err != nil {
		return judge.Verdict{}, err
	}
	if time.Since(t.last) < lookEvery || t.verdict.State == judge.Failed {
		return t.verdict, nil
	}
	t.last = time.Now()
	c, s, err := t.watch.Look(ctx, candidate, stable)
	if c == nil {
		return t.verdict, err
	}
	v, judgeErr := t.judge.Look(c, s)
	if judgeErr != nil {
		return t.verdict, judgeErr
	}
	t.verdict = v
	return v, err
}

func (p *Pods) trial(of types.NamespacedName, revision string, a v1alpha1.Analysis) (*trial, error) {
	raw, err := json.Marshal(a) // not %+v, which prints where a pointer points to
	if err != nil {
		return nil, err
	}
	analysis := string(raw)
	p.mu.Lock()
	defer p.mu.Unlock()
	if t := p.cases[of]; t != nil && t.revision == revision && t.analysis == analysis {
		return t, nil
	}
	j, w, err := build(a)
	if err != nil {
		return nil, err
	}
	if p.cases == nil {
		p.cases = map[types.NamespacedName]*trial{}
	}
	if t := p.cases[of]; t != nil {
		t.watch.Close()
	}
	t := &trial{revision: revision, analysis: analysis, judge: j, watch: w}
	p.cases[of] = t
	return t, nil
}

// Forget implements Analyst.
func (p *Pods) Forget(of types.NamespacedName) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if t := p.cases[of]; t != nil {
		t.watch.Close()
		delete(p.cases, of)
	}
}

// fault says why an analysis cannot be done, or returns "".
func fault(a v1alpha1.Analysis) string {
	_, watch, err := build(a)
	if err != nil {
		return "The analysis is not valid: " + err.Error() + "."
	}
	watch.Close()
	return ""
}

// build returns the judge and the watch of an analysis.
func build(a v1alpha1.Analysis) (*judge.Judge, *scrape.Watch, error) {
	checks, judged := scrape.HTTPServer()
	if len(a.Checks) > 0 {
		checks, judged = nil, nil
	}
	for _, c := range a.Checks {
		all, err := series(c.All)
		if err != nil {
			return nil, nil, fmt.Errorf("check %s: %w", c.Name, err)
		}
		check := scrape.Check{All: all}
		if c.Bad != nil {
			if check.Bad, err = series(*c.Bad); err != nil {
				return nil, nil, fmt.Errorf("check %s: %w", c.Name, err)
			}
		}
		of := judge.Check{Name: c.Name, Tolerance: 1}
		if c.Sample != nil {
			of.MinSample = new(uint64(*c.Sample))
		}
		for _, text := range c.Boundaries {
			b, err := strconv.ParseFloat(string(text), 64)
			if err != nil {
				return nil, nil, fmt.Errorf("check %s: boundary %q is not a number", c.Name, text)
			}
			of.Boundaries = append(of.Boundaries, b)
		}
		checks, judged = append(checks, check), append(judged, of)
	}
	percent, err := strconv.ParseFloat(a.AlphaPercent, 64)
	if err != nil {
		return nil, nil, fmt.Errorf("alphaPercent %q is not a number", a.AlphaPercent)
	}
	j, err := judge.New(judge.Spec{Alpha: percent / 100, MinSample: uint64(a.Sample), Checks: judged})
	if err != nil {
		return nil, nil, err
	}
	w, err := scrape.New(checks, judged)
	return j, w, err
}

func series(s v1alpha1.Series) (scrape.Series, error) {
	out := scrape.Series{Metric: s.Metric, Labels: map[string]*regexp.Regexp{}}
	for name, pattern := range s.Labels {
		m, err := scrape.Matching(pattern)
		if err != nil {
			return scrape.Series{}, fmt.Errorf("label %s: %w", name, err)
		}
		out.Labels[name] = m
	}
	return out, nil
}
