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

// offer sends requests at a constant rate for d, whatever happens to earlier ones (an open model): a request's latency
// includes the wait for its connection. Each answer must be 200 with the position that equals the number in the address.
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
				who := 1 + rand.Int64N(int64(c.size))
				status, body, err := conn.do(request.with(who))
				switch position := field(body, `"position":`); {
				case err != nil:
				case status != http.StatusOK:
					err = fmt.Errorf("status request was answered %d: %s", status, body)
				case int64(position) != who:
					err = fmt.Errorf("number %d of %d got position %d", who, c.size, position)
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
	s.perSecond = float64(len(s.latencies)) / d.Seconds()
	return s, nil
}
