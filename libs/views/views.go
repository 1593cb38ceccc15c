// Package views counts how often forms are shown, so that a view costs its request two
// atomic operations:
//
//	Add → counter of waitlist and day → twice a second: Count with an ID → Store
//
// A count that may have been published is sent again unchanged, so that each view counts
// once. A crash loses the counts of the last half second.
package views

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"waitlist.internal/libs/loop"
	"waitlist.internal/libs/telemetry"
)

const (
	// flushEvery is the longest a view waits in the process.
	flushEvery = 500 * time.Millisecond
	// flushTimeout bounds a flush, including the last one.
	flushTimeout = 5 * time.Second
	// rest is how long Run sleeps if nothing wakes it.
	rest = time.Hour
	// AtOnce is the most counts that a Store gets at a time.
	AtOnce = 1000
	// closedCount marks a counter that is no longer collected. Additions leave it below
	// zero.
	closedCount = math.MinInt64 / 2
)

// Count is a number of views of one waitlist's form on one UTC day.
type Count struct {
	// ID identifies the count in every attempt to publish it.
	ID         string
	WaitlistID string
	Views      int64
	// At is a moment of the day.
	At time.Time
}

// Store publishes counts.
type Store interface {
	// CountViews publishes all counts or none. Repeating a count, by its ID, has no
	// effect.
	CountViews(ctx context.Context, counts []Count) error
}

// Counter counts the views of forms in process. Run publishes the counts.
type Counter struct {
	store Store
	now   func() time.Time
	log   *slog.Logger
	// counts maps recent buckets to *atomic.Int64.
	counts sync.Map
	// counting wakes Run while there are counts.
	counting loop.Signal
	// unsent holds collected counts that may have been published. They are sent again
	// unchanged. Only Run uses it.
	unsent []Count
}

// bucket is a waitlist on a UTC day, counted from 1970.
type bucket struct {
	waitlistID string
	day        int64
}

const secondsOfDay = 24 * 60 * 60

// New returns counters at zero.
func New(store Store, now func() time.Time, log *slog.Logger) *Counter {
	return &Counter{store: store, now: now, log: log, counting: loop.NewSignal()}
}

// Add counts one view of a waitlist's form.
func (v *Counter) Add(waitlistID string) {
	b := bucket{waitlistID, v.now().Unix() / secondsOfDay}
	for {
		count, ok := v.counts.Load(b)
		if !ok {
			count, _ = v.counts.LoadOrStore(b, new(atomic.Int64))
			v.counting.Send()
		}
		if count.(*atomic.Int64).Add(1) > 0 { // the only type stored
			return
		}
		// The counter was closed meanwhile. Use a new one.
		v.counts.CompareAndDelete(b, count)
	}
}

// Run publishes the counts until ctx ends, then the rest, and returns. End ctx after
// the last request.
func (v *Counter) Run(ctx context.Context) error {
	failing := false
	for loop.Idle(ctx, rest, v.counting) && loop.Wait(ctx, flushEvery) {
		err := v.flush(ctx)
		if err != nil {
			v.counting.Send()
		}
		if err != nil && !failing {
			v.log.WarnContext(ctx, "page views not published yet", telemetry.Err(err))
		}
		failing = err != nil
	}
	if err := v.flush(context.WithoutCancel(ctx)); err != nil {
		v.log.ErrorContext(ctx, "last page views lost", telemetry.Err(err))
	}
	return nil
}

// flush publishes the counts that an earlier flush could not, and then the new ones.
func (v *Counter) flush(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, flushTimeout)
	defer cancel()
	if err := v.send(ctx); err != nil {
		return err
	}
	if err := v.collect(); err != nil {
		return err
	}
	return v.send(ctx)
}

func (v *Counter) send(ctx context.Context) error {
	for len(v.unsent) > 0 {
		n := min(len(v.unsent), AtOnce)
		if err := v.store.CountViews(ctx, v.unsent[:n]); err != nil {
			return err
		}
		v.unsent = v.unsent[n:]
	}
	v.unsent = nil
	return nil
}

// collect moves the counts to unsent. It drops the counters that have not changed
// since the last call.
func (v *Counter) collect() (err error) {
	now := v.now()
	v.counts.Range(func(k, c any) bool {
		b, count := k.(bucket), c.(*atomic.Int64) // the only types stored
		if count.CompareAndSwap(0, closedCount) {
			v.counts.CompareAndDelete(b, count)
			return true
		}
		var id uuid.UUID
		if id, err = uuid.NewV7(); err != nil {
			err = fmt.Errorf("create id of page views: %w", err)
			return false
		}
		v.counting.Send() // the counter is still there
		v.unsent = append(v.unsent, Count{
			ID: id.String(), WaitlistID: b.waitlistID, Views: count.Swap(0), At: within(b.day, now),
		})
		return true
	})
	return err
}

// within returns now, or the last millisecond of a day that is over.
func within(day int64, now time.Time) time.Time {
	if now.Unix()/secondsOfDay == day {
		return now
	}
	return time.Unix((day+1)*secondsOfDay, 0).Add(-time.Millisecond)
}
