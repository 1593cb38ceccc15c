package views

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// publisher stands for the outbox and whoever counts behind it: a count that
// comes twice, by its ID, counts once.
type publisher struct {
	mu sync.Mutex
	// fail, if set, is asked for the error of each call, and whether the counts
	// are stored all the same.
	fail   func(call int) (err error, stored bool)
	calls  int
	byID   map[string]Count
	repeat int
	t      *testing.T
}

func (p *publisher) CountViews(ctx context.Context, counts []Count) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return err
	}
	if len(counts) == 0 || len(counts) > AtOnce {
		p.t.Errorf("%d counts at once", len(counts))
	}
	p.calls++
	var err error
	stored := true
	if p.fail != nil {
		err, stored = p.fail(p.calls)
	}
	if !stored {
		return err
	}
	for _, c := range counts {
		if before, ok := p.byID[c.ID]; ok {
			p.repeat++
			if before != c {
				p.t.Errorf("%+v came again as %+v", before, c)
			}
		}
		if c.Views < 1 {
			p.t.Errorf("%+v counts nothing", c)
		}
		p.byID[c.ID] = c
	}
	return err
}

// sums are the views by waitlist and day.
func (p *publisher) sums() map[string]int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	out := map[string]int64{}
	for _, c := range p.byID {
		out[c.WaitlistID+" "+c.At.UTC().Format(time.DateOnly)] += c.Views
	}
	return out
}

func newPublisher(t *testing.T) *publisher {
	t.Helper()
	return &publisher{t: t, byID: map[string]Count{}}
}

func pause(d time.Duration) { <-time.After(d) }

// TestViews: every view is published once, within half a second, on its own UTC
// day, however many requests count while the counters are collected and dropped.
func TestViews(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		// Shortly before midnight.
		pause(time.Until(time.Now().Truncate(24*time.Hour).AddDate(0, 0, 1).Add(-5 * time.Second)))
		p := newPublisher(t)
		v := New(p, time.Now, slog.New(slog.DiscardHandler))
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- v.Run(ctx) }()

		v.Add("quick")
		pause(flushEvery + time.Millisecond)
		synctest.Wait()
		if got := p.sums(); len(got) != 1 {
			t.Fatalf("after half a second: %v", got)
		}

		var mu sync.Mutex
		want := p.sums()
		var wg sync.WaitGroup
		for worker := range 16 {
			wg.Go(func() {
				for i := range 2000 {
					id := fmt.Sprint("w", i%3)
					if i%100 == worker {
						id = fmt.Sprint("rare", i)
					}
					day := time.Now().UTC().Format(time.DateOnly)
					v.Add(id)
					mu.Lock()
					want[id+" "+day]++
					mu.Unlock()
					if i%7 == 0 {
						pause(time.Duration(1+(i*worker)%60) * time.Millisecond)
					}
				}
			})
		}
		wg.Wait()
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		got := p.sums()
		for key, n := range want {
			if got[key] != n {
				t.Errorf("%s: %d views published, %d counted", key, got[key], n)
			}
		}
		if len(got) != len(want) {
			t.Errorf("published %d, counted %d waitlists and days", len(got), len(want))
		}
	})
}

// TestViewsOfParallelRequests: as TestViews, on all processors, while the
// counters are collected and dropped without a pause.
func TestViewsOfParallelRequests(t *testing.T) {
	t.Parallel()
	p := newPublisher(t)
	v := New(p, time.Now, slog.New(slog.DiscardHandler))
	done := make(chan struct{})
	var wg sync.WaitGroup
	const workers, each = 8, 50_000
	for range workers {
		wg.Go(func() {
			for range each {
				v.Add("w")
			}
		})
	}
	go func() { wg.Wait(); close(done) }()
	for running := true; running; {
		select {
		case <-done:
			running = false
		default:
		}
		if err := v.flush(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	var sum int64
	for _, n := range p.sums() {
		sum += n
	}
	if sum != workers*each {
		t.Errorf("%d views published, %d counted", sum, workers*each)
	}
}

// TestViewsOutage: while nothing can be published the counts stay, and what may
// have been published is sent again as it was.
func TestViewsOutage(t *testing.T) {
	t.Parallel()
	away := errors.New("away")
	for name, fail := range map[string]func(int) (error, bool){
		"nothing stored":    func(call int) (error, bool) { return errIf(call < 7, away), call >= 7 },
		"answer lost":       func(call int) (error, bool) { return errIf(call%3 != 0, away), true },
		"now this now that": func(call int) (error, bool) { return errIf(call%4 != 0, away), call%4 != 1 },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				p := newPublisher(t)
				p.fail = fail
				v := New(p, time.Now, slog.New(slog.DiscardHandler))
				ctx, stop := context.WithCancel(t.Context())
				ended := make(chan error)
				go func() { ended <- v.Run(ctx) }()
				const rounds = 40
				for range rounds {
					v.Add("a")
					v.Add("b")
					pause(100 * time.Millisecond)
				}
				// Until a flush went through.
				pause(20 * flushEvery)
				stop()
				if err := <-ended; err != nil {
					t.Error(err)
				}
				var sum int64
				for _, n := range p.sums() {
					sum += n
				}
				if sum != 2*rounds {
					t.Errorf("%d views counted, want %d", sum, 2*rounds)
				}
				if name == "answer lost" && p.repeat == 0 {
					t.Error("nothing came again: the test shows nothing")
				}
			})
		})
	}
}

func errIf(failed bool, err error) error {
	if failed {
		return err
	}
	return nil
}

// TestViewsAreForgotten: waitlists that nobody looks at any more take no memory,
// and what a flush sends is in pieces.
func TestViewsAreForgotten(t *testing.T) {
	t.Parallel()
	p := newPublisher(t)
	v := New(p, time.Now, slog.New(slog.DiscardHandler))
	const many = 2*AtOnce + 1
	for i := range many {
		v.Add(fmt.Sprint(i))
	}
	kept := func() (n int) {
		v.counts.Range(func(any, any) bool { n++; return true })
		return n
	}
	for i, want := range []int{many, 0, 0} {
		if err := v.flush(t.Context()); err != nil {
			t.Fatal(err)
		}
		if kept() != want {
			t.Errorf("after flush %d: %d counters are kept, want %d", i+1, kept(), want)
		}
	}
	if got := len(p.sums()); got != many {
		t.Errorf("%d waitlists published", got)
	}
	v.Add("0")
	if err := v.flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := len(p.byID); got != many+1 {
		t.Errorf("a view after the counter went: %d counts", got)
	}
}

// BenchmarkViews is what a view costs its request.
func BenchmarkViews(b *testing.B) {
	v := New(nil, time.Now, nil)
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			v.Add("0193d4a2-5c1e-7a41-8000-000000000001")
		}
	})
}
