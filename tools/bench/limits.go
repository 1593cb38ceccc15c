package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"waitlist.internal/libs/loop"
	"waitlist.internal/libs/ratelimit"
)

const (
	// The limit of B7, its processes and the connections to each. limitRest fills the bucket.
	limitRPS, limitBurst = 100, 200
	limitProcesses       = 4
	limitConns           = 4
	limitRest            = 3 * time.Second
	// limitPause is how long a refused client waits.
	limitPause = time.Millisecond
	// limitAdded and limitStalled are the goals for what the limiter may add to a request, in milliseconds: usually, and
	// while Redis does not answer, for the time stall.
	limitAdded   = 1.0
	limitStalled = 100.0
	stall        = 2 * time.Second
)

// limits measures B7.
func (b *bench) limits(ctx context.Context) (err error) {
	const database = "limits"
	conn, err := b.database(ctx, database)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	servers := make([]*server, limitProcesses)
	for i := range servers {
		srv, err := b.lab.start(ctx, b.program, b.postgres.URL(database), database+strconv.Itoa(i),
			"RATE_LIMIT_RPS="+strconv.Itoa(limitRPS), "RATE_LIMIT_BURST="+strconv.Itoa(limitBurst), "REPLICAS="+strconv.Itoa(limitProcesses))
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, srv.stop()) }()
		servers[i] = srv
	}
	l, err := newList(ctx, conn)
	if err != nil {
		return err
	}
	request := []byte("GET /v1/public/waitlists/" + l.id + "/config HTTP/1.1\r\nHost: bench\r\n\r\n")
	if !loop.Wait(ctx, limitRest) {
		return ctx.Err()
	}
	admitted, took, err := flood(ctx, servers, request, b.slice)
	if err != nil {
		return fmt.Errorf("B7: %w", err)
	}
	allowed := limitBurst + limitRPS*took.Seconds()
	ratio := float64(admitted) / allowed
	b.add(row{
		id: "B7", goal: "1 × ± 1 %", ratio: ratio, met: math.Abs(ratio-1) <= .01,
		what: fmt.Sprintf("Requests that %d processes together admit in %.0f s after a rest, against a burst of %d and %d a second.",
			limitProcesses, took.Seconds(), limitBurst, limitRPS),
		ours: strconv.FormatInt(admitted, 10), theirs: fmt.Sprintf("%.0f", allowed),
	})
	o, err := goredis.ParseURL(b.redis.URL)
	if err != nil {
		return fmt.Errorf("read the address of Redis: %w", err)
	}
	rdb := goredis.NewClient(o)
	defer func() { _ = rdb.Close() }()
	if err := b.limitAdds(ctx); err != nil {
		return err
	}

	srv, err := b.lab.start(ctx, b.program, b.postgres.URL(database), database)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, srv.stop()) }()
	before, err := repeatRequest(ctx, srv.addr, request, 1, stall)
	if err != nil {
		return fmt.Errorf("B7: %w", err)
	}
	if err := rdb.ClientPause(ctx, stall).Err(); err != nil {
		return fmt.Errorf("stall Redis: %w", err)
	}
	during, err := repeatRequest(ctx, srv.addr, request, 1, stall)
	if err != nil {
		return fmt.Errorf("B7, Redis stalled: %w", err)
	}
	adds := during.quantile(1) - before.quantile(.5)
	b.add(row{
		id: "B7 stalled", goal: "≤ 1 ×", ratio: adds / limitStalled, met: adds <= limitStalled,
		what: fmt.Sprintf("What the slowest of %d configs in a row took longer than the median while Redis did not answer, against the goal. "+
			"All were answered 200.", len(during.latencies)),
		ours: fmt.Sprintf("%.1f ms", adds), theirs: fmt.Sprintf("%.0f ms", limitStalled),
	})
	return nil
}

// limitAdds measures what the limiter adds to a request that is alone.
func (b *bench) limitAdds(ctx context.Context) error {
	rdb, err := ratelimit.OpenRedis(b.redis.URL, "")
	if err != nil {
		return fmt.Errorf("read the address of Redis: %w", err)
	}
	defer func() { _ = rdb.Close() }()
	limiter := ratelimit.New(rdb, ratelimit.Options{RPS: 1_000_000, Burst: 1_000_000, Key: "bench"})
	var s sample
	for end := time.Now().Add(b.slice); time.Now().Before(end); {
		start := time.Now()
		if ok, _ := limiter.Allow(ctx); !ok {
			return errors.New("B7: the limiter refused a request")
		}
		s.latencies = append(s.latencies, int(time.Since(start).Microseconds()))
	}
	slices.Sort(s.latencies)
	p50 := s.quantile(.5)
	b.add(row{
		id: "B7 added", goal: "≤ 1 ×", ratio: p50 / limitAdded, met: p50 <= limitAdded,
		what: "p50 of the limiter's decision about one request at a time, which Redis makes, against the goal.",
		ours: fmt.Sprintf("%.2f ms (p99 %.2f ms)", p50, s.quantile(.99)), theirs: fmt.Sprintf("%.0f ms", limitAdded),
	})
	return nil
}

// flood sends each server more requests than it admits, for d. It returns how many were admitted, and the time that
// this took.
func flood(ctx context.Context, servers []*server, request []byte, d time.Duration) (int64, time.Duration, error) {
	var (
		admitted atomic.Int64
		all      sync.WaitGroup
		clients  = make([]*client, limitConns*len(servers))
		errs     = make([]error, len(clients))
	)
	for i := range clients {
		c, err := dial(ctx, servers[i%len(servers)].addr)
		if err != nil {
			return 0, 0, err
		}
		defer c.close()
		c.once, clients[i] = true, c
	}
	start := time.Now()
	for i, c := range clients {
		all.Go(func() {
			_ = c.conn.SetDeadline(start.Add(d + answerTimeout))
			for time.Since(start) < d && ctx.Err() == nil {
				status, body, err := c.do(request)
				switch {
				case err != nil:
				case status == http.StatusOK:
					admitted.Add(1)
				case status == http.StatusTooManyRequests:
					loop.Wait(ctx, limitPause)
				default:
					err = fmt.Errorf("config was answered %d: %s", status, body)
				}
				if err != nil {
					errs[i] = err
					return
				}
			}
		})
	}
	all.Wait()
	return admitted.Load(), time.Since(start), first(errs, ctx.Err())
}
