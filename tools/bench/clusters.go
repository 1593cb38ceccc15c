package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httputil"
	"net/url"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"waitlist.internal/libs/devservers"
)

const (
	// clustersGoal is the rate over two clusters on the processors of one, as a share of that of one.
	clustersGoal = .9
	// askEvery is the pause between two signups into the waitlist whose cluster is away.
	askEvery = 100 * time.Millisecond
)

// cluster is a signup service with its own Postgres and Redis.
type cluster struct {
	postgres *devservers.Postgres
	url      string
	srv      *server
	conn     *pgx.Conn
}

// openCluster starts a cluster.
func (b *bench) openCluster(ctx context.Context, name string) (c *cluster, stop func() error, err error) {
	c = new(cluster)
	var started closers
	stop = func() error { return started.close() }
	defer func() {
		if err != nil {
			err = errors.Join(err, stop())
		}
	}()
	options := devservers.PostgresOptions{Dir: filepath.Join(b.dir, name+"-postgres"), Settings: settings()}
	if c.postgres, err = devservers.StartPostgres(ctx, options); err != nil {
		return nil, nil, err
	}
	started = append(started, func() error { return c.postgres.Stop() })
	redis, err := devservers.StartRedis(ctx, devservers.RedisOptions{Dir: filepath.Join(b.dir, name+"-redis")})
	if err != nil {
		return nil, nil, err
	}
	started = append(started, redis.Stop)
	if err := c.postgres.CreateDatabase(ctx, name); err != nil {
		return nil, nil, err
	}
	c.url = c.postgres.URL(name)
	if c.srv, err = b.lab.start(ctx, b.program, c.url, name, "REDIS_URL="+redis.URL); err != nil {
		return nil, nil, err
	}
	started = append(started, c.srv.stop)
	if err := c.connect(ctx); err != nil {
		return nil, nil, err
	}
	started = append(started, func() error { return c.conn.Close(context.WithoutCancel(ctx)) })
	return c, stop, nil
}

func (c *cluster) connect(ctx context.Context) (err error) {
	if c.conn, err = pgx.Connect(ctx, c.url); err != nil {
		return fmt.Errorf("connect to a cluster: %w", err)
	}
	return nil
}

// without stops Postgres, whose folder is dir, while during runs.
func (c *cluster) without(ctx context.Context, dir string, during func() error) error {
	port := c.postgres.Port()
	_ = c.conn.Close(ctx)
	if err := c.postgres.Stop(); err != nil {
		return err
	}
	failed := during()
	var err error
	c.postgres, err = devservers.StartPostgres(ctx, devservers.PostgresOptions{Dir: dir, Port: port, Settings: settings()})
	if err == nil {
		err = c.connect(ctx)
	}
	return errors.Join(failed, err)
}

// spent is what signups cost their clusters.
type spent struct {
	signups int
	cpu     time.Duration // of the programs, without their servers
	syncs   int           // of the write-ahead log
}

// String tells the costs of one signup.
func (s spent) String() string {
	n := float64(s.signups)
	return fmt.Sprintf("%.0f µs of signup's processor time and %.2f syncs of the write-ahead log",
		float64(s.cpu.Microseconds())/n, float64(s.syncs)/n)
}

// spentBy returns what the clusters have spent so far.
func spentBy(ctx context.Context, clusters []*cluster) (sum spent, err error) {
	for _, c := range clusters {
		cpu, err := c.srv.cpu()
		if err != nil {
			return spent{}, err
		}
		var syncs int
		if err := c.conn.QueryRow(ctx, "SELECT wal_sync FROM pg_stat_wal").Scan(&syncs); err != nil {
			return spent{}, fmt.Errorf("count the syncs of the log: %w", err)
		}
		sum.cpu += cpu
		sum.syncs += syncs
	}
	return sum, nil
}

// clusters measures B19: a router sends the requests of each waitlist to the cluster that has it.
func (b *bench) clusters(ctx context.Context) (err error) {
	var two [2]*cluster
	for i := range two {
		c, stop, err := b.openCluster(ctx, fmt.Sprintf("cluster%d", i+1))
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, stop()) }()
		two[i] = c
	}
	lists := make([]*list, 4) // the last one is in the second cluster
	for i := range lists {
		if lists[i], err = newList(ctx, two[i/3].conn); err != nil {
			return err
		}
	}
	front, err := b.role(ctx, roleRouter, two[0].srv.addr, "/v1/public/waitlists/"+lists[3].id+"="+two[1].srv.addr)
	if err != nil {
		return err
	}
	gen := &generator{addr: front}
	side := func(sum *spent, lists ...*list) func(context.Context, time.Duration) (sample, error) {
		return func(ctx context.Context, d time.Duration) (sample, error) {
			before, err := spentBy(ctx, two[:])
			if err != nil {
				return sample{}, err
			}
			s, failed := gen.signUp(ctx, lists, b.conns, d)
			after, err := spentBy(ctx, two[:])
			sum.signups += len(s.latencies)
			sum.cpu += after.cpu - before.cpu
			sum.syncs += after.syncs - before.syncs
			return s, errors.Join(failed, err)
		}
	}
	var apart, together spent
	settle := func(ctx context.Context) error {
		return errors.Join(published(ctx, two[0].conn), published(ctx, two[1].conn))
	}
	pairs, err := b.turns(ctx, "B19", settle, side(&apart, lists[2], lists[3]), side(&together, lists[0], lists[1]), b.slice)
	if err != nil {
		return err
	}
	b.notes = append(b.notes, fmt.Sprintf("In two clusters a signup takes %s, in one %s.", apart, together))
	ours, theirs, ratio := of(pairs, rate)
	b.add(row{
		id: "B19", goal: "≥ 0.9 ×", ratio: ratio, met: ratio >= clustersGoal,
		what: fmt.Sprintf("Signups through a router over %d connections into two waitlists, each in a cluster of its own, "+
			"against both in one cluster, on the same processors.", b.conns),
		ours: fmt.Sprintf("%.0f/s", ours), theirs: fmt.Sprintf("%.0f/s", theirs),
	})
	if err := b.clusterAway(ctx, two[1], gen, lists[2], lists[3]); err != nil {
		return err
	}
	for _, l := range lists {
		if err := l.exact(); err != nil {
			return err
		}
	}
	return errors.Join(b.audit(ctx, two[0].conn), b.audit(ctx, two[1].conn))
}

// clusterAway measures what signups into one waitlist notice while the Postgres of another's cluster is away.
func (b *bench) clusterAway(ctx context.Context, away *cluster, gen *generator, here, there *list) error {
	before, err := gen.signUp(ctx, []*list{here}, b.conns, b.slice)
	if err != nil {
		return err
	}
	var during sample
	var refused int
	err = away.without(ctx, filepath.Join(b.dir, "cluster2-postgres"), func() error {
		asking, stop := context.WithCancel(ctx)
		var failed error
		var asker sync.WaitGroup
		asker.Go(func() { refused, failed = gen.countRefusals(asking, there) })
		var err error
		during, err = gen.signUp(ctx, []*list{here}, b.conns, b.slice)
		stop()
		asker.Wait()
		return errors.Join(err, failed)
	})
	if err != nil {
		return fmt.Errorf("B19: %w", err)
	}
	ratio := during.perSecond / before.perSecond
	b.add(row{
		id: "B19 away", goal: "≥ 0.9 ×", ratio: ratio, met: ratio >= clustersGoal,
		what: fmt.Sprintf("Signups into a waitlist while the Postgres of the other cluster is away, where %d were answered 500, against before.",
			refused),
		ours:   fmt.Sprintf("%.0f/s (p99 %.1f ms)", during.perSecond, during.quantile(.99)),
		theirs: fmt.Sprintf("%.0f/s (p99 %.1f ms)", before.perSecond, before.quantile(.99)),
	})
	// The cluster serves again, and its waitlist goes on without a gap.
	back, cancel := context.WithTimeout(ctx, settleTimeout)
	defer cancel()
	if err := away.srv.awaitReady(back); err != nil {
		return fmt.Errorf("B19: wait for the cluster: %w", err)
	}
	_, err = gen.signUp(ctx, []*list{there}, b.conns, b.slice/2)
	return err
}

// countRefusals signs up into a waitlist whose database is away until ctx ends, and counts the answers, each of which must be 500.
func (g *generator) countRefusals(ctx context.Context, l *list) (refused int, err error) {
	c, err := dial(ctx, g.addr)
	if err != nil {
		return 0, err
	}
	defer c.close()
	request := signupRequest(l.id)
	tick := time.NewTicker(askEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return refused, nil
		case <-tick.C:
		}
		_ = c.conn.SetDeadline(time.Now().Add(answerTimeout))
		status, body, err := c.do(request.with(g.next.Add(1)))
		if err == nil && status != http.StatusInternalServerError {
			err = fmt.Errorf("a signup without Postgres was answered %d: %s", status, body)
		}
		if err != nil {
			return refused, err
		}
		refused++
	}
}

// router forwards requests to the first address, and those below the path of a rule path=address to that address, until
// standard input ends. An HTTPRoute with a longer prefix does the same at a Gateway.
func router(ctx context.Context, rest string, rules []string) error {
	to := func(addr string) *httputil.ReverseProxy {
		target := &url.URL{Scheme: "http", Host: addr}
		return &httputil.ReverseProxy{
			Transport: &http.Transport{MaxIdleConnsPerHost: 1024, DisableCompression: true},
			Rewrite: func(p *httputil.ProxyRequest) {
				p.SetURL(target)
				p.Out.Host = p.In.Host
			},
		}
	}
	type rule struct {
		prefix string
		proxy  *httputil.ReverseProxy
	}
	var table []rule
	for _, r := range rules {
		prefix, addr, _ := strings.Cut(r, "=")
		table = append(table, rule{prefix + "/", to(addr)})
	}
	others := to(rest)
	return serveBare(ctx, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for _, rule := range table {
			if strings.HasPrefix(r.URL.Path, rule.prefix) {
				rule.proxy.ServeHTTP(w, r)
				return
			}
		}
		others.ServeHTTP(w, r)
	}))
}
