package telemetry

import (
	"math/rand/v2"
	"testing"
	"time"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
)

// drawn asks s about a span and reports whether it is recorded.
func drawn(t *testing.T, s sdktrace.Sampler, parent trace.SpanContext, kind trace.SpanKind, links ...trace.SpanContext) bool {
	t.Helper()
	p := sdktrace.SamplingParameters{ParentContext: t.Context(), TraceID: anyTrace(), Kind: kind}
	if parent.IsValid() {
		p.ParentContext, p.TraceID = trace.ContextWithRemoteSpanContext(t.Context(), parent), parent.TraceID()
	}
	for _, l := range links {
		p.Links = append(p.Links, trace.Link{SpanContext: l})
	}
	return s.ShouldSample(p).Decision == sdktrace.RecordAndSample
}

func anyTrace() (id trace.TraceID) {
	for i := range id {
		id[i] = byte(rand.Uint32())
	}
	return id
}

func spanContext(sampled bool) trace.SpanContext {
	return trace.NewSpanContext(trace.SpanContextConfig{TraceID: anyTrace(), SpanID: trace.SpanID{1}}).WithTraceFlags(
		trace.TraceFlags(0).WithSampled(sampled))
}

// TestSamplerRatio draws the share of requests that it should, within five standard deviations.
func TestSamplerRatio(t *testing.T) {
	t.Parallel()
	const n = 20_000
	s := newSampler(.05, n)
	took := 0
	for range n {
		if drawn(t, s, trace.SpanContext{}, trace.SpanKindServer) {
			took++
		}
	}
	if took < 846 || took > 1154 {
		t.Errorf("%d of %d, want 1000", took, n)
	}
	for ratio, want := range map[float64]bool{0: false, 1: true} {
		if drawn(t, newSampler(ratio, 10), trace.SpanContext{}, trace.SpanKindServer) != want {
			t.Errorf("ratio %v", ratio)
		}
	}
}

// TestSamplerBound begins at most so many traces in a second.
func TestSamplerBound(t *testing.T) {
	t.Parallel()
	s := newSampler(1, 3)
	now := time.Unix(1000, 0)
	s.now = func() time.Time { return now }
	count := func() (took int) {
		for range 10 {
			if drawn(t, s, trace.SpanContext{}, trace.SpanKindServer) {
				took++
			}
		}
		return took
	}
	if n := count(); n != 3 {
		t.Errorf("%d traces in the first second", n)
	}
	now = now.Add(999 * time.Millisecond)
	if n := count(); n != 0 {
		t.Errorf("%d more in the same second", n)
	}
	// What belongs to a trace is not counted.
	if !drawn(t, s, spanContext(true), trace.SpanKindServer) {
		t.Error("the bound cut a trace that has begun")
	}
	now = now.Add(time.Millisecond)
	if n := count(); n != 3 {
		t.Errorf("%d traces in the next second", n)
	}
}

// TestSamplerFollows decides by what is known of a trace, and draws for requests alone.
func TestSamplerFollows(t *testing.T) {
	t.Parallel()
	yes, no, none := spanContext(true), spanContext(false), trace.SpanContext{}
	for name, c := range map[string]struct {
		ratio  float64
		parent trace.SpanContext
		kind   trace.SpanKind
		links  []trace.SpanContext
		want   bool
	}{
		"child of a sampled one":         {0, yes, trace.SpanKindInternal, nil, true},
		"child of one that is not":       {1, no, trace.SpanKindServer, nil, false},
		"a poll":                         {1, none, trace.SpanKindClient, nil, false},
		"a commit":                       {0, none, trace.SpanKindInternal, []trace.SpanContext{no, yes}, true},
		"a commit of unsampled requests": {1, none, trace.SpanKindInternal, []trace.SpanContext{no, no}, false},
		"a request with a claimed trace": {0, none, trace.SpanKindServer, []trace.SpanContext{yes}, false},
	} {
		if got := drawn(t, newSampler(c.ratio, 10), c.parent, c.kind, c.links...); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}
