// Package outbound is how messaging calls the APIs of others: with a span and a
// metric for each call, and without following redirects, since what is sent is
// for one host alone.
package outbound

import (
	"net/http"
	"time"

	"go.opentelemetry.io/contrib/instrumentation/net/http/otelhttp"
	"go.opentelemetry.io/otel/propagation"
)

const (
	// timeout bounds one call.
	timeout = 30 * time.Second
	// idle is how long a connection is kept; the hosts close theirs later.
	idle = 30 * time.Second
	// perHost is how many connections are kept between calls.
	perHost = 16
)

// Client calls one API.
type Client struct {
	*http.Client
	base *http.Transport
}

// NewClient returns a Client whose spans bear a name. The operator's proxy
// variables are honoured.
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
			// Our trace ids are nobody else's business.
			otelhttp.WithPropagators(propagation.NewCompositeTextMapPropagator()),
		),
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
}

// Close ends what is idle.
func (c Client) Close() { c.base.CloseIdleConnections() }
