package notifier

import (
	"context"
	"errors"
	"log/slog"
	"net/url"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"waitlist.internal/libs/loop"
	"waitlist.internal/libs/outage"
	"waitlist.internal/libs/telemetry"
)

const (
	scope = "waitlist.internal/services/notifier"

	// beatEvery is how often the holder records that it is alive and looks for
	// deliveries of dead holders. A holder counts as dead after many missed beats.
	beatEvery = 2 * time.Second
	// adoptRows bounds one call of Adopt.
	adoptRows = 1000
	// pause is how long no attempt starts after a failed call to the source.
	pause = time.Second
	// drain bounds the shutdown: one attempt and the record of its result.
	drain = Timeout + 5*time.Second

	trimEvery = 5 * time.Second
	// trimLists bounds the waitlists of one trim.
	trimLists = 200
	// keep is how long results stay for support, unless newer ones replace them.
	keep      = 14 * 24 * time.Hour
	pruneWait = time.Hour
)

// Config has the dependencies of a Dispatcher.
type Config struct {
	Deliveries Deliveries
	Source     Source
	Poster     Poster
	Limits     Limits
	Log        *slog.Logger
	// Registerer takes the metrics, Tracers the spans; nil means none.
	Registerer prometheus.Registerer
	Tracers    trace.TracerProvider
	// Now is the clock for the age of events.
	Now func() time.Time
}

// Dispatcher makes the attempts of one process. Several processes may run at the
// same time.
type Dispatcher struct {
	Config
	tracer  trace.Tracer
	metrics dispatcherMetrics
	claims  *batch[Key, bool]
	ends    *batch[Ended, struct{}]
	running sync.WaitGroup

	mu     sync.Mutex
	lanes  *lanes
	staged []Delivery
	// resume is when the pause ends.
	resume time.Time
	// begun is set when Run begins, ended when it starts no more attempts.
	begun, ended bool
	// stop ends deliveries that are not claimed yet, work ends claimed ones.
	stop, work       context.Context
	endStop, endWork context.CancelFunc
	// touched are the waitlists with new results.
	touched map[string]struct{}
}

type dispatcherMetrics struct {
	deliveries *prometheus.CounterVec
	duration   *prometheus.HistogramVec
	delay      prometheus.Histogram
}

// New returns a Dispatcher; Run starts it.
func New(cfg Config) *Dispatcher {
	d := &Dispatcher{
		Config: cfg, tracer: telemetry.Tracer(cfg.Tracers, scope), lanes: newLanes(cfg.Limits), touched: map[string]struct{}{},
	}
	d.stop, d.endStop = context.WithCancel(context.Background())
	d.work, d.endWork = context.WithCancel(context.Background())
	d.claims = newBatch("claims", cfg.Log, d.claim)
	d.ends = newBatch("results", cfg.Log, d.end)
	d.metrics = d.measure(promauto.With(cfg.Registerer))
	return d
}

func (d *Dispatcher) measure(auto promauto.Factory) dispatcherMetrics {
	for state, count := range map[string]func() int{
		"queued":  func() int { return d.lanes.queued },
		"running": func() int { return d.lanes.running },
	} {
		auto.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "notifier_deliveries_open", Help: "Deliveries in this process, by state: queued, running.",
			ConstLabels: prometheus.Labels{"state": state},
		}, func() float64 {
			d.mu.Lock()
			defer d.mu.Unlock()
			return float64(count())
		})
	}
	return dispatcherMetrics{
		deliveries: auto.NewCounterVec(prometheus.CounterOpts{
			Name: "notifier_deliveries_total", Help: "Deliveries that ended, by channel, event and outcome.",
		}, []string{"channel", "event", "outcome"}),
		duration: auto.NewHistogramVec(prometheus.HistogramOpts{
			Name: "notifier_attempt_duration_seconds", Help: "Time of one attempt, by channel.", Buckets: telemetry.Requests,
		}, []string{"channel"}),
		delay: auto.NewHistogram(prometheus.HistogramOpts{
			Name: "notifier_delay_seconds", Help: "Time from an event to the start of its attempt.", Buckets: telemetry.Delays,
		}),
	}
}

// Stage holds deliveries back while a transaction writes their rows. Commit queues
// them. A delivery whose row is never committed does no harm: no claim finds it.
func (d *Dispatcher) Stage(ds ...Delivery) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.staged = append(d.staged, ds...)
}

// Commit queues the staged deliveries, whose rows are committed now.
func (d *Dispatcher) Commit() {
	d.mu.Lock()
	staged := d.staged
	d.staged = nil
	d.mu.Unlock()
	d.add(staged)
}

// add queues deliveries and ends those that find no room as Dropped.
func (d *Dispatcher) add(ds []Delivery) {
	var drops sync.WaitGroup
	// A caller that adds too many waits until the drops are recorded.
	defer drops.Wait()
	d.mu.Lock()
	seen := make(map[Key]bool, len(ds))
	for _, one := range ds {
		if d.ended {
			break // the rest stays queued in the database, for the next holder
		}
		if seen[one.Key] || d.lanes.add(one) {
			seen[one.Key] = true
			continue
		}
		drops.Go(func() { d.record(Ended{one, Result{Outcome: Dropped}}) })
	}
	d.mu.Unlock()
	d.dispatch()
}

// Run makes attempts until ctx ends. Then it finishes the attempts under way and
// leaves queued deliveries to other holders.
func (d *Dispatcher) Run(ctx context.Context) error {
	var loops sync.WaitGroup
	loops.Go(func() { d.claims.loop(d.work) })
	loops.Go(func() { d.ends.loop(d.work) })
	loops.Go(func() { d.trim(ctx) })
	d.mu.Lock()
	d.begun = true
	d.mu.Unlock()

	d.adopt(ctx)

	d.mu.Lock()
	d.ended = true
	d.mu.Unlock()
	d.endStop()
	late := time.AfterFunc(drain, d.endWork)
	d.running.Wait()
	late.Stop()
	leaving, cancel := context.WithTimeout(context.WithoutCancel(ctx), beatEvery)
	defer cancel()
	if err := d.Deliveries.Leave(leaving); err != nil {
		d.Log.WarnContext(ctx, "holder not removed; other processes take over its queued deliveries after 20 seconds", telemetry.Err(err))
	}
	d.endWork()
	loops.Wait()
	return nil
}

// adopt records the heartbeat and takes over deliveries of dead holders until ctx ends.
func (d *Dispatcher) adopt(ctx context.Context) {
	for {
		err := d.Deliveries.Beat(ctx)
		for err == nil && d.room() {
			var queued []Delivery
			var unknown int64
			if queued, unknown, err = d.Deliveries.Adopt(ctx, adoptRows); err != nil {
				break
			}
			d.metrics.deliveries.WithLabelValues("", "", string(Unknown)).Add(float64(unknown))
			d.add(queued) //nolint:contextcheck // deliveries end with the dispatcher, not with the caller
			if len(queued) < adoptRows {
				break
			}
		}
		if err != nil && ctx.Err() == nil {
			d.Log.WarnContext(ctx, "heartbeat or adoption failed; trying again", telemetry.Err(err))
		}
		if !loop.Wait(ctx, beatEvery) {
			return
		}
	}
}

// room reports whether there is room for deliveries of dead holders.
func (d *Dispatcher) room() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.lanes.queued <= d.lanes.limits.Queued/2
}

// dispatch starts every delivery that may start.
func (d *Dispatcher) dispatch() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for d.begun && !d.ended && !d.Now().Before(d.resume) {
		l, one := d.lanes.next()
		if l == nil {
			return
		}
		at := l.host
		d.running.Go(func() { d.deliver(l, one, at) })
	}
}

// away pauses the start of deliveries, because the source is down.
func (d *Dispatcher) away() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.ended || d.Now().Before(d.resume) {
		return
	}
	d.resume = d.Now().Add(pause)
	d.running.Go(func() {
		loop.Wait(d.stop, pause)
		d.dispatch()
	})
}

// deliver ends one delivery or puts it back into its lane. at is the host where it
// holds a place.
func (d *Dispatcher) deliver(l *lane, one Delivery, at string) {
	ctx := propagation.TraceContext{}.Extract(d.work, propagation.MapCarrier{"traceparent": one.Traceparent})
	ctx, span := d.tracer.Start(ctx, "notify", trace.WithSpanKind(trace.SpanKindClient), trace.WithAttributes(
		attribute.String("event.id", one.EventID), attribute.String("notifier.channel", string(one.Channel)),
		attribute.String("notifier.event", string(one.Event))))
	defer span.End()
	place := &at
	res, again := d.attempt(ctx, l, one, place)
	d.mu.Lock()
	if again {
		d.lanes.back(l, one)
	}
	d.lanes.done(l, *place, res.Outcome == TimedOut, res.Status != 0)
	d.mu.Unlock()
	d.dispatch()
	if again || res.Outcome == "" {
		return
	}
	span.SetAttributes(attribute.String("notifier.outcome", string(res.Outcome)), attribute.String("server.address", res.Host),
		attribute.Int("http.response.status_code", res.Status))
	if res.Outcome == Failed {
		span.SetStatus(codes.Error, res.Reason)
	}
	d.record(Ended{one, res})
}

// attempt makes the one attempt of a delivery. An empty outcome means that another
// holder has it. again means that it was not claimed and is due later.
func (d *Dispatcher) attempt(ctx context.Context, l *lane, one Delivery, place *string) (res Result, again bool) {
	defer func() {
		if p := recover(); p != nil {
			d.Log.ErrorContext(ctx, "delivery panicked", slog.String("event_id", one.EventID), telemetry.Panic(p),
				slog.String("stack", string(debug.Stack())))
			res.Outcome, res.Reason, again = Failed, "panic", false
		}
	}()
	if d.Now().Sub(one.OccurredAt) > MaxAge {
		return Result{Outcome: Expired}, false
	}
	target, body, res, again := d.build(ctx, one)
	if again || res.Outcome != "" {
		return res, again
	}
	res.Host = hostOf(target)
	d.mu.Lock()
	entered := d.lanes.switchHost(l, *place, res.Host)
	if entered {
		*place = res.Host
	} else {
		*place = ""
	}
	d.mu.Unlock()
	if !entered {
		return Result{}, true
	}
	if d.stop.Err() != nil {
		return Result{}, true
	}
	// After the claim this attempt is the only one, even if the process dies here.
	mine, ok := d.claims.do(ctx, one.Key)
	if !ok || !mine {
		return Result{}, false
	}
	res.Attempted = true
	telemetry.Observe(ctx, d.metrics.delay, d.Now().Sub(one.OccurredAt).Seconds())
	start := time.Now()
	posting, cancel := context.WithTimeout(ctx, Timeout)
	defer cancel()
	res.Outcome, res.Reason, res.Status = d.Poster.Post(posting, target, body)
	res.Took = time.Since(start)
	telemetry.Observe(ctx, d.metrics.duration.WithLabelValues(string(one.Channel)), res.Took.Seconds())
	return res, false
}

// build reads what the message says and where it goes. A result with an outcome
// means that there is no message.
func (d *Dispatcher) build(ctx context.Context, one Delivery) (target string, body []byte, res Result, again bool) {
	// A shutdown cancels this call, though not an attempt.
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(d.stop, cancel)() //nolint:contextcheck // ctx outlives stop
	n, err := d.Source.Notice(ctx, one.WaitlistID, one.Number, one.Event == ReferralCredited)
	switch {
	case errors.Is(err, ErrGone):
		return "", nil, Result{Outcome: Gone}, false
	case err != nil && ctx.Err() != nil:
		return "", nil, Result{}, true
	case outage.Is(err):
		d.Log.WarnContext(ctx, "signup service unavailable; pausing", telemetry.Err(err))
		d.away() //nolint:contextcheck // the pause applies to all deliveries
		return "", nil, Result{}, true
	case err != nil:
		d.Log.ErrorContext(ctx, "notice not read", slog.String("event_id", one.EventID),
			slog.String("waitlist_id", one.WaitlistID), telemetry.Err(err))
		return "", nil, Result{Outcome: Failed, Reason: "settings"}, false
	}
	target, why := n.url(one)
	if target == "" {
		return "", nil, Result{Outcome: Skipped, Reason: why}, false
	}
	if body, err = message(one, n); err != nil {
		d.Log.ErrorContext(ctx, "message not built", slog.String("event_id", one.EventID), telemetry.Err(err))
		return "", nil, Result{Outcome: Failed, Reason: "message"}, false
	}
	return target, body, Result{}, false
}

// hostOf returns the host of an endpoint's URL in lower case.
func hostOf(target string) string {
	u, err := url.Parse(target)
	if err != nil {
		return ""
	}
	return strings.ToLower(u.Hostname())
}

// record counts a result and stores it.
func (d *Dispatcher) record(e Ended) {
	d.metrics.deliveries.WithLabelValues(string(e.Channel), string(e.Event), string(e.Outcome)).Inc()
	if _, ok := d.ends.do(d.work, e); !ok && e.Attempted {
		d.Log.ErrorContext(d.work, "result of a delivery not recorded", slog.String("event_id", e.EventID),
			slog.String("outcome", string(e.Outcome)))
	}
}

func (d *Dispatcher) claim(ctx context.Context, at time.Time, keys []Key) ([]bool, error) {
	mine, err := d.Deliveries.Claim(ctx, at, keys)
	if err != nil {
		return nil, err
	}
	out := make([]bool, len(keys))
	for i, k := range keys {
		out[i] = mine[k]
		delete(mine, k) // a key that occurs twice is attempted once
	}
	return out, nil
}

func (d *Dispatcher) end(ctx context.Context, _ time.Time, all []Ended) ([]struct{}, error) {
	if err := d.Deliveries.End(ctx, all); err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, e := range all {
		d.touched[e.WaitlistID] = struct{}{}
	}
	return make([]struct{}, len(all)), nil
}

// trim deletes old results of waitlists with new ones until ctx ends.
func (d *Dispatcher) trim(ctx context.Context) {
	for loop.Wait(ctx, trimEvery) {
		d.mu.Lock()
		var ids []string
		for id := range d.touched {
			ids = append(ids, id)
		}
		clear(d.touched)
		d.mu.Unlock()
		for len(ids) > 0 {
			n := min(len(ids), trimLists)
			if err := d.Deliveries.Trim(ctx, ids[:n]); err != nil {
				d.Log.InfoContext(ctx, "log of deliveries not trimmed", telemetry.Err(err))
			}
			ids = ids[n:]
		}
	}
}

// Prune deletes old results until ctx ends.
func (d *Dispatcher) Prune(ctx context.Context) error {
	for {
		for {
			n, err := d.Deliveries.Prune(ctx, d.Now().Add(-keep))
			if err != nil && ctx.Err() == nil {
				d.Log.InfoContext(ctx, "log of deliveries not pruned", telemetry.Err(err))
			}
			if err != nil || n == 0 {
				break
			}
		}
		if !loop.Wait(ctx, pruneWait) {
			return nil
		}
	}
}
