package viewer

import (
	"fmt"
	"net/url"
	"slices"
	"testing"
	"time"

	prom "github.com/prometheus/prometheus/model/exemplar"
	"github.com/prometheus/prometheus/model/labels"
	tracev1 "go.opentelemetry.io/proto/otlp/trace/v1"

	"waitlist.internal/tools/dashboards/engine"
)

const root = "../../.."

// open returns an engine on an empty database.
func open(t *testing.T) *engine.Engine {
	t.Helper()
	e, err := engine.Open(t.Context(), t.TempDir(), root, Namespace, retention)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	})
	return e
}

// TestExemplars draws panels of a histogram with two exemplars, of which one has its trace.
func TestExemplars(t *testing.T) {
	e := open(t)
	now := time.Now()
	app := e.DB.Appender(t.Context())
	for i, bound := range []string{"0.25", "+Inf"} {
		series := labels.FromStrings("__name__", "http_server_request_duration_seconds_bucket",
			"namespace", Namespace, "service", "signup", "le", bound)
		ref, err := app.Append(0, series, now.UnixMilli(), 1)
		if err != nil {
			t.Fatal(err)
		}
		one := prom.Exemplar{
			Labels: labels.FromStrings("trace_id", fmt.Sprintf("%032x", i+1)), Value: float64(i) + .2, Ts: now.UnixMilli(), HasTs: true,
		}
		if _, err := app.AppendExemplar(ref, series, one); err != nil {
			t.Fatal(err)
		}
	}
	build := labels.FromStrings("__name__", "waitlist_build_info", "namespace", Namespace, "service", "signup", "version", "v1")
	if _, err := app.Append(0, build, now.UnixMilli(), 1); err != nil {
		t.Fatal(err)
	}
	if err := app.Commit(); err != nil {
		t.Fatal(err)
	}
	v := &Viewer{cfg: Config{Root: root, Interval: time.Second}, engine: e, traces: newTraces()}
	send(t, v.traces, &tracev1.Span{TraceId: id(16, 2), SpanId: id(8, 1), Name: "root"})
	boards, err := v.boards()
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(boards, func(b board) bool { return b.UID == "waitlist-suite" })
	d, err := v.draw(t.Context(), boards[i], nil, now.Add(-time.Minute), now.Add(10*time.Second))
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range d.Panels {
		want := 0
		if p.Title == "Time of a request" {
			want = 1
		}
		if len(p.Exemplars) != want || want == 1 && (p.Exemplars[0].Value != 1.2 || p.Exemplars[0].Trace != fmt.Sprintf("%032x", 2)) {
			t.Errorf("%s has %+v, want %d exemplars", p.Title, p.Exemplars, want)
		}
	}
}

// TestVariables chooses one of two versions, whose names have dots.
func TestVariables(t *testing.T) {
	e := open(t)
	now := time.Now()
	app := e.DB.Appender(t.Context())
	for _, version := range []string{"v1.2.3", "v1x2x3"} {
		series := labels.FromStrings("__name__", "waitlist_build_info", "namespace", Namespace, "service", "signup", "version", version)
		if _, err := app.Append(0, series, now.UnixMilli(), 1); err != nil {
			t.Fatal(err)
		}
	}
	if err := app.Commit(); err != nil {
		t.Fatal(err)
	}
	v := &Viewer{cfg: Config{Root: root, Interval: time.Second}, engine: e, traces: newTraces()}
	boards, err := v.boards()
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range boards {
		if b.UID != "waitlist-release" {
			continue
		}
		for choice, want := range map[string]int{"": 2, "v1.2.3": 1} {
			d, err := v.draw(t.Context(), b, url.Values{"version": {choice}}, now.Add(-time.Minute), now.Add(10*time.Second))
			if err != nil {
				t.Fatal(err)
			}
			pods := d.Panels[0]
			if pods.Title != "Pods" || len(pods.Lines) != want || pods.Lines[0].Name != "signup v1.2.3" {
				t.Errorf("version %q: %s has %d lines, want %d: %+v", choice, pods.Title, len(pods.Lines), want, pods.Lines)
			}
		}
		return
	}
	t.Error("there is no dashboard of releases")
}
