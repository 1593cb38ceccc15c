package kafka

import (
	"context"
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	kafkago "github.com/segmentio/kafka-go"

	"waitlist.internal/libs/telemetry"
)

type producerMetrics struct {
	duration prometheus.Histogram
	errors   prometheus.Counter
}

// newProducerMetrics returns the metrics that all writers of reg share.
func newProducerMetrics(reg prometheus.Registerer) producerMetrics {
	return producerMetrics{
		duration: telemetry.Shared[prometheus.Histogram](reg, prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "kafka_producer_write_duration_seconds", Help: "Time until all in-sync replicas acknowledged a write, or it failed.",
			Buckets: telemetry.Calls,
		})),
		errors: telemetry.Shared[prometheus.Counter](reg, prometheus.NewCounter(prometheus.CounterOpts{
			Name: "kafka_producer_errors_total", Help: "Messages that Kafka did not acknowledge, those written again included.",
		})),
	}
}

func (m producerMetrics) record(start time.Time, messages int, err error) {
	m.duration.Observe(time.Since(start).Seconds())
	if each, ok := errors.AsType[kafkago.WriteErrors](err); ok {
		m.errors.Add(float64(each.Count()))
	} else if err != nil && !errors.Is(err, context.Canceled) {
		m.errors.Add(float64(messages))
	}
}

type consumerMetrics struct {
	handled    *prometheus.CounterVec
	skipped    *prometheus.CounterVec
	duplicates *prometheus.CounterVec
	retries    *prometheus.CounterVec
	dead       *prometheus.CounterVec
	lag        *prometheus.GaugeVec
	duration   *prometheus.HistogramVec
	delay      *prometheus.HistogramVec
}

// newConsumerMetrics returns the metrics that all consumers of reg share. Counters of
// failures exist from the start, so that rate() sees the first failure.
func newConsumerMetrics(reg prometheus.Registerer, group string) consumerMetrics {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return telemetry.Shared(reg, prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help},
			append([]string{"group"}, labels...)))
	}
	seconds := func(name, help string, buckets []float64) *prometheus.HistogramVec {
		return telemetry.Shared(reg, prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets},
			[]string{"group"}))
	}
	m := consumerMetrics{
		handled:    counter("kafka_consumer_handled_total", "Events whose effect was committed."),
		skipped:    counter("kafka_consumer_skipped_total", "Events that have no effect in the group."),
		duplicates: counter("kafka_consumer_duplicates_total", "Deliveries that the inbox knew."),
		retries:    counter("kafka_consumer_retries_total", "Failed attempts, by kind.", "kind"),
		dead:       counter("kafka_consumer_dead_letters_total", "Messages moved to the dead-letter topic.", "reason"),
		lag: telemetry.Shared(reg, prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "kafka_consumer_lag", Help: "Messages behind the end of a topic; none while it cannot be measured.",
		}, []string{"group", "topic"})),
		duration: seconds("kafka_consumer_batch_duration_seconds", "Time of one transaction.", telemetry.Calls),
		delay:    seconds("kafka_consumer_event_delay_seconds", "Time from an event to the commit of its effect.", telemetry.Delays),
	}
	m.handled.WithLabelValues(group)
	m.skipped.WithLabelValues(group)
	for _, reason := range []string{reasonPanic, reasonConstraint, reasonRefuted, reasonFailure, reasonUndecodable, reasonUnknown} {
		m.dead.WithLabelValues(group, reason)
	}
	for _, kind := range []string{"failure", "outage"} {
		m.retries.WithLabelValues(group, kind)
	}
	return m
}
