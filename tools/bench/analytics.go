package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"time"
)

const (
	// analyticsConns is the number of connections that the analytics requests use in turn.
	analyticsConns = 16
	// analyticsGoal is the goal for the p99 of analytics requests.
	analyticsGoal = 50 * time.Millisecond
	// The data of the waitlist whose analytics are requested, besides its signups.
	analyticsDays = 90
	originValues  = 10_000 // per field
	referrers     = 100_000
)

// repeatRequest repeats a request on conns connections for d. Each answer must be 200.
func repeatRequest(ctx context.Context, addr string, request []byte, conns int, d time.Duration) (sample, error) {
	return repeat(ctx, addr, conns, d, func() func(*client) error {
		return func(c *client) error {
			status, body, err := c.do(request)
			if err == nil && status != http.StatusOK {
				err = fmt.Errorf("request was answered %d: %s", status, body)
			}
			return err
		}
	})
}

// repeat keeps conns connections busy for d, each with exchanges of its own.
func repeat(ctx context.Context, addr string, conns int, d time.Duration, exchange func() func(*client) error) (sample, error) {
	var (
		all       sync.WaitGroup
		latencies = make([][]int, conns)
		errs      = make([]error, conns)
		start     = time.Now()
		end       = start.Add(d)
	)
	for i := range conns {
		c, err := dial(ctx, addr)
		if err != nil {
			return sample{}, err
		}
		defer c.close()
		exchange := exchange()
		all.Go(func() {
			for now := time.Now(); now.Before(end) && ctx.Err() == nil; {
				_ = c.conn.SetDeadline(now.Add(answerTimeout))
				if errs[i] = exchange(c); errs[i] != nil {
					return
				}
				done := time.Now()
				latencies[i] = append(latencies[i], int(done.Sub(now).Microseconds()))
				now = done
			}
		})
	}
	all.Wait()
	took := time.Since(start)
	if err := first(errs, ctx.Err()); err != nil {
		return sample{}, err
	}
	s := sample{latencies: slices.Concat(latencies...)}
	slices.Sort(s.latencies)
	s.perSecond = float64(len(s.latencies)) / took.Seconds()
	return s, nil
}

// analytics measures A2: requests to the whole suite for the analytics of a large waitlist.
func (b *bench) analytics(ctx context.Context) (err error) {
	const database = "analytics"
	s, conn, err := b.openSuite(ctx, database)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close(ctx, conn)) }()
	l, err := s.newList(ctx)
	if err != nil {
		return err
	}
	took, err := fill(ctx, conn, l, b.rows)
	if err != nil {
		return err
	}
	b.say("A2: filled a waitlist with %d signups in %.0f s", b.rows, took.Seconds())
	for _, sums := range []struct {
		sql string
		n   int
	}{
		{`UPDATE signup.signup SET referral_count = 1 + number % 1000, referral_at = now()
		  WHERE waitlist_id = $1 AND number <= $2`, referrers},
		{`INSERT INTO admin_analytics.day (waitlist_id, day, views, signups, referral_signups)
		  SELECT $1, (now() AT TIME ZONE 'UTC')::date - n, 3 * n, n, n / 2 FROM generate_series(0, $2::int - 1) n`, analyticsDays},
		{`INSERT INTO admin_analytics.utm_value (waitlist_id, field, value, count, last_number)
		  SELECT $1, field, 'value ' || n, 1 + n % 997, n
		  FROM unnest(ARRAY['utm_source', 'utm_medium', 'utm_campaign']) field, generate_series(1, $2::int) n`, originValues},
		{`INSERT INTO admin_analytics.utm_total (waitlist_id, field, count)
		  SELECT $1, field, sum(count) FROM admin_analytics.utm_value WHERE last_number <= $2 GROUP BY field`, originValues},
	} {
		if _, err := conn.Exec(ctx, sums.sql, l.id, sums.n); err != nil {
			return fmt.Errorf("fill the analytics: %w", err)
		}
	}
	if _, err := conn.Exec(ctx, "VACUUM (ANALYZE)"); err != nil {
		return fmt.Errorf("settle the tables: %w", err)
	}
	for _, q := range []struct{ id, what, path string }{
		{"A2", fmt.Sprintf("p99 of the analytics of %d days for %d signups", analyticsDays, b.rows), "/analytics?range=90d"},
		{"A2 origins", fmt.Sprintf("p99 of the origins with %d values per field", originValues), "/analytics/utm"},
	} {
		request := []byte("GET /v1/waitlists/" + l.id + q.path + " HTTP/1.1\r\nHost: bench\r\nAuthorization: Bearer " + s.idToken + "\r\n\r\n")
		var answers sample
		for i := range b.pairs + 1 {
			got, err := arrive(ctx, s.addr, request, b.rate/4, b.slice)
			if err != nil {
				return fmt.Errorf("%s: %w", q.id, err)
			}
			if i > 0 { // the first one only warms up
				answers.latencies = append(answers.latencies, got.latencies...)
			}
		}
		slices.Sort(answers.latencies)
		p99 := answers.quantile(.99)
		goal := milliseconds(analyticsGoal)
		b.add(row{
			id: q.id, goal: "< 1 ×", ratio: p99 / goal, met: p99 < goal,
			what: fmt.Sprintf("%s, at %.0f requests a second, against the goal.", q.what, b.rate/4),
			ours: fmt.Sprintf("%.1f ms (p50 %.1f)", p99, answers.quantile(.5)), theirs: fmt.Sprintf("%.0f ms", goal),
		})
	}
	return nil
}

// arrive sends requests at a constant rate for d, as crowd.ask does. Each answer must be 200.
func arrive(ctx context.Context, addr string, request []byte, rate float64, d time.Duration) (sample, error) {
	var (
		all       sync.WaitGroup
		latencies = make([][]int, analyticsConns)
		errs      = make([]error, analyticsConns)
		start     = time.Now().Add(10 * time.Millisecond)
		gap       = time.Duration(float64(time.Second) / rate)
	)
	for i := range analyticsConns {
		c, err := dial(ctx, addr)
		if err != nil {
			return sample{}, err
		}
		defer c.close()
		all.Go(func() {
			for due := start.Add(time.Duration(i) * gap); due.Sub(start) < d && ctx.Err() == nil; due = due.Add(analyticsConns * gap) {
				began := due
				if wait := time.Until(due); wait > 0 {
					<-time.After(wait)
					began = time.Now() // do not count the client's late timer
				}
				_ = c.conn.SetDeadline(began.Add(answerTimeout))
				status, body, err := c.do(request)
				if err == nil && status != http.StatusOK {
					err = fmt.Errorf("request was answered %d: %s", status, body)
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
	if err := first(errs, ctx.Err()); err != nil {
		return sample{}, err
	}
	s := sample{latencies: slices.Concat(latencies...)}
	slices.Sort(s.latencies)
	return s, nil
}
