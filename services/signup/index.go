package signup

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"waitlist.internal/libs/loop"
)

// ErrIndexUnusable says that the index cannot answer at this moment: Redis is
// away, or the index is behind, wrong or missing. Postgres answers instead.
var ErrIndexUnusable = errors.New("signup: index cannot answer")

// ErrStale is returned by IndexStore when the index holds another history than the
// change log, or one that the log no longer reaches back to: only a rebuild
// helps.
var ErrStale = errors.New("signup: index is beyond repair by changes")

// Key is one member of the index: a signup's number at its place.
type Key struct {
	Number int64
	Key    int64
}

// Mark says which state an index holds: everything up to a change, and that
// change's nonce. The zero Mark is an index of a waitlist without changes.
type Mark struct {
	Change int64
	Nonce  int64
	// Live is the number of members that the index then has, Total the displayed
	// counter of that moment.
	Live  int64
	Total int64
}

// Place is what the index says of one signup: its rank, and the state of the index
// that has it there. Rank 0: nothing yet.
type Place struct {
	Rank int64
	Mark Mark
}

// Delta turns an index at one mark into one at another.
type Delta struct {
	To     Mark
	Put    []Key
	Remove []int64
}

// ChangeLog is what the index is built from.
type ChangeLog interface {
	// Since returns what happened after from, all of one snapshot. ErrStale
	// where the log does not hold from, or too much happened.
	Since(ctx context.Context, waitlistID string, from Mark) (Delta, error)
	// Holds reports whether the log has m's change, with its nonce.
	Holds(ctx context.Context, waitlistID string, m Mark) (bool, error)
	// All passes every key of one snapshot to put, in chunks, and returns the
	// snapshot's mark.
	All(ctx context.Context, waitlistID string, put func([]Key) error) (Mark, error)
}

// IndexStore holds the index: for each waitlist a sorted set and its mark.
type IndexStore interface {
	// Rank returns the place of v's signup if the index is at v's change or a
	// later one, else a zero Place. ErrStale where the index is not what it says.
	Rank(ctx context.Context, waitlistID string, v View) (Place, error)
	// Mark returns the state of a waitlist's index.
	Mark(ctx context.Context, waitlistID string) (Mark, error)
	// Apply brings the index from one mark to another in one step. ok is false
	// where the index is not at from any more; ErrStale where it does not then
	// have the members that it should.
	Apply(ctx context.Context, waitlistID string, from Mark, d Delta) (ok bool, err error)
	// Lease takes the right to rebuild for ttl; false where somebody has it.
	Lease(ctx context.Context, waitlistID string, ttl time.Duration) (release func(), ok bool, err error)
	// Build returns a new, unseen index. Swap puts it in place of the present one
	// unless that is newer; Discard drops it.
	Build(ctx context.Context, waitlistID string) (Builder, error)
}

// Builder fills a new index.
type Builder interface {
	Put(ctx context.Context, keys []Key) error
	Swap(ctx context.Context, m Mark) error
	Discard(ctx context.Context)
}

const (
	// catchUpTimeout bounds how long a reader waits for the index before
	// Postgres answers.
	catchUpTimeout = 250 * time.Millisecond
	// gather is how long a hint waits for others of the same waitlist. Without it
	// each signup would pay for a catch-up of its own; a reader who comes earlier
	// catches up by itself.
	gather = 5 * time.Millisecond
	// hintTimeout bounds one catch-up after a commit.
	hintTimeout = 5 * time.Second
	// rebuildTimeout bounds a rebuild: 10 million keys take about a minute.
	rebuildTimeout = 10 * time.Minute
	// hintWorkers is how many indexes are brought up to date at a time.
	hintWorkers = 2
)

// Index keeps Redis' sorted sets equal to the queue. Only CatchUp and rebuild
// write them.
type Index struct {
	store   IndexStore
	changes ChangeLog
	log     *slog.Logger

	mu sync.Mutex
	// dirty holds the waitlists with a hint; queue wakes whoever works them off.
	dirty    map[string]struct{}
	queue    chan string
	building map[string]struct{}
	builds   sync.WaitGroup
	ctx      context.Context //nolint:containedctx // the life of run, which owns the rebuilds
}

// NewIndex returns an index that is kept in store and follows changes.
func NewIndex(store IndexStore, changes ChangeLog, log *slog.Logger) *Index {
	return &Index{
		store: store, changes: changes, log: log,
		dirty: map[string]struct{}{}, queue: make(chan string, 1024), building: map[string]struct{}{},
	}
}

// Rank returns the place of v's signup, bringing the index up to date first
// where that is quickly done. ErrIndexUnusable means: ask Postgres.
func (x *Index) Rank(ctx context.Context, waitlistID string, v View) (Place, error) {
	short, cancel := context.WithTimeout(ctx, catchUpTimeout)
	defer cancel()
	for range 2 {
		place, err := x.store.Rank(short, waitlistID, v)
		switch {
		case errors.Is(err, ErrStale):
			x.rebuild(waitlistID)
			return Place{}, ErrIndexUnusable
		case err != nil:
			x.log.DebugContext(ctx, "index cannot be read", "waitlist_id", waitlistID, "error", err)
			return Place{}, ErrIndexUnusable
		case place.Rank > 0 && place.Mark.Change == v.Change:
			return place, nil
		case place.Rank > 0:
			// Somebody was quicker, or Postgres was restored from the past: the log
			// tells.
			held, err := x.changes.Holds(short, waitlistID, place.Mark)
			switch {
			case err != nil:
				x.log.DebugContext(ctx, "change log cannot be read", "waitlist_id", waitlistID, "error", err)
				return Place{}, ErrIndexUnusable
			case !held:
				x.rebuild(waitlistID)
				return Place{}, ErrIndexUnusable
			}
			return place, nil
		}
		if err := x.CatchUp(short, waitlistID); err != nil {
			return Place{}, ErrIndexUnusable
		}
	}
	return Place{}, ErrIndexUnusable
}

// CatchUp brings the index up to the log. Where that cannot be done by changes
// it starts a rebuild in the background and returns ErrIndexUnusable.
func (x *Index) CatchUp(ctx context.Context, waitlistID string) error {
	for {
		from, err := x.store.Mark(ctx, waitlistID)
		if err != nil {
			return err
		}
		d, err := x.changes.Since(ctx, waitlistID, from)
		if err == nil && d.To.Change == from.Change {
			return nil
		}
		ok := false
		if err == nil {
			ok, err = x.store.Apply(ctx, waitlistID, from, d)
		}
		switch {
		case errors.Is(err, ErrStale):
			x.rebuild(waitlistID)
			return ErrIndexUnusable
		case err != nil:
			return err
		case ok:
			return nil
		}
		// Somebody else moved the index meanwhile: look again.
	}
}

// Rebuild makes the index anew from the queue and waits for it. It does nothing
// while another replica does so.
func (x *Index) Rebuild(ctx context.Context, waitlistID string) error {
	release, ok, err := x.store.Lease(ctx, waitlistID, rebuildTimeout)
	if err != nil || !ok {
		return err
	}
	defer release()
	start := time.Now()
	b, err := x.store.Build(ctx, waitlistID)
	if err != nil {
		return err
	}
	mark, err := x.changes.All(ctx, waitlistID, func(keys []Key) error { return b.Put(ctx, keys) })
	if err != nil {
		b.Discard(context.WithoutCancel(ctx))
		return err
	}
	if err := b.Swap(ctx, mark); err != nil {
		b.Discard(context.WithoutCancel(ctx))
		return err
	}
	x.log.InfoContext(ctx, "index rebuilt", "waitlist_id", waitlistID, "live", mark.Live, "change", mark.Change, "took", time.Since(start).String())
	return nil
}

// rebuild starts a rebuild in the background, one at a time for a waitlist.
func (x *Index) rebuild(waitlistID string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if _, busy := x.building[waitlistID]; busy || x.ctx == nil || x.ctx.Err() != nil {
		return
	}
	x.building[waitlistID] = struct{}{}
	parent := x.ctx
	x.builds.Go(func() {
		ctx, cancel := context.WithTimeout(parent, rebuildTimeout)
		defer cancel()
		if err := x.Rebuild(ctx, waitlistID); err != nil {
			x.log.WarnContext(ctx, "index not rebuilt", "waitlist_id", waitlistID, "error", err)
		}
		x.mu.Lock()
		delete(x.building, waitlistID)
		x.mu.Unlock()
	})
}

// Hint says that a waitlist has changed. It never waits; when too many hints
// are open this one is dropped, and the next reader catches up.
func (x *Index) Hint(waitlistID string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if _, ok := x.dirty[waitlistID]; ok {
		return
	}
	select {
	case x.queue <- waitlistID:
		x.dirty[waitlistID] = struct{}{}
	default:
	}
}

// run works off hints until ctx ends and then waits for what it started.
func (x *Index) run(ctx context.Context) {
	x.mu.Lock()
	x.ctx = ctx
	x.mu.Unlock()
	var wg sync.WaitGroup
	for range hintWorkers {
		wg.Go(func() {
			for {
				select {
				case <-ctx.Done():
					return
				case id := <-x.queue:
					if !loop.Wait(ctx, gather) {
						return
					}
					x.mu.Lock()
					delete(x.dirty, id)
					x.mu.Unlock()
					x.follow(ctx, id)
				}
			}
		})
	}
	wg.Wait()
	x.builds.Wait()
}

func (x *Index) follow(ctx context.Context, waitlistID string) {
	ctx, cancel := context.WithTimeout(ctx, hintTimeout)
	defer cancel()
	if err := x.CatchUp(ctx, waitlistID); err != nil && !errors.Is(err, ErrIndexUnusable) {
		x.log.DebugContext(ctx, "index not brought up to date", "waitlist_id", waitlistID, "error", err)
		// Redis or Postgres is away: readers catch up when they are back. A pause
		// keeps the worker from spinning.
		loop.Wait(ctx, 50*time.Millisecond+rand.N(50*time.Millisecond)) //nolint:gosec // jitter
	}
}

func (s *Service) hint(waitlistID string) {
	if s.index != nil {
		s.index.Hint(waitlistID)
	}
}
