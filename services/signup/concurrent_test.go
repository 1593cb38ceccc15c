package signup_test

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"waitlist.internal/libs/audit"
	"waitlist.internal/services/signup/index"
	"waitlist.internal/services/signup/join"
)

// TestConcurrent: two replicas take signups, credits, moves and removals at the
// same time. Without removals every new signup is told a place of its own; in
// the end, with them, Postgres and the index agree on places without a gap.
func TestConcurrent(t *testing.T) {
	const writers, each = 16, 40
	w := newWorld(t, 3)
	quiet := slog.New(slog.DiscardHandler)
	replicas := []*join.Service{w.svc, join.New(join.Config{
		SmallList: -1, MaxBatch: 5, Store: w.store, Index: index.New(w.sets, w.store, quiet), Tokens: w.ring, Now: time.Now, Log: quiet,
	})}
	ctx, cancel := context.WithCancel(context.Background())
	var second sync.WaitGroup
	second.Go(func() { _ = replicas[1].Run(ctx) })
	defer func() { cancel(); second.Wait() }()

	var mu sync.Mutex
	var tokens []string
	var told []int64
	run := func(n int, email func(writer, i int) string, act func(r *rand.Rand, svc *join.Service, email string)) {
		var wg sync.WaitGroup
		for writer := range writers {
			wg.Go(func() {
				r := rand.New(rand.NewPCG(uint64(writer), 1))
				for i := range n {
					act(r, replicas[r.IntN(2)], email(writer, i))
				}
			})
		}
		wg.Wait()
	}
	run(each, func(writer, i int) string { return fmt.Sprintf("w%d-%d@example.com", writer, i) }, func(r *rand.Rand, svc *join.Service,
		email string,
	) {
		mu.Lock()
		referrer := ""
		if len(tokens) > 0 {
			referrer = tokens[r.IntN(len(tokens))]
		}
		mu.Unlock()
		receipt, err := svc.Join(t.Context(), w.list.ID, fmt.Appendf(nil, `{"email": %q, "referred_by_token": %q}`, email, referrer),
			join.Header{})
		if err != nil || !receipt.Created {
			t.Errorf("join: %+v, %v", receipt, err)
			return
		}
		if s, err := svc.Status(t.Context(), w.list.ID, email); err != nil || s.Position < 1 || s.Position > s.Total {
			t.Errorf("status right after the signup: %+v, %v", s, err)
		}
		mu.Lock()
		defer mu.Unlock()
		tokens = append(tokens, receipt.Token)
		told = append(told, receipt.Position)
		if r.IntN(4) == 0 {
			if _, _, err := svc.Move(t.Context(), w.list.ID, email, 1+r.Int64N(int64(len(told))), audit.Entry{}); err != nil {
				t.Errorf("move: %v", err)
			}
		}
	})
	slices.Sort(told)
	for i, p := range told {
		if p != int64(i+1) {
			t.Fatalf("the places told to %d signups: %v", writers*each, told)
		}
	}
	run(each/2, func(writer, i int) string { return fmt.Sprintf("w%d-%d@example.com", writer, i) }, func(r *rand.Rand, svc *join.Service,
		email string,
	) {
		var err error
		if r.IntN(2) == 0 {
			err = svc.Remove(t.Context(), w.list.ID, email, audit.Entry{})
		} else {
			_, _, err = svc.Move(t.Context(), w.list.ID, email, 1+r.Int64N(writers*each), audit.Entry{})
		}
		if err != nil {
			t.Errorf("change: %v", err)
		}
	})
	var numbers, ranks []int64
	if err := w.pool.QueryRow(t.Context(), `
		SELECT array_agg(number ORDER BY queue_key), array_agg(queue_rank(waitlist_id, queue_key) ORDER BY queue_key)
		FROM signup WHERE waitlist_id = $1`, w.list.ID).Scan(&numbers, &ranks); err != nil {
		t.Fatal(err)
	}
	for i, rank := range ranks {
		if rank != int64(i+1) {
			t.Fatalf("rank %d at place %d", rank, i+1)
		}
	}
	live := w.count(t, `SELECT live FROM change WHERE waitlist_id = $1 ORDER BY no DESC LIMIT 1`)
	if live != len(numbers) {
		t.Errorf("live is %d, rows are %d", live, len(numbers))
	}
	w.checkIndex(t, numbers)
}
