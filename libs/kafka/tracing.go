package kafka

import (
	"context"
	"errors"

	kafkago "github.com/segmentio/kafka-go"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"waitlist.internal/libs/telemetry"
)

// remote returns ctx with the trace context in the header of m.
func remote(ctx context.Context, m kafkago.Message) context.Context {
	value := header(m, HeaderTraceparent)
	if value == "" {
		return ctx
	}
	return propagation.TraceContext{}.Extract(ctx, propagation.MapCarrier{HeaderTraceparent: value})
}

// traceSend begins a span for each message whose trace is sampled, and puts its context
// into the header of the message in out, so that the consumers' spans are its children.
// msgs are the messages of out with their topics' names without prefix. end ends the spans.
func (w *Writer) traceSend(ctx context.Context, msgs, out []kafkago.Message) (end func(error)) {
	spans := map[int]trace.Span{}
	tracer := telemetry.Tracer(w.cfg.Tracers, scope)
	for i, m := range msgs {
		parent := remote(ctx, m)
		if len(m.Headers) == 0 || !trace.SpanContextFromContext(parent).IsSampled() {
			continue
		}
		at, span := tracer.Start(parent, "send "+m.Topic, trace.WithSpanKind(trace.SpanKindProducer), trace.WithAttributes(
			attribute.String("messaging.system", "kafka"), attribute.String("messaging.operation.name", "send"),
			attribute.String("messaging.operation.type", "send"), attribute.String("messaging.destination.name", m.Topic)))
		if !span.IsRecording() {
			continue
		}
		carrier := propagation.MapCarrier{}
		propagation.TraceContext{}.Inject(at, carrier)
		headers := make([]kafkago.Header, len(m.Headers))
		for j, h := range m.Headers {
			if h.Key == HeaderTraceparent {
				h.Value = []byte(carrier[HeaderTraceparent])
			}
			headers[j] = h
		}
		out[i].Headers, spans[i] = headers, span
	}
	return func(err error) {
		each, _ := errors.AsType[kafkago.WriteErrors](err)
		for i, span := range spans {
			failed := err
			if len(each) == len(msgs) {
				failed = each[i]
			}
			if failed != nil {
				span.SetStatus(codes.Error, "write failed")
				span.SetAttributes(attribute.String("error.type", "write_failed"))
			}
			span.End()
		}
	}
}

// startProcess begins the span in which the event of d is handled. It is a child of the
// producer's span. If that was not sampled, there is no new span.
func (c *Consumer) startProcess(ctx context.Context, d *delivery, opts ...trace.SpanStartOption) (context.Context, trace.Span) {
	ctx = remote(ctx, d.msg)
	if !trace.SpanContextFromContext(ctx).IsSampled() {
		return ctx, trace.SpanFromContext(ctx)
	}
	topic := c.baseTopic(d.msg.Topic)
	return c.tracer.Start(ctx, "process "+topic, append( //nolint:spancheck // the caller ends it
		opts, trace.WithSpanKind(trace.SpanKindConsumer), trace.WithAttributes(
			attribute.String("messaging.system", "kafka"), attribute.String("messaging.operation.name", "process"),
			attribute.String("messaging.operation.type", "process"), attribute.String("messaging.destination.name", topic),
			attribute.String("messaging.consumer.group.name", c.cfg.Group), attribute.String("event.id", d.event.GetId()),
			attribute.Int("messaging.destination.partition.id", d.msg.Partition),
			attribute.Int64("messaging.kafka.offset", d.msg.Offset)))...)
}
