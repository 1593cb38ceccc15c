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

// statusConns is how many connections the arrivals of one list take turns on.
const statusConns = 16

// crowd asks for the status of random people on a waitlist of size members.
type crowd struct {
	addr string
	list *list
	size int
}

// ask lets requests arrive at a constant rate for d, whatever becomes of those
// before (an open model): one that has to wait for its connection has waited
// since it was due. Each must be 200; on these lists everybody's position is
// the number in the address.
func (c crowd) ask(ctx context.Context, rate float64, d time.Duration) (sample, error) {
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
					began = time.Now() // a late timer is the client's own
				}
				_ = conn.conn.SetDeadline(began.Add(answerTimeout))
				who := 1 + rand.Int64N(int64(c.size))
				status, body, err := conn.do(request.with(who))
				switch position := field(body, `"position":`); {
				case err != nil:
				case status != http.StatusOK:
					err = fmt.Errorf("status answered %d: %s", status, body)
				case int64(position) != who:
					err = fmt.Errorf("number %d of %d is told position %d", who, c.size, position)
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
