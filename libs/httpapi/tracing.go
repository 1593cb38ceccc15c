package httpapi

import (
	"context"
	"net/http"
	"strconv"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
)

// startSpan begins the span of a request. It continues the trace of a trusted proxy. It
// only links to the trace of anybody else: strangers must not decide which requests are
// recorded, or add to a trace of ours.
func (e *engine) startSpan(in *http.Request, name string) (context.Context, trace.Span) {
	ctx := in.Context()
	opts := []trace.SpanStartOption{trace.WithSpanKind(trace.SpanKindServer)}
	if in.Header["Traceparent"] != nil {
		caller := propagation.TraceContext{}.Extract(ctx, propagation.HeaderCarrier(in.Header))
		if peer, _ := parseAddr(in.RemoteAddr); e.proxies.trust(peer) {
			ctx = caller
		} else if sc := trace.SpanContextFromContext(caller); sc.IsValid() {
			// The state is a stranger's text, which may hold anything.
			opts = append(opts, trace.WithLinks(trace.Link{SpanContext: sc.WithTraceState(trace.TraceState{})}))
		}
	}
	return e.tracer.Start(ctx, name, opts...) //nolint:spancheck // the caller ends it
}

// answered completes the span of a request. It leaves out url.path, which may hold
// addresses and tokens. url.scheme is http, since the pods themselves speak no TLS.
func answered(span trace.Span, verb, route string, status int, aborted bool) {
	span.SetAttributes(attribute.String("http.request.method", verb), attribute.String("http.route", route),
		attribute.String("url.scheme", "http"), attribute.Int("http.response.status_code", status))
	switch {
	case aborted:
		span.SetStatus(codes.Error, "")
		span.SetAttributes(attribute.String("error.type", "aborted"))
	case status >= http.StatusInternalServerError:
		span.SetStatus(codes.Error, "")
		span.SetAttributes(attribute.String("error.type", strconv.Itoa(status)))
	}
}
