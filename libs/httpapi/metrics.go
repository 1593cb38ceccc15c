package httpapi

import (
	"context"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/prometheus/client_golang/prometheus"

	"waitlist.internal/libs/telemetry"
)

// metrics holds an engine's metrics. The status is a label of the counter alone: on the
// histogram it would multiply every bucket by the answers that a route has.
type metrics struct {
	seconds *prometheus.HistogramVec
	active  prometheus.Gauge
	// CounterVec counts the answers.
	*prometheus.CounterVec

	gin  *gin.Engine
	born sync.Once
}

// faults are the statuses whose series exist before the first such answer: rate() sees no
// rise in a series that begins at 1, and so would miss the first errors of an outage.
var faults = []int{http.StatusInternalServerError, http.StatusBadGateway}

func newMetrics(g *gin.Engine) *metrics {
	return &metrics{
		gin: g,
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "http_server_request_duration_seconds", Help: "Duration of HTTP requests.", Buckets: telemetry.Requests,
		}, []string{"http_route", "http_request_method"}),
		active: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "http_server_active_requests", Help: "HTTP requests under way.",
		}),
		CounterVec: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "http_server_responses_total", Help: "Answers to HTTP requests, by status.",
		}, []string{"http_route", "http_request_method", "http_response_status_code"}),
	}
}

// Collect implements prometheus.Collector. All routes are known when the first scrape comes.
func (m *metrics) Collect(ch chan<- prometheus.Metric) {
	m.born.Do(func() {
		for _, r := range m.gin.Routes() {
			for _, status := range faults {
				m.WithLabelValues(r.Path, r.Method, statusText(status))
			}
		}
	})
	m.CounterVec.Collect(ch)
}

func (m *metrics) record(ctx context.Context, route, verb string, status int, took time.Duration) {
	telemetry.Observe(ctx, m.seconds.WithLabelValues(route, verb), took.Seconds())
	m.WithLabelValues(route, verb, statusText(status)).Inc()
}

func statusText(status int) string {
	switch status {
	case http.StatusOK:
		return "200"
	case http.StatusCreated:
		return "201"
	default:
		return strconv.Itoa(status)
	}
}
