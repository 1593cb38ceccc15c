package signup

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
)

// slowRead are reads of a waitlist that wait for their turn. The n-th read finds n signups.
type slowRead struct {
	mu    sync.Mutex
	reads int64
	turn  chan error
}

func (h *slowRead) read(ctx context.Context, _ string) (View, error) {
	h.mu.Lock()
	h.reads++
	n := h.reads
	h.mu.Unlock()
	select {
	case err := <-h.turn:
		return View{Live: n}, err
	case <-ctx.Done():
		return View{}, ctx.Err()
	}
}

func TestLooksAreShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &slowRead{turn: make(chan error)}
		l := newLooks(store.read)
		var all sync.WaitGroup
		look := func(ctx context.Context, waitlistID string, live int64, want error) {
			all.Go(func() {
				if v, err := l.look(ctx, waitlistID); !errors.Is(err, want) || want == nil && v.Live != live {
					t.Errorf("%s: %+v, %v, want %d and %v", waitlistID, v, err, live, want)
				}
			})
			synctest.Wait()
		}
		look(t.Context(), "a", 1, nil)
		// These came after the first read had begun, so it must not answer them. The first of
		// them leaves, without taking the others with it.
		gone, leave := context.WithCancel(t.Context())
		look(gone, "a", 2, nil)
		for range 10 {
			look(t.Context(), "a", 2, nil)
		}
		impatient, end := context.WithCancel(t.Context())
		look(impatient, "a", 0, context.Canceled)
		leave()
		end()
		store.turn <- nil
		synctest.Wait()
		if store.reads != 2 {
			t.Errorf("%d reads for two looks", store.reads)
		}
		// These came after the second read had begun. It fails, and they share its error with nobody before them.
		broken := fmt.Errorf("broken")
		look(t.Context(), "a", 0, broken)
		look(t.Context(), "a", 0, broken)
		store.turn <- nil
		store.turn <- broken
		all.Wait()
		look(t.Context(), "a", 4, nil)
		look(t.Context(), "b", 5, nil)
		store.turn <- nil
		store.turn <- nil
		all.Wait()
		if len(l.under) != 0 {
			t.Errorf("%d waitlists are still kept", len(l.under))
		}
	})
}

// TestALookThatPanics lets those who share it go.
func TestALookThatPanics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		turn := make(chan struct{})
		reads := 0
		l := newLooks(func(context.Context, string) (View, error) {
			<-turn
			if reads++; reads == 2 {
				panic("out of order")
			}
			return View{}, nil
		})
		var all sync.WaitGroup
		for n := range 3 {
			all.Go(func() {
				defer func() {
					if p := recover(); (p != nil) != (n == 1) {
						t.Errorf("look %d: panic %v", n, p)
					}
				}()
				if _, err := l.look(t.Context(), "a"); (err != nil) != (n == 2) {
					t.Errorf("look %d: %v", n, err)
				}
			})
			synctest.Wait()
		}
		turn <- struct{}{}
		turn <- struct{}{}
		all.Wait()
		if len(l.under) != 0 {
			t.Errorf("%d waitlists are still kept", len(l.under))
		}
	})
}
