package work_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"waitlist.internal/libs/loop"
	"waitlist.internal/libs/work"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// row is a row of the table, and what a statement returns of it.
type row struct {
	id    int
	key   string
	due   time.Time
	claim int // 0 is none
	ended bool
}

// table stands in for Postgres. Its statements are fenced as the owners' are.
type table struct {
	testing.TB
	mu     sync.Mutex
	rows   []*row
	claims int
	// took is how long each piece takes, begun how often each was begun, order in which order.
	took  func(row) time.Duration
	begun map[int]int
	order []row
	// slow is how long the answer to a statement takes.
	slow time.Duration
}

func newTable(t testing.TB, keys ...string) *table {
	t.Helper()
	tab := &table{TB: t, begun: map[int]int{}, took: func(row) time.Duration { return 100 * time.Millisecond }}
	for i, key := range keys {
		tab.rows = append(tab.rows, &row{id: i, key: key, due: time.Now()})
	}
	return tab
}

// where returns the row of a claim that holds, or nil: the fence.
func (tab *table) where(r row) *row {
	if now := tab.rows[r.id]; now.claim == r.claim {
		return now
	}
	return nil
}

func (tab *table) open() (n int) {
	tab.mu.Lock()
	defer tab.mu.Unlock()
	for _, r := range tab.rows {
		if !r.ended {
			n++
		}
	}
	return n
}

// process is one process with an engine. Its statements fail while it is partitioned from the table, and it waits before
// each step, and for each answer, while it is stalled. What is killed has no effect any more.
type process struct {
	*table
	*work.Engine[row]
	mu          sync.Mutex
	partitioned time.Time // until then
	stalled     time.Time
	killed      bool
	kill, stop  func()
	stopped     chan struct{}
}

var errAway = errors.New("no connection")

func (p *process) step(ctx context.Context) {
	for {
		p.mu.Lock()
		wait, killed := time.Until(p.stalled), p.killed
		p.mu.Unlock()
		if wait <= 0 || killed {
			return
		}
		loop.Wait(context.WithoutCancel(ctx), wait)
	}
}

// statement runs do on the table.
func (p *process) statement(ctx context.Context, do func()) error {
	p.step(ctx)
	p.mu.Lock()
	away := p.killed || time.Now().Before(p.partitioned)
	p.mu.Unlock()
	if away {
		return errAway
	}
	p.table.mu.Lock()
	do()
	slow := p.slow
	p.table.mu.Unlock()
	if !loop.Wait(ctx, slow) {
		return ctx.Err()
	}
	p.step(ctx)
	return nil
}

func (tab *table) start(workers, ahead int) *process {
	tab.Helper()
	return tab.startWith(func(*work.Config[row]) {}, workers, ahead)
}

func (tab *table) startWith(change func(*work.Config[row]), workers, ahead int) *process {
	tab.Helper()
	p := &process{table: tab, stopped: make(chan struct{})}
	cfg := work.Config[row]{
		Name: "pieces", Claim: p.claim, Renew: p.renew, Return: p.giveBack, Do: p.do, Workers: workers, Ahead: ahead,
		Key: func(r row) string { return r.key }, Provider: work.NewBreaker(time.Second, time.Minute), Log: slog.New(slog.DiscardHandler),
	}
	change(&cfg)
	p.Engine = work.New(cfg)
	ctx, cancel := context.WithCancel(context.Background())
	p.stop = func() { cancel(); <-p.stopped }
	p.kill = func() {
		p.mu.Lock()
		p.killed = true
		p.mu.Unlock()
		cancel()
	}
	go func() { defer close(p.stopped); p.Run(ctx) }()
	tab.Cleanup(p.stop)
	return p
}

// claim claims one piece of each key.
func (p *process) claim(ctx context.Context, after string, limit int, lease time.Duration) (out []row, err error) {
	err = p.statement(ctx, func() {
		due := map[string]*row{}
		for _, r := range p.rows {
			if !r.ended && !r.due.After(time.Now()) && r.key > after && due[r.key] == nil {
				due[r.key] = r
			}
		}
		for _, r := range due {
			out = append(out, *r)
		}
		slices.SortFunc(out, func(a, b row) int { return cmp.Compare(a.key, b.key) })
		out = out[:min(len(out), limit)]
		for i, r := range out {
			p.claims++
			p.rows[r.id].claim, p.rows[r.id].due = p.claims, time.Now().Add(lease)
			out[i].claim = p.claims
		}
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

func (p *process) renew(ctx context.Context, lease time.Duration, claimed []row) (holds []bool, err error) {
	err = p.statement(ctx, func() {
		for _, r := range claimed {
			now := p.where(r)
			if holds = append(holds, now != nil); now != nil {
				now.due = time.Now().Add(lease)
			}
		}
	})
	return holds, err
}

func (p *process) giveBack(ctx context.Context, pause time.Duration, claimed []row) error {
	return p.statement(ctx, func() {
		for _, r := range claimed {
			if now := p.where(r); now != nil {
				now.claim, now.due = 0, time.Now().Add(pause)
			}
		}
	})
}

// do begins a piece if its claim holds, takes its time, and settles it.
func (p *process) do(ctx context.Context, c *work.Claim[row]) {
	p.step(ctx)
	if !c.Holds() {
		return
	}
	p.mu.Lock()
	killed := p.killed
	p.mu.Unlock()
	if killed {
		return
	}
	p.table.mu.Lock()
	if p.where(c.Work) == nil {
		p.Errorf("%s is begun by a process that has lost it", c.Work.key)
	}
	p.begun[c.Work.id]++
	p.order = append(p.order, c.Work)
	took := p.took(c.Work)
	p.table.mu.Unlock()
	loop.Wait(context.WithoutCancel(ctx), took)
	c.Settle(ctx, func(ctx context.Context) error {
		return p.statement(ctx, func() {
			if now := p.where(c.Work); now != nil {
				if now.ended {
					p.Errorf("%s has two outcomes", c.Work.key)
				}
				now.ended, now.claim = true, 0
			}
		})
	})
}

func keys(n int) (out []string) {
	for i := range n {
		out = append(out, fmt.Sprintf("k%02d", i%20))
	}
	return out
}

// Processes are killed, stalled beyond their leases, partitioned and stopped. No piece is begun by a process that has
// lost it, none has two outcomes, each ends, and whoever stops leaves no claim.
func TestModel(t *testing.T) {
	t.Parallel()
	for seed := range uint64(60) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) { chaos(t, rand.New(rand.NewPCG(seed, 0))) })
		})
	}
}

func chaos(t *testing.T, r *rand.Rand) {
	tab := newTable(t, keys(300)...)
	most := 5000
	if r.IntN(3) == 0 { // some outlast a lease
		most = 50_000
	}
	tab.took = func(r row) time.Duration { return time.Duration(r.id*7919%most) * time.Millisecond }
	tab.slow = time.Duration(r.IntN(2)*r.IntN(3000)) * time.Millisecond
	processes := []*process{tab.start(3, 1), tab.start(4, 4), tab.start(2, 2)}
	for range 30 {
		sleep(time.Duration(r.IntN(8000)) * time.Millisecond)
		i := r.IntN(len(processes))
		p, until := processes[i], time.Now().Add(time.Duration(r.IntN(40_000))*time.Millisecond)
		switch p.mu.Lock(); r.IntN(4) {
		case 0:
			p.stalled = until
			p.mu.Unlock()
		case 1:
			p.partitioned = until
			p.mu.Unlock()
		case 2:
			p.mu.Unlock()
			p.kill()
			processes[i] = tab.start(1+r.IntN(4), 1+r.IntN(4))
		default:
			p.stalled, p.partitioned = time.Time{}, time.Time{}
			p.mu.Unlock()
			p.stop()
			processes[i] = tab.start(1+r.IntN(4), 1+r.IntN(4))
		}
	}
	for end := time.Now().Add(time.Hour); tab.open() > 0; sleep(time.Second) {
		if time.Now().After(end) {
			t.Fatalf("%d pieces have not ended", tab.open())
		}
	}
}

// sleep lets the fake time go by.
func sleep(d time.Duration) { loop.Wait(context.Background(), d) }

// run runs a test in its own time.
func run(t *testing.T, test func(t *testing.T)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, test)
}

// once checks that all pieces were begun, n of them and each once.
func (tab *table) once(n int) {
	tab.Helper()
	tab.mu.Lock()
	defer tab.mu.Unlock()
	for id, times := range tab.begun {
		if times != 1 {
			tab.Errorf("piece %d was begun %d times", id, times)
		}
	}
	if len(tab.begun) != n {
		tab.Errorf("%d pieces were begun, want %d", len(tab.begun), n)
	}
}

// What a process that was killed had claimed is another's when the lease ends.
func TestKilled(t *testing.T) {
	run(t, func(t *testing.T) {
		tab := newTable(t, keys(20)...)
		tab.took = func(row) time.Duration { return time.Minute }
		p := tab.start(4, 4)
		sleep(14 * time.Second) // it was renewed
		p.kill()
		tab.mu.Lock()
		tab.took = func(row) time.Duration { return 0 }
		tab.mu.Unlock()
		tab.start(4, 4)
		sleep(work.Lease + work.Poll)
		if n := tab.open(); n > 0 {
			t.Errorf("%d pieces wait", n)
		}
	})
}

// A process that stops returns what it has not begun at once, and keeps the rest however long it takes.
func TestStopped(t *testing.T) {
	run(t, func(t *testing.T) {
		tab := newTable(t, keys(16)...)
		tab.took = func(row) time.Duration { return 3 * work.Lease }
		p := tab.start(4, 4)
		sleep(time.Second)
		tab.once(4)
		tab.mu.Lock()
		tab.took = func(row) time.Duration { return 0 }
		tab.mu.Unlock()
		go p.stop()
		tab.start(4, 4)
		sleep(work.Poll + time.Second)
		if n := tab.open(); n != 4 {
			t.Errorf("%d pieces have not ended, 4 are under way", n)
		}
		<-p.stopped
		if n := tab.open(); n != 0 {
			t.Errorf("%d pieces were not finished", n)
		}
		tab.once(16)
	})
}

// A process that stops while it claims returns what it gets.
func TestStoppedWhileItClaims(t *testing.T) {
	run(t, func(t *testing.T) {
		tab := newTable(t, keys(16)...)
		tab.slow = 2 * time.Second
		p := tab.start(4, 4)
		sleep(time.Second)
		p.stop()
		for _, r := range tab.rows {
			if r.claim != 0 || tab.claims == 0 {
				t.Errorf("%s is claimed by nobody, after %d claims", r.key, tab.claims)
			}
		}
	})
}

// Work that is canceled is not begun, and what is under way learns of it. New work is done when its process is woken.
func TestCanceled(t *testing.T) {
	run(t, func(t *testing.T) {
		tab := newTable(t, keys(16)...)
		tab.took = func(row) time.Duration { return work.Lease }
		var told int
		p := tab.startWith(func(c *work.Config[row]) {
			do := c.Do
			c.Do = func(ctx context.Context, claim *work.Claim[row]) {
				go func() {
					<-claim.Context.Done()
					tab.mu.Lock()
					defer tab.mu.Unlock()
					told++
				}()
				do(ctx, claim)
			}
		}, 2, 8)
		sleep(time.Second)
		tab.mu.Lock()
		for _, r := range tab.rows {
			r.claim, r.ended = 0, true
		}
		tab.mu.Unlock()
		sleep(work.Lease / 2)
		tab.mu.Lock()
		if told != 2 {
			t.Errorf("%d of 2 were told", told)
		}
		tab.mu.Unlock()
		sleep(3 * work.Lease)
		tab.once(2)
		tab.mu.Lock()
		tab.rows[15].ended, tab.rows[15].due = false, time.Now()
		tab.mu.Unlock()
		p.Wake()
		synctest.Wait()
		tab.once(3)
	})
}

// A short outage of the table costs no claim and no outcome.
func TestShortOutage(t *testing.T) {
	run(t, func(t *testing.T) {
		tab := newTable(t, keys(40)...)
		tab.took = func(row) time.Duration { return 2 * time.Second }
		processes := []*process{tab.start(4, 4), tab.start(4, 4)}
		sleep(time.Second)
		for _, p := range processes {
			p.mu.Lock()
			p.partitioned = time.Now().Add(5 * time.Second)
			p.mu.Unlock()
		}
		sleep(time.Minute)
		if n := tab.open(); n != 0 {
			t.Errorf("%d pieces wait", n)
		}
		tab.once(40)
	})
}

// Two renewals in a row that hang cost no claim.
func TestRenewalsThatHang(t *testing.T) {
	run(t, func(t *testing.T) {
		tab := newTable(t, keys(1)...)
		tab.took = func(row) time.Duration { return 30 * time.Second }
		hang := 2
		tab.startWith(func(cfg *work.Config[row]) {
			renew := cfg.Renew
			cfg.Renew = func(ctx context.Context, lease time.Duration, claimed []row) ([]bool, error) {
				if hang > 0 {
					hang--
					<-ctx.Done()
					return nil, ctx.Err()
				}
				return renew(ctx, lease, claimed)
			}
		}, 1, 1)
		sleep(time.Second)
		tab.start(1, 1)
		sleep(time.Minute)
		tab.once(1)
	})
}

// A process that cannot reach the table begins nothing after its leases. What it had claimed is done by another.
func TestPartitioned(t *testing.T) {
	run(t, func(t *testing.T) {
		tab := newTable(t, keys(16)...)
		tab.took = func(row) time.Duration { return 20 * time.Second }
		p := tab.start(2, 8)
		sleep(time.Second)
		p.mu.Lock()
		p.partitioned = time.Now().Add(time.Hour)
		p.mu.Unlock()
		sleep(2 * work.Lease)
		tab.once(2)
		tab.start(16, 1)
		sleep(time.Minute)
		if n := tab.open(); n != 0 {
			t.Errorf("%d pieces wait", n)
		}
	})
}

// A flood of work for one does not hold up what there is for others.
func TestFlood(t *testing.T) {
	run(t, func(t *testing.T) {
		tab := newTable(t, slices.Concat(slices.Repeat([]string{"b"}, 1000), slices.Repeat([]string{"a", "c", "d"}, 5))...)
		tab.start(2, 1)
		sleep(time.Minute)
		tab.mu.Lock()
		defer tab.mu.Unlock()
		last := 0
		for i, r := range tab.order {
			if r.key != "b" {
				last = i
			}
		}
		if last > 20 {
			t.Errorf("the others ended with the piece %d", last)
		}
	})
}

// Nothing is claimed while the provider pauses, and what was claimed by then is returned.
func TestAway(t *testing.T) {
	run(t, func(t *testing.T) {
		tab := newTable(t, keys(20)...)
		provider, source := work.NewBreaker(5*time.Second, time.Minute), work.NewBreaker(time.Minute, time.Minute)
		source.Report(false)
		tab.took = func(row) time.Duration {
			if len(tab.order) == 2 {
				provider.Report(false)
			}
			return 0
		}
		tab.startWith(func(c *work.Config[row]) {
			c.Provider = provider
			c.Source = func(r row) *work.Breaker {
				if r.key == "k03" {
					return source
				}
				return nil
			}
		}, 1, 16)
		synctest.Wait()
		tab.once(2)
		tab.mu.Lock()
		if tab.claims != 16 {
			t.Errorf("%d claims", tab.claims)
		}
		for _, r := range tab.rows {
			if r.claim != 0 {
				t.Errorf("%s was not returned", r.key)
			}
		}
		tab.mu.Unlock()
		sleep(10 * time.Second)
		tab.once(19)
		sleep(2 * time.Minute)
		tab.once(20)
	})
}
