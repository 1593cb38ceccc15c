package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"waitlist.internal/libs/kafka"
	"waitlist.internal/libs/loop"
)

const (
	// mixStep is the factor between two rates of B14: four steps double the rate.
	mixStep = 1.189207115
	// mixTurns is how many turns a rate must be good in, one after the other, and mixTries how often it may try: one moment of
	// the machine does not end the search. mixGood is the p99 in milliseconds up to which a turn is good.
	mixTurns = 3
	mixTries = 2
	mixGood  = 100.0
	// overloadConns is the number of connections at twice the highest good rate: with fewer, requests would wait in the load generator.
	overloadConns = 4096
	// mixAdmitted is the goal for the p99 of the requests admitted then, in milliseconds; mixRest is the pause before the highest good
	// rate must be good again.
	mixAdmitted = 300.0
	mixRest     = 2 * time.Second
	// lagGoal is how late an event may be handled under the load of B13.
	lagGoal = 10 * time.Second
	// zipf is the exponent of the distribution of referrers: few have most of the referrals.
	zipf = 1.1
	// inviters is the number of referrers, besides all members that fill has inserted.
	inviters = 10_000
)

// launch is one waitlist that goes viral: every signup is referred, and those who are on the list look at their place.
type launch struct {
	name string
	srv  *server
	addr string
	list *list
	// events is where the program publishes its events.
	events kafka.Config
	// conn is a connection to the program's database.
	conn *pgx.Conn
	// filled is how many members fill has inserted; next is the number of the last address.
	filled int64
	next   atomic.Int64
	mu     sync.Mutex
	// tokens are those of the signups of this run.
	tokens []string
}

// token returns the token of a referrer, or "" while nobody is on the list.
func (l *launch) token(z *rand.Zipf) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := int64(z.Uint64())
	switch {
	case n < l.filled:
		return tokenOf(n + 1)
	case len(l.tokens) > 0:
		return l.tokens[n%int64(len(l.tokens))]
	}
	return ""
}

// signUp signs somebody up whom the owner of token referred; "" means nobody. It returns the number in the address.
func (l *launch) signUp(c *client, token string) (n int64, status int, err error) {
	n = l.next.Add(1)
	body := `{"email":"` + address(n) + `","first_name":"Ann","last_name":"Example","utm_source":"launch"`
	if token != "" {
		body += `,"referred_by_token":"` + token + `"`
	}
	body += "}"
	status, answer, err := c.do([]byte("POST /v1/public/waitlists/" + l.list.id + "/signups HTTP/1.1\r\nHost: bench\r\n" +
		"Content-Type: application/json\r\nContent-Length: " + strconv.Itoa(len(body)) + "\r\n\r\n" + body))
	if err != nil || status != http.StatusCreated {
		return n, status, err
	}
	const name = `"referral_token":"`
	if at := bytes.Index(answer, []byte(name)); at >= 0 && len(answer) >= at+len(name)+32 {
		l.mu.Lock()
		l.tokens = append(l.tokens, string(answer[at+len(name):at+len(name)+32]))
		l.mu.Unlock()
	}
	return n, status, l.list.recordPositions([]int{field(answer, `"position":`)})
}

// mixed is the result of one slice of the open mix.
type mixed struct {
	sample
	// shed counts answers 429. They are not in the sample.
	shed int
}

// good reports whether everything was done in time.
func (m mixed) good() bool { return m.shed == 0 && m.quantile(.99) < mixGood }

// offer offers rate requests a second for d over conns connections, whatever happens to earlier ones: 40 % referred signups, 40 %
// statuses, 15 % configs, 4 % counts, 1 % leaderboards. Latencies include the wait for a connection.
func (l *launch) offer(ctx context.Context, rate float64, conns int, d time.Duration) (mixed, error) {
	var (
		all       sync.WaitGroup
		latencies = make([][]int, conns)
		shed      = make([]int, conns)
		errs      = make([]error, conns)
		clients   = make([]*client, conns)
		gap       = time.Duration(float64(time.Second) / rate)
	)
	get := func(path string) []byte {
		return []byte("GET /v1/public/waitlists/" + l.list.id + path + " HTTP/1.1\r\nHost: bench\r\n\r\n")
	}
	config, count, board := get("/config"), get("/count"), get("/leaderboard")
	for i := range clients {
		c, err := dial(ctx, l.addr)
		if err != nil {
			return mixed{}, err
		}
		defer c.close()
		c.once, clients[i] = true, c
	}
	start := time.Now().Add(20 * time.Millisecond)
	for i, c := range clients {
		all.Go(func() {
			z := rand.NewZipf(rand.New(rand.NewPCG(rand.Uint64(), 1)), zipf, 1, uint64(l.filled+inviters))
			who := statusRequest(l.list.id)
			var mine []int64 // members who are on the list for sure
			for due := start.Add(time.Duration(i) * gap); due.Sub(start) < d && ctx.Err() == nil; due = due.Add(time.Duration(conns) * gap) {
				began := due
				if wait := time.Until(due); wait > 0 {
					<-time.After(wait)
					began = time.Now() // do not count the client's late timer
				}
				_ = c.conn.SetDeadline(time.Now().Add(answerTimeout))
				var status int
				var err error
				switch draw := rand.IntN(100); {
				case draw < 40 || (draw < 80 && l.filled == 0 && len(mine) == 0):
					var n int64
					if n, status, err = l.signUp(c, l.token(z)); status == http.StatusCreated {
						mine, status = append(mine, n), http.StatusOK
					}
				case draw < 80:
					var n int64
					if l.filled > 0 && (len(mine) == 0 || draw < 60) {
						n = 1 + rand.Int64N(l.filled)
					} else {
						n = mine[rand.IntN(len(mine))]
					}
					status, _, err = c.do(who.with(n))
				case draw < 95:
					status, _, err = c.do(config)
				case draw < 99:
					status, _, err = c.do(count)
				default:
					status, _, err = c.do(board)
				}
				switch {
				case err == nil && status == http.StatusTooManyRequests:
					shed[i]++
					continue
				case err == nil && status != http.StatusOK:
					err = fmt.Errorf("a request was answered %d", status)
				}
				if err != nil {
					errs[i] = err
					return
				}
				latencies[i] = append(latencies[i], int(time.Since(began).Microseconds()))
			}
		})
	}
	all.Wait()
	took := time.Since(start)
	if err := first(errs, ctx.Err()); err != nil {
		return mixed{}, err
	}
	m := mixed{sample: sample{latencies: slices.Concat(latencies...)}}
	slices.Sort(m.latencies)
	for _, n := range shed {
		m.shed += n
	}
	m.perSecond = float64(len(m.latencies)) / took.Seconds()
	return m, nil
}

// saturate keeps conns connections busy with referred signups for d.
func (l *launch) saturate(ctx context.Context, conns int, d time.Duration) (sample, error) {
	return repeat(ctx, l.addr, conns, d, func() func(*client) error {
		z := rand.NewZipf(rand.New(rand.NewPCG(rand.Uint64(), 1)), zipf, 1, uint64(l.filled+inviters))
		return func(c *client) error {
			_, status, err := l.signUp(c, l.token(z))
			if err == nil && status != http.StatusCreated {
				err = fmt.Errorf("signup was answered %d", status)
			}
			return err
		}
	})
}

// launches starts the whole suite, and the former one if there is one, each on a list of size members.
func (b *bench) launches(ctx context.Context, id string, size int) (out []*launch, stop func() error, err error) {
	var started closers
	stop = func() error { return started.close() }
	defer func() {
		if err != nil {
			err = errors.Join(err, stop())
		}
	}()
	program, err := b.build(ctx, packages()[standaloneProgram])
	if err != nil {
		return nil, stop, err
	}
	for i, program := range []string{program, b.former} {
		if program == "" {
			continue
		}
		name := []string{"ours", "former"}[i]
		database := fmt.Sprintf("%s_%d_%s", id, size, name)
		conn, err := b.database(ctx, database)
		if err != nil {
			return nil, stop, err
		}
		started = append(started, func() error { return conn.Close(context.WithoutCancel(ctx)) })
		srv, err := b.lab.start(ctx, program, b.postgres.URL(database), database)
		if err != nil {
			return nil, stop, err
		}
		started = append(started, srv.stop)
		l := &launch{name: name, srv: srv, addr: srv.addr, conn: conn, filled: int64(size)}
		l.events = kafka.Config{Brokers: []string{b.brokers}, TopicPrefix: database + "."}
		if l.list, err = newList(ctx, conn); err != nil {
			return nil, stop, err
		}
		l.next.Store(int64(size))
		if size > 0 {
			if _, err := fill(ctx, conn, l.list, size); err != nil {
				return nil, stop, err
			}
			if _, err := b.index(ctx, statusLoad{addr: srv.addr, list: l.list, size: size}); err != nil {
				return nil, stop, err
			}
		}
		started = append(started, func() error { return b.audit(ctx, conn) })
		out = append(out, l)
	}
	return out, stop, nil
}

// followed waits until the consumers have handled all events: what they left would slow the
// next turn, which is the other side's.
func (b *bench) followed(ctx context.Context, sides []*launch) error {
	start := time.Now()
	for _, l := range sides {
		if err := published(ctx, l.conn); err != nil {
			return err
		}
		for _, group := range []string{"admin-analytics", "messaging", "notifier"} {
			for {
				lag, err := kafka.Lag(ctx, l.events, group, kafka.SignupsTopic)
				if err != nil {
					return fmt.Errorf("lag of %s: %w", group, err)
				}
				if lag[kafka.SignupsTopic] == 0 {
					break
				}
				if !loop.Wait(ctx, 50*time.Millisecond) {
					return ctx.Err()
				}
			}
		}
		if waited := time.Since(start); waited > time.Second {
			b.say("%s: the consumers were %s behind", l.name, waited.Round(100*time.Millisecond))
		}
		start = time.Now()
	}
	return nil
}

// referredSignups measures B13.
func (b *bench) referredSignups(ctx context.Context) (err error) {
	sides, stop, err := b.launches(ctx, "b13", 0)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stop()) }()
	side := func(l *launch) func(context.Context, time.Duration) (sample, error) {
		return func(ctx context.Context, d time.Duration) (sample, error) { return l.saturate(ctx, b.conns, d) }
	}
	settle := func(ctx context.Context) error { return b.followed(ctx, sides) }
	if len(sides) > 1 {
		end := b.sideProfiles(ctx, "B13", sides)
		pairs, err := b.turns(ctx, "B13", settle, side(sides[0]), side(sides[1]), b.slice)
		end()
		if err != nil {
			return err
		}
		ours, theirs, ratio := of(pairs, rate)
		b.add(row{
			id: "B13", goal: "≥ 2 ×", ratio: ratio, met: ratio >= 2,
			what: fmt.Sprintf("Referred signups a second into one list over %d connections, all services running, "+
				"against the former program.", b.conns),
			ours: fmt.Sprintf("%.0f/s", ours), theirs: fmt.Sprintf("%.0f/s", theirs),
		})
	}
	if err := b.naiveReferredSignups(ctx, sides[0], settle, side(sides[0])); err != nil {
		return err
	}
	if err := b.followed(ctx, sides); err != nil {
		return err
	}
	if _, err := sides[0].saturate(ctx, b.conns, b.slice); err != nil {
		return fmt.Errorf("B13 lag: %w", err)
	}
	return b.lag(ctx, sides[:1])
}

// naiveReferredSignups compares saturating signups with naive referred signups by pgbench in the same database.
func (b *bench) naiveReferredSignups(
	ctx context.Context, l *launch, followed func(context.Context) error, ours func(context.Context, time.Duration) (sample, error),
) error {
	plain, err := newNaive(ctx, l.conn, b.dir, naiveTables+naiveQueue, naiveReferral)
	if err != nil {
		return err
	}
	settle := func(ctx context.Context) error {
		if err := followed(ctx); err != nil {
			return err
		}
		return b.settle(ctx, l.conn)
	}
	database := l.conn.Config().Database
	pairs, err := b.turns(ctx, "B13 naive", settle, ours, func(ctx context.Context, d time.Duration) (sample, error) {
		return plain.run(ctx, b.postgresAddr(), database, naiveClients, d)
	}, b.slice)
	if err != nil {
		return err
	}
	mine, theirs, ratio := of(pairs, rate)
	b.add(row{
		id: "B13 naive", goal: "≥ 6 ×", ratio: ratio, met: ratio >= 6,
		what: fmt.Sprintf("B13's signups against naive ones by pgbench with %d clients: insert, event and a sparse-key credit of the "+
			"referrer in one transaction.", naiveClients),
		ours: fmt.Sprintf("%.0f/s", mine), theirs: fmt.Sprintf("%.0f/s", theirs),
	})
	return nil
}

// lag measures how late the last event of a turn that has just ended is handled. The consumers take events in order, and
// they fall further behind all through a turn, if at all.
func (b *bench) lag(ctx context.Context, ours []*launch) error {
	start := time.Now()
	if err := b.followed(ctx, ours); err != nil {
		return err
	}
	late := time.Since(start)
	ratio := late.Seconds() / lagGoal.Seconds()
	b.add(row{
		id: "B13 lag", goal: "≤ 1 ×", ratio: ratio, met: ratio <= 1,
		what: "Time from the end of a turn of B13 until all consumers have handled all of its events, against the goal.",
		ours: fmt.Sprintf("%.1f s", late.Seconds()), theirs: fmt.Sprintf("%.0f s", lagGoal.Seconds()),
	})
	return nil
}

// overload compares turns at twice the highest good rate with turns at that rate, each 2 seconds after the other: the speed of a
// machine differs from one minute to the next by more than the goal allows.
func (b *bench) overload(ctx context.Context, l *launch, size int, most float64) error {
	var shed int
	side := func(rate float64, conns int) func(context.Context, time.Duration) (sample, error) {
		return func(ctx context.Context, d time.Duration) (sample, error) {
			m, err := l.offer(ctx, rate, conns, d)
			shed += m.shed
			return m.sample, err
		}
	}
	rest := func(ctx context.Context) error {
		loop.Wait(ctx, mixRest)
		return ctx.Err()
	}
	id := fmt.Sprintf("B14 at %d, twice", size)
	pairs, err := b.turns(ctx, id, rest, side(2*most, overloadConns), side(most, b.conns), b.slice)
	if err != nil {
		return err
	}
	done, asked, ratio := of(pairs, rate)
	late, again, _ := of(pairs, at(.99))
	b.say("%s: %d were refused", id, shed)
	b.add(row{
		id: id, goal: "≥ 0.9 ×", ratio: ratio, met: ratio >= .9 && late <= mixAdmitted && again < mixGood,
		what: fmt.Sprintf("Requests a second that are done at twice the highest good rate (%.0f/s) over %d connections, against those "+
			"at that rate %s before or after. Met if the p99 of what is admitted is at most %.0f ms, too, and the other below %.0f ms.",
			most, overloadConns, mixRest, mixAdmitted, mixGood),
		ours: fmt.Sprintf("%.0f/s (p99 %.1f ms)", done, late), theirs: fmt.Sprintf("%.0f/s (p99 %.1f ms)", asked, again),
	})
	return nil
}

// mixes measures B14 on a list of size members: the highest good rate, and what is done at twice it.
func (b *bench) mixes(ctx context.Context, size int) (err error) {
	sides, stop, err := b.launches(ctx, "b14", size)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stop()) }()
	best, failed := make([]float64, len(sides)), make([]bool, len(sides))
	for offered := b.mixRate; slices.Contains(failed, false); offered *= mixStep {
		good := make([]bool, len(sides))
		for range mixTries {
			bad := make([]bool, len(sides))
			for range mixTurns {
				for i, l := range sides {
					if failed[i] || good[i] || bad[i] {
						continue
					}
					m, err := l.offer(ctx, offered, b.conns, b.slice)
					if err != nil {
						return fmt.Errorf("B14: %s: %w", l.name, err)
					}
					b.say("B14 %d members, %s: offered %.0f/s, done %.0f/s, shed %d, p50 %.1f ms p99 %.1f ms", size, l.name, offered,
						m.perSecond, m.shed, m.quantile(.5), m.quantile(.99))
					bad[i] = !m.good()
				}
			}
			for i := range sides {
				good[i] = good[i] || !failed[i] && !bad[i]
			}
		}
		for i := range sides {
			if failed[i] = !good[i]; good[i] {
				best[i] = offered
			}
		}
	}
	if err := b.overload(ctx, sides[0], size, max(best[0], b.mixRate)); err != nil {
		return err
	}
	if len(sides) < 2 {
		return nil
	}
	theirs := fmt.Sprintf("%.0f/s", best[1])
	if best[1] == 0 {
		theirs = fmt.Sprintf("below %.0f/s", b.mixRate)
	}
	ratio := best[0] / max(best[1], b.mixRate)
	b.add(row{
		id: fmt.Sprintf("B14 at %d", size), goal: "≥ 2 ×", ratio: ratio, met: ratio > 2/math.Sqrt(mixStep), // four steps are not quite 2
		what: fmt.Sprintf("The highest rate of a launch's mix "+
			"(40 %% referred signups, 40 %% statuses, 15 %% configs, 4 %% counts, 1 %% leaderboards) "+
			"with p99 below %.0f ms in %d turns in a row, at the first or second try, all services running, against the former program.",
			mixGood, mixTurns),
		ours: fmt.Sprintf("%.0f/s", best[0]), theirs: theirs,
	})
	return nil
}
