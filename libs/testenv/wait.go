package testenv

import (
	"context"
	"sync"
	"testing"
	"time"
)

// Eventually polls ok until it returns true. It fails the test after a minute,
// with what as the description of the condition.
func Eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	Within(t, time.Minute, what, ok)
}

// Within is Eventually with another limit.
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

// Run starts run in a goroutine. stop and the end of the test cancel its context
// and wait until it returns. An error from run fails the test.
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
