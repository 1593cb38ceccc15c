package httpapi

import (
	"context"
	"net/http"
	"net/netip"
	"strconv"
	"strings"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
)

// proxies are the networks whose trace context the engine adopts.
type proxies []netip.Prefix

// newProxies skips invalid entries, which gin has refused already.
func newProxies(list []string) (out proxies) {
	for _, s := range list {
		if !strings.Contains(s, "/") {
			if a, err := netip.ParseAddr(s); err == nil {
				out = append(out, netip.PrefixFrom(a.Unmap(), a.Unmap().BitLen()))
			}
		} else if p, err := netip.ParsePrefix(s); err == nil {
			out = append(out, p.Masked())
		}
	}
	return out
}

// trust reports whether the peer of a request is a trusted proxy.
func (p proxies) trust(remote string) bool {
	at, err := netip.ParseAddrPort(remote)
	if err != nil {
		return false
	}
	for _, network := range p {
		if network.Contains(at.Addr().Unmap()) {
			return true
		}
	}
	return false
}

// startSpan begins the span of a request. It continues the trace of a trusted proxy. It
// only links to the trace of anybody else: strangers must not decide which requests are
// recorded, or add to a trace of ours.
func (e *engine) startSpan(in *http.Request, name string) (context.Context, trace.Span) {
	ctx := in.Context()
	opts := []trace.SpanStartOption{trace.WithSpanKind(trace.SpanKindServer)}
	if in.Header["Traceparent"] != nil {
		caller := propagation.TraceContext{}.Extract(ctx, propagation.HeaderCarrier(in.Header))
		if e.proxies.trust(in.RemoteAddr) {
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
