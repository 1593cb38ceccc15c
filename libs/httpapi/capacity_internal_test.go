package httpapi

import (
	"math"
	"slices"
	"testing"
	"time"
)

// machine is a process whose requests are worked on one after the other. With more of them under way it does fewer a second, as
// memory and processors are shared.
type machine struct {
	c *Capacity
	// best is what it does a second with few requests, half the number of requests with which it does half as much.
	best, half float64

	now   time.Time
	begun []time.Time // of the admitted, oldest first
	next  time.Time   // when the oldest is done
	until time.Time   // when a stall ends
	// times of the requests that are done.
	times   []time.Duration
	refused int
}

func newMachine(best, half float64) *machine {
	m := &machine{c: NewCapacity(nil), best: best, half: half, now: time.Unix(0, 0)}
	m.c.now, m.c.since = func() time.Time { return m.now }, m.now
	return m
}

func (m *machine) each() time.Duration {
	return time.Duration((1 + float64(len(m.begun))/m.half) / m.best * float64(time.Second))
}

// offer has rate requests a second arrive for d and forgets what was before.
func (m *machine) offer(rate float64, d time.Duration) {
	m.times, m.refused = nil, 0
	start := m.now
	for i := 0; ; i++ {
		due := start.Add(time.Duration(float64(i) / rate * float64(time.Second)))
		for len(m.begun) > 0 && !m.next.After(due) {
			m.now = m.next
			m.times = append(m.times, m.now.Sub(m.begun[0]))
			m.begun = m.begun[1:]
			m.c.release(true)
			m.next = m.now.Add(m.each())
		}
		if due.Sub(start) >= d {
			m.now = due
			return
		}
		m.now = due
		if !m.c.acquire() {
			m.refused++
			continue
		}
		if m.begun = append(m.begun, due); len(m.begun) == 1 {
			m.next = later(due, m.until).Add(m.each())
		}
	}
}

// stall has nothing done for d.
func (m *machine) stall(d time.Duration) {
	m.until = m.now.Add(d)
	m.next = later(m.next, m.until)
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

func (m *machine) quantile(q float64) time.Duration {
	s := slices.Sorted(slices.Values(m.times))
	return s[int(q*float64(len(s)-1))]
}

// TestTwiceTheLoad offers twice of what machines of several sizes can do.
func TestTwiceTheLoad(t *testing.T) {
	for _, best := range []float64{1_500, 3_500, 14_000, 60_000} {
		m := newMachine(best, math.Inf(1))
		m.offer(2*best, time.Second)
		m.offer(2*best, 10*time.Second)
		floor := time.Duration(burst / best * float64(time.Second))
		if p99 := m.quantile(.99); p99 > max(2*steadyWait, floor+time.Millisecond) {
			t.Errorf("at %.0f/s, the p99 is %s", best, p99)
		}
	}
}

// TestItAdmitsWhatItCanDo offers 90 % of what machines can do, with stalls of 60 ms, and then the burst of an idle process.
func TestItAdmitsWhatItCanDo(t *testing.T) {
	for _, best := range []float64{1_500, 3_500, 14_000} {
		m := newMachine(best, math.Inf(1))
		m.offer(.9*best, 2*time.Second)
		for range 5 {
			m.offer(.9*best, 2*time.Second)
			if m.refused > 0 {
				t.Errorf("at 90 %% of %.0f/s, %d are refused", best, m.refused)
			}
			m.stall(60 * time.Millisecond)
		}
		m.offer(1, time.Minute)
		m.offer(1e6, burst*time.Microsecond)
		if m.refused > 0 {
			t.Errorf("of a burst at an idle process, %d are refused", m.refused)
		}
	}
}

// TestAStandingQueueIsDrained has a machine whose requests cost more the more of them are under way: at one rate it either keeps
// up or stays behind. A rush makes it fall behind; it must keep up again while the load goes on.
func TestAStandingQueueIsDrained(t *testing.T) {
	// With 740 requests under way it does as many as arrive; the bound is higher.
	const best, offered = 14_000, 10_800
	m := newMachine(best, 2_500)
	m.offer(offered, 5*time.Second)
	if m.refused > 0 || m.quantile(.5) > 10*time.Millisecond {
		t.Fatalf("before: %d are refused, p50 %s", m.refused, m.quantile(.5))
	}
	m.offer(2*offered, time.Second)
	if m.refused == 0 {
		t.Fatal("the rush made no queue")
	}
	m.offer(offered, 2*time.Second)
	m.offer(offered, 5*time.Second)
	if p50 := m.quantile(.5); m.refused > 0 || p50 > 10*time.Millisecond {
		t.Errorf("two seconds after a rush %d are refused, p50 %s", m.refused, p50)
	}
	// The next queue may have burstWait again.
	m.stall(steadyWait + 5*time.Millisecond)
	m.offer(offered, time.Second)
	if m.refused > 0 {
		t.Errorf("after a stall %d are refused", m.refused)
	}
}

// TestOutagesLeaveTheBurst has nothing done for ten seconds: as many are admitted then as by an idle process, so that callers
// hear of the outage.
func TestOutagesLeaveTheBurst(t *testing.T) {
	m := newMachine(3_500, math.Inf(1))
	m.offer(1_000, 2*time.Second)
	m.stall(10 * time.Second)
	m.offer(1_000, 9*time.Second)
	if len(m.begun) < burst {
		t.Errorf("%d requests wait", len(m.begun))
	}
}
