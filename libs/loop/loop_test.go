package loop_test

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"waitlist.internal/libs/loop"
)

// inBubble runs a test on a fake clock. since tells the time since its start.
func inBubble(t *testing.T, test func(t *testing.T, since func() time.Duration)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		test(t, func() time.Duration { return time.Since(start) })
	})
}

func TestWait(t *testing.T) {
	inBubble(t, func(t *testing.T, since func() time.Duration) {
		if !loop.Wait(t.Context(), time.Minute) || since() != time.Minute {
			t.Errorf("Wait(1m) ended after %v", since())
		}
		if !loop.Wait(t.Context(), 0) || !loop.Wait(t.Context(), -time.Second) || since() != time.Minute {
			t.Error("a pause of 0 or less is no pause")
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if loop.Wait(ctx, time.Minute) || since() != time.Minute+time.Second {
			t.Errorf("Wait outlived its context until %v", since())
		}
		if loop.Wait(ctx, 0) {
			t.Error("Wait(0) says that an ended context is alive")
		}
	})
}

func TestIdle(t *testing.T) {
	inBubble(t, func(t *testing.T, since func() time.Duration) {
		wake := loop.NewSignal()
		wake.Send()
		wake.Send() // counts once, and does not block
		if !loop.Idle(t.Context(), time.Minute, wake) || since() != 0 {
			t.Errorf("an earlier signal ended the pause after %v", since())
		}
		time.AfterFunc(time.Second, wake.Send)
		if !loop.Idle(t.Context(), time.Minute, wake) || since() != time.Second {
			t.Errorf("a signal after 1s ended the pause after %v", since())
		}
		if !loop.Idle(t.Context(), time.Minute, wake) || since() != time.Second+time.Minute {
			t.Errorf("without a signal the pause ended after %v", since())
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		wake.Send()
		if loop.Idle(ctx, time.Minute, wake) {
			t.Error("Idle says that an ended context is alive")
		}
	})
}

func TestEvery(t *testing.T) {
	inBubble(t, func(t *testing.T, since func() time.Duration) {
		ctx, cancel := context.WithTimeout(t.Context(), 5500*time.Millisecond)
		defer cancel()
		var at []time.Duration
		for range loop.Every(ctx, time.Second) {
			at = append(at, since())
			if len(at) == 2 {
				time.Sleep(1200 * time.Millisecond) //nolint:forbidigo // on a fake clock: longer than the interval
			}
		}
		want := []time.Duration{time.Second, 2 * time.Second, 3200 * time.Millisecond, 4 * time.Second, 5 * time.Second}
		if !slices.Equal(at, want) || since() != 5500*time.Millisecond {
			t.Errorf("iterations at %v, end at %v; want %v", at, since(), want)
		}
		for range loop.Every(t.Context(), time.Second) {
			break
		}
	})
}

func TestJob(t *testing.T) {
	inBubble(t, func(t *testing.T, since func() time.Duration) {
		ctx, cancel := context.WithCancel(t.Context())
		wake := loop.NewSignal()
		var log strings.Builder
		var at []time.Duration
		job := loop.Job{
			Name: "counting", Every: time.Minute, Wake: wake, Log: slog.New(slog.NewTextHandler(&log, nil)),
			Do: func(ctx context.Context) (bool, error) {
				at = append(at, since())
				switch len(at) {
				case 1:
					return true, nil // again at once
				case 3:
					return true, errors.New("no luck") // a failure waits, whatever more says
				case 4:
					time.AfterFunc(time.Second, wake.Send)
				case 5:
					cancel()
					return true, ctx.Err()
				}
				return false, nil
			},
		}
		if err := job.Run(ctx); err != nil {
			t.Errorf("Run = %v", err)
		}
		want := []time.Duration{0, 0, time.Minute, 2 * time.Minute, 2*time.Minute + time.Second}
		if !slices.Equal(at, want) {
			t.Errorf("runs at %v, want %v", at, want)
		}
		line := log.String()
		if strings.Count(line, "\n") != 1 || !strings.Contains(line, "work=counting") || !strings.Contains(line, "no luck") {
			t.Errorf("%d lines of log, want the one failure:\n%s", strings.Count(line, "\n"), log.String())
		}
		if err := job.Run(ctx); err != nil || len(at) != len(want) {
			t.Errorf("Run with an ended context: %v after %d runs", err, len(at)-len(want))
		}
	})
}

func TestWhole(t *testing.T) {
	failure := errors.New("no luck")
	if more, err := loop.Whole(func(context.Context) error { return failure })(t.Context()); more || !errors.Is(err, failure) {
		t.Errorf("Whole = %v, %v", more, err)
	}
}

func TestBackoff(t *testing.T) {
	shortest, longest := 1., 0. // shares of the pause without jitter
	for range 100 {
		b := loop.Backoff{Min: 100 * time.Millisecond, Max: 500 * time.Millisecond}
		for round := range 2 {
			for i, most := range []time.Duration{100, 200, 400, 500, 500} {
				most *= time.Millisecond
				if d := b.Next(); d < most/2 || d > most {
					t.Errorf("round %d, pause %d = %v, want %v to %v", round, i+1, d, most/2, most)
				} else {
					share := float64(d) / float64(most)
					shortest, longest = min(shortest, share), max(longest, share)
				}
			}
			b.Reset()
		}
	}
	// All of 1000 uniform shares miss a fifth of the range with a probability of 1e-97.
	if shortest > 0.6 || longest < 0.9 {
		t.Errorf("pauses are %.2f to %.2f of the full ones, want jitter from 0.5 to 1", shortest, longest)
	}
}

func TestBackoffWait(t *testing.T) {
	inBubble(t, func(t *testing.T, since func() time.Duration) {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		b := loop.Backoff{Min: time.Second, Max: time.Hour}
		pauses := 0
		for b.Wait(ctx) {
			pauses++
		}
		if pauses < 3 || pauses > 4 || since() != 10*time.Second {
			t.Errorf("%d pauses until %v, want 3 or 4 until 10s", pauses, since())
		}
	})
}

type key struct{}

func TestDrain(t *testing.T) {
	inBubble(t, func(t *testing.T, since func() time.Duration) {
		ctx, cancel := context.WithTimeout(context.WithValue(t.Context(), key{}, "kept"), time.Second)
		defer cancel()
		work, stop := loop.Drain(ctx, 5*time.Second)
		defer stop()
		if _, ok := work.Deadline(); ok || work.Value(key{}) != "kept" {
			t.Errorf("work has ctx's deadline: %v, its value: %v", ok, work.Value(key{}))
		}
		if <-work.Done(); since() != 6*time.Second {
			t.Errorf("work ended after %v, want 6s", since())
		}
		work, stop = loop.Drain(ctx, 5*time.Second)
		stop()
		if <-work.Done(); since() != 6*time.Second {
			t.Errorf("stopped work ended after %v, want at once", since())
		}
	})
}
