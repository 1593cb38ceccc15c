package join

import (
	"context"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"waitlist.internal/libs/telemetry"
)

// maxLinks bounds the requests that the span of a commit or of a group's read links to.
const maxLinks = 64

// caller returns the span of the request, and its traceparent for the events that it
// causes. Both are empty if the trace is not sampled, which costs nothing.
func caller(ctx context.Context) (trace.Span, string) {
	span := trace.SpanFromContext(ctx)
	if !span.IsRecording() {
		return nil, ""
	}
	carrier := propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(ctx, carrier)
	return span, carrier["traceparent"]
}

// traceTogether begins the span of what is done for size requests at once, if the trace of one of callers is sampled.
// It has many callers, so it is a trace of its own with links to them.
func traceTogether(ctx context.Context, name, waitlistID string, size int, callers []trace.Span) (context.Context, trace.Span) {
	if len(callers) == 0 {
		return ctx, trace.SpanFromContext(context.Background())
	}
	links := make([]trace.Link, min(len(callers), maxLinks))
	for i := range links {
		links[i].SpanContext = callers[i].SpanContext()
	}
	tracer := telemetry.Tracer(callers[0].TracerProvider(), "waitlist.internal/services/signup")
	return tracer.Start(ctx, name, trace.WithNewRoot(), //nolint:spancheck // the caller ends it
		trace.WithLinks(links...), trace.WithAttributes(
			attribute.String("waitlist.id", waitlistID), attribute.Int("signup.batch.size", size)))
}
