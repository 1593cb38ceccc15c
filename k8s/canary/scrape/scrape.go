// Package scrape reads the counters of a candidate's and a stable version's pods and turns them into the windows of a judge.
package scrape

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"waitlist.internal/k8s/canary/judge"
)

const (
	// timeout bounds the read of one pod. It is shorter than the second between two looks.
	timeout = 800 * time.Millisecond
	// maxBody bounds what a pod may answer.
	maxBody = 16 << 20
	// patience is how many looks in a row a pod may miss before the others are judged without it.
	patience = 3
)

// Series selects series of one metric.
type Series struct {
	// Metric is a counter, or a histogram, which then counts as its number of observations.
	Metric string
	// Labels are patterns that a label's whole value must match, as with PromQL's =~. A label that is not there is empty.
	Labels map[string]*regexp.Regexp
}

// Matching returns the pattern for a label, anchored at both ends as in PromQL.
func Matching(pattern string) (*regexp.Regexp, error) {
	return regexp.Compile("^(?s:" + pattern + ")$")
}

// Check says which series make a check of the judge.
type Check struct {
	// All counts what is judged. For latency it must be a classic histogram.
	All Series
	// Bad counts those of All that must not get more frequent. If its metric is not All's, All does not include them, and they are added
	// to it. Without a metric, All is judged by its buckets (latency).
	Bad Series
}

// HTTPServer returns the checks of a server with the metrics of libs/httpapi: the share of answers with status 5xx, and latency. The
// boundaries are the buckets of that histogram.
func HTTPServer() ([]Check, []judge.Check) {
	boundaries := []float64{.005, .025, .1, .25, .5, 1, 2.5, 10}
	answers := Series{Metric: "http_server_responses_total"}
	failures := Series{Metric: answers.Metric, Labels: map[string]*regexp.Regexp{"http_response_status_code": regexp.MustCompile(`^5..$`)}}
	return []Check{{All: answers, Bad: failures}, {All: Series{Metric: "http_server_request_duration_seconds"}}}, []judge.Check{
		{Name: "errors", Tolerance: 1}, {Name: "latency in seconds", Tolerance: 1, Boundaries: boundaries},
	}
}

// Watch remembers what pods have counted.
type Watch struct {
	client *http.Client
	checks []Check
	// boundaries are those of each check, none for a share.
	boundaries [][]float64
	pods       map[string]*pod // by address
	// open is what both sides' pods have counted since the last complete look.
	open [2][]judge.Window
}

// pod is what an address answered last.
type pod struct {
	side   int
	counts []judge.Window // since the pod's start, by check; nil before its first answer
	missed int
}

// New returns a Watch that has seen no pod, for a judge with as many checks in the same order.
func New(checks []Check, judged []judge.Check) (*Watch, error) {
	if len(checks) != len(judged) {
		return nil, fmt.Errorf("the judge has %d checks, the watch %d", len(judged), len(checks))
	}
	var boundaries [][]float64
	for i, c := range checks {
		boundaries = append(boundaries, judged[i].Boundaries)
		if c.All.Metric == "" || (c.Bad.Metric == "") != (len(boundaries[i]) > 0) {
			return nil, fmt.Errorf("check %d: it needs all and bad series, or a histogram and its boundaries", i+1)
		}
	}
	w := &Watch{
		client: &http.Client{
			Timeout: timeout, Transport: &http.Transport{MaxIdleConnsPerHost: 1, IdleConnTimeout: time.Minute},
			// Otherwise a candidate could have the operator ask any host, and be judged by what that answers.
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
		checks: checks, boundaries: boundaries, pods: map[string]*pod{},
	}
	w.clear()
	return w, nil
}

// Close closes idle connections.
func (w *Watch) Close() { w.client.CloseIdleConnections() }

func (w *Watch) clear() {
	for side := range w.open {
		w.open[side] = make([]judge.Window, len(w.checks))
		for i, b := range w.boundaries {
			if len(b) > 0 {
				w.open[side][i].Buckets = make([]uint64, len(b)+1)
			}
		}
	}
}

// Look reads all pods at once, given by the addresses of their metrics, and returns what they have counted since the last look that was
// complete. A pod is counted from its first answer on. A pod whose counters have fallen has restarted, and counts from zero.
//
// If a pod does not answer, nothing is lost and nothing returned: it would be wrong to compare the two sides over different seconds. A
// pod that misses three looks in a row is left out until it answers. The error names the pods that did not answer; windows returned
// with it are valid.
func (w *Watch) Look(ctx context.Context, candidate, stable []string) (c, s []judge.Window, err error) {
	w.setPods(candidate, stable)
	addresses := slices.Sorted(maps.Keys(w.pods))
	counts := make([][]judge.Window, len(addresses))
	errs := make([]error, len(addresses))
	var group sync.WaitGroup
	for i, address := range addresses {
		group.Go(func() { counts[i], errs[i] = w.read(ctx, address) })
	}
	group.Wait()
	complete := true
	for i, address := range addresses {
		p := w.pods[address]
		if errs[i] != nil {
			errs[i] = fmt.Errorf("read %s: %w", address, errs[i])
			if p.missed++; p.missed >= patience {
				p.counts = nil
			} else {
				complete = false
			}
			continue
		}
		p.missed = 0
		if p.counts != nil {
			add(w.open[p.side], since(p.counts, counts[i]))
		}
		p.counts = counts[i]
	}
	if !complete {
		return nil, nil, errors.Join(errs...)
	}
	c, s = w.open[0], w.open[1]
	w.clear()
	return c, s, errors.Join(errs...)
}

// setPods forgets pods that are gone and takes in new ones.
func (w *Watch) setPods(candidate, stable []string) {
	now := map[string]*pod{}
	for side, addresses := range [][]string{candidate, stable} {
		for _, a := range addresses {
			if p := w.pods[a]; p != nil && p.side == side {
				now[a] = p
			} else {
				now[a] = &pod{side: side}
			}
		}
	}
	w.pods = now
}

func (w *Watch) read(ctx context.Context, address string) ([]judge.Window, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, address, http.NoBody)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Accept", string(expfmt.NewFormat(expfmt.TypeTextPlain)))
	resp, err := w.client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("the pod answered %s", resp.Status)
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(io.LimitReader(resp.Body, maxBody))
	if err != nil {
		return nil, fmt.Errorf("parse metrics: %w", err)
	}
	out := make([]judge.Window, len(w.checks))
	for i, check := range w.checks {
		if check.Bad.Metric == "" {
			if out[i].Buckets, err = check.All.buckets(families, w.boundaries[i]); err != nil {
				return nil, err
			}
			continue
		}
		out[i] = judge.Window{All: check.All.count(families), Bad: check.Bad.count(families)}
		if check.Bad.Metric != check.All.Metric {
			out[i].All += out[i].Bad
		}
		out[i].Bad = min(out[i].Bad, out[i].All)
	}
	return out, nil
}

// selected are the series of a metric that match. A metric that a pod does not show yet has none: services show a counter from its
// first count on.
func (s Series) selected(families map[string]*dto.MetricFamily) []*dto.Metric {
	// A histogram is found by its own name and by its name with _count.
	family := families[s.Metric]
	if family == nil {
		family = families[strings.TrimSuffix(s.Metric, "_count")]
	}
	var out []*dto.Metric
	for _, m := range family.GetMetric() {
		values := map[string]string{}
		for _, l := range m.GetLabel() {
			values[l.GetName()] = l.GetValue()
		}
		matches := true
		for name, pattern := range s.Labels {
			matches = matches && pattern.MatchString(values[name])
		}
		if matches {
			out = append(out, m)
		}
	}
	return out
}

func (s Series) count(families map[string]*dto.MetricFamily) (sum uint64) {
	for _, m := range s.selected(families) {
		switch {
		case m.GetHistogram() != nil:
			sum += m.GetHistogram().GetSampleCount()
		case m.GetCounter() != nil:
			sum += uint64(max(0, m.GetCounter().GetValue()))
		case m.GetUntyped() != nil:
			sum += uint64(max(0, m.GetUntyped().GetValue()))
		}
	}
	return sum
}

// buckets returns the counts between boundaries, the last one above all of them.
func (s Series) buckets(families map[string]*dto.MetricFamily, boundaries []float64) ([]uint64, error) {
	out := make([]uint64, len(boundaries)+1)
	for _, m := range s.selected(families) {
		h := m.GetHistogram()
		if h == nil {
			return nil, fmt.Errorf("%s is not a histogram", s.Metric)
		}
		var below uint64
		for i, b := range boundaries {
			at := slices.IndexFunc(h.GetBucket(), func(x *dto.Bucket) bool { return x.GetUpperBound() == b })
			if at < 0 {
				return nil, fmt.Errorf("%s has no bucket %g", s.Metric, b)
			}
			n := max(below, h.GetBucket()[at].GetCumulativeCount())
			out[i] += n - below
			below = n
		}
		out[len(boundaries)] += max(below, h.GetSampleCount()) - below
	}
	return out, nil
}

// since is what was counted between two answers of a pod.
func since(before, now []judge.Window) []judge.Window {
	for i := range now {
		if fell(before[i], now[i]) {
			return now
		}
	}
	out := make([]judge.Window, len(now))
	for i, n := range now {
		out[i] = judge.Window{All: n.All - before[i].All, Bad: n.Bad - before[i].Bad}
		for k := range n.Buckets {
			out[i].Buckets = append(out[i].Buckets, n.Buckets[k]-before[i].Buckets[k])
		}
	}
	return out
}

func fell(before, now judge.Window) bool {
	for k := range now.Buckets {
		if now.Buckets[k] < before.Buckets[k] {
			return true
		}
	}
	return now.All < before.All || now.Bad < before.Bad
}

func add(sum, more []judge.Window) {
	for i, m := range more {
		sum[i].All += m.All
		sum[i].Bad += m.Bad
		for k, n := range m.Buckets {
			sum[i].Buckets[k] += n
		}
	}
}
