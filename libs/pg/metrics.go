package pg

import (
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
)

type poolMetrics struct {
	pool                               *pgxpool.Pool
	connections, most, waits, waitTime *prometheus.Desc
}

// Metrics returns the state of pool for a registry. The names are those of the semantic
// conventions for connection pools.
func Metrics(pool *pgxpool.Pool) prometheus.Collector {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(name, help, labels, prometheus.Labels{"db_system_name": "postgresql"})
	}
	return poolMetrics{
		pool:        pool,
		connections: desc("db_client_connection_count", "Connections of the pool, by state.", "db_client_connection_state"),
		most:        desc("db_client_connection_max", "Connections that the pool may open."),
		waits:       desc("db_client_connection_waits_total", "Times that a caller waited, because no connection was idle."),
		waitTime:    desc("db_client_connection_wait_time_seconds_total", "Time that callers spent getting connections."),
	}
}

// Describe implements prometheus.Collector.
func (m poolMetrics) Describe(ch chan<- *prometheus.Desc) {
	ch <- m.connections
	ch <- m.most
	ch <- m.waits
	ch <- m.waitTime
}

// Collect implements prometheus.Collector.
func (m poolMetrics) Collect(ch chan<- prometheus.Metric) {
	s := m.pool.Stat()
	send := func(d *prometheus.Desc, kind prometheus.ValueType, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, kind, v, labels...)
	}
	send(m.connections, prometheus.GaugeValue, float64(s.AcquiredConns()), "used")
	send(m.connections, prometheus.GaugeValue, float64(s.IdleConns()), "idle")
	send(m.most, prometheus.GaugeValue, float64(s.MaxConns()))
	send(m.waits, prometheus.CounterValue, float64(s.EmptyAcquireCount()))
	send(m.waitTime, prometheus.CounterValue, s.EmptyAcquireWaitTime().Seconds())
}
