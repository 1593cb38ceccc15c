package join

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"waitlist.internal/libs/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// Lanes refuse more entries or bytes than they may hold, and have room again
// once a batch is taken.
func TestLanesAreBounded(t *testing.T) {
	t.Parallel()
	at := func(s int, bytes int) *entry {
		return &entry{queued: time.Unix(int64(s), 0), raw: make([]byte, bytes), done: make(chan struct{})}
	}
	l := newLanes(1, 2, 3, 0)
	for i := range 3 {
		if err := l.submit("a", at(10+i, 1)); err != nil {
			t.Fatal(err)
		}
	}
	if err := l.submit("a", at(13, 1)); !errors.Is(err, errLaneFull) {
		t.Errorf("a fourth of three: %v", err)
	}
	if err := l.submit("b", at(5, maxQueuedBytes-2)); !errors.Is(err, errLaneFull) {
		t.Errorf("more bytes than may wait: %v", err)
	}
	if err := l.submit("b", at(5, maxQueuedBytes-3)); err != nil {
		t.Fatal(err)
	}
	// b's head has waited longest.
	for _, want := range []struct {
		id   string
		size int
	}{{"b", 1}, {"a", 2}} {
		ln, batch := l.nextBatch()
		if ln.id != want.id || len(batch) != want.size {
			t.Errorf("took %d of %s, want %d of %s", len(batch), ln.id, want.size, want.id)
		}
		l.putBack(ln, 0, 0)
	}
	if l.bytes != 1 || l.depth() != 1 {
		t.Errorf("%d bytes and %d entries wait, want 1 and 1", l.bytes, l.depth())
	}
	l.stop()
	if err := l.submit("a", at(20, 1)); !errors.Is(err, errStopping) {
		t.Errorf("after the stop: %v", err)
	}
	if ln, batch := l.nextBatch(); ln == nil || len(batch) != 1 {
		t.Error("what waited at the stop is lost")
	} else {
		l.putBack(ln, 0, 0)
	}
	if ln, _ := l.nextBatch(); ln != nil {
		t.Error("a batch of nothing")
	}
}

// TestLanesShed: beyond one batch, a lane refuses entries that would wait too long at the
// pace of its last full batch.
func TestLanesShed(t *testing.T) {
	t.Parallel()
	l := newLanes(1, 2, 100, 20*time.Millisecond)
	fill := func() (n int) {
		for l.submit("a", &entry{done: make(chan struct{})}) == nil {
			n++
		}
		return n
	}
	serve := func(took time.Duration) {
		t.Helper()
		ln, batch := l.nextBatch()
		if len(batch) != 2 {
			t.Fatalf("a batch of %d", len(batch))
		}
		l.putBack(ln, len(batch), took)
	}
	if n := fill(); n != 100 {
		t.Errorf("%d entries before the pace is known, want the queue's size", n)
	}
	for range 49 {
		serve(10 * time.Millisecond)
	}
	// Two wait already. Five take longer than 20 ms.
	if n := fill(); n != 3 {
		t.Errorf("%d more entries at 5 ms each, want 3", n)
	}
	serve(2 * time.Second)
	if n := fill(); n != 0 {
		t.Errorf("%d more entries at a second each", n)
	}
	serve(2 * time.Second)
	if n := fill(); n != 1 {
		t.Errorf("%d more entries at a second each, want the rest of a batch", n)
	}
}

// TestLanesLead: where nothing waits, a caller serves its lane itself. What comes meanwhile is a
// worker's, also after a stop, and leaders count as workers.
func TestLanesLead(t *testing.T) {
	t.Parallel()
	l := newLanes(2, 10, 10, 0)
	a, b := l.tryServeInline("a"), l.tryServeInline("b")
	if a == nil || b == nil {
		t.Fatal("nothing waits, but nobody leads")
	}
	if l.tryServeInline("c") != nil {
		t.Error("more leaders than workers")
	}
	l.putBack(b, 1, 0)
	if l.tryServeInline("a") != nil {
		t.Error("two serve one lane")
	}
	if err := l.submit("a", &entry{done: make(chan struct{})}); err != nil {
		t.Fatal(err)
	}
	l.stop()
	if l.tryServeInline("d") != nil {
		t.Error("a leader after the stop")
	}
	taken := make(chan int)
	go func() {
		for range 2 {
			ln, batch := l.nextBatch()
			if ln != nil {
				l.putBack(ln, len(batch), 0)
			}
			taken <- len(batch)
		}
	}()
	select {
	case n := <-taken:
		t.Fatalf("a worker took %d while the leader serves its lane", n)
	case <-time.After(20 * time.Millisecond):
	}
	l.putBack(a, 1, 0)
	if first, second := <-taken, <-taken; first != 1 || second != 0 {
		t.Errorf("workers took %d and %d after the leader, want 1 and 0", first, second)
	}
	if l.busy != 0 {
		t.Errorf("%d lanes are served at the end", l.busy)
	}
}

// TestLanesBeginInTime: whoever is not begun in time although batches end is refused, and stays out of
// every batch. While none ends, callers wait as long as for a batch that was begun.
func TestLanesBeginInTime(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name         string
		ended, taken bool
		want         error
		after        time.Duration
	}{
		{"other batches end", true, false, errLaneFull, beginTimeout},
		{"no batch ends", false, false, context.DeadlineExceeded, Timeout},
		{"begun, but not decided", true, true, context.DeadlineExceeded, Timeout},
	} {
		synctest.Test(t, func(t *testing.T) {
			l := newLanes(1, 10, 10, 0)
			ln := l.tryServeInline("a")
			e := &entry{done: make(chan struct{})}
			if err := l.submit("a", e); err != nil {
				t.Fatal(err)
			}
			if tc.ended {
				l.ended++ // of another lane
			}
			if tc.taken {
				l.putBack(ln, 1, 0)
				if _, batch := l.nextBatch(); len(batch) != 1 {
					t.Fatalf("%s: took %d", tc.name, len(batch))
				}
			}
			start := time.Now()
			if err := l.wait(t.Context(), e); !errors.Is(err, tc.want) || time.Since(start) != tc.after {
				t.Errorf("%s: %v after %v, want %v after %v", tc.name, err, time.Since(start), tc.want, tc.after)
			}
			if tc.taken {
				return
			}
			l.putBack(ln, 1, 0)
			l.stop()
			if _, batch := l.nextBatch(); len(batch) != 0 {
				t.Errorf("%s: took %d after the caller left", tc.name, len(batch))
			}
		})
	}
}
