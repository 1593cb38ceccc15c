// Package outbound calls third-party APIs, with a span and a metric per call. It does not follow
// redirects, because requests contain credentials for one host only.
package outbound

import (
	"net/http"
	"time"

	"go.opentelemetry.io/contrib/instrumentation/net/http/otelhttp"
	"go.opentelemetry.io/otel/propagation"
)

const (
	// timeout limits one call.
	timeout = 30 * time.Second
	// idle is how long an unused connection is kept; servers close theirs later.
	idle = 30 * time.Second
	// perHost is how many unused connections are kept.
	perHost = 16
)

// Client calls one API.
type Client struct {
	*http.Client
	base *http.Transport
}

// NewClient returns a Client whose spans start with name. It honors the HTTP(S)_PROXY variables.
func NewClient(name string) Client {
	base := &http.Transport{
		Proxy: http.ProxyFromEnvironment, ForceAttemptHTTP2: true, TLSHandshakeTimeout: timeout,
		IdleConnTimeout: idle, MaxIdleConnsPerHost: perHost,
	}
	return Client{base: base, Client: &http.Client{
		Timeout: timeout,
		Transport: otelhttp.NewTransport(
			base,
			otelhttp.WithSpanNameFormatter(func(_ string, r *http.Request) string { return name + " " + r.Method }),
			// Do not send trace ids to third parties.
			otelhttp.WithPropagators(propagation.NewCompositeTextMapPropagator()),
		),
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
}

// Close closes unused connections.
func (c Client) Close() { c.base.CloseIdleConnections() }
