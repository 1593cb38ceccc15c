// Package index keeps the ranks of the signups in Redis: a sorted set of queue keys for each
// waitlist, which catches up with the change log in Postgres or is built anew from it.
package index

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"waitlist.internal/libs/loop"
	"waitlist.internal/libs/telemetry"
	"waitlist.internal/services/signup/queue"
)

// ErrUnusable says that the index cannot answer now: Redis is down, or the index
// is behind, wrong or missing. Postgres answers instead.
var ErrUnusable = errors.New("signup: index cannot answer")

// ErrStale says that the index follows another history than the change log, or one
// that the log no longer covers. Only a rebuild helps.
var ErrStale = errors.New("signup: index needs a rebuild")

// Key is one member of the index: a signup and its queue key.
type Key struct {
	Number int64
	Key    int64
}

// Mark says which state an index holds: everything up to a change, identified by its
// number and nonce. The zero Mark belongs to a waitlist without changes.
type Mark struct {
	Change int64
	Nonce  int64
	// Live is the number of members of the index at that change, Total the displayed
	// counter.
	Live  int64
	Total int64
}

// Places are the ranks of signups in the index at Mark. Rank 0 means that the index cannot tell that signup's.
type Places struct {
	Ranks []int64
	Mark  Mark
}

// Delta turns an index at one mark into one at another.
type Delta struct {
	To     Mark
	Put    []Key
	Remove []int64
}

// ChangeLog is what the index is built from.
type ChangeLog interface {
	// Since returns what happened after from, in one snapshot. It returns ErrStale if
	// the log does not hold from, or if more than most members changed.
	Since(ctx context.Context, waitlistID string, from Mark, most int) (Delta, error)
	// Holds reports whether the log has m's change with m's nonce, and the numbers of the signups that have as many
	// referrals now as they had when they were seen.
	Holds(ctx context.Context, waitlistID string, m Mark, seen []*queue.Signup) (held bool, same map[int64]bool, err error)
	// All passes every key of one snapshot to put, in chunks, and returns the mark of
	// the snapshot.
	All(ctx context.Context, waitlistID string, put func([]Key) error) (Mark, error)
}

// Store holds the index: for each waitlist a sorted set and its mark.
type Store interface {
	// Rank returns the places of seen, which v's change has, if the index is at it or at a later
	// one, else no Places. It returns ErrStale if the index contradicts its mark.
	Rank(ctx context.Context, waitlistID string, v queue.View, seen []*queue.Signup) (Places, error)
	// Mark returns the state of a waitlist's index.
	Mark(ctx context.Context, waitlistID string) (Mark, error)
	// Apply takes the index from one mark to the next in one step. ok is false if the
	// index is no longer at from. It returns ErrStale if the number of members is wrong
	// afterwards.
	Apply(ctx context.Context, waitlistID string, from Mark, d Delta) (ok bool, err error)
	// Lease takes the right to rebuild for ttl. ok is false if somebody else has it.
	Lease(ctx context.Context, waitlistID string, ttl time.Duration) (release func(), ok bool, err error)
	// Build returns a new index that nobody sees. Swap replaces the present index by
	// it, unless the present one is newer; Discard drops it.
	Build(ctx context.Context, waitlistID string) (Builder, error)
}

// Builder fills a new index.
type Builder interface {
	Put(ctx context.Context, keys []Key) error
	Remove(ctx context.Context, numbers []int64) error
	Swap(ctx context.Context, m Mark) error
	Discard(ctx context.Context)
}

const (
	// maxReaderWait bounds how long a reader waits for the index before
	// Postgres answers.
	maxReaderWait = 250 * time.Millisecond
	// gather is how long a catch-up waits for more hints about the same waitlist, so that
	// several signups share it. A reader ends the wait.
	gather = 5 * time.Millisecond
	// CatchUpTimeout bounds one catch-up.
	CatchUpTimeout = 5 * time.Second
	// rebuildTimeout bounds a rebuild: 10 million keys take about half a minute.
	rebuildTimeout = 10 * time.Minute
	// maxDelta is the most members that one catch-up changes. Beyond it, a rebuild is
	// cheaper and does not block Redis.
	maxDelta = 20_000
	// maxBuildDelta is the same for a new index, which nobody reads yet, buildDeltas how
	// often it catches up before it replaces the present one.
	maxBuildDelta, buildDeltas = 200_000, 10
	// buildChunk is how many members a new index takes at a time.
	buildChunk = 5_000
	// maxCatchUps is how many indexes catch up at a time.
	maxCatchUps = 4
	// checkEvery is the time between two comparisons of a list's index with Postgres, which cost 2 to 3 ms each at 10 million
	// signups. Each process makes its own. maxChecked is for how many lists it remembers when the last one was.
	checkEvery, maxChecked = time.Second, 4096
	// maxQueued is how many waitlists may wait for a catch-up. Hints beyond are dropped.
	maxQueued = 1024
)

// Index keeps the sorted sets in Redis equal to the queue. Only CatchUp and Rebuild
// write them.
type Index struct {
	store   Store
	changes ChangeLog
	log     *slog.Logger
	// Measured, if set, is called after each catch-up with its outcome: applied, failed, or
	// rebuild where changes did not suffice. late is the time from the oldest change's hint.
	Measured func(outcome string, late time.Duration)

	// queue has the waitlists that need a catch-up and that no task catches up; slots has one element
	// for each running catch-up.
	queue chan string
	slots chan struct{}

	mu sync.Mutex
	// next holds the waitlists that are in the queue or have a task, with the next catch-up or nil.
	next     map[string]*catchUp
	building map[string]struct{}
	checked  map[string]time.Time
	tasks    sync.WaitGroup
	ctx      context.Context // the life of Run, which owns the tasks
}

// catchUp is a catch-up that has not begun yet. Whoever asks for one before it begins
// shares it, and it covers all that was committed before it was asked for.
type catchUp struct {
	// urgent is closed when somebody waits for done.
	urgent chan struct{}
	hurry  sync.Once
	// asked is when the first of its callers asked for it.
	asked time.Time
	// err is valid once done is closed.
	err  error
	done chan struct{}
}

// New returns an index that is kept in store and follows changes.
func New(store Store, changes ChangeLog, log *slog.Logger) *Index {
	return &Index{
		store: store, changes: changes, log: log, queue: make(chan string, maxQueued), slots: make(chan struct{}, maxCatchUps),
		next: map[string]*catchUp{}, building: map[string]struct{}{},
		checked: map[string]time.Time{},
	}
}

// Rank returns the places of signups, seen with the counters of v, at one moment when they had as many referrals. It
// lets the index catch up first, for at most maxReaderWait. On ErrUnusable, and for the signups
// with rank 0, the caller asks Postgres.
func (x *Index) Rank(ctx context.Context, waitlistID string, v queue.View, seen []*queue.Signup) (Places, error) {
	short, cancel := context.WithTimeout(ctx, maxReaderWait)
	defer cancel()
	for range 2 {
		at, err := x.store.Rank(short, waitlistID, v, seen)
		switch {
		case errors.Is(err, ErrStale):
			x.rebuild(waitlistID)
			return Places{}, ErrUnusable
		case err != nil:
			x.log.DebugContext(ctx, "index not read", slog.String("waitlist_id", waitlistID), telemetry.Err(err))
			return Places{}, ErrUnusable
		case at.Ranks != nil && at.Mark.Change == v.Change:
			if at.Mark.Live != v.Live || at.Mark.Total != v.Total {
				x.rebuildWrong(ctx, waitlistID)
				return Places{}, ErrUnusable
			}
			return at, nil
		case at.Ranks != nil:
			// Somebody applied a later change, or Postgres was restored from the past. The
			// change log shows which of the two happened.
			held, same, err := x.changes.Holds(short, waitlistID, at.Mark, seen)
			switch {
			case err != nil:
				x.log.DebugContext(ctx, "change log not read", slog.String("waitlist_id", waitlistID), telemetry.Err(err))
				return Places{}, ErrUnusable
			case !held:
				x.rebuild(waitlistID)
				return Places{}, ErrUnusable
			}
			for i, s := range seen {
				// The place may follow a credit that s does not count. Referrals only grow: if
				// their number is the same before and after the place, it was the same at the place.
				if !same[s.Number] {
					at.Ranks[i] = 0
				}
			}
			return at, nil
		}
		if err := x.CatchUp(short, waitlistID); err != nil {
			return Places{}, ErrUnusable
		}
	}
	return Places{}, ErrUnusable
}

// CheckDue reports whether a list's index should be compared with Postgres again, and counts that as done.
func (x *Index) CheckDue(waitlistID string, now time.Time) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	if last, ok := x.checked[waitlistID]; ok && now.Sub(last) < checkEvery {
		return false
	}
	if len(x.checked) >= maxChecked {
		clear(x.checked)
	}
	x.checked[waitlistID] = now
	return true
}

// Compare has the index built anew if it knows v's signup at another place than Postgres at the same change. Its mark cannot
// show that somebody else has written into Redis.
func (x *Index) Compare(ctx context.Context, waitlistID string, v queue.View) {
	at, err := x.Rank(ctx, waitlistID, v, []*queue.Signup{v.Signup})
	if err == nil && at.Mark.Change == v.Change && at.Ranks[0] != v.Rank {
		x.rebuildWrong(ctx, waitlistID)
	}
}

func (x *Index) rebuildWrong(ctx context.Context, waitlistID string) {
	x.log.WarnContext(ctx, "index differs from the queue and is built anew", slog.String("waitlist_id", waitlistID))
	x.rebuild(waitlistID)
}

// CatchUp applies the changes that the index lacks, at least all that were committed
// before the call. If changes cannot repair the index, it starts a rebuild in the
// background and returns ErrUnusable. Concurrent callers share one catch-up:
// otherwise each would read the same changes again, and their queries would slow the
// signups in Postgres.
func (x *Index) CatchUp(ctx context.Context, waitlistID string) error {
	c := x.request(waitlistID)
	if c == nil {
		return x.apply(ctx, waitlistID)
	}
	c.hurry.Do(func() { close(c.urgent) })
	select {
	case <-c.done:
		return c.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Hint says that a waitlist has changed. It never waits. If the queue is full, it
// drops the hint, and the next reader catches up.
func (x *Index) Hint(waitlistID string) { x.request(waitlistID) }

// request returns the waitlist's next catch-up, or nil while the index does not run or if the queue is full.
func (x *Index) request(waitlistID string) *catchUp {
	x.mu.Lock()
	defer x.mu.Unlock()
	next, queued := x.next[waitlistID]
	if next != nil {
		return next
	}
	if x.ctx == nil || x.ctx.Err() != nil {
		return nil
	}
	if !queued {
		select {
		case x.queue <- waitlistID:
		default:
			return nil
		}
	}
	next = &catchUp{asked: time.Now(), urgent: make(chan struct{}), done: make(chan struct{})}
	x.next[waitlistID] = next
	return next
}

// catchUpUntilIdle makes a waitlist's catch-ups, one after the other, until nobody has asked for another.
func (x *Index) catchUpUntilIdle(ctx context.Context, waitlistID string) {
	for {
		x.mu.Lock()
		next := x.next[waitlistID]
		if next == nil {
			delete(x.next, waitlistID)
		}
		x.mu.Unlock()
		if next == nil {
			return
		}
		select {
		case <-next.urgent:
		case <-time.After(gather):
		case <-ctx.Done():
		}
		x.slots <- struct{}{}
		x.mu.Lock()
		x.next[waitlistID] = nil // nobody joins it any more
		x.mu.Unlock()
		next.err = x.catchUpOnce(ctx, waitlistID)
		<-x.slots
		close(next.done)
		x.measure(next.err, time.Since(next.asked))
		if next.err != nil && !errors.Is(next.err, ErrUnusable) {
			x.log.DebugContext(ctx, "index did not catch up", slog.String("waitlist_id", waitlistID), telemetry.Err(next.err))
			// Redis or Postgres is down. Readers catch up when it is back. The pause keeps the
			// loop from spinning.
			loop.Wait(ctx, 50*time.Millisecond+rand.N(50*time.Millisecond)) //nolint:gosec // jitter
		}
	}
}

func (x *Index) measure(err error, late time.Duration) {
	if x.Measured == nil {
		return
	}
	switch {
	case err == nil:
		x.Measured("applied", late)
	case errors.Is(err, ErrUnusable):
		x.Measured("rebuild", late)
	default:
		x.Measured("failed", late)
	}
}

func (x *Index) catchUpOnce(ctx context.Context, waitlistID string) error {
	ctx, cancel := context.WithTimeout(ctx, CatchUpTimeout)
	defer cancel()
	return x.apply(ctx, waitlistID)
}

// apply applies what the index lacks.
func (x *Index) apply(ctx context.Context, waitlistID string) error {
	for {
		from, err := x.store.Mark(ctx, waitlistID)
		if err != nil {
			return err
		}
		d, err := x.changes.Since(ctx, waitlistID, from, maxDelta)
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
			return ErrUnusable
		case err != nil:
			return err
		case ok:
			return nil
		}
		// Somebody else moved the index meanwhile. Look again.
	}
}

// Rebuild builds the index anew from the queue. It does nothing while another replica
// does so.
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
	if err == nil {
		mark, err = x.advance(ctx, waitlistID, b, mark)
	}
	if err != nil {
		b.Discard(context.WithoutCancel(ctx))
		return err
	}
	if err := b.Swap(ctx, mark); err != nil {
		b.Discard(context.WithoutCancel(ctx))
		return err
	}
	x.log.InfoContext(ctx, "index rebuilt", "waitlist_id", waitlistID, "live", mark.Live, "change", mark.Change,
		"took", time.Since(start).String())
	return nil
}

// advance takes a new index from mark to what happened while it was filled, until a catch-up
// can do the rest. Otherwise an import beside it would leave the new index too far behind
// and have it built again, and again. It returns the mark of the index.
func (x *Index) advance(ctx context.Context, waitlistID string, b Builder, mark Mark) (Mark, error) {
	for range buildDeltas {
		d, err := x.changes.Since(ctx, waitlistID, mark, maxBuildDelta)
		if err != nil {
			break // too much happened, or it was not read in time; the index is right at mark
		}
		for keys := range slices.Chunk(d.Put, buildChunk) {
			if err := b.Put(ctx, keys); err != nil {
				return mark, err
			}
		}
		for numbers := range slices.Chunk(d.Remove, buildChunk) {
			if err := b.Remove(ctx, numbers); err != nil {
				return mark, err
			}
		}
		mark = d.To
		if len(d.Put)+len(d.Remove) <= maxDelta/4 {
			break
		}
	}
	return mark, nil
}

// rebuild starts a rebuild in the background, one at a time per waitlist.
func (x *Index) rebuild(waitlistID string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if _, busy := x.building[waitlistID]; busy || x.ctx == nil || x.ctx.Err() != nil {
		return
	}
	x.building[waitlistID] = struct{}{}
	parent := x.ctx
	x.tasks.Go(func() {
		ctx, cancel := context.WithTimeout(parent, rebuildTimeout)
		defer cancel()
		if err := x.Rebuild(ctx, waitlistID); err != nil {
			x.log.WarnContext(ctx, "index not rebuilt", slog.String("waitlist_id", waitlistID), telemetry.Err(err))
		}
		x.mu.Lock()
		delete(x.building, waitlistID)
		x.mu.Unlock()
	})
}

// Run lets the index follow its waitlists until ctx ends, then waits for catch-ups and
// rebuilds.
func (x *Index) Run(ctx context.Context) {
	x.mu.Lock()
	x.ctx = ctx
	x.mu.Unlock()
	for {
		select {
		case id := <-x.queue:
			x.tasks.Go(func() { x.catchUpUntilIdle(ctx, id) })
		case <-ctx.Done():
			x.tasks.Wait()
			return
		}
	}
}
