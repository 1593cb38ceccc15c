package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"sync"
	"time"
)

// statusConns is the number of connections that the requests for one list use in turn.
const statusConns = 16

// statusLoad requests the status of random people on a waitlist with size members.
type statusLoad struct {
	addr string
	list *list
	size int
}

// ask requests one status. The answer must be 200 with the position that equals the number in the address.
func (c statusLoad) ask(conn *client, request template) error {
	who := 1 + rand.Int64N(int64(c.size))
	status, body, err := conn.do(request.with(who))
	switch position := field(body, `"position":`); {
	case err != nil:
		return err
	case status != http.StatusOK:
		return fmt.Errorf("status request was answered %d: %s", status, body)
	case int64(position) != who:
		return fmt.Errorf("number %d of %d got position %d", who, c.size, position)
	}
	return nil
}

// saturate keeps conns connections busy with requests for d.
func (c statusLoad) saturate(ctx context.Context, conns int, d time.Duration) (sample, error) {
	return repeat(ctx, c.addr, conns, d, func() func(*client) error {
		request := statusRequest(c.list.id)
		return func(conn *client) error { return c.ask(conn, request) }
	})
}

// offer sends requests at a constant rate for d, whatever happens to earlier ones (an open model): a request's latency
// includes the wait for its connection.
func (c statusLoad) offer(ctx context.Context, rate float64, d time.Duration) (sample, error) {
	var (
		all       sync.WaitGroup
		latencies = make([][]int, statusConns)
		errs      = make([]error, statusConns)
		start     = time.Now().Add(10 * time.Millisecond)
		gap       = time.Duration(float64(time.Second) / rate)
	)
	for i := range statusConns {
		conn, err := dial(ctx, c.addr)
		if err != nil {
			return sample{}, err
		}
		defer conn.close()
		all.Go(func() {
			request := statusRequest(c.list.id)
			for due := start.Add(time.Duration(i) * gap); due.Sub(start) < d && ctx.Err() == nil; due = due.Add(statusConns * gap) {
				began := due
				if wait := time.Until(due); wait > 0 {
					<-time.After(wait)
					began = time.Now() // do not count the client's late timer
				}
				_ = conn.conn.SetDeadline(began.Add(answerTimeout))
				if errs[i] = c.ask(conn, request); errs[i] != nil {
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
	s.perSecond = float64(len(s.latencies)) / d.Seconds()
	return s, nil
}
