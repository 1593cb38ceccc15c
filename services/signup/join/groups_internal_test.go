package join

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// slowRead are reads that wait for their turn. The n-th answers each argument with itself and n.
type slowRead struct {
	mu    sync.Mutex
	sizes []int
	turn  chan error
}

func (h *slowRead) read(ctx context.Context, _ string, args []string) ([]string, error) {
	h.mu.Lock()
	h.sizes = append(h.sizes, len(args))
	n := len(h.sizes)
	h.mu.Unlock()
	answers := make([]string, len(args))
	for i, arg := range args {
		answers[i] = fmt.Sprint(arg, n)
	}
	select {
	case err := <-h.turn:
		return answers, err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// grouped are requests of a test, side by side.
type grouped struct {
	*groups[string, string]
	t     *testing.T
	store *slowRead
	all   sync.WaitGroup
}

func newGrouped(t *testing.T, most int) *grouped {
	t.Helper()
	store := &slowRead{turn: make(chan error)}
	return &grouped{groups: newGroups("read", most, func(int) {}, store.read), t: t, store: store}
}

// begin asks, and returns once the request waits. The answer must be want, or the error.
func (g *grouped) begin(ctx context.Context, waitlistID, arg, want string, wantErr error) {
	g.all.Go(func() {
		if got, err := g.ask(ctx, waitlistID, arg); !errors.Is(err, wantErr) || got != want {
			g.t.Errorf("%s %s: %q, %v, want %q and %v", waitlistID, arg, got, err, want, wantErr)
		}
	})
	synctest.Wait()
}

// end waits for all requests. The sizes of all reads must be these.
func (g *grouped) end(sizes ...int) {
	g.all.Wait()
	if !slices.Equal(g.store.sizes, sizes) {
		g.t.Errorf("reads of %d, want %d", g.store.sizes, sizes)
	}
	if len(g.last) != 0 {
		g.t.Errorf("%d waitlists are still kept", len(g.last))
	}
}

func TestReadsAreShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGrouped(t, 256)
		g.begin(t.Context(), "a", "p", "p1", nil)
		// These came after the first read had begun, so it must not answer them. The first of
		// them leaves, without taking the others with it.
		gone, leave := context.WithCancel(t.Context())
		g.begin(gone, "a", "q", "q2", nil)
		for n := range 10 {
			arg := fmt.Sprintf("r%d-", n)
			g.begin(t.Context(), "a", arg, arg+"2", nil)
		}
		impatient, end := context.WithCancel(t.Context())
		g.begin(impatient, "a", "s", "", context.Canceled)
		leave()
		end()
		g.store.turn <- nil
		synctest.Wait()
		// These came after the second read had begun. It fails, and they share its error with nobody before them.
		broken := fmt.Errorf("broken")
		g.begin(t.Context(), "a", "t", "", broken)
		g.begin(t.Context(), "a", "u", "", broken)
		g.store.turn <- nil
		g.store.turn <- broken
		g.all.Wait()
		g.begin(t.Context(), "a", "p", "p4", nil)
		g.begin(t.Context(), "b", "p", "p5", nil)
		g.store.turn <- nil
		g.store.turn <- nil
		g.end(1, 12, 2, 1, 1)
	})
}

// TestGroupsAreBounded: whoever finds a full group begins the next one, which reads after it.
func TestGroupsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGrouped(t, 2)
		for n, want := range []string{"p1", "p2", "p2", "p3", "p3", "p4"} {
			g.begin(t.Context(), "a", "p", want, nil)
			if n == 0 {
				continue
			}
			if len(g.store.sizes) != 1 {
				t.Errorf("%d reads at a time", len(g.store.sizes))
			}
		}
		for range 4 {
			g.store.turn <- nil
			synctest.Wait()
		}
		g.end(1, 2, 2, 1)
	})
}

// TestAGroupDoesNotWaitForLong: a read that hangs delays the group behind it by groupWait, and ends after groupTimeout if
// others rely on it.
func TestAGroupDoesNotWaitForLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGrouped(t, 256)
		g.begin(t.Context(), "a", "p", "p1", nil)
		begun := time.Now()
		g.begin(t.Context(), "a", "q", "", context.DeadlineExceeded)
		<-time.After(groupWait)
		synctest.Wait()
		if !slices.Equal(g.store.sizes, []int{1, 1}) {
			t.Errorf("after %v: reads of %d", groupWait, g.store.sizes)
		}
		// It may not join what has begun, whichever read ends first.
		g.begin(t.Context(), "a", "r", "r3", nil)
		<-time.After(groupTimeout - groupWait)
		synctest.Wait()
		if took := time.Since(begun); took != groupTimeout {
			t.Errorf("a read ended after %v", took)
		}
		g.store.turn <- nil
		g.store.turn <- nil
		g.end(1, 1, 1)
	})
}

// TestAReadThatPanics lets those who share it go.
func TestAReadThatPanics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		turn := make(chan struct{})
		reads := 0
		r := newGroups("read", 256, func(int) {}, func(_ context.Context, _ string, args []string) ([]string, error) {
			<-turn
			if reads++; reads == 2 {
				panic("out of order")
			}
			return args, nil
		})
		var all sync.WaitGroup
		for n := range 3 {
			all.Go(func() {
				defer func() {
					if p := recover(); (p != nil) != (n == 1) {
						t.Errorf("read %d: panic %v", n, p)
					}
				}()
				if _, err := r.ask(t.Context(), "a", "p"); (err != nil) != (n == 2) {
					t.Errorf("read %d: %v", n, err)
				}
			})
			synctest.Wait()
		}
		turn <- struct{}{}
		turn <- struct{}{}
		all.Wait()
		if len(r.last) != 0 {
			t.Errorf("%d waitlists are still kept", len(r.last))
		}
	})
}
