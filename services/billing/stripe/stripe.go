// Package stripe implements billing.Provider with Stripe's client library.
//
//	stripe.go    the client: timeouts, retries, errors, logs, spans, metrics
//	calls.go     billing.Provider
//	webhook.go   verification of webhook events
//
// The library retries a failed call once, under the same key. After several calls in
// a row that find Stripe away, a circuit breaker fails calls at once for a while.
package stripe

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/sony/gobreaker/v2"
	api "github.com/stripe/stripe-go/v76"
	"github.com/stripe/stripe-go/v76/client"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"waitlist.internal/libs/telemetry"
	"waitlist.internal/services/billing"
)

const (
	// defaultTimeout bounds one attempt. Charging a card takes seconds.
	defaultTimeout = 8 * time.Second
	// retries is the number of retries per call. The next request repeats a call that
	// still got no response.
	retries = 1
	// perHost is the maximum number of idle connections, each kept for idle.
	perHost = 16
	idle    = 30 * time.Second
	// atOnce bounds concurrent calls, so that a slow provider does not pile them up.
	atOnce = 32

	// breakAfter calls in a row that find Stripe away open the breaker for openFor.
	breakAfter = 5
	openFor    = 10 * time.Second
)

// Config configures a Provider.
type Config struct {
	SecretKey string
	// URL replaces the address of Stripe's API, unless it is empty.
	URL string
	// Timeout bounds one attempt. It defaults to 8 s.
	Timeout time.Duration
	Log     *slog.Logger
	// Now is the clock. It defaults to time.Now.
	Now func() time.Time
	// Tracers and Registerer receive spans and metrics, unless they are nil.
	Tracers    trace.TracerProvider
	Registerer prometheus.Registerer
}

// Provider implements billing.Provider.
type Provider struct {
	api     *client.API
	base    *http.Transport
	breaker *gobreaker.CircuitBreaker[any]
	slots   chan struct{}
	log     *slog.Logger
	tracer  trace.Tracer
	now     func() time.Time
	seconds *prometheus.HistogramVec
}

// New returns a Provider. The first call connects.
func New(cfg Config) (*Provider, error) {
	if cfg.SecretKey == "" {
		return nil, errors.New("stripe: there is no secret key")
	}
	address := api.APIURL
	if cfg.URL != "" {
		u, err := url.Parse(cfg.URL)
		if err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" {
			return nil, fmt.Errorf("stripe: %q is not an absolute http(s) URL", cfg.URL)
		}
		address = cfg.URL
	}
	cfg.Timeout = cmp.Or(cfg.Timeout, defaultTimeout)
	cfg.Log = cmp.Or(cfg.Log, slog.Default())
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Tracers == nil {
		cfg.Tracers = noop.NewTracerProvider()
	}
	p := &Provider{
		base: &http.Transport{
			Proxy: http.ProxyFromEnvironment, ForceAttemptHTTP2: true, TLSHandshakeTimeout: cfg.Timeout,
			IdleConnTimeout: idle, MaxIdleConnsPerHost: perHost,
		},
		slots: make(chan struct{}, atOnce), log: cfg.Log, now: cfg.Now,
		tracer: cfg.Tracers.Tracer("waitlist.internal/services/billing/stripe"),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "billing_provider_call_duration_seconds", Help: "Duration of calls to the payment provider, retries included.",
			Buckets: []float64{.1, .5, 1, 5, 20},
		}, []string{"call", "outcome"}),
	}
	open := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "billing_provider_breaker_open", Help: "1 while the circuit breaker rejects calls to the payment provider.",
	})
	if cfg.Registerer != nil {
		cfg.Registerer.MustRegister(p.seconds, open)
	}
	p.breaker = gobreaker.NewCircuitBreaker[any](gobreaker.Settings{
		Name: "stripe", MaxRequests: 1, Timeout: openFor,
		ReadyToTrip:  func(c gobreaker.Counts) bool { return c.ConsecutiveFailures >= breakAfter },
		IsSuccessful: func(err error) bool { return !away(err) },
		OnStateChange: func(_ string, from, to gobreaker.State) {
			switch {
			case to == gobreaker.StateClosed:
				open.Set(0)
				cfg.Log.Info("payment provider answers again; calls continue")
			case from == gobreaker.StateClosed:
				open.Set(1)
				cfg.Log.Error("payment provider does not answer; calls are paused")
			}
		},
	})
	backend := api.GetBackendWithConfig(api.APIBackend, &api.BackendConfig{
		URL: new(address), MaxNetworkRetries: api.Int64(retries), EnableTelemetry: new(false),
		// The library would log whole responses. Package stripe logs what is needed.
		LeveledLogger: &api.LeveledLogger{Level: api.LevelNull},
		HTTPClient: &http.Client{
			Timeout: cfg.Timeout, Transport: p.base,
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
	})
	p.api = client.New(cfg.SecretKey, &api.Backends{API: backend, Connect: backend, Uploads: backend})
	return p, nil
}

// Close closes idle connections.
func (p *Provider) Close() { p.base.CloseIdleConnections() }

// away reports whether err says that Stripe is away.
func away(err error) bool {
	e, ok := errors.AsType[*billing.ProviderError](err)
	return ok && e.Reason == billing.Away
}

// call runs f under the concurrency limit and the breaker, with logs, a span and
// metrics.
func call[T any](ctx context.Context, p *Provider, name string, f func(ctx context.Context) (T, error)) (v T, err error) {
	ctx, span := p.tracer.Start(ctx, "stripe "+name, trace.WithSpanKind(trace.SpanKindClient))
	start := time.Now()
	defer func() {
		outcome := "ok"
		if e, ok := errors.AsType[*billing.ProviderError](err); ok {
			outcome = e.Reason.String()
			span.SetStatus(codes.Error, outcome)
			span.SetAttributes(attribute.String("stripe.request_id", e.RequestID), attribute.String("error.type", e.Code))
			p.log.LogAttrs(ctx, level(e.Reason), "call to the payment provider failed",
				slog.String("call", name), slog.String("reason", outcome), slog.String("code", e.Code),
				slog.String("request", e.RequestID), slog.Duration("took", time.Since(start)), telemetry.Err(err))
		} else {
			p.log.LogAttrs(ctx, slog.LevelDebug, "called the payment provider",
				slog.String("call", name), slog.Duration("took", time.Since(start)))
		}
		p.seconds.WithLabelValues(name, outcome).Observe(time.Since(start).Seconds())
		span.End()
	}()
	select {
	case p.slots <- struct{}{}:
		defer func() { <-p.slots }()
	case <-ctx.Done():
		return v, &billing.ProviderError{Reason: billing.Away, Call: name, Code: "busy", Err: ctx.Err()}
	}
	out, err := p.breaker.Execute(func() (any, error) {
		v, err := f(ctx)
		if err != nil {
			return nil, failure(name, err)
		}
		return v, nil
	})
	switch {
	case errors.Is(err, gobreaker.ErrOpenState), errors.Is(err, gobreaker.ErrTooManyRequests):
		return v, &billing.ProviderError{Reason: billing.Away, Call: name, Code: "circuit open", RetryAfter: openFor}
	case err != nil:
		return v, err
	}
	return out.(T), nil // f returned a T
}

// level returns the log level of a failure. Declined cards are routine.
func level(r billing.Reason) slog.Level {
	switch r {
	case billing.Card, billing.Missing:
		return slog.LevelInfo
	case billing.Away, billing.Throttled, billing.KeyReused:
		return slog.LevelWarn
	case billing.Refused:
	}
	return slog.LevelError
}

// failure converts an error of the library and drops what it says about cards and
// people.
func failure(name string, err error) *billing.ProviderError {
	out := &billing.ProviderError{Call: name}
	e, ok := errors.AsType[*api.Error](err)
	if !ok {
		out.Err = err
		if u, ok := errors.AsType[*url.Error](err); ok {
			out.Err = u.Err
		}
		return out
	}
	out.Code, out.RequestID = string(e.Code), e.RequestID
	switch {
	case e.Type == api.ErrorTypeIdempotency && e.HTTPStatusCode == http.StatusBadRequest:
		out.Reason = billing.KeyReused
	case e.HTTPStatusCode == http.StatusConflict:
		out.Code = "conflict" // the same call is in progress
	case e.HTTPStatusCode == http.StatusTooManyRequests:
		out.Reason, out.RetryAfter = billing.Throttled, retryAfter(e)
	case e.HTTPStatusCode >= http.StatusInternalServerError:
		out.Answered = true
	case e.Type == api.ErrorTypeCard, e.HTTPStatusCode == http.StatusPaymentRequired,
		// The customer has no card. A missing object would be named by a parameter.
		e.HTTPStatusCode == http.StatusBadRequest && e.Code == api.ErrorCodeResourceMissing && e.Param == "":
		out.Reason = billing.Card
	case e.HTTPStatusCode == http.StatusNotFound, e.Code == api.ErrorCodeResourceMissing:
		out.Reason = billing.Missing
	default:
		out.Reason = billing.Refused
		out.Err = errors.New(telemetry.Redact(e.Msg)) // it describes our request
	}
	return out
}

// retryAfter returns Stripe's Retry-After, or 0.
func retryAfter(e *api.Error) time.Duration {
	if e.LastResponse == nil {
		return 0
	}
	n, err := strconv.Atoi(e.LastResponse.Header.Get("Retry-After"))
	if err != nil || n < 0 {
		return 0
	}
	return time.Duration(n) * time.Second
}

// refused reports whether err is an error of the library with a code.
func refused(err error, code api.ErrorCode) bool {
	e, ok := errors.AsType[*api.Error](err)
	return ok && e.Code == code
}
