package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	goredis "github.com/redis/go-redis/v9"

	"waitlist.internal/services/signup/index"
)

const (
	naiveClients = 64
	manyLists    = 64
	extraDelay   = time.Millisecond
	// warmUp is how long each side runs before the first turn that counts.
	warmUp = 3 * time.Second
	// settleTimeout bounds the draining of the outbox between turns, rebuildTimeout the building of an index.
	settleTimeout  = 2 * time.Minute
	rebuildTimeout = 5 * time.Minute
)

// bench is one run.
type bench struct {
	*lab
	options
	start   time.Time
	program string
	results []row
	notes   []string
	busy    string // see load
}

// row is a row of the table.
type row struct {
	id, what, goal string
	ours, theirs   string
	ratio          float64
	met            bool
}

func (b *bench) say(format string, args ...any) {
	fmt.Printf("%6.0fs  %s\n", clock(b.start), fmt.Sprintf(format, args...))
}

func (b *bench) add(r row) {
	verdict := "met"
	if !r.met {
		verdict = "missed"
	}
	b.say("%s %s: ratio %.2f, goal %s: %s", r.id, r.what, r.ratio, r.goal, verdict)
	b.results = append(b.results, r)
}

func (b *bench) measure(ctx context.Context) (err error) {
	pkg := packages()[b.which]
	if pkg == "" {
		return fmt.Errorf("unknown program %q", b.which)
	}
	if b.program, err = b.build(ctx, pkg); err != nil {
		return err
	}
	b.say("servers are up, %s is built", b.which)
	if b.wants("B1") || b.wants("B2") || b.wants("B3") {
		if err := b.signups(ctx); err != nil {
			return err
		}
	}
	if b.wants("B4") {
		if err := b.statuses(ctx); err != nil {
			return err
		}
	}
	if b.wants("B5") {
		if err := b.queue(ctx); err != nil {
			return err
		}
	}
	if b.wants("B6") {
		if err := b.config(ctx); err != nil {
			return err
		}
	}
	if b.wants("B7") {
		if err := b.limits(ctx); err != nil {
			return err
		}
	}
	if b.wants("B17") || b.wants("B18") {
		if err := b.pages(ctx); err != nil {
			return err
		}
	}
	if b.wants("B9") || b.wants("B10") {
		if err := b.transfers(ctx); err != nil {
			return err
		}
	}
	if b.wants("B8") || b.wants("B12") {
		if err := b.notifications(ctx); err != nil {
			return err
		}
	}
	if b.wants("B11") {
		if err := b.blasts(ctx); err != nil {
			return err
		}
	}
	if b.wants("B13") {
		if err := b.referredSignups(ctx); err != nil {
			return err
		}
	}
	if b.wants("B14") {
		for _, size := range []int{0, b.mixed} {
			if err := b.mixes(ctx, size); err != nil {
				return err
			}
		}
	}
	if b.wants("B15") {
		if err := b.idle(ctx); err != nil {
			return err
		}
	}
	if b.wants("B16") {
		if err := b.telemetry(ctx); err != nil {
			return err
		}
	}
	if b.wants("B19") {
		if err := b.clusters(ctx); err != nil {
			return err
		}
	}
	if b.former != "" && b.wants("FORMER") {
		if err := b.versions(ctx); err != nil {
			return err
		}
	}
	if b.wants("A2") {
		return b.analytics(ctx)
	}
	return nil
}

// pair holds one measurement of each side.
type pair struct{ ours, theirs sample }

// turns lets both sides run in turns; each side goes first equally often. settle runs before each turn.
func (b *bench) turns(
	ctx context.Context, name string, settle func(context.Context) error,
	ours, theirs func(context.Context, time.Duration) (sample, error), d time.Duration,
) ([]pair, error) {
	for _, side := range []func(context.Context, time.Duration) (sample, error){theirs, ours} {
		if _, err := side(ctx, min(warmUp, d)); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
	}
	pairs := make([]pair, b.pairs)
	for i := range pairs {
		first, second := ours, theirs
		to := []*sample{&pairs[i].ours, &pairs[i].theirs}
		if i%2 == 1 {
			first, second = second, first
			slices.Reverse(to)
		}
		for j, side := range []func(context.Context, time.Duration) (sample, error){first, second} {
			if err := settle(ctx); err != nil {
				return nil, fmt.Errorf("%s: %w", name, err)
			}
			s, err := side(ctx, d)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", name, err)
			}
			*to[j] = s
		}
		o, t := pairs[i].ours, pairs[i].theirs
		b.say("%s %d/%d: %.0f/s p50 %.2f ms p99 %.2f ms | %.0f/s p50 %.2f ms p99 %.2f ms", name, i+1, len(pairs),
			o.perSecond, o.quantile(.5), o.quantile(.99), t.perSecond, t.quantile(.5), t.quantile(.99))
	}
	return pairs, nil
}

// median returns the median of f over pairs.
func median(pairs []pair, f func(pair) float64) float64 {
	values := make([]float64, len(pairs))
	for i, p := range pairs {
		values[i] = f(p)
	}
	slices.Sort(values)
	if n := len(values); n%2 == 0 {
		return (values[n/2-1] + values[n/2]) / 2
	}
	return values[len(values)/2]
}

func rate(s sample) float64 { return s.perSecond }

func at(q float64) func(sample) float64 {
	return func(s sample) float64 { return s.quantile(q) }
}

// of applies a measure to both sides and returns the median of each side and of the ratios.
func of(pairs []pair, measure func(sample) float64) (ours, theirs, ratio float64) {
	return median(pairs, func(p pair) float64 { return measure(p.ours) }),
		median(pairs, func(p pair) float64 { return measure(p.theirs) }),
		median(pairs, func(p pair) float64 { return measure(p.ours) / measure(p.theirs) })
}

// signups measures B1 to B3.
func (b *bench) signups(ctx context.Context) (err error) {
	const database = "signups"
	conn, err := b.database(ctx, database)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	url, direct := b.postgres.URL(database), b.postgresAddr()
	srv, err := b.lab.start(ctx, b.program, url, database)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, srv.stop()) }()
	plain, err := newNaive(ctx, conn, b.dir, naiveTables, naiveScript)
	if err != nil {
		return err
	}
	gen := &generator{addr: srv.addr}
	settle := func(ctx context.Context) error { return b.settle(ctx, conn) }
	hot, err := newList(ctx, conn)
	if err != nil {
		return err
	}
	defer func() {
		if err == nil {
			err = b.audit(ctx, conn)
		}
	}()
	signUp := func(conns int, lists ...*list) func(context.Context, time.Duration) (sample, error) {
		return func(ctx context.Context, d time.Duration) (sample, error) { return gen.signUp(ctx, lists, conns, d) }
	}
	pgbench := func(addr string, clients int) func(context.Context, time.Duration) (sample, error) {
		return func(ctx context.Context, d time.Duration) (sample, error) {
			return plain.run(ctx, addr, database, clients, d)
		}
	}
	throughput := func(id, what string, pairs []pair) {
		ours, theirs, ratio := of(pairs, rate)
		p50ours, p50theirs, _ := of(pairs, at(.5))
		p99ours, p99theirs, _ := of(pairs, at(.99))
		b.add(row{
			id: id, what: what, goal: "≥ 8 ×", ratio: ratio, met: ratio >= 8,
			ours:   fmt.Sprintf("%.0f/s (p50 %.1f, p99 %.1f ms)", ours, p50ours, p99ours),
			theirs: fmt.Sprintf("%.0f/s (p50 %.1f, p99 %.1f ms)", theirs, p50theirs, p99theirs),
		})
	}

	if b.wants("B1") {
		stop := b.profiles(ctx, srv, "")
		pairs, err := b.turns(ctx, "B1", settle, signUp(b.conns, hot), pgbench(direct, naiveClients), b.slice)
		stop()
		if err != nil {
			return err
		}
		throughput("B1", fmt.Sprintf("Signups into one hot waitlist over %d connections, against naive signups by pgbench with %d clients.",
			b.conns, naiveClients), pairs)
	}
	if b.wants("B2") {
		lists := make([]*list, manyLists)
		for i := range lists {
			if lists[i], err = newList(ctx, conn); err != nil {
				return err
			}
		}
		one, err := newList(ctx, conn)
		if err != nil {
			return err
		}
		pairs, err := b.turns(ctx, "B2", settle, signUp(b.conns, one), signUp(b.conns, lists...), b.slice)
		if err != nil {
			return err
		}
		for _, l := range append(lists, one) {
			if err := l.exact(); err != nil {
				return err
			}
		}
		ours, theirs, ratio := of(pairs, rate)
		b.add(row{
			id: "B2", goal: "≥ 0.8 ×", ratio: ratio, met: ratio >= .8,
			what: fmt.Sprintf("Signups into one hot waitlist, against the same load over %d waitlists.", manyLists),
			ours: fmt.Sprintf("%.0f/s", ours), theirs: fmt.Sprintf("%.0f/s", theirs),
		})
	}
	if b.wants("B3") {
		pairs, err := b.turns(ctx, "B3", settle, signUp(1, hot), pgbench(direct, 1), b.slice/2)
		if err != nil {
			return err
		}
		ours, theirs, ratio := of(pairs, at(.5))
		b.add(row{
			id: "B3", goal: "≤ 2 ×", ratio: ratio, met: ratio <= 2,
			what: "p50 of one signup at a time on one connection, against pgbench's single transaction with one client.",
			ours: fmt.Sprintf("%.2f ms", ours), theirs: fmt.Sprintf("%.2f ms", theirs),
		})
	}
	if err := hot.exact(); err != nil {
		return err
	}
	if !b.wants("B1") {
		return nil
	}

	// Again with a longer round trip to Postgres, for both sides.
	far, err := b.role(ctx, roleProxy, direct, extraDelay.String())
	if err != nil {
		return err
	}
	if err := b.trips(ctx, database, direct, far); err != nil {
		return err
	}
	distant, err := b.lab.start(ctx, b.program, through(url, direct, far), database+"-far")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, distant.stop()) }()
	remote, err := newList(ctx, conn)
	if err != nil {
		return err
	}
	gen = &generator{addr: distant.addr}
	pairs, err := b.turns(ctx, "B1 + 1 ms", settle, signUp(b.conns, remote), pgbench(far, naiveClients), b.slice)
	if err != nil {
		return err
	}
	if err := remote.exact(); err != nil {
		return err
	}
	throughput("B1 + 1 ms", "B1 with 1 ms more for each round trip to Postgres, on both sides.", pairs)
	return nil
}

// settle waits until the last turn's work is done, so that it does not slow the next turn down, and lets Postgres write out
// its buffers.
func (b *bench) settle(ctx context.Context, conn *pgx.Conn) error {
	if err := published(ctx, conn); err != nil {
		return err
	}
	for _, sql := range []string{"TRUNCATE naive.outbox", "CHECKPOINT"} {
		if _, err := conn.Exec(ctx, sql); err != nil {
			return fmt.Errorf("settle Postgres: %w", err)
		}
	}
	return nil
}

// published waits until signup's outbox is empty.
func published(ctx context.Context, conn *pgx.Conn) error {
	ctx, cancel := context.WithTimeout(ctx, settleTimeout)
	defer cancel()
	err := poll(ctx, 50*time.Millisecond, func() (empty bool, err error) {
		err = conn.QueryRow(ctx, "SELECT NOT EXISTS (SELECT FROM signup.outbox)").Scan(&empty)
		return empty, err
	})
	if err != nil {
		return fmt.Errorf("wait for the outbox to drain: %w", err)
	}
	return nil
}

// audit compares every waitlist's counters with its rows. Without credits, it also checks
// that the places of the queue are numbered without a gap.
func (b *bench) audit(ctx context.Context, conn *pgx.Conn) error {
	var wrong int
	err := conn.QueryRow(ctx, `
		SELECT count(*) FROM (
			SELECT DISTINCT ON (waitlist_id) waitlist_id, live, credited FROM signup.change ORDER BY waitlist_id, no DESC
		) c FULL JOIN (
			SELECT waitlist_id, count(*) AS rows, sum(queue_key >> 20) AS places, sum(referral_count) AS referrals,
				count(referrer_number) AS credited
			FROM signup.signup GROUP BY waitlist_id
		) s USING (waitlist_id)
		WHERE c.live IS DISTINCT FROM s.rows OR c.credited <> s.credited OR s.referrals <> s.credited
			OR s.credited = 0 AND s.places <> s.rows * (s.rows + 1) / 2`).Scan(&wrong)
	if err != nil {
		return fmt.Errorf("audit: %w", err)
	}
	if wrong > 0 {
		return fmt.Errorf("audit: the counters of %d waitlists differ from their rows", wrong)
	}
	return nil
}

// trips notes the round-trip time to Postgres with and without the proxy.
func (b *bench) trips(ctx context.Context, database string, addrs ...string) error {
	took := make([]time.Duration, len(addrs))
	for i, addr := range addrs {
		conn, err := pgx.Connect(ctx, through(b.postgres.URL(database), b.postgresAddr(), addr))
		if err != nil {
			return fmt.Errorf("connect: %w", err)
		}
		defer conn.Close(context.WithoutCancel(ctx))
		each := make([]time.Duration, 201)
		for j := range each {
			start := time.Now()
			if _, err := conn.Exec(ctx, "SELECT 1"); err != nil {
				return fmt.Errorf("measure the round trip: %w", err)
			}
			each[j] = time.Since(start)
		}
		slices.Sort(each)
		took[i] = each[len(each)/2]
	}
	b.notes = append(b.notes,
		fmt.Sprintf("A round trip to Postgres (`SELECT 1`, median): %.2f ms directly, %.2f ms through the delaying proxy.",
			float64(took[0].Microseconds())/1000, float64(took[1].Microseconds())/1000))
	return nil
}

// profiles writes the service's profiles to the requested directory: CPU during the first turns, the heap at the end. stop
// waits for them.
func (b *bench) profiles(ctx context.Context, srv *server, prefix string) (stop func()) {
	if b.profile == "" {
		return func() {}
	}
	get := func(name, file string) {
		path := filepath.Join(b.profile, prefix+file)
		err := func() error {
			req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+srv.internal+"/debug/pprof/"+name, nil)
			if err == nil {
				req.AddCookie(&http.Cookie{Name: "dev_key", Value: devKey})
			}
			if err != nil {
				return err
			}
			resp, err := http.DefaultClient.Do(req)
			if err != nil {
				return err
			}
			defer resp.Body.Close()
			raw, err := io.ReadAll(resp.Body)
			if err != nil {
				return err
			}
			return os.WriteFile(path, raw, 0o600)
		}()
		if err != nil {
			b.say("no profile %s: %v", name, err)
		}
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		seconds := int((time.Duration(2*b.pairs) * b.slice).Seconds())
		get(fmt.Sprintf("profile?seconds=%d", seconds), "cpu.pprof")
	}()
	return func() {
		<-done
		get("allocs", "allocs.pprof")
	}
}

// statuses measures B4.
func (b *bench) statuses(ctx context.Context) (err error) {
	crowds := make([]statusLoad, 2)
	for i, size := range []int{b.rows, b.small} {
		database := fmt.Sprintf("status%d", i+1)
		conn, err := b.database(ctx, database)
		if err != nil {
			return err
		}
		defer conn.Close(context.WithoutCancel(ctx))
		srv, err := b.lab.start(ctx, b.program, b.postgres.URL(database), database)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, srv.stop()) }()
		l, err := newList(ctx, conn)
		if err != nil {
			return err
		}
		took, err := fill(ctx, conn, l, size)
		if err != nil {
			return err
		}
		b.say("B4: filled a waitlist with %d signups in %.0f s", size, took.Seconds())
		crowds[i] = statusLoad{addr: srv.addr, list: l, size: size}
		if took, err = b.index(ctx, crowds[i]); err != nil {
			return err
		}
		b.say("B4: its index was built in %.0f s", took.Seconds())
	}
	pairs := make([]pair, b.pairs+1)
	for i := range pairs {
		// Both at the same time, so that other load on the machine affects both.
		var large, small error
		var both sync.WaitGroup
		both.Go(func() { pairs[i].ours, large = crowds[0].offer(ctx, b.rate, b.slice) })
		both.Go(func() { pairs[i].theirs, small = crowds[1].offer(ctx, b.rate, b.slice) })
		both.Wait()
		if err := errors.Join(large, small); err != nil {
			return fmt.Errorf("B4: %w", err)
		}
		o, t := pairs[i].ours, pairs[i].theirs
		b.say("B4 %d/%d: p50 %.2f ms p99 %.2f ms | p50 %.2f ms p99 %.2f ms", i, b.pairs, o.quantile(.5), o.quantile(.99),
			t.quantile(.5), t.quantile(.99))
	}
	pairs = pairs[1:] // the first one only warms up
	ours, theirs, ratio := of(pairs, at(.99))
	p50ours, p50theirs, _ := of(pairs, at(.5))
	b.add(row{
		id: "B4", goal: "≤ 1.3 ×", ratio: ratio, met: ratio <= 1.3,
		what: fmt.Sprintf("p99 of a random person's status at %d signups against %d, at %.0f requests a second each.",
			b.rows, b.small, b.rate),
		ours:   fmt.Sprintf("%.2f ms (p50 %.2f ms)", ours, p50ours),
		theirs: fmt.Sprintf("%.2f ms (p50 %.2f ms)", theirs, p50theirs),
	})
	return nil
}

// index waits until the waitlist has its index, which the first status request starts to build.
func (b *bench) index(ctx context.Context, c statusLoad) (took time.Duration, err error) {
	ctx, cancel := context.WithTimeout(ctx, rebuildTimeout)
	defer cancel()
	o, err := goredis.ParseURL(b.redis.URL)
	if err != nil {
		return 0, fmt.Errorf("read the address of Redis: %w", err)
	}
	client := goredis.NewClient(o)
	defer client.Close()
	start := time.Now()
	if _, err := c.offer(ctx, statusConns, time.Second); err != nil {
		return 0, err
	}
	err = poll(ctx, 100*time.Millisecond, func() (bool, error) {
		live, err := client.HGet(ctx, index.KeysOf(c.list.id)[1], "live").Int()
		if errors.Is(err, goredis.Nil) {
			return false, nil
		}
		return live == c.size, err
	})
	if err != nil {
		return 0, fmt.Errorf("wait for the index: %w", err)
	}
	return time.Since(start), nil
}
