package notifier_test

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"waitlist.internal/services/notifier"
)

// die makes a holder one that has been silent for long.
func (e *env) die(p *process) {
	e.Helper()
	if _, err := e.pool.Exec(context.Background(), "UPDATE holder SET seen_at = now() - interval '1 minute' WHERE id = $1",
		p.deliveries.Holder()); err != nil {
		e.Fatal(err)
	}
}

// What a process left behind when it was killed: the queued is sent by another,
// an attempt is never made again, whether it came to the request or not.
func TestAKilledProcessLeavesNoSecondAttempt(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	dead := e.process(notifier.Limits{}) // never runs: its deliveries stay where the test puts them
	if err := dead.deliveries.Beat(t.Context()); err != nil {
		t.Fatal(err)
	}
	queued, claimed := created(notifier.Webhook, 1), created(notifier.Webhook, 2)
	e.queue(dead, queued, claimed)
	mine, err := dead.deliveries.Claim(t.Context(), time.Now(), []notifier.Key{claimed.Key})
	if err != nil || !mine[claimed.Key] {
		t.Fatalf("%v, %v", mine, err)
	}
	p := e.start(notifier.Limits{})
	e.queue(p, created(notifier.Slack, 3))
	// While it lives nobody touches what it holds.
	e.want(map[string]int{"queued": 1, "attempting": 1, "delivered": 1})
	e.die(dead)
	e.want(map[string]int{"unknown": 1, "delivered": 2})
	// It was only slow: what it holds no more it cannot claim, what came of its
	// attempt is known after all.
	again, err := dead.deliveries.Claim(t.Context(), time.Now(), []notifier.Key{queued.Key, claimed.Key})
	if err != nil || len(again) > 0 {
		t.Errorf("%v, %v", again, err)
	}
	if err := dead.deliveries.End(t.Context(), []notifier.Ended{{
		Delivery: claimed,
		Result:   notifier.Result{Outcome: notifier.Delivered, Attempted: true, Status: 200},
	}}); err != nil {
		t.Fatal(err)
	}
	e.want(map[string]int{"delivered": 3})
	p.stop()
	if n := e.count(); n != 2 {
		t.Errorf("%d attempts, want 2", n)
	}
}

// What another holder has taken over can neither be claimed nor ended by the one
// that was taken for dead.
func TestAnAdoptedDeliveryIsTheOthers(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	slow, other := e.process(notifier.Limits{}), e.process(notifier.Limits{})
	d := created(notifier.Webhook, 1)
	e.queue(slow, d)
	if queued, unknown, err := other.deliveries.Adopt(t.Context(),
		10); err != nil || len(queued) != 1 || unknown != 0 || queued[0].Key != d.Key {
		t.Fatalf("%v %d, %v", queued, unknown, err)
	}
	mine, err := slow.deliveries.Claim(t.Context(), time.Now(), []notifier.Key{d.Key})
	if err != nil || mine[d.Key] {
		t.Errorf("claimed by both: %v", err)
	}
	for _, o := range []notifier.Outcome{notifier.Skipped, notifier.Gone} {
		if err := slow.deliveries.End(t.Context(), []notifier.Ended{{Delivery: d, Result: notifier.Result{Outcome: o}}}); err != nil {
			t.Fatal(err)
		}
	}
	e.want(map[string]int{"queued": 1})
	if mine, err := other.deliveries.Claim(t.Context(), time.Now(), []notifier.Key{d.Key}); err != nil || !mine[d.Key] {
		t.Errorf("not claimed by the new holder: %v", err)
	}
}

// A claim whose answer was lost is asked for again; no other claim gets it.
func TestAClaimMayBeRepeated(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	p := e.process(notifier.Limits{})
	d := created(notifier.Webhook, 1)
	e.queue(p, d)
	at := time.Now()
	for _, tc := range []struct {
		at   time.Time
		want bool
	}{{at, true}, {at, true}, {at.Add(time.Microsecond), false}} {
		mine, err := p.deliveries.Claim(t.Context(), tc.at, []notifier.Key{d.Key})
		if err != nil || mine[d.Key] != tc.want {
			t.Errorf("%v, %v", mine, err)
		}
	}
}

// An orderly stop finishes what is under way, and leaves the rest to the next
// process at once.
func TestAnOrderlyStopHandsOver(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	release := make(chan struct{})
	e.answer = func(ctx context.Context, _ string) (notifier.Outcome, string, int) {
		select {
		case <-release:
			return notifier.Delivered, "", 200
		case <-ctx.Done():
			return notifier.TimedOut, "", 0
		}
	}
	p := e.start(notifier.Limits{LaneRunning: 2})
	var ds []notifier.Delivery
	for i := range 10 {
		ds = append(ds, created(notifier.Webhook, int64(i)))
	}
	e.queue(p, ds...)
	e.want(map[string]int{"queued": 8, "attempting": 2})
	stopped := make(chan struct{})
	go func() { defer close(stopped); p.stop() }()
	late := e.process(notifier.Limits{}) // a batch that was committed during the stop
	e.queue(late, created(notifier.Slack, 11))
	select {
	case <-stopped:
		t.Fatal("stopped before its attempts had ended")
	case <-time.After(100 * time.Millisecond):
	}
	close(release)
	<-stopped
	e.want(map[string]int{"queued": 9, "delivered": 2})
	start := time.Now()
	next := e.start(notifier.Limits{})
	e.want(map[string]int{"delivered": 11})
	if took := time.Since(start); took > 10*time.Second {
		t.Errorf("taken over after %s", took)
	}
	next.stop()
	if n := e.count(); n != 11 {
		t.Errorf("%d attempts", n)
	}
}

// Several processes that die and come share the work: no delivery twice, none
// forgotten.
func TestManyProcessesAttemptOnce(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	var mu sync.Mutex
	seen := map[string]int{}
	e.notice = func(id string, number int64) (notifier.Notice, error) {
		n := allChannels(id)
		n.Email = fmt.Sprintf("p%d@example.com", number)
		return n, nil
	}
	const rounds, each = 6, 60
	number := int64(0)
	for range rounds {
		p := e.start(notifier.Limits{LaneRunning: 3})
		other := e.start(notifier.Limits{LaneRunning: 3})
		for range each {
			number++
			e.queue(p, of(created(notifier.Webhook, number), uuid.NewString(), uuid.NewString()), created(notifier.Slack, number))
		}
		// Mid-work the holder seems dead: the others take everything over, and it
		// goes on with what it believes to have.
		e.die(p)
		p.stop()
		other.stop()
	}
	last := e.start(notifier.Limits{})
	e.eventually("all ended", func() bool {
		o := e.outcomes()
		return o["queued"]+o["attempting"] == 0
	})
	last.stop()
	e.mu.Lock()
	defer e.mu.Unlock()
	mu.Lock()
	defer mu.Unlock()
	for _, p := range e.posts {
		i := strings.Index(p.body, "@example.com")
		seen[p.url[:14]+p.body[strings.LastIndex(p.body[:i], "p"):i]]++
	}
	for what, n := range seen {
		if n > 1 {
			t.Errorf("%s attempted %d times", what, n)
		}
	}
	o := e.outcomes()
	// Trimming leaves the shared waitlist its newest.
	if o["delivered"] < rounds*each+100 || len(seen) != 2*rounds*each {
		t.Errorf("%v, %d attempts", o, len(seen))
	}
}

// While the source is away nothing is lost and nothing is asked for all the
// time.
func TestASourceThatIsAwayIsWaitedFor(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	var mu sync.Mutex
	calls, away := 0, true
	e.notice = func(id string, _ int64) (notifier.Notice, error) {
		mu.Lock()
		defer mu.Unlock()
		calls++
		if away {
			return notifier.Notice{}, context.DeadlineExceeded
		}
		return allChannels(id), nil
	}
	p := e.start(notifier.Limits{})
	e.queue(p, created(notifier.Webhook, 1), created(notifier.Slack, 1), created(notifier.Discord, 1))
	e.eventually("asked again", func() bool { mu.Lock(); defer mu.Unlock(); return calls > 3 })
	if o := e.outcomes(); !maps.Equal(o, map[string]int{"queued": 3}) {
		t.Errorf("%v", o)
	}
	mu.Lock()
	away = false
	mu.Unlock()
	e.want(map[string]int{"delivered": 3})
	if calls > 3*4+3 {
		t.Errorf("%d calls", calls)
	}
}
