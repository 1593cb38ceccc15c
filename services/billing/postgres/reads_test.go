package postgres_test

import (
	"context"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"waitlist.internal/libs/access"
	"waitlist.internal/libs/pg"
	"waitlist.internal/libs/testenv"
	"waitlist.internal/services/billing"
	"waitlist.internal/services/billing/postgres"
)

// The rows that a statement reads do not grow with the tables, even if Postgres
// planned it when they were empty.
func TestStatementsReadWhatTheyNeed(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	pool := testenv.Migrated(t, billing.Name, 1, postgres.Migrations)
	// The lock and the statements under it share the pool's only connection.
	store := postgres.New(pool, pool, 1)
	const account = "0197f0c4-6d0e-7cc1-a2a3-000000000001"
	now := time.Now()
	locked := func(do func(ctx context.Context, l billing.Locked) error) func() error {
		return func() error { return store.Lock(ctx, account, time.Second, do) }
	}
	missing := func(do func() error) func() error {
		return func() error {
			if err := do(); err != nil && err != billing.ErrNotFound { //nolint:errorlint // as it is returned
				return err
			}
			return nil
		}
	}
	steps := []struct {
		name string
		do   func() error
	}{
		{"save", locked(func(ctx context.Context, l billing.Locked) error {
			return l.Save(ctx, billing.Subscriber{
				AccountID: account, CustomerID: "cus_mine", Entitlement: access.Entitlement{Tier: access.Pro, Status: access.Active, Version: 2},
				PushEntitlement: true, PushAt: now, CheckAt: now, SyncedAt: now,
			}, []string{uuid.NewString()}, []string{"sub_mine"})
		})},
		{"subscriber", func() error { _, err := store.Subscriber(ctx, account); return err }},
		{"seen", locked(func(ctx context.Context, l billing.Locked) error { _, err := l.Seen(ctx, now); return err })},
		{"heard of", locked(func(ctx context.Context, l billing.Locked) error { _, err := l.HeardOf(ctx); return err })},
		{"begin", locked(func(ctx context.Context, l billing.Locked) error {
			_, err := l.Begin(ctx, "change", "x", now, now.Add(-time.Minute))
			return err
		})},
		{"end", locked(func(ctx context.Context, l billing.Locked) error { return l.End(ctx, "change", now) })},
		{"account of", missing(func() error { _, err := store.AccountOf(ctx, "cus_mine"); return err })},
		{"account of nobody", missing(func() error { _, err := store.AccountOf(ctx, "cus_nobody"); return err })},
		{"event seen", func() error { _, err := store.EventSeen(ctx, "evt_x"); return err }},
		{"record event", func() error { return store.RecordEvent(ctx, uuid.NewString(), now) }},
		{"take push", missing(func() error { _, err := store.TakePush(ctx, now, now.Add(time.Hour)); return err })},
		{"take check", missing(func() error { _, err := store.TakeCheck(ctx, now, now.Add(time.Hour)); return err })},
		{"insert deletion", func() error {
			return pg.InTx(ctx, pool, func(tx pgx.Tx) error { return store.InsertDeletion(ctx, tx, uuid.NewString(), now) })
		}},
		{"take deletion", missing(func() error { _, err := store.TakeDeletion(ctx, now, now.Add(time.Hour)); return err })},
		{"customers", func() error { _, err := store.Customers(ctx, account, 10); return err }},
		{"deletions", func() error { _, err := store.Deletions(ctx, account, now.Add(-time.Hour), 10); return err }},
		{"reconciliation", func() error { _, err := store.TakeReconciliation(ctx, now, now); return err }},
		{"retry reconciliation", func() error { return store.RetryReconciliation(ctx, now.Add(-time.Hour)) }},
		{"sweep", func() error {
			until := now.AddDate(0, 0, -35)
			_, err := store.Sweep(ctx, billing.Retention{Events: until, Operations: until, Deletions: until})
			return err
		}},
		{"bury", locked(func(ctx context.Context, l billing.Locked) error {
			return l.Bury(ctx, "cus_mine", []string{uuid.NewString()}, now)
		})},
	}
	for range 10 { // then Postgres keeps the plans
		for _, s := range steps {
			if err := s.do(); err != nil {
				t.Fatalf("%s: %v", s.name, err)
			}
		}
	}
	for _, sql := range []string{
		`INSERT INTO subscriber (account_id, customer_id, push_at, check_at)
			SELECT gen_random_uuid(), 'cus_' || i, now() + interval '1 day', now() + interval '1 day' FROM generate_series(1, 50000) i`,
		`INSERT INTO known_subscription SELECT gen_random_uuid(), 'sub_' || i, now() FROM generate_series(1, 50000) i`,
		`INSERT INTO operation SELECT gen_random_uuid(), 'change', '', 1, now() FROM generate_series(1, 50000)`,
		`INSERT INTO provider_event SELECT 'evt_' || i, now() FROM generate_series(1, 50000) i`,
		`INSERT INTO deletion SELECT gen_random_uuid(), gen_random_uuid(), 'cus_gone_' || i, now(), now() + interval '1 day'
			FROM generate_series(1, 50000) i`,
	} {
		testenv.Fill(t, pool, sql)
	}
	read := func() (n int64) {
		t.Helper()
		if _, err := pool.Exec(ctx, "SELECT pg_stat_force_next_flush()"); err != nil {
			t.Fatal(err)
		}
		if err := pool.QueryRow(context.WithoutCancel(ctx), `
			SELECT (SELECT sum(idx_tup_read) FROM pg_stat_user_indexes)
				+ (SELECT sum(seq_tup_read) FROM pg_stat_user_tables)`).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	for _, s := range steps {
		before := read()
		if err := s.do(); err != nil {
			t.Fatalf("%s: %v", s.name, err)
		}
		if n := read() - before; n > 100 {
			t.Errorf("%s reads %d rows", s.name, n)
		}
	}
}
