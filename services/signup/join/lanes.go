package join

import (
	"container/heap"
	"context"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/trace"

	"waitlist.internal/services/signup/queue"
)

// entry is one signup on its way through a lane. It belongs to whoever claims it: the worker that
// takes it and closes done, or the caller that leaves before.
type entry struct {
	join *queue.Join
	// raw is the request body, kept to validate it again under newer settings.
	raw    []byte
	header Header
	queued time.Time
	// caller is the request's span, nil if its trace is not sampled.
	caller  trace.Span
	claimed atomic.Bool
	// ahead is how many batches had ended when the entry was queued.
	ahead uint64

	// outcome and err are valid once done is closed.
	outcome queue.Outcome
	err     error
	done    chan struct{}
}

func (e *entry) finish(err error) {
	e.err = err
	close(e.done)
}

// lane is the queue of one waitlist. One worker or request at a time serves it; the
// waitlist's row lock would make a second one wait.
type lane struct {
	id      string
	entries []*entry
	serving bool
	// pace is how long the last full batch took per entry.
	pace time.Duration
	// heapIndex is the index in the heap, -1 outside it.
	heapIndex int
}

// maxQueuedBytes bounds the bytes of all waiting request bodies.
const maxQueuedBytes = 64 << 20

// lanes collects the signups that wait for the same waitlist into batches. There is
// no timer: the signups that arrive during a commit form the next batch, so a single
// signup does not wait. Workers serve the lane whose head has waited longest. Where nothing
// waits, the caller serves its lane itself, which saves it two hand-overs.
type lanes struct {
	workers, maxBatch, maxQueue int
	// maxWait bounds how long the entries ahead of a new one may take; 0 means no bound.
	maxWait time.Duration

	mu      sync.Mutex
	wake    *sync.Cond
	byID    map[string]*lane
	ready   laneHeap
	bytes   int    // of the waiting bodies
	busy    int    // lanes that are served, at most workers
	ended   uint64 // batches
	stopped bool
}

func newLanes(workers, maxBatch, maxQueue int, maxWait time.Duration) *lanes {
	l := &lanes{workers: workers, maxBatch: maxBatch, maxQueue: maxQueue, maxWait: maxWait, byID: map[string]*lane{}}
	l.wake = sync.NewCond(&l.mu)
	return l
}

// tryServeInline returns a waitlist's lane if the caller may serve it at once: nobody serves it, nothing
// waits, and a worker would be free. Else it returns nil. The caller puts the lane back.
func (l *lanes) tryServeInline(waitlistID string) *lane {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.stopped || l.busy >= l.workers || l.ready.Len() > 0 || l.byID[waitlistID] != nil {
		return nil
	}
	ln := &lane{id: waitlistID, serving: true, heapIndex: -1}
	l.byID[waitlistID] = ln
	l.busy++
	return ln
}

// submit queues e. Its done is closed once its batch has been decided.
func (l *lanes) submit(waitlistID string, e *entry) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.stopped {
		return errStopping
	}
	ln := l.byID[waitlistID]
	if ln == nil {
		ln = &lane{id: waitlistID, heapIndex: -1}
	}
	if len(ln.entries) >= l.maxQueue || l.bytes+len(e.raw) > maxQueuedBytes {
		return errLaneFull
	}
	// A batch may always wait: it commits as soon as the one before has.
	if n := len(ln.entries); l.maxWait > 0 && n >= l.maxBatch && time.Duration(n)*ln.pace > l.maxWait {
		return errLaneFull
	}
	l.byID[waitlistID] = ln
	l.bytes += len(e.raw)
	e.ahead = l.ended
	ln.entries = append(ln.entries, e)
	if !ln.serving && ln.heapIndex < 0 {
		heap.Push(&l.ready, ln)
		l.wake.Signal()
	}
	return nil
}

// nextBatch waits for a lane with entries and returns it with its next batch. It returns
// nil once the lanes are stopped and empty.
func (l *lanes) nextBatch() (*lane, []*entry) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for {
		for l.ready.Len() == 0 || l.busy >= l.workers {
			// While a lane is served, entries may wait in it that are not ready yet.
			if l.stopped && l.ready.Len() == 0 && l.busy == 0 {
				return nil, nil
			}
			l.wake.Wait()
		}
		ln, _ := heap.Pop(&l.ready).(*lane)
		n := min(len(ln.entries), l.maxBatch)
		batch := make([]*entry, 0, n)
		for _, e := range ln.entries[:n] {
			l.bytes -= len(e.raw)
			if e.claim() {
				batch = append(batch, e)
			}
		}
		ln.entries = append(ln.entries[:0:0], ln.entries[n:]...)
		if len(batch) == 0 {
			l.release(ln)
			continue
		}
		ln.serving = true
		l.busy++
		return ln, batch
	}
}

// putBack returns a lane after a batch of n entries and its duration.
func (l *lanes) putBack(ln *lane, n int, took time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	ln.serving = false
	l.busy--
	l.ended++
	if n == l.maxBatch {
		ln.pace = took / time.Duration(n)
	}
	l.release(ln)
	if l.stopped {
		l.wake.Broadcast()
	} else if l.ready.Len() > 0 {
		l.wake.Signal() // a worker may have waited for this one
	}
}

func (l *lanes) release(ln *lane) {
	if len(ln.entries) == 0 {
		delete(l.byID, ln.id)
		return
	}
	heap.Push(&l.ready, ln)
	l.wake.Signal()
}

// stop makes submit refuse entries, and nextBatch return nil once nothing waits.
func (l *lanes) stop() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.stopped = true
	l.wake.Broadcast()
}

// depth returns how many entries wait in all lanes.
func (l *lanes) depth() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := 0
	for _, ln := range l.byID {
		n += len(ln.entries)
	}
	return n
}

// laneHeap orders lanes by how long their head has waited.
type laneHeap []*lane

func (h laneHeap) Len() int           { return len(h) }
func (h laneHeap) Less(i, j int) bool { return h[i].entries[0].queued.Before(h[j].entries[0].queued) }

func (h laneHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].heapIndex, h[j].heapIndex = i, j
}

func (h *laneHeap) Push(x any) {
	ln, _ := x.(*lane)
	ln.heapIndex = len(*h)
	*h = append(*h, ln)
}

func (h *laneHeap) Pop() any {
	old := *h
	ln := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	ln.heapIndex = -1
	return ln
}

// claim reports whether e belongs to the caller from now on.
func (e *entry) claim() bool { return e.claimed.CompareAndSwap(false, true) }

// wait returns e's error once it is decided. If ctx ends first, wait claims an entry that no batch has
// taken. An entry that was taken completes without its caller. One that was not taken within beginTimeout,
// while batches ended, is refused with errLaneFull. If none ended, it waits on: the database does not answer.
func (l *lanes) wait(ctx context.Context, e *entry) error {
	timer := time.NewTimer(beginTimeout)
	defer timer.Stop()
	for begun := false; ; begun = true {
		select {
		case <-e.done:
			return e.err
		case <-ctx.Done():
			e.claim()
			return ctx.Err()
		case <-timer.C:
		}
		if l.progressed(e) && e.claim() {
			return errLaneFull
		}
		if begun {
			e.claim()
			return context.DeadlineExceeded
		}
		timer.Reset(Timeout - beginTimeout)
	}
}

// progressed reports whether a batch ended since e was queued.
func (l *lanes) progressed(e *entry) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.ended > e.ahead
}

// beginTimeout bounds how long an entry waits for its batch to begin. What is left of Timeout then
// suffices for any batch that the database answers.
const beginTimeout = 2 * time.Second

// Header holds what a signup request says outside its body.
type Header struct {
	UserAgent string
	// ClientIP is the client's address as the trusted proxies report it.
	ClientIP string
}
