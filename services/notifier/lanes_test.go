package notifier_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"waitlist.internal/services/notifier"
)

// host gives every waitlist that test names a host of its own.
func (e *env) hosts(names map[string]string) {
	e.notice = func(id string, _ int64) (notifier.Notice, error) {
		n := allChannels(id)
		n.URLs[notifier.Webhook] = "https://" + names[id] + "/" + id
		return n, nil
	}
}

// An endpoint that hangs has its own queue, which is bounded; the others are
// served meanwhile, those of the same owner and host too.
func TestOneThatHangsDelaysNobody(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name              string
		sameOwner, sameIP bool
	}{{"another owner", false, false}, {"the same owner", true, false}, {"another owner at the same host", false, true}} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			e := newEnv(t)
			bad, good := uuid.NewString(), uuid.NewString()
			badOwner, goodOwner := uuid.NewString(), uuid.NewString()
			names := map[string]string{bad: "hangs.example.com", good: "answers.example.com"}
			if tc.sameOwner {
				goodOwner = badOwner
			}
			if tc.sameIP {
				names[good] = names[bad]
			}
			e.hosts(names)
			e.answer = func(ctx context.Context, url string) (notifier.Outcome, string, int) {
				if strings.HasSuffix(url, bad) {
					<-ctx.Done()
					return notifier.TimedOut, "", 0
				}
				return notifier.Delivered, "", 200
			}
			p := e.start(notifier.Limits{Running: 64, LaneQueued: 100})
			var flood []notifier.Delivery
			for i := range int64(250) {
				flood = append(flood, of(created(notifier.Webhook, i), bad, badOwner))
			}
			e.queue(p, flood...)
			if o := e.outcomes(); o["dropped"] != 150 {
				t.Errorf("%v", o)
			}
			for i := range int64(100) {
				e.queue(p, of(created(notifier.Webhook, i), good, goodOwner))
			}
			start := time.Now()
			e.eventually("the healthy are served", func() bool { return e.outcomes()["delivered"] == 100 })
			if took := time.Since(start); took > notifier.Timeout/2 {
				t.Errorf("served after %s", took)
			}
			p.stop()
		})
	}
}

// What an outage of the broker held back comes at once. It waits, and all of it is sent.
func TestBacklogIsSent(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	var sent atomic.Int64
	e.answer = func(context.Context, string) (notifier.Outcome, string, int) {
		sent.Add(1)
		return notifier.Delivered, "", 200
	}
	p := e.start(notifier.Limits{})
	var ds []notifier.Delivery
	for i := range int64(3_000) {
		ds = append(ds, created(notifier.Webhook, i))
	}
	e.queue(p, ds...)
	e.eventually("all are sent", func() bool { return sent.Load() == int64(len(ds)) })
	p.stop()
}

// No owner, host or endpoint has more under way than it may, nor do all.
func TestLimits(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	limits := notifier.Limits{Running: 12, OwnerRunning: 6, HostRunning: 4, LaneRunning: 3}
	var mu sync.Mutex
	now, most := map[string]int{}, map[string]int{}
	names, owners := map[string]string{}, map[string]string{}
	for i := range 12 {
		id := uuid.NewString()
		// Owners o0 to o3 with three lists each, over three hosts.
		names[id], owners[id] = fmt.Sprintf("h%d.example.com", i%3), fmt.Sprintf("00000000-0000-0000-0000-00000000000%d", i/3)
	}
	e.hosts(names)
	e.answer = func(_ context.Context, url string) (notifier.Outcome, string, int) {
		id := url[strings.LastIndex(url, "/")+1:]
		keys := []string{"all", "owner " + owners[id], "host " + names[id], "lane " + id}
		mu.Lock()
		for _, k := range keys {
			now[k]++
			most[k] = max(most[k], now[k])
		}
		mu.Unlock()
		wait := time.NewTimer(2 * time.Millisecond)
		<-wait.C
		mu.Lock()
		defer mu.Unlock()
		for _, k := range keys {
			now[k]--
		}
		return notifier.Delivered, "", 200
	}
	p := e.start(limits)
	var ds []notifier.Delivery
	for i := range int64(20) {
		for id, owner := range owners {
			ds = append(ds, of(created(notifier.Webhook, i), id, owner))
		}
	}
	e.queue(p, ds...)
	e.want(map[string]int{"delivered": len(ds)})
	p.stop()
	for k, n := range most {
		limit := map[string]int{"all": 12, "owner": 6, "host": 4, "lane": 3}[strings.Fields(k)[0]]
		if n > limit {
			t.Errorf("%s: %d at a time", k, n)
		}
	}
	if most["all"] < 9 {
		t.Errorf("only %d at a time", most["all"])
	}
}

// Owners take turns: one with little to send is not behind one with much.
func TestOwnersTakeTurns(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	names, much, little := map[string]string{}, []string{}, uuid.NewString()
	for range 10 {
		id := uuid.NewString()
		much, names[id] = append(much, id), "much.example.com"
	}
	names[little] = "little.example.com"
	e.hosts(names)
	gate := make(chan struct{})
	e.answer = func(context.Context, string) (notifier.Outcome, string, int) {
		<-gate
		return notifier.Delivered, "", 200
	}
	p := e.start(notifier.Limits{Running: 1})
	owner := uuid.NewString()
	var ds []notifier.Delivery
	for _, id := range much {
		for i := range int64(10) {
			ds = append(ds, of(created(notifier.Webhook, i), id, owner))
		}
	}
	e.queue(p, ds...)
	e.queue(p, of(created(notifier.Webhook, 1), little, uuid.NewString()))
	e.want(map[string]int{"queued": 100, "attempting": 1})
	close(gate)
	e.want(map[string]int{"delivered": 101})
	p.stop()
	for i, post := range e.posts {
		if strings.HasSuffix(post.url, little) {
			if i > 2 {
				t.Errorf("served as number %d", i+1)
			}
			return
		}
	}
	t.Error("not served")
}

// Round by round, however the owners came.
func TestOwnersTakeTurnsInRounds(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	const owners, each = 3, 10
	names := map[string]string{}
	p := e.process(notifier.Limits{Running: 1})
	for i := range owners {
		id := uuid.NewString()
		names[id] = fmt.Sprintf("h%d.example.com", i)
		var ds []notifier.Delivery
		for n := range int64(each) {
			ds = append(ds, of(created(notifier.Webhook, n), id, uuid.NewSHA1(uuid.Nil, []byte(id)).String()))
		}
		e.queue(p, ds...)
	}
	e.hosts(names)
	e.run(p)
	e.queue(p) // begins what was brought before the start
	e.want(map[string]int{"delivered": owners * each})
	p.stop()
	for round := range each {
		seen := map[string]bool{}
		for _, post := range e.posts[round*owners : (round+1)*owners] {
			seen[post.url] = true
		}
		if len(seen) != owners {
			t.Errorf("round %d: %v", round, seen)
		}
	}
}

// An endpoint that lets attempts time out gets fewer at a time, and more again
// once it answers.
func TestAnEndpointThatHangsGetsFewerAtATime(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	var mu sync.Mutex
	calls := 0
	gate := make(chan struct{})
	e.answer = func(context.Context, string) (notifier.Outcome, string, int) {
		mu.Lock()
		calls++
		slow := calls <= 40
		mu.Unlock()
		if slow {
			return notifier.TimedOut, "", 0
		}
		<-gate
		return notifier.Delivered, "", 200
	}
	p := e.start(notifier.Limits{LaneRunning: 8})
	var ds []notifier.Delivery
	for i := range int64(100) {
		ds = append(ds, created(notifier.Webhook, i))
	}
	e.queue(p, ds...)
	underWay := func(n int) func() bool { return func() bool { return e.outcomes()["attempting"] == n } }
	e.eventually("one at a time", func() bool { o := e.outcomes(); return o["timeout"] == 40 && o["attempting"] == 1 })
	gate <- struct{}{}
	e.eventually("two at a time", underWay(2))
	for range 6 {
		gate <- struct{}{}
	}
	e.eventually("eight at a time", underWay(8))
	close(gate)
	e.want(map[string]int{"timeout": 40, "delivered": 60})
	p.stop()
}

// The log has an end, and goes with its waitlist.
func TestTheLogIsBounded(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	p := e.start(notifier.Limits{})
	other := uuid.NewString()
	for i := range int64(150) {
		e.queue(p, created(notifier.Webhook, i), of(created(notifier.Webhook, i), other, ownerID))
	}
	e.want(map[string]int{"delivered": 200})
	var newest int
	if err := e.pool.QueryRow(t.Context(), "SELECT count(*) FROM delivery WHERE number >= 40").Scan(&newest); err != nil || newest < 190 {
		t.Errorf("%d of the newest, %v", newest, err)
	}
	if _, err := e.pool.Exec(t.Context(), "UPDATE delivery SET ended_at = ended_at - interval '15 days' WHERE waitlist_id = $1",
		other); err != nil {
		t.Fatal(err)
	}
	if n, err := p.deliveries.Prune(t.Context(), time.Now().Add(-14*24*time.Hour)); n != 100 || err != nil {
		t.Errorf("%d, %v", n, err)
	}
	e.want(map[string]int{"delivered": 100})
}
