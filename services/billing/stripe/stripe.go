// Package stripe is the payment provider that is Stripe, through its library.
//
//	stripe.go    the client: time-outs, retries, errors, what a call leaves behind
//	calls.go     billing.Provider
//	webhook.go   which events are Stripe's
//
// A call that fails is tried once more under its key by the library. Where several
// in a row find Stripe away, the breaker answers in its place for a while, so that
// nobody waits for what does not come.
package stripe

import (
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
	// retries of one call; what was not answered comes again with the next request.
	retries = 1
	// perHost is how many connections are kept between calls.
	perHost = 16
	idle    = 30 * time.Second
	// atOnce bounds the calls under way: what waits for a slow provider is bounded.
	atOnce = 32

	// breakAfter calls in a row that find Stripe away open the breaker, for openFor.
	breakAfter = 5
	openFor    = 10 * time.Second
)

// Config says which account at Stripe.
type Config struct {
	SecretKey string
	// URL replaces the address of the API; empty: Stripe's.
	URL string
	// Timeout bounds one attempt; 0: 8 s.
	Timeout time.Duration
	Log     *slog.Logger
	// Now is the clock; nil: time.Now.
	Now func() time.Time
	// Tracers and Registerer take spans and metrics; nil: nobody does.
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

// New checks cfg; it connects with the first call.
func New(cfg Config) (*Provider, error) {
	if cfg.SecretKey == "" {
		return nil, errors.New("stripe: a secret key is required")
	}
	address := api.APIURL
	if cfg.URL != "" {
		u, err := url.Parse(cfg.URL)
		if err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" {
			return nil, fmt.Errorf("stripe: %q is no absolute http(s) URL", cfg.URL)
		}
		address = cfg.URL
	}
	if cfg.Timeout == 0 {
		cfg.Timeout = defaultTimeout
	}
	if cfg.Log == nil {
		cfg.Log = slog.Default()
	}
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
		slots: make(chan struct{}, atOnce), log: cfg.Log, now: cfg.Now, tracer: cfg.Tracers.Tracer("waitlist.internal/services/billing/stripe"),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "billing_provider_call_duration_seconds", Help: "Duration of calls to the payment provider, retries included.",
			Buckets: []float64{.05, .1, .25, .5, 1, 2.5, 5, 10, 20},
		}, []string{"call", "outcome"}),
	}
	open := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "billing_provider_breaker_open", Help: "1 while calls to the payment provider are refused because it is away.",
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
				cfg.Log.Info("the payment provider is back")
			case from == gobreaker.StateClosed:
				open.Set(1)
				cfg.Log.Error("the payment provider is away; calls are refused for a while")
			}
		},
	})
	backend := api.GetBackendWithConfig(api.APIBackend, &api.BackendConfig{
		URL: new(address), MaxNetworkRetries: api.Int64(retries), EnableTelemetry: new(false),
		// Its lines have whole answers in them; what matters is logged here.
		LeveledLogger: &api.LeveledLogger{Level: api.LevelNull},
		HTTPClient: &http.Client{
			Timeout: cfg.Timeout, Transport: p.base,
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
	})
	p.api = client.New(cfg.SecretKey, &api.Backends{API: backend, Connect: backend, Uploads: backend})
	return p, nil
}

// Close ends the connections that are idle.
func (p *Provider) Close() { p.base.CloseIdleConnections() }

// away reports whether a call failed because Stripe did.
func away(err error) bool {
	e, ok := errors.AsType[*billing.ProviderError](err)
	return ok && e.Reason == billing.Away
}

// call makes one call by name, with all that surrounds it.
func call[T any](ctx context.Context, p *Provider, name string, f func(ctx context.Context) (T, error)) (v T, err error) {
	ctx, span := p.tracer.Start(ctx, "stripe "+name, trace.WithSpanKind(trace.SpanKindClient))
	start := time.Now()
	defer func() {
		outcome := "ok"
		if e, ok := errors.AsType[*billing.ProviderError](err); ok {
			outcome = e.Reason.String()
			span.SetStatus(codes.Error, outcome)
			span.SetAttributes(attribute.String("stripe.request_id", e.RequestID), attribute.String("error.type", e.Code))
			p.log.LogAttrs(ctx, level(e.Reason), "call to the payment provider failed", slog.String("call", name), slog.String("reason", outcome),
				slog.String("code", e.Code), slog.String("request", e.RequestID), slog.Duration("took", time.Since(start)), telemetry.Err(err))
		} else {
			p.log.LogAttrs(ctx, slog.LevelDebug, "call to the payment provider", slog.String("call", name), slog.Duration("took", time.Since(start)))
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
	return out.(T), nil //nolint:forcetypeassert // f's own
}

// level is how much a failure is worth saying: a refused card is everyday life.
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

// failure is an error of the library, without what it tells of cards and people.
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
		out.Code = "conflict" // the same call is under way
	case e.HTTPStatusCode == http.StatusTooManyRequests:
		out.Reason, out.RetryAfter = billing.Throttled, retryAfter(e)
	case e.HTTPStatusCode >= http.StatusInternalServerError:
		out.Answered = true
	case e.Type == api.ErrorTypeCard, e.HTTPStatusCode == http.StatusPaymentRequired,
		// The customer has no card at all; a parameter that is not found is named.
		e.HTTPStatusCode == http.StatusBadRequest && e.Code == api.ErrorCodeResourceMissing && e.Param == "":
		out.Reason = billing.Card
	case e.HTTPStatusCode == http.StatusNotFound, e.Code == api.ErrorCodeResourceMissing:
		out.Reason = billing.Missing
	default:
		out.Reason = billing.Refused
		out.Err = errors.New(telemetry.Redact(e.Msg)) // about what was asked for, which is ours
	}
	return out
}

// retryAfter is what Stripe asks for, 0 where it says nothing.
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

// refused reports whether the library's error has that code.
func refused(err error, code api.ErrorCode) bool {
	e, ok := errors.AsType[*api.Error](err)
	return ok && e.Code == code
}
