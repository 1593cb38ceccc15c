package postgres_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"waitlist.internal/libs/testenv"
	"waitlist.internal/services/billing"
	"waitlist.internal/services/billing/postgres"
)

const (
	ann = "0197f0c4-6d0e-7cc1-a2a3-00000000000a"
	bob = "0197f0c4-6d0e-7cc1-a2a3-00000000000b"
)

// Many callers in two processes lock one account. They run one at a time, and each
// gets its turn.
func TestOneAtATimeWorksOnAnAccount(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	pool := testenv.Migrated(t, billing.Name, 12, postgres.Migrations)
	replicas := []*postgres.Store{postgres.New(pool, pool, 4), postgres.New(pool, pool, 4)}
	var inside, done atomic.Int64
	var crowd sync.WaitGroup
	for i := range 40 {
		crowd.Go(func() {
			err := replicas[i%2].Lock(ctx, ann, 10*time.Second, func(ctx context.Context, l billing.Locked) error {
				if n := inside.Add(1); n != 1 {
					t.Errorf("%d at once", n)
				}
				defer inside.Add(-1)
				sub, err := l.Subscriber(ctx)
				if err != nil {
					return err
				}
				sub.Entitlement.Version++
				done.Add(1)
				return l.Save(ctx, sub, nil, nil)
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
	crowd.Wait()
	sub, err := replicas[0].Subscriber(ctx, ann)
	if err != nil || sub.Entitlement.Version != 40 || done.Load() != 40 {
		t.Errorf("version %d, %v", sub.Entitlement.Version, err)
	}
}

// Many callers of one account do not block other accounts. A caller that waits too
// long gets an error.
func TestACrowdAtOneAccountIsNoOtherOnesTrouble(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	pool := testenv.Migrated(t, billing.Name, 4, postgres.Migrations)
	store := postgres.New(pool, pool, 2)
	entered, let := make(chan struct{}), make(chan struct{})
	var crowd sync.WaitGroup
	crowd.Go(func() {
		_ = store.Lock(ctx, ann, time.Second, func(context.Context, billing.Locked) error { close(entered); <-let; return nil })
	})
	<-entered
	for range 20 {
		crowd.Go(func() {
			err := store.Lock(ctx, ann, 300*time.Millisecond, func(context.Context, billing.Locked) error { return nil })
			if !errors.Is(err, billing.ErrBusy) {
				t.Errorf("%v", err)
			}
		})
	}
	for range 5 {
		if err := store.Lock(ctx, bob, 5*time.Second, func(context.Context, billing.Locked) error { return nil }); err != nil {
			t.Error(err)
		}
	}
	another := postgres.New(pool, pool, 1)
	if err := another.Lock(ctx, ann, 300*time.Millisecond, func(context.Context,
		billing.Locked,
	) error {
		return nil
	}); !errors.Is(err, billing.ErrBusy) {
		t.Errorf("another process: %v", err)
	}
	close(let)
	crowd.Wait()
	if err := store.Lock(ctx, ann, time.Second, func(context.Context, billing.Locked) error { return nil }); err != nil {
		t.Error(err)
	}
}

// The lock ends with its connection, as when a process is killed. Another process
// then gets it, and the one that lost it stores nothing.
func TestALostConnectionLosesTheLock(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	pool := testenv.Migrated(t, billing.Name, 6, postgres.Migrations)
	store, other := postgres.New(pool, pool, 2), postgres.New(pool, pool, 2)
	err := store.Lock(ctx, ann, time.Second, func(ctx context.Context, l billing.Locked) error {
		if _, err := pool.Exec(ctx, `SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND pid <> pg_backend_pid()
			AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`); err != nil {
			return err
		}
		if err := other.Lock(ctx, ann, 5*time.Second, func(ctx context.Context, l billing.Locked) error {
			return l.Save(ctx, billing.Subscriber{AccountID: ann, CustomerID: "cus_other"}, nil, nil)
		}); err != nil {
			t.Errorf("the other: %v", err)
		}
		return l.Save(ctx, billing.Subscriber{AccountID: ann, CustomerID: "cus_mine"}, nil, nil)
	})
	if err == nil {
		t.Error("stored without the lock")
	}
	if sub, err := store.Subscriber(ctx, ann); err != nil || sub.CustomerID != "cus_other" {
		t.Errorf("%+v, %v", sub, err)
	}
}

// An attempt keeps its epoch until its outcome is known.
func TestEpochsAdvanceWhenTheOutcomeIsKnown(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	pool := testenv.Migrated(t, billing.Name, 3, postgres.Migrations)
	store := postgres.New(pool, pool, 1)
	start := time.Now().UTC().Truncate(time.Microsecond)
	at := func(minutes int) time.Time { return start.Add(time.Duration(minutes) * time.Minute) }
	err := store.Lock(ctx, ann, time.Second, func(ctx context.Context, l billing.Locked) error {
		for i, step := range []struct {
			wish   string
			now    int
			memory int
			end    bool
			want   int64
		}{
			{"pro", 0, 5, false, 1},
			{"pro", 1, 5, false, 1},   // the outcome is unknown
			{"pro", 4, 5, true, 1},    // the same attempt, started at 0
			{"pro", 4, 5, false, 2},   // it ended: a new attempt
			{"basic", 4, 5, false, 3}, // another wish
			{"basic", 10, 5, true, 4}, // too old
			{"basic", 10, 5, true, 5},
		} {
			got, err := l.Begin(ctx, "change", step.wish, at(step.now), at(step.now-step.memory))
			if err != nil || got != step.want {
				t.Errorf("step %d: epoch %d, %v; want %d", i, got, err, step.want)
			}
			if step.end {
				if err := l.End(ctx, "change", at(step.now)); err != nil {
					t.Error(err)
				}
			}
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

func TestSweepKeepsWhatMatters(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	pool := testenv.Migrated(t, billing.Name, 2, postgres.Migrations)
	store := postgres.New(pool, pool, 1)
	for _, sql := range []string{
		"INSERT INTO provider_event VALUES ('old', now() - interval '36 days'), ('new', now() - interval '34 days')",
		"INSERT INTO operation VALUES ('" + ann + "', 'old', '', 1, now() - interval '36 days'), ('" + ann + "', 'new', '', 1, now())",
		"INSERT INTO deletion VALUES ('" + ann + "', NULL, NULL, now() - interval '36 days', NULL)",
		"INSERT INTO deletion VALUES ('" + bob + "', '" + bob + "', NULL, now() - interval '36 days', now())",
		"INSERT INTO known_subscription VALUES ('" + ann + "', 'sub_1', now()), ('" + bob + "', 'sub_2', now())",
	} {
		if _, err := pool.Exec(ctx, sql); err != nil {
			t.Fatal(err)
		}
	}
	until := time.Now().AddDate(0, 0, -35)
	if more, err := store.Sweep(ctx, billing.Retention{Events: until, Operations: until, Deletions: until}); err != nil || more {
		t.Errorf("more %t, %v", more, err)
	}
	var left string
	if err := pool.QueryRow(ctx, `SELECT concat_ws(' ',
		(SELECT string_agg(id, ',') FROM provider_event), (SELECT string_agg(name, ',') FROM operation),
		(SELECT string_agg(right(grave::text, 1), ',') FROM deletion),
		(SELECT string_agg(subscription_id, ',') FROM known_subscription))`).Scan(&left); err != nil {
		t.Fatal(err)
	}
	if left != "new new b sub_2" {
		t.Errorf("left: %s", left)
	}
}
