package telemetry

import (
	"context"
	"sync"
	"time"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	semconv "go.opentelemetry.io/otel/semconv/v1.37.0"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/embedded"
)

// SchemaURL says which semantic conventions the names of spans and attributes follow.
const SchemaURL = semconv.SchemaURL

// Tracer returns a tracer of provider, or one of Provider if that is nil.
func Tracer(provider trace.TracerProvider, scope string) trace.Tracer {
	if provider == nil {
		provider = Provider()
	}
	return provider.Tracer(scope, trace.WithInstrumentationVersion(version), trace.WithSchemaURL(SchemaURL))
}

// sampler decides about a trace once, where it begins. The trace's later spans inherit
// the decision.
//
// Only requests begin traces. A span with links and no parent, such as the commit of many
// signups, is sampled if one of its links is; any other span without a parent is not.
type sampler struct {
	ratio sdktrace.Sampler
	// most bounds the new traces of a second.
	most int
	now  func() time.Time

	mu     sync.Mutex
	second int64
	begun  int
}

func newSampler(ratio float64, most int) *sampler {
	return &sampler{ratio: sdktrace.TraceIDRatioBased(ratio), most: most, now: time.Now}
}

// ShouldSample implements sdktrace.Sampler.
func (s *sampler) ShouldSample(p sdktrace.SamplingParameters) sdktrace.SamplingResult {
	parent := trace.SpanContextFromContext(p.ParentContext)
	take := false
	switch {
	case parent.IsValid():
		take = parent.IsSampled()
	case p.Kind == trace.SpanKindServer:
		// Links to the callers of public requests are strangers' and decide nothing.
		take = s.ratio.ShouldSample(p).Decision == sdktrace.RecordAndSample && s.allow()
	default:
		for _, l := range p.Links {
			take = take || l.SpanContext.IsSampled()
		}
	}
	res := sdktrace.SamplingResult{Decision: sdktrace.Drop, Tracestate: parent.TraceState()}
	if take {
		res.Decision = sdktrace.RecordAndSample
	}
	return res
}

// allow counts a new trace and returns true, unless this second has most already.
func (s *sampler) allow() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if now := s.now().Unix(); now != s.second {
		s.second, s.begun = now, 0
	}
	if s.begun >= s.most {
		return false
	}
	s.begun++
	return true
}

// Description implements sdktrace.Sampler.
func (s *sampler) Description() string { return "HeadSampler" }

// Provider returns a provider for libraries that many services of a process share: its
// spans come from the provider of the span in their context, and so belong to the same
// service. Without a recording span in the context it makes none.
func Provider() trace.TracerProvider { return following{} }

type following struct{ embedded.TracerProvider }

func (following) Tracer(name string, opts ...trace.TracerOption) trace.Tracer {
	return followingTracer{name: name, opts: opts}
}

type followingTracer struct {
	embedded.Tracer
	name string
	opts []trace.TracerOption
}

func (t followingTracer) Start(ctx context.Context, name string, opts ...trace.SpanStartOption) (context.Context, trace.Span) {
	own := trace.SpanFromContext(ctx).TracerProvider().Tracer(t.name, t.opts...)
	return own.Start(ctx, name, opts...) //nolint:spancheck // the caller ends it
}
