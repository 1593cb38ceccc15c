package httpapi_test

import (
	"net/http"
	"testing"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"waitlist.internal/libs/httpapi"
)

// TestTraceparent: a stranger's trace is linked to, whatever it claims; a trusted proxy's
// goes on.
func TestTraceparent(t *testing.T) {
	t.Parallel()
	const traceID, spanID = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
	const claimed = "00-" + traceID + "-" + spanID + "-01"
	for name, c := range map[string]struct {
		proxies []string
		header  string
		child   bool
		link    bool
	}{
		"a stranger":               {nil, claimed, false, true},
		"a stranger elsewhere":     {[]string{"10.0.0.0/8"}, claimed, false, true},
		"a proxy":                  {[]string{"127.0.0.1", "::1"}, claimed, true, false},
		"a proxy's network":        {[]string{"127.0.0.0/8", "::1"}, claimed, true, false},
		"no header":                {[]string{"127.0.0.0/8", "::1"}, "", false, false},
		"a stranger with nonsense": {nil, "00-zz-01", false, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			spans := tracetest.NewSpanRecorder()
			a := newAPI(t, func(cfg *httpapi.Config) {
				cfg.Tracers, cfg.TrustedProxies = sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans)), c.proxies
			}, nil)
			header := []string{"Tracestate", "who=a@example.com"}
			if c.header != "" {
				header = append(header, "Traceparent", c.header)
			}
			if res, body := a.do(t, http.MethodGet, "/v1/waitlists", header...); res.StatusCode != http.StatusOK {
				t.Fatal(res.StatusCode, body)
			}
			ended := spans.Ended()
			if len(ended) != 1 {
				t.Fatalf("%d spans", len(ended))
			}
			span := ended[0]
			if got := span.SpanContext().TraceID().String() == traceID; got != c.child {
				t.Errorf("in the claimed trace: %v", got)
			}
			if got := span.Parent().SpanID().String() == spanID; got != c.child {
				t.Errorf("child of the claimed span: %v", got)
			}
			links := span.Links()
			if c.link != (len(links) == 1) || len(links) == 1 && links[0].SpanContext.TraceID().String() != traceID {
				t.Errorf("links: %v", links)
			}
			if len(links) == 1 && links[0].SpanContext.TraceState().Len() > 0 {
				t.Error("a stranger's text is in the span")
			}
		})
	}
}
