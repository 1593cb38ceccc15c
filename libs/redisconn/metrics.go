package redisconn

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"github.com/redis/go-redis/v9"

	"waitlist.internal/libs/tlsroots"
)

// Measure makes c record the duration and the failures of its commands and pipelines,
// and the connections and timeouts of its pool.
func Measure(c redis.UniversalClient, reg prometheus.Registerer) {
	auto := promauto.With(reg)
	h := hook{
		expiry: tlsroots.NewExpiry(reg),
		seconds: auto.NewHistogram(prometheus.HistogramOpts{
			Name: "redis_client_operation_duration_seconds", Help: "Duration of a command or a pipeline.",
			Buckets: []float64{.0005, .001, .005, .025, .1, 1},
		}),
		errors: auto.NewCounter(prometheus.CounterOpts{
			Name: "redis_client_errors_total", Help: "Commands and pipelines that Redis did not answer.",
		}),
	}
	auto.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "redis_client_connections", Help: "Open connections of the pool.",
	}, func() float64 { return float64(c.PoolStats().TotalConns) })
	auto.NewCounterFunc(prometheus.CounterOpts{
		Name: "redis_client_pool_timeouts_total", Help: "Commands that got no connection in time.",
	}, func() float64 { return float64(c.PoolStats().Timeouts) })
	c.AddHook(h)
}

type hook struct {
	expiry  tlsroots.Expiry
	seconds prometheus.Histogram
	errors  prometheus.Counter
}

func (h hook) record(start time.Time, err error) {
	h.seconds.Observe(time.Since(start).Seconds())
	// An answer, such as a script's error, is not an outage, nor is a caller that left.
	if _, answered := errors.AsType[redis.Error](err); err != nil && !answered && !errors.Is(err, context.Canceled) {
		h.errors.Inc()
	}
}

// DialHook implements redis.Hook.
func (h hook) DialHook(next redis.DialHook) redis.DialHook {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := next(ctx, network, addr)
		if secure, ok := conn.(*tls.Conn); ok {
			h.expiry.Saw("redis", secure.ConnectionState())
		}
		return conn, err
	}
}

// ProcessHook implements redis.Hook.
func (h hook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		start := time.Now()
		err := next(ctx, cmd)
		h.record(start, err)
		return err
	}
}

// ProcessPipelineHook implements redis.Hook.
func (h hook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		start := time.Now()
		err := next(ctx, cmds)
		h.record(start, err)
		return err
	}
}
