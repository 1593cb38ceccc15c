package signup_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"testing"

	"waitlist.internal/libs/audit"
	"waitlist.internal/libs/testenv"
	"waitlist.internal/services/signup/join"
	"waitlist.internal/services/signup/queue"
)

// reader pages through the world's queue, again and again, while it changes.
type reader struct {
	lastKey string
	// seen and moved are numbers, since the first page.
	seen, moved map[int64]bool
}

func newReader() reader { return reader{seen: map[int64]bool{}, moved: map[int64]bool{}} }

// page reads the reader's next page. It must be a piece of the queue as that is
// now, and with the last one everybody who was not moved since the first page was
// there once: also who came meanwhile.
func (w *world) page(t tester, limit int) {
	rows, next, err := w.admin.List(t.Context(), w.owner, w.list.ID, strconv.Itoa(limit), w.reader.lastKey)
	if err != nil {
		t.Fatalf("page: %v", err)
	}
	if len(rows) > limit || (len(rows) < limit && next != "") {
		t.Fatalf("%d of %d rows, next %q", len(rows), limit, next)
	}
	flags := w.list.Settings.ReferralGuard.On() || len(w.flagged) > 0
	for i, row := range rows {
		at := rows[0].Position - 1 + int64(i)
		if at >= int64(len(w.queue)) || row.Position != at+1 {
			t.Fatalf("row %d of the page has position %d, the first one %d, of %d", i, row.Position, rows[0].Position, len(w.queue))
		}
		if m := w.queue[at]; row.Number != m.number || row.Email != m.email || row.Token != m.token || row.ReferralCount != m.referrals ||
			(row.ReferredBy != nil) != (m.referred || m.owed) ||
			(row.Flagged != nil) != flags || (flags && *row.Flagged != w.flagged[m.number]) {
			t.Fatalf("place %d is %+v, want %+v", at+1, row, m)
		}
		if w.reader.seen[row.Number] && !w.reader.moved[row.Number] {
			t.Fatalf("%s, who was not moved, is on two pages", row.Email)
		}
		w.reader.seen[row.Number] = true
	}
	if w.reader.lastKey = next; next != "" {
		return
	}
	for _, m := range w.queue {
		if !w.reader.seen[m.number] && !w.reader.moved[m.number] {
			t.Fatalf("%s, who was not moved, is on no page", m.email)
		}
	}
	w.reader = newReader()
}

// TestPagesWhileOthersMove: eight writers add, remove and move, half of them at
// one spot, so that keys around it are spread again and again. Meanwhile the
// queue is read page by page. A signup that is not moved is on one page each time, and
// in order.
func TestPagesWhileOthersMove(t *testing.T) {
	const writers, each, still, spot = 8, 25, 120, 40
	w := newWorld(t, 1)
	var joins []*queue.Join
	for range still + writers*each {
		joins = append(joins, w.newJoin(queue.Token{}, false))
	}
	w.join(t, joins)
	// Who is before the spot stands still, and others all along the queue; the
	// rest are the writers'.
	var want []int64
	theirs := make([][]string, writers)
	for i, m := range w.queue {
		if (i < spot-1 || i%8 < 3) && len(want) < still {
			want = append(want, m.number)
		} else {
			at := (i - len(want)) % writers
			theirs[at] = append(theirs[at], m.email)
		}
	}
	stop := make(chan struct{})
	var wg sync.WaitGroup
	defer wg.Wait()
	defer sync.OnceFunc(func() { close(stop) })()
	for i := range writers {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(uint64(i), 7))
			mine := theirs[i]
			for n := 0; ; n++ {
				select {
				case <-stop:
					return
				default:
				}
				var err error
				at := r.IntN(len(mine))
				switch {
				case n%10 == 3:
					err = w.svc.Remove(t.Context(), w.list.ID, mine[at], audit.Entry{})
					mine = slices.Delete(mine, at, at+1)
				case n%10 == 6 || len(mine) < 3:
					email := fmt.Sprintf("w%d-%d@example.com", i, n)
					_, err = w.svc.Join(t.Context(), w.list.ID, fmt.Appendf(nil, `{"email": %q}`, email), join.Header{})
					mine = append(mine, email)
				case i%2 == 0:
					_, _, err = w.svc.Move(t.Context(), w.list.ID, mine[at], spot, audit.Entry{})
				default:
					_, _, err = w.svc.Move(t.Context(), w.list.ID, mine[at], spot+1+r.Int64N(still), audit.Entry{})
				}
				if err != nil {
					t.Errorf("writer %d: %v", i, err)
					return
				}
			}
		})
	}
	r := rand.New(rand.NewPCG(1, 2))
	spread := func() int {
		return w.count(t, `SELECT count(*) FROM queue_shift WHERE waitlist_id = $1 AND cardinality(old_keys) > 1`)
	}
	for round := range 10 {
		limit := 1 + round%7
		var got []int64
		lastKey := ""
		for {
			rows, next, err := w.admin.List(t.Context(), w.owner, w.list.ID, strconv.Itoa(limit), lastKey)
			if err != nil {
				t.Fatal(err)
			}
			for i, row := range rows {
				if row.Position != rows[0].Position+int64(i) {
					t.Fatalf("positions of a page have a gap: %d, then %d", rows[0].Position, row.Position)
				}
				if row.Number < spot && row.Position != row.Number {
					t.Fatalf("the one at place %d is said to be at %d", row.Number, row.Position)
				}
				if slices.Contains(want, row.Number) {
					got = append(got, row.Number)
				}
			}
			if lastKey = next; next == "" {
				break
			}
			limit = 1 + r.IntN(7)
			// Around the spot a key changes between one page and the next.
			if last := rows[len(rows)-1].Position; last >= spot-3 && last < spot+6 {
				limit = 1
				before := spread()
				testenv.Eventually(t, "keys are spread", func() bool { return spread() > before })
			}
		}
		if !slices.Equal(got, want) {
			t.Fatalf("round %d: those who stand still came as\n%v, want\n%v", round, got, want)
		}
	}
}
