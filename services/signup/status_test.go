package signup_test

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"waitlist.internal/libs/apierr"
	"waitlist.internal/libs/testenv"
	"waitlist.internal/services/signup/index"
	"waitlist.internal/services/signup/join"
	"waitlist.internal/services/signup/postgres"
	"waitlist.internal/services/signup/queue"
)

// heldViews counts views. It holds the answer to the first one until there is a second.
type heldViews struct {
	*postgres.Signups
	views  atomic.Int64
	second chan struct{}
}

func (s *heldViews) Views(ctx context.Context, waitlistID string, emails []string, rankUpTo int64) ([]queue.View, error) {
	v, err := s.Signups.Views(ctx, waitlistID, emails, rankUpTo)
	switch s.views.Add(1) {
	case 1:
		<-s.second
	case 2:
		close(s.second)
	}
	return v, err
}

// TestStatusesAreReadTogether: statuses that come while one is read share a query and a script, which begin after they
// came: each shows its own signup as of a moment after the signups that were acknowledged before.
func TestStatusesAreReadTogether(t *testing.T) {
	const crowd = 50
	w := newWorld(t, 3)
	var joins []*queue.Join
	for range crowd {
		joins = append(joins, w.newJoin(queue.Token{}, false))
	}
	w.join(t, joins)
	store, ranks := &heldViews{Signups: w.store, second: make(chan struct{})}, &countedStore{Store: w.sets}
	var asked, groups atomic.Int64
	quiet, now := slog.New(slog.DiscardHandler), time.Now()
	svc := join.New(join.Config{
		SmallList: -1, Store: store, Index: index.New(ranks, w.store, quiet), Tokens: w.ring, Now: func() time.Time { return now },
		Log: quiet, Grouped: func(n int) { asked.Add(int64(n)); groups.Add(1) },
	})
	var all sync.WaitGroup
	look := func(email string, want join.Standing) {
		all.Go(func() {
			if got, err := svc.Status(t.Context(), w.list.ID, email); err != nil || got.Email != email || got.Position != want.Position ||
				got.Total != want.Total || got.ReferralCount != want.ReferralCount {
				t.Errorf("%s: %+v, %v; want %+v", email, got, err, want)
			}
		})
	}
	store.views.Store(10)
	look(joins[0].Email, join.Standing{Position: 1, Total: crowd}) // this one is compared with Postgres
	all.Wait()
	store.views.Store(0)
	ranks.calls.Store(0)
	// The index will be ahead of its view: the total must be that of the place.
	look(joins[0].Email, join.Standing{Position: 1, Total: crowd + 1})
	testenv.Eventually(t, "the first one is read", func() bool { return store.views.Load() == 1 })
	// Somebody joins and moves the last one up, before anybody else asks.
	w.join(t, []*queue.Join{w.newJoin(joins[crowd-1].Token, true)})
	if err := w.index.CatchUp(t.Context(), w.list.ID); err != nil {
		t.Fatal(err)
	}
	for i, m := range w.queue {
		look(m.email, join.Standing{Position: int64(i + 1), Total: crowd + 1, ReferralCount: m.referrals})
	}
	all.Go(func() {
		if _, err := svc.Status(t.Context(), w.list.ID, "nobody@example.com"); !apierr.Is(err, apierr.NotFound) {
			t.Errorf("nobody: %v", err)
		}
	})
	all.Wait()
	views, scripts := store.views.Load(), ranks.calls.Load()
	if asked.Load() != crowd+3 || groups.Load() != views || views > crowd/5 || scripts > 2*views {
		t.Errorf("%d queries and %d scripts for %d requests in %d groups", views, scripts, asked.Load(), groups.Load())
	}
}
