// Package work does what processes claim from a table of Postgres. The table and its statements are the owner's; the
// Engine decides when they run:
//
//	Claim (FOR UPDATE SKIP LOCKED) ─► held ─► a free worker ─► Do ─► Settle
//	                                   │ └── Renew, until Do returns ──┘
//	                                   └─► Return: a dependency is away, or the process stops
//
// A claim has an id, and the owner's statements about claimed work change nothing if the row has another. This is the
// fence: a process that is held up beyond its lease decides nothing any more, whatever it still does. Claim.Holds keeps
// it from beginning anything that others would see, such as a mail.
//
// What a process leaves: if it is killed, its work is due again when the lease ends. If it is stopped, it returns what
// it has not begun, and finishes the rest, whose claims it renews until then. If Postgres is away, its claims end with
// their leases, and outcomes are written again and again for the time of Drain.
package work

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"waitlist.internal/libs/loop"
	"waitlist.internal/libs/telemetry"
)

const (
	// Lease is how long a claim outlives the last sign of its process. It is longer than Drain.
	Lease = 15 * time.Second
	// Poll is how often an idle Engine looks for expired pauses and leases, and for work of other processes.
	Poll = 2 * time.Second
	// Drain is how long work under way may take after the process was told to stop, and how long the writing of an
	// outcome is tried.
	Drain = 10 * time.Second
)

// Config configures an Engine.
type Config[T any] struct {
	// Name says in the plural what the work is, in log lines and metrics.
	Name string
	// Claim claims up to limit pieces of due work for the time of lease, only those whose Key is above after, ordered
	// by it. Without Key, the order is Claim's own and after is "".
	Claim func(ctx context.Context, after string, limit int, lease time.Duration) ([]T, error)
	// Renew restarts the leases of claimed work. It reports for each piece whether its claim still holds.
	Renew func(ctx context.Context, lease time.Duration, claimed []T) ([]bool, error)
	// Return makes claimed work due after a pause.
	Return func(ctx context.Context, pause time.Duration, claimed []T) error
	// Do does the work and settles it. ctx outlasts the end of the process by Drain.
	Do func(ctx context.Context, c *Claim[T])
	// Key returns whom the work is for, so that a flood of work for one does not hold up the others; nil means that
	// Claim sees to that. No key is "".
	Key func(T) string
	// Provider is what all the work needs: nothing is claimed while it pauses.
	Provider *Breaker
	// Source returns what else a piece of work needs: it is returned while that pauses. Source and its result may be nil.
	Source func(T) *Breaker
	// Workers is how much is done at a time. Claims are for Ahead times as much, to save statements.
	Workers, Ahead int
	// Lease and Poll replace the constants.
	Lease, Poll time.Duration
	// Registerer takes the metrics; nil means none.
	Registerer prometheus.Registerer
	Log        *slog.Logger
}

// Engine does work. Several processes may run one for the same table.
type Engine[T any] struct {
	Config[T]
	wake  loop.Signal
	slots chan struct{} // one element for each busy worker
	after string        // the key of what was claimed last
	ended *prometheus.CounterVec

	mu   sync.Mutex
	held map[*Claim[T]]struct{}
}

// Claim is a piece of claimed work.
type Claim[T any] struct {
	Work T
	// Context ends when the process is told to stop, or when the claim is lost: nothing more is begun.
	Context context.Context // one for each claim
	lose    context.CancelFunc
	engine  *Engine[T]
	until   time.Time // the end of the lease; zero once the claim is lost
}

// New returns an Engine; Run starts it.
func New[T any](cfg Config[T]) *Engine[T] {
	cfg.Lease, cfg.Poll = cmp.Or(cfg.Lease, Lease), cmp.Or(cfg.Poll, Poll)
	e := &Engine[T]{
		Config: cfg, wake: loop.NewSignal(), slots: make(chan struct{}, cfg.Workers), held: map[*Claim[T]]struct{}{},
	}
	auto, labels := promauto.With(cfg.Registerer), prometheus.Labels{"work": cfg.Name}
	e.ended = auto.NewCounterVec(prometheus.CounterOpts{
		Name: "work_claims_total", ConstLabels: labels,
		Help: "Claims that ended: settled, returned before they were begun, lost to another process or to a cancellation.",
	}, []string{"end"})
	auto.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "work_claims_held", Help: "Claims that this process holds.", ConstLabels: labels,
	}, func() float64 {
		e.mu.Lock()
		defer e.mu.Unlock()
		return float64(len(e.held))
	})
	return e
}

// Wake announces new work. It never blocks.
func (e *Engine[T]) Wake() { e.wake.Send() }

// Run works until ctx is done. It then finishes what is under way and returns the other claimed work.
func (e *Engine[T]) Run(ctx context.Context) {
	renewing, stop := context.WithCancel(context.WithoutCancel(ctx))
	var renewer, workers sync.WaitGroup
	renewer.Go(func() { e.renew(renewing) })
	for ctx.Err() == nil {
		if pause := e.Provider.Remaining(); pause > 0 {
			loop.Wait(ctx, pause)
			continue
		}
		free := e.take(ctx)
		if free == 0 {
			break
		}
		claims, err := e.claim(ctx, free+e.Workers*(e.Ahead-1))
		if err != nil {
			e.Log.WarnContext(ctx, "work not claimed", slog.String("work", e.Name), telemetry.Err(err))
		}
		free = e.hand(ctx, &workers, free, claims)
		for range free {
			<-e.slots
		}
		if len(claims) == 0 {
			loop.Idle(ctx, e.Poll, e.wake)
		}
	}
	workers.Wait()
	stop()
	renewer.Wait()
}

// take waits for a free worker, and takes all that are free by then. It returns their number, 0 if ctx is done.
func (e *Engine[T]) take(ctx context.Context) (n int) {
	select {
	case e.slots <- struct{}{}:
	case <-ctx.Done():
		return 0
	}
	for n = 1; ; n++ {
		select {
		case e.slots <- struct{}{}:
		default:
			return n
		}
	}
}

// claim claims what is due, beginning after the key that was served last. The end of ctx does not interrupt it: a claim
// that Postgres committed unnoticed would hold its work up for a whole lease.
func (e *Engine[T]) claim(ctx context.Context, limit int) ([]*Claim[T], error) {
	timed, cancel := context.WithTimeout(context.WithoutCancel(ctx), Drain)
	defer cancel()
	until := time.Now().Add(e.Lease)
	all, err := e.Claim(timed, e.after, limit, e.Lease)
	if err == nil && len(all) == 0 && e.after != "" {
		e.after, until = "", time.Now().Add(e.Lease)
		all, err = e.Claim(timed, e.after, limit, e.Lease)
	}
	claims := make([]*Claim[T], len(all))
	e.mu.Lock()
	defer e.mu.Unlock()
	for i, w := range all {
		dispatch, lose := context.WithCancel(ctx) //nolint:gosec // drop calls lose
		c := &Claim[T]{Work: w, Context: dispatch, lose: lose, engine: e, until: until}
		claims[i], e.held[c] = c, struct{}{}
		if e.Key != nil {
			e.after = e.Key(w)
		}
	}
	return claims, err
}

// hand gives claimed work to the free workers that were taken, then to those that become free, and returns how many of
// them it left idle. It returns work that waits for a dependency, and the rest when ctx is done.
func (e *Engine[T]) hand(ctx context.Context, workers *sync.WaitGroup, free int, claims []*Claim[T]) int {
	postponed := map[*Breaker][]*Claim[T]{}
	for _, c := range claims {
		if free == 0 {
			free = e.take(ctx)
		}
		if away := e.away(c); free == 0 || ctx.Err() != nil || away != nil {
			postponed[away] = append(postponed[away], c)
			continue
		}
		free--
		workers.Go(func() {
			defer func() { <-e.slots }()
			defer e.drop("lost", c) // unless it is settled
			work, stop := loop.Drain(ctx, Drain)
			defer stop()
			e.Do(work, c)
		})
	}
	for away, all := range postponed {
		pause := time.Duration(0) // the process stops
		if away != nil {
			pause = away.Remaining()
		}
		var works []T
		for _, c := range all {
			if c.Holds() {
				works = append(works, c.Work)
			}
		}
		if len(works) > 0 {
			e.settle(ctx, func(ctx context.Context) error { return e.Return(ctx, pause, works) })
		}
		e.drop("returned", all...)
	}
	return free
}

// away returns the breaker that holds up a piece of work, or nil.
func (e *Engine[T]) away(c *Claim[T]) *Breaker {
	if e.Provider.Remaining() > 0 {
		return e.Provider
	}
	if e.Source != nil {
		if b := e.Source(c.Work); b != nil && b.Remaining() > 0 {
			return b
		}
	}
	return nil
}

// drop forgets claims that are still held, and counts how they ended.
func (e *Engine[T]) drop(end string, claims ...*Claim[T]) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, c := range claims {
		if _, held := e.held[c]; !held {
			continue
		}
		delete(e.held, c)
		c.lose()
		if c.until.IsZero() {
			e.ended.WithLabelValues("lost").Inc()
		} else {
			e.ended.WithLabelValues(end).Inc()
		}
	}
}

// renew keeps the claims alive, also of work that waits for a worker, and loses those that no longer hold.
func (e *Engine[T]) renew(ctx context.Context) {
	for wait := e.Lease / 3; loop.Wait(ctx, wait); {
		wait = e.Lease / 3
		var claims []*Claim[T]
		var works []T
		e.mu.Lock()
		for c := range e.held {
			if c.holds() { // otherwise another process may have claimed it
				claims, works = append(claims, c), append(works, c.Work)
			}
		}
		e.mu.Unlock()
		if len(claims) == 0 {
			continue
		}
		until := time.Now().Add(e.Lease)
		// So that a renewal that hangs can be tried twice more before the lease ends.
		timed, cancel := context.WithTimeout(ctx, e.Lease/5)
		holds, err := e.Renew(timed, e.Lease, works)
		cancel()
		if err != nil {
			wait = e.Lease / 15
			if ctx.Err() == nil {
				e.Log.WarnContext(ctx, "claims not renewed", slog.String("work", e.Name), telemetry.Err(err))
			}
			continue
		}
		e.mu.Lock()
		for i, c := range claims {
			switch {
			case !holds[i]:
				c.until = time.Time{}
				c.lose()
			case c.holds():
				c.until = until
			}
		}
		e.mu.Unlock()
	}
}

// Holds reports whether the claim still holds, as far as this process knows. Otherwise the work was canceled, or
// another process may do it: one that was held up, or cannot reach Postgres, must not.
func (c *Claim[T]) Holds() bool {
	c.engine.mu.Lock()
	defer c.engine.mu.Unlock()
	return c.holds()
}

func (c *Claim[T]) holds() bool {
	if !time.Now().Before(c.until) {
		c.until = time.Time{}
		c.lose()
	}
	return !c.until.IsZero()
}

// ErrLost is the error of a statement that the fence kept from its effect: another process has the work.
var ErrLost = errors.New("work: the claim is lost")

// Settle repeats write, which decides the work, until it succeeds, returns ErrLost, or Drain has passed, even after the end
// of ctx. If it keeps failing, the lease ends and the work is done again.
func (c *Claim[T]) Settle(ctx context.Context, write func(context.Context) error) {
	if c.engine.settle(ctx, write) {
		c.engine.drop("settled", c)
	}
}

func (e *Engine[T]) settle(ctx context.Context, write func(context.Context) error) bool {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), Drain)
	defer cancel()
	for backoff := (loop.Backoff{Min: 50 * time.Millisecond, Max: time.Second}); ; {
		err := write(ctx)
		if err == nil {
			return true
		}
		if errors.Is(err, ErrLost) {
			e.Log.WarnContext(ctx, "claim lost before its outcome was recorded; the work may be done twice", slog.String("work", e.Name))
			return false
		}
		if !backoff.Wait(ctx) {
			e.Log.ErrorContext(ctx, "outcome not recorded", slog.String("work", e.Name), telemetry.Err(err))
			return false
		}
	}
}
