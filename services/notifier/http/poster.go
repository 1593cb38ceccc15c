// Package http makes attempts: one POST to a public address, without redirects.
package http

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"time"

	"waitlist.internal/libs/netguard"
	"waitlist.internal/services/notifier"
)

const (
	// maxURL bounds a URL in code points; the signup service accepts none that is longer.
	maxURL = 2000
	// maxHeader and maxBody bound the bytes read from a response. The body is read
	// only so that the connection can be reused.
	maxHeader = 64 << 10
	maxBody   = 4 << 10
	// idle is how long a connection waits for the next message. Servers wait longer: a
	// message on a connection that the server is closing would be lost.
	idle    = time.Second
	perHost = 16
	allIdle = 512

	userAgent = "Waitlist-Notifier/1"
)

// Config says how to reach endpoints.
type Config struct {
	// Allowed are networks that are permitted although they are not public.
	Allowed []netip.Prefix
	// Proxy chooses an operator's proxy for a URL; nil, or a nil result, means none.
	// Only the URL of a proxied request is checked.
	Proxy func(*url.URL) (*url.URL, error)
	// Roots are the authorities for endpoints' certificates; nil: the system's.
	Roots *x509.CertPool
	// Resolver looks up names; nil: the system's.
	Resolver *net.Resolver
}

// Poster implements notifier.Poster.
type Poster struct {
	proxy           func(*url.URL) (*url.URL, error)
	direct, proxied *http.Transport
}

// New returns a Poster; Close ends its connections.
func New(cfg Config) *Poster {
	p := &Poster{proxy: cfg.Proxy}
	if p.proxy == nil {
		p.proxy = func(*url.URL) (*url.URL, error) { return nil, nil }
	}
	guarded := &net.Dialer{Timeout: notifier.Timeout, Resolver: cfg.Resolver, ControlContext: netguard.Guard{Allowed: cfg.Allowed}.Control}
	p.direct = transport(guarded, cfg.Roots)
	// The operator's proxy may have a private address.
	p.proxied = transport(&net.Dialer{Timeout: notifier.Timeout, Resolver: cfg.Resolver}, cfg.Roots)
	p.proxied.Proxy = func(r *http.Request) (*url.URL, error) { return p.proxy(r.URL) }
	return p
}

// transport uses HTTP/1.1 only: an HTTP/2 client repeats some requests by itself.
func transport(d *net.Dialer, roots *x509.CertPool) *http.Transport {
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	return &http.Transport{
		DialContext: d.DialContext, TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}, Protocols: protocols,
		TLSHandshakeTimeout: notifier.Timeout, MaxResponseHeaderBytes: maxHeader, DisableCompression: true,
		IdleConnTimeout: idle, MaxIdleConnsPerHost: perHost, MaxIdleConns: allIdle,
	}
}

// Close closes idle connections.
func (p *Poster) Close() {
	p.direct.CloseIdleConnections()
	p.proxied.CloseIdleConnections()
}

// Post implements notifier.Poster. ctx bounds the whole attempt. The transport
// repeats a request only if it has written no byte of it.
func (p *Poster) Post(ctx context.Context, target string, body []byte) (notifier.Outcome, string, int) {
	if netguard.CheckURL(target, netguard.Options{MaxLength: maxURL}) != "" {
		return notifier.Blocked, "url", 0
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, target, bytes.NewReader(body))
	if err != nil {
		return notifier.Blocked, "url", 0
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("User-Agent", userAgent)
	via := p.direct
	proxy, err := p.proxy(req.URL)
	if err != nil {
		return notifier.Failed, "proxy", 0
	}
	if proxy != nil {
		via = p.proxied
	}
	// An http.Client would follow redirects.
	res, err := via.RoundTrip(req)
	if err != nil {
		o, reason := classify(ctx, err)
		return o, reason, 0
	}
	_, _ = io.CopyN(io.Discard, res.Body, maxBody)
	_ = res.Body.Close()
	if res.StatusCode/100 != 2 {
		return notifier.Rejected, "", res.StatusCode
	}
	return notifier.Delivered, "", res.StatusCode
}

// classify names the cause of an attempt without a response. Only that name is
// kept: the error's text may contain the URL.
func classify(ctx context.Context, err error) (notifier.Outcome, string) {
	if errors.Is(err, netguard.ErrBlocked) {
		return notifier.Blocked, "address"
	}
	if t, ok := errors.AsType[net.Error](err); ctx.Err() != nil || ok && t.Timeout() {
		return notifier.TimedOut, ""
	}
	if _, ok := errors.AsType[*net.DNSError](err); ok {
		return notifier.Unreachable, "name"
	}
	if _, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		return notifier.Unreachable, "certificate"
	}
	if _, ok := errors.AsType[tls.RecordHeaderError](err); ok {
		return notifier.Unreachable, "tls"
	}
	if _, ok := errors.AsType[tls.AlertError](err); ok {
		return notifier.Unreachable, "tls"
	}
	if op, ok := errors.AsType[*net.OpError](err); ok && op.Op == "dial" {
		return notifier.Unreachable, "connect"
	}
	return notifier.Unreachable, "connection"
}
