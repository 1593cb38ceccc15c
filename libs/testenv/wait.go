package testenv

import (
	"context"
	"sync"
	"testing"
	"time"
)

// Eventually waits until ok, for a minute at most, and fails the test then. what
// says what is waited for.
func Eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	Within(t, time.Minute, what, ok)
}

// Within is Eventually with a limit of the test's own.
func Within(t testing.TB, limit time.Duration, what string, ok func() bool) {
	t.Helper()
	deadline := time.NewTimer(limit)
	defer deadline.Stop()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-deadline.C:
			t.Fatalf("not within %s: %s", limit, what)
		case <-tick.C:
		}
	}
}

// Run has run go on beside the test, until stop or else the test's end; both
// wait for it to return. An error of it fails the test.
func Run(t testing.TB, run func(ctx context.Context) error) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(stop)
	return stop
}
