package join

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"

	"waitlist.internal/services/signup/queue"
)

// slowRead are reads of a waitlist that wait for their turn. The n-th read finds n signups.
type slowRead struct {
	mu    sync.Mutex
	reads int64
	turn  chan error
}

func (h *slowRead) read(ctx context.Context, _ string) (queue.View, error) {
	h.mu.Lock()
	h.reads++
	n := h.reads
	h.mu.Unlock()
	select {
	case err := <-h.turn:
		return queue.View{Live: n}, err
	case <-ctx.Done():
		return queue.View{}, ctx.Err()
	}
}

func TestReadsAreShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &slowRead{turn: make(chan error)}
		r := newSharedReads(store.read)
		var all sync.WaitGroup
		read := func(ctx context.Context, waitlistID string, live int64, want error) {
			all.Go(func() {
				if v, err := r.read(ctx, waitlistID); !errors.Is(err, want) || want == nil && v.Live != live {
					t.Errorf("%s: %+v, %v, want %d and %v", waitlistID, v, err, live, want)
				}
			})
			synctest.Wait()
		}
		read(t.Context(), "a", 1, nil)
		// These came after the first read had begun, so it must not answer them. The first of
		// them leaves, without taking the others with it.
		gone, leave := context.WithCancel(t.Context())
		read(gone, "a", 2, nil)
		for range 10 {
			read(t.Context(), "a", 2, nil)
		}
		impatient, end := context.WithCancel(t.Context())
		read(impatient, "a", 0, context.Canceled)
		leave()
		end()
		store.turn <- nil
		synctest.Wait()
		if store.reads != 2 {
			t.Errorf("%d reads for two groups", store.reads)
		}
		// These came after the second read had begun. It fails, and they share its error with nobody before them.
		broken := fmt.Errorf("broken")
		read(t.Context(), "a", 0, broken)
		read(t.Context(), "a", 0, broken)
		store.turn <- nil
		store.turn <- broken
		all.Wait()
		read(t.Context(), "a", 4, nil)
		read(t.Context(), "b", 5, nil)
		store.turn <- nil
		store.turn <- nil
		all.Wait()
		if len(r.groups) != 0 {
			t.Errorf("%d waitlists are still kept", len(r.groups))
		}
	})
}

// TestAReadThatPanics lets those who share it go.
func TestAReadThatPanics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		turn := make(chan struct{})
		reads := 0
		r := newSharedReads(func(context.Context, string) (queue.View, error) {
			<-turn
			if reads++; reads == 2 {
				panic("out of order")
			}
			return queue.View{}, nil
		})
		var all sync.WaitGroup
		for n := range 3 {
			all.Go(func() {
				defer func() {
					if p := recover(); (p != nil) != (n == 1) {
						t.Errorf("read %d: panic %v", n, p)
					}
				}()
				if _, err := r.read(t.Context(), "a"); (err != nil) != (n == 2) {
					t.Errorf("read %d: %v", n, err)
				}
			})
			synctest.Wait()
		}
		turn <- struct{}{}
		turn <- struct{}{}
		all.Wait()
		if len(r.groups) != 0 {
			t.Errorf("%d waitlists are still kept", len(r.groups))
		}
	})
}
