package join

import (
	"context"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"waitlist.internal/libs/telemetry"
)

// maxLinks bounds the requests that the span of a commit links to.
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

// traceCommit begins the span of a commit if the trace of one of its requests is sampled.
// A commit has many callers, so it is a trace of its own with links to them.
func traceCommit(ctx context.Context, waitlistID string, batch []*entry) (context.Context, trace.Span) {
	var links []trace.Link
	var one trace.Span
	for _, e := range batch {
		if e.caller != nil && len(links) < maxLinks {
			one = e.caller
			links = append(links, trace.Link{SpanContext: one.SpanContext()})
		}
	}
	if links == nil {
		return ctx, trace.SpanFromContext(ctx)
	}
	tracer := telemetry.Tracer(one.TracerProvider(), "waitlist.internal/services/signup")
	return tracer.Start(ctx, "signup commit", trace.WithNewRoot(), //nolint:spancheck // the caller ends it
		trace.WithLinks(links...), trace.WithAttributes(
			attribute.String("waitlist.id", waitlistID), attribute.Int("signup.batch.size", len(batch))))
}
