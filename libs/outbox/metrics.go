package outbox

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// maxDepth bounds what a count of waiting rows costs during a long outage.
const maxDepth = 10_000

type metrics struct {
	schema    string
	published prometheus.Counter
	failures  prometheus.Counter
	leader    prometheus.Gauge
	// rows and age exist only on the replica that leads, so that nobody sees the values of
	// a former leader.
	rows *prometheus.GaugeVec
	age  *prometheus.GaugeVec
}

func newMetrics(reg prometheus.Registerer, schema string) metrics {
	auto, label := promauto.With(reg), prometheus.Labels{"schema": schema}
	return metrics{
		schema: schema,
		published: auto.NewCounter(prometheus.CounterOpts{
			Name: "outbox_published_total", Help: "Events acknowledged by Kafka.", ConstLabels: label,
		}),
		failures: auto.NewCounter(prometheus.CounterOpts{
			Name: "outbox_failures_total", Help: "Failed writes to Kafka; rows stay.", ConstLabels: label,
		}),
		leader: auto.NewGauge(prometheus.GaugeOpts{
			Name: "outbox_leader", Help: "1 on the replica that publishes.", ConstLabels: label,
		}),
		rows: auto.NewGaugeVec(prometheus.GaugeOpts{
			Name: "outbox_rows", Help: "Rows of the outbox, by state: waiting (10000 at most), parked. On the leader alone.",
		}, []string{"schema", "state"}),
		age: auto.NewGaugeVec(prometheus.GaugeOpts{
			Name: "outbox_oldest_seconds", Help: "Age of the oldest row to publish. On the leader alone.",
		}, []string{"schema"}),
	}
}

// resign removes a leader's gauges when its leadership ends.
func (m metrics) resign() {
	m.leader.Set(0)
	m.rows.DeletePartialMatch(prometheus.Labels{"schema": m.schema})
	m.age.DeleteLabelValues(m.schema)
}
