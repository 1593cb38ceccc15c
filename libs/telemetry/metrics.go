package telemetry

import (
	"context"
	"errors"
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"go.opentelemetry.io/otel/attribute"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/trace"
)

// Buckets are the bounds of histograms, in seconds. Objectives use only bounds of their
// histogram, so that a share of good events is exact and not interpolated.
var (
	// Requests is for what a client waits for.
	Requests = []float64{.005, .025, .1, .25, .5, 1, 2.5, 10}
	// Calls is for calls to a server of the suite's own, and for transactions.
	Calls = []float64{.001, .005, .025, .1, .5, 1, 5}
	// Delays is for what happens after a request: events, deliveries, mails.
	Delays = []float64{.1, .5, 1, 2, 5, 10, 30, 60, 300, 3600}
)

// Shared registers c, or returns the collector that is registered under its name: several
// consumers of a process share their metrics. reg may be nil.
func Shared[C prometheus.Collector](reg prometheus.Registerer, c C) C {
	if reg == nil {
		return c
	}
	err := reg.Register(c)
	if is, ok := errors.AsType[prometheus.AlreadyRegisteredError](err); ok {
		if same, ok := is.ExistingCollector.(C); ok {
			return same
		}
	}
	if err != nil {
		panic(err) // as MustRegister: a name that is taken is a programmer's mistake
	}
	return c
}

// Observe adds v to o, with the trace of ctx as the exemplar if the trace is sampled.
func Observe(ctx context.Context, o prometheus.Observer, v float64) {
	if span := trace.SpanContextFromContext(ctx); span.IsSampled() {
		if e, ok := o.(prometheus.ExemplarObserver); ok {
			e.ObserveWithExemplar(v, prometheus.Labels{"trace_id": span.TraceID().String()})
			return
		}
	}
	o.Observe(v)
}

// MetricsHandler serves what g gathers, with exemplars for clients that accept OpenMetrics.
func MetricsHandler(g prometheus.Gatherer) http.Handler {
	return promhttp.HandlerFor(g, promhttp.HandlerOpts{EnableOpenMetrics: true})
}

// views bound what instrumented libraries record: with all their attributes, they would
// make up most of a pod's series.
func views() []sdkmetric.Option {
	view := func(name string, keep ...attribute.Key) sdkmetric.Option {
		return sdkmetric.WithView(sdkmetric.NewView(sdkmetric.Instrument{Name: name}, sdkmetric.Stream{
			Aggregation:     sdkmetric.AggregationExplicitBucketHistogram{Boundaries: Calls},
			AttributeFilter: attribute.NewAllowKeysFilter(keep...),
		}))
	}
	return []sdkmetric.Option{
		view("rpc.server.call.duration", "rpc.method", "rpc.response.status_code", "error.type"),
		view("rpc.client.call.duration", "rpc.method", "rpc.response.status_code", "error.type"),
		view("db.client.operation.duration", "error.type"),
	}
}
