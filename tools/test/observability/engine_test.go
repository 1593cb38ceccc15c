package observability_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/textparse"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/rules"

	"waitlist.internal/tools/dashboards/engine"
)

// root is the path of the repository's root.
const root = "../../.."

// clock is Prometheus with a clock of its own: a test scrapes when it likes and says how
// much time has passed, so that rules keep their windows and a test of an hour takes seconds.
type clock struct {
	testing.TB
	*engine.Engine
	now time.Time
	// fired are the names of all alerts that have fired.
	fired map[string]bool
}

// namespace and pod are the labels that Prometheus would give what it scrapes.
const namespace, pod = "test", "pod-0"

// begin is when an engine's clock starts.
var begin = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC) // a constant

// newEngine returns an engine with the rules of the chart.
func newEngine(t testing.TB) *clock {
	t.Helper()
	e, err := engine.Open(t.Context(), t.TempDir(), root, namespace, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	})
	return &clock{TB: t, Engine: e, now: begin, fired: map[string]bool{}}
}

func read(t testing.TB, name string) string {
	t.Helper()
	body, err := os.ReadFile(filepath.Join(root, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(body)
}

// sample is a series with its value at the engine's time.
type sample struct {
	labels labels.Labels
	value  float64
}

// name is that of its metric.
func (s sample) name() string { return s.labels.Get(model.MetricNameLabel) }

// step moves the clock, stores the samples and evaluates the rules.
func (e *clock) step(d time.Duration, samples []sample) {
	e.Helper()
	e.now = e.now.Add(d)
	app := e.DB.Appender(e.Context())
	for _, s := range samples {
		target := labels.NewBuilder(s.labels).Set("namespace", namespace).Set("pod", pod).
			Set("revision", "1").Labels()
		if _, err := app.Append(0, target, e.now.UnixMilli(), s.value); err != nil {
			e.Fatalf("store %s: %v", s.labels, err)
		}
	}
	if err := app.Commit(); err != nil {
		e.Fatal(err)
	}
	if err := e.Eval(e.Context(), e.now); err != nil {
		e.Fatal(err)
	}
	for name := range e.firing() {
		e.fired[name] = true
	}
}

// firing returns the alerts that fire now, by alertName, with one's summary.
func (e *clock) firing() map[string]string {
	out := map[string]string{}
	for _, g := range e.Groups {
		for _, r := range g.AlertingRules() {
			for _, a := range r.ActiveAlerts() {
				if a.State == rules.StateFiring {
					out[alertName(r.Name(), a.Labels.Get("severity"), a.Labels.Get("long"))] = a.Annotations.Get("summary")
				}
			}
		}
	}
	return out
}

// alertName is an alert's name/severity or, for one on a budget, its name/severity/window.
func alertName(name, severity, window string) string {
	return strings.TrimSuffix(name+"/"+severity+"/"+window, "/")
}

// used are the names of the metrics that the rules read.
func (e *clock) used() map[string]bool {
	out := map[string]bool{}
	for _, g := range e.Groups {
		for _, r := range g.Rules() {
			for _, name := range selected(e.TB, r.Query().String()) {
				out[name] = true
			}
		}
	}
	return out
}

// query returns the values of an expression now.
func (e *clock) query(expr string) promql.Vector {
	e.Helper()
	q, err := e.PromQL.NewInstantQuery(e.Context(), e.DB, nil, expr, e.now)
	if err != nil {
		e.Fatalf("%s: %v", expr, err)
	}
	defer q.Close()
	v, err := q.Exec(e.Context()).Vector()
	if err != nil {
		e.Fatalf("%s: %v", expr, err)
	}
	return v
}

// scrape returns the samples at url and their bytes; none if nobody answers.
func scrape(t testing.TB, url string) ([]sample, int) {
	t.Helper()
	return scrapeAs(t, url, "application/openmetrics-text")
}

// scrapeAs scrapes whoever answers with a certain content type.
func scrapeAs(t testing.TB, url, kind string) ([]sample, int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Accept", "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5")
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, 0
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if ctx.Err() != nil {
		return nil, 0
	}
	if err != nil || res.StatusCode != http.StatusOK {
		t.Fatalf("scrape: %s, %v\n%.300s", res.Status, err, body)
	}
	if !strings.HasPrefix(res.Header.Get("Content-Type"), kind) {
		t.Fatalf("scrape: %s is no %s", res.Header.Get("Content-Type"), kind)
	}
	p, err := textparse.New(body, res.Header.Get("Content-Type"), nil, textparse.ParserOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var out []sample
	for {
		switch entry, err := p.Next(); {
		case errors.Is(err, io.EOF):
			return out, len(body)
		case err != nil:
			t.Fatalf("scrape: %v near %.200s", err, bytes.TrimSpace(body))
		case entry == textparse.EntrySeries:
			var s sample
			_, _, s.value = p.Series()
			p.Labels(&s.labels)
			out = append(out, s)
		}
	}
}

// series makes a sample of a name and pairs of labels.
func series(value float64, name string, pairs ...string) sample {
	return sample{labels.FromStrings(append([]string{model.MetricNameLabel, name}, pairs...)...), value}
}

func names(alerts map[string]string) string { return fmt.Sprint(alerts) }
