package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"waitlist.internal/tools/internal/webhooksink"
)

const (
	// notifyConns is the number of connections that sign up in the measurements of notifications.
	notifyConns = 16
	// notifyRate is the number of signups per second on each list.
	notifyRate = 200
	// notifyGoal is the goal for the p95 of the time from signup to notification.
	notifyGoal = 150 * time.Millisecond
	// notifyLate is how long the bench waits for notifications after the last signup.
	notifyLate = 2 * time.Second
)

// inbox records what owners' servers received: the arrival time for each address.
type inbox struct {
	mu   sync.Mutex
	came map[string]time.Time
	hang chan struct{}
}

// ServeHTTP implements http.Handler.
func (in *inbox) ServeHTTP(_ http.ResponseWriter, r *http.Request) {
	b, _ := io.ReadAll(r.Body)
	now := time.Now()
	if r.URL.Path == "/hang" {
		select {
		case <-r.Context().Done():
		case <-in.hang:
		}
		return
	}
	const key = `"email":"`
	_, email, _ := strings.Cut(string(b), key)
	email, _, _ = strings.Cut(email, `"`)
	in.mu.Lock()
	defer in.mu.Unlock()
	if _, ok := in.came[email]; !ok {
		in.came[email] = now
	}
}

// notifications measures B8 and B12: the time from the start of a signup to the notification's arrival at the owner's
// server, through the whole suite.
func (b *bench) notifications(ctx context.Context) (err error) {
	const database = "notifications"
	in := &inbox{came: map[string]time.Time{}, hang: make(chan struct{})}
	owners, err := webhooksink.New(b.dir, in)
	if err != nil {
		return err
	}
	defer owners.Close()
	defer close(in.hang)
	var extra []string
	for k, v := range owners.Env {
		extra = append(extra, k+"="+v)
	}
	s, conn, err := b.openSuite(ctx, database, extra...)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close(ctx, conn)) }()
	lists := map[string]*list{}
	for _, path := range []string{"/healthy", "/hang", "/other"} {
		if lists[path], err = s.newList(ctx); err != nil {
			return err
		}
		res, err := s.do(ctx, http.MethodPatch, "/v1/waitlists/"+lists[path].id,
			[]byte(`{"settings":{"webhook_url":"`+webhooksink.URL+path+`"}}`))
		if err != nil {
			return err
		}
		_ = res.Body.Close()
	}
	next := int64(1)
	tell := func(ctx context.Context, d time.Duration, paths ...string) (sample, error) {
		n := int64(notifyRate * d.Seconds())
		first := next
		next += n * int64(len(paths))
		errs := make([]error, len(paths))
		samples := make([]sample, len(paths))
		var all sync.WaitGroup
		for i, path := range paths {
			all.Go(func() { samples[i], errs[i] = in.signUpAtRate(ctx, s.addr, lists[path].id, first+n*int64(i), n) })
		}
		all.Wait()
		return samples[0], errors.Join(errs...)
	}
	if b.wants("B8") {
		if err := b.delays(ctx, conn, tell); err != nil {
			return err
		}
	}
	if !b.wants("B12") {
		return nil
	}
	pairs, err := b.turns(ctx, "B12", func(context.Context) error { return nil },
		func(ctx context.Context, d time.Duration) (sample, error) { return tell(ctx, d, "/healthy", "/hang") },
		func(ctx context.Context, d time.Duration) (sample, error) { return tell(ctx, d, "/healthy", "/other") }, b.slice)
	if err != nil {
		return err
	}
	ours, theirs, ratio := of(pairs, rate)
	b.add(row{
		id: "B12", goal: "≥ 0.9 ×", ratio: ratio, met: ratio >= .9,
		what: fmt.Sprintf("Notifications of a healthy endpoint, at %d signups a second, beside an equally busy one that hangs "+
			"against one that answers.", notifyRate),
		ours: fmt.Sprintf("%.0f/s", ours), theirs: fmt.Sprintf("%.0f/s", theirs),
	})
	return nil
}

// delays measures B8, with and without a transaction held open.
func (b *bench) delays(ctx context.Context, conn *pgx.Conn, tell func(context.Context, time.Duration, ...string) (sample, error)) error {
	pairs, err := b.turns(ctx, "B8", func(context.Context) error { return nil },
		func(ctx context.Context, d time.Duration) (sample, error) {
			tx, err := conn.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
			if err != nil {
				return sample{}, fmt.Errorf("hold a transaction open: %w", err)
			}
			defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }()
			if _, err := tx.Exec(ctx, "SELECT count(*) FROM notifier.holder"); err != nil {
				return sample{}, fmt.Errorf("hold a transaction open: %w", err)
			}
			return tell(ctx, d, "/healthy")
		},
		func(ctx context.Context, d time.Duration) (sample, error) {
			return tell(ctx, d, "/healthy")
		}, b.slice)
	if err != nil {
		return err
	}
	_, p95, _ := of(pairs, at(.95))
	_, p50, _ := of(pairs, at(.5))
	goal := milliseconds(notifyGoal)
	b.add(row{
		id: "B8", goal: "≤ 1 ×", ratio: p95 / goal, met: p95 <= goal,
		what: fmt.Sprintf("p95 from the start of a signup to its webhook, at %d signups a second, against the goal.", notifyRate),
		ours: fmt.Sprintf("%.1f ms (p50 %.1f)", p95, p50), theirs: fmt.Sprintf("%.0f ms", goal),
	})
	ours, theirs, ratio := of(pairs, rate)
	b.add(row{
		id: "B8 held", goal: "≥ 0.9 ×", ratio: ratio, met: ratio >= .9,
		what: fmt.Sprintf("Webhooks at %d signups a second, with a transaction held open for %s against without.", notifyRate, b.slice),
		ours: fmt.Sprintf("%.0f/s", ours), theirs: fmt.Sprintf("%.0f/s", theirs),
	})
	return nil
}

// signUpAtRate signs up n addresses at a constant rate, starting at number first, and returns the delays of their notifications. It
// leaves out those that did not arrive in time.
func (in *inbox) signUpAtRate(ctx context.Context, addr, waitlistID string, first, n int64) (sample, error) {
	var (
		all   sync.WaitGroup
		began = make([]time.Time, n)
		errs  = make([]error, notifyConns)
		start = time.Now().Add(10 * time.Millisecond)
		gap   = time.Second / notifyRate
	)
	for i := range int64(notifyConns) {
		c, err := dial(ctx, addr)
		if err != nil {
			return sample{}, err
		}
		defer c.close()
		request := signupRequest(waitlistID)
		all.Go(func() {
			for k := i; k < n && ctx.Err() == nil; k += notifyConns {
				if wait := time.Until(start.Add(time.Duration(k) * gap)); wait > 0 {
					<-time.After(wait)
				}
				began[k] = time.Now()
				_ = c.conn.SetDeadline(began[k].Add(answerTimeout))
				status, body, err := c.do(request.with(first + k))
				if err == nil && status != http.StatusCreated {
					err = fmt.Errorf("signup was answered %d: %s", status, body)
				}
				if err != nil {
					errs[i] = err
					return
				}
			}
		})
	}
	all.Wait()
	if err := errors.Join(append(errs, ctx.Err())...); err != nil {
		return sample{}, err
	}
	took := time.Since(start)
	<-time.After(notifyLate)
	in.mu.Lock()
	defer in.mu.Unlock()
	var s sample
	for k := range n {
		if at, ok := in.came[address(first+k)]; ok {
			s.latencies = append(s.latencies, int(at.Sub(began[k]).Microseconds()))
			delete(in.came, address(first+k))
		}
	}
	slices.Sort(s.latencies)
	s.perSecond = float64(len(s.latencies)) / took.Seconds()
	return s, nil
}
