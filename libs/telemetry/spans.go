package telemetry

import (
	"context"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
)

// spans counts the sampled spans that ended and those that the collector took. The SDK drops
// spans silently when its queue is full, so the difference alone shows the lost ones.
type spans struct{ ended, exported prometheus.Counter }

func newSpans(reg prometheus.Registerer) spans {
	auto := promauto.With(reg)
	return spans{
		ended: auto.NewCounter(prometheus.CounterOpts{
			Name: "otel_sdk_span_ended_total", Help: "Sampled spans that ended.",
		}),
		exported: auto.NewCounter(prometheus.CounterOpts{
			Name: "otel_sdk_exporter_span_exported_total", Help: "Spans that the collector took.",
		}),
	}
}

// OnStart implements sdktrace.SpanProcessor.
func (s spans) OnStart(context.Context, sdktrace.ReadWriteSpan) {}

// OnEnd implements sdktrace.SpanProcessor.
func (s spans) OnEnd(span sdktrace.ReadOnlySpan) {
	if span.SpanContext().IsSampled() {
		s.ended.Inc()
	}
}

// Shutdown implements sdktrace.SpanProcessor.
func (s spans) Shutdown(context.Context) error { return nil }

// ForceFlush implements sdktrace.SpanProcessor.
func (s spans) ForceFlush(context.Context) error { return nil }

// counting is an exporter that counts what was taken.
type counting struct {
	sdktrace.SpanExporter
	exported prometheus.Counter
}

// ExportSpans implements sdktrace.SpanExporter.
func (c counting) ExportSpans(ctx context.Context, batch []sdktrace.ReadOnlySpan) error {
	if err := c.SpanExporter.ExportSpans(ctx, batch); err != nil {
		return err
	}
	c.exported.Add(float64(len(batch)))
	return nil
}
