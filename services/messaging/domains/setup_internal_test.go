package domains

import (
	"testing"

	"waitlist.internal/libs/apierr"
	"waitlist.internal/libs/testenv"
)

// TestSetup: one claim is set up at a time; an owner who fills the queue is told so at once and keeps nobody else out.
func TestSetup(t *testing.T) {
	s := newSetup(1)
	leave, err := s.enter(t.Context(), "greedy")
	if err != nil {
		t.Fatal(err)
	}
	entered := make(chan func(), setupEach)
	for range setupEach - 1 {
		go func() {
			if leave, err := s.enter(t.Context(), "greedy"); err == nil {
				entered <- leave
			}
		}()
	}
	waiting := func() int {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.waiting["greedy"]
	}
	testenv.Eventually(t, "the queue is full", func() bool { return waiting() == setupEach })
	if _, err := s.enter(t.Context(), "greedy"); !apierr.Is(err, apierr.RateLimited) {
		t.Errorf("one more: %v", err)
	}
	if len(entered) > 0 {
		t.Error("two are in at a time")
	}
	other := make(chan error, 1)
	go func() {
		leave, err := s.enter(t.Context(), "other")
		if err == nil {
			leave()
		}
		other <- err
	}()
	leave()
	for range setupEach - 1 {
		(<-entered)()
	}
	if err := <-other; err != nil {
		t.Errorf("somebody else: %v", err)
	}
	if len(s.waiting) > 0 {
		t.Errorf("left behind: %v", s.waiting)
	}
}
