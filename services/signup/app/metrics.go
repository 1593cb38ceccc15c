package app

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"waitlist.internal/libs/telemetry"
)

// metrics are what the service measures itself.
type metrics struct {
	size, grouped, took, wait, late prometheus.Histogram
	catchUps, changes               *prometheus.CounterVec
}

func newMetrics(reg prometheus.Registerer) metrics {
	auto := promauto.With(reg)
	seconds := func(name, help string) prometheus.Histogram {
		return auto.NewHistogram(prometheus.HistogramOpts{Name: name, Help: help, Buckets: telemetry.Calls})
	}
	m := metrics{
		size: auto.NewHistogram(prometheus.HistogramOpts{
			Name: "signup_batch_size", Help: "Signups taken for one transaction.", Buckets: []float64{1, 4, 16, 64, 256},
		}),
		grouped: auto.NewHistogram(prometheus.HistogramOpts{
			Name: "signup_read_size", Help: "Requests for a place that one read answers.", Buckets: []float64{1, 4, 16, 64, 256},
		}),
		took: seconds("signup_batch_duration_seconds", "Time from taking a batch to its commit."),
		wait: seconds("signup_queue_wait_seconds", "Time of a signup in its waitlist's lane, until a batch takes it."),
		late: seconds("signup_index_delay_seconds", "Time from a commit until the index in Redis has it."),
		catchUps: auto.NewCounterVec(prometheus.CounterOpts{
			Name: "signup_index_catch_ups_total",
			Help: "Catch-ups of the index, by outcome: applied, failed, rebuild where the changes did not suffice.",
		}, []string{"outcome"}),
		changes: auto.NewCounterVec(prometheus.CounterOpts{
			Name: "signup_changes_total", Help: "Committed changes, imports excepted: signup, credit, opt_out, verification.",
		}, []string{"change"}),
	}
	for _, outcome := range []string{"applied", "failed", "rebuild"} {
		m.catchUps.WithLabelValues(outcome)
	}
	for _, change := range []string{"signup", "credit", "opt_out", "verification"} {
		m.changes.WithLabelValues(change)
	}
	return m
}

func (m metrics) committed(n int, d time.Duration) {
	m.size.Observe(float64(n))
	m.took.Observe(d.Seconds())
}

func (m metrics) changed(change string, n int) { m.changes.WithLabelValues(change).Add(float64(n)) }

func (m metrics) caughtUp(outcome string, late time.Duration) {
	m.catchUps.WithLabelValues(outcome).Inc()
	if outcome == "applied" {
		m.late.Observe(late.Seconds())
	}
}
