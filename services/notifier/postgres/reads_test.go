package postgres_test

import (
	"context"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"waitlist.internal/libs/pg"
	"waitlist.internal/libs/testenv"
	"waitlist.internal/services/notifier"
	"waitlist.internal/services/notifier/postgres"
)

func TestMain(m *testing.M) { testenv.Main(m) }

func TestStatementsHaveIndexes(t *testing.T) {
	t.Parallel()
	testenv.StatementsHaveIndexes(t, testenv.Migrated(t, notifier.Name, 1, postgres.Migrations), "db/*.sql.go", 13)
}

// The rows that a statement reads do not grow with the tables, even if its plan was
// made when they were empty.
func TestStatementsReadWhatTheyNeed(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	// One connection: a second one would add what it read to a later step's figure.
	cfg := testenv.Migrated(t, notifier.Name, 1, postgres.Migrations).Config()
	cfg.MinConns, cfg.MaxConns = 0, 1
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	deliveries := postgres.New(pool)
	lists := []string{"0197f0c4-6d0e-7cc1-a2a3-000000000001", "0197f0c4-6d0e-7cc1-a2a3-000000000002"}
	var keys []notifier.Key
	var ended []notifier.Ended
	fill := func() []notifier.Delivery {
		var ds []notifier.Delivery
		keys, ended = nil, nil
		for i := range 10 {
			d := notifier.Delivery{
				Key: notifier.Key{EventID: uuid.Must(uuid.NewV7()).String(), Channel: notifier.Webhook}, Event: notifier.SignupCreated,
				WaitlistID: lists[i%2], OwnerID: lists[0], Number: int64(i), OccurredAt: time.Now(),
			}
			ds, keys = append(ds, d), append(keys, d.Key)
			r := notifier.Result{Outcome: notifier.Delivered, Attempted: true}
			if i == 9 {
				keys, r = keys[:9], notifier.Result{Outcome: notifier.Gone}
			}
			ended = append(ended, notifier.Ended{Delivery: d, Result: r})
		}
		return ds
	}
	steps := []struct {
		name string
		do   func() error
		most int64 // index and table rows read
	}{
		{"queue", func() error {
			ds := fill()
			return pg.InTx(ctx, pool, func(tx pgx.Tx) error { return deliveries.Queue(ctx, tx, ds...) })
		}, 100},
		{"claim", func() error { _, err := deliveries.Claim(ctx, time.Now(), keys); return err }, 10},
		{"end", func() error { return deliveries.End(ctx, ended) }, 100},
		{"beat", func() error { return deliveries.Beat(ctx) }, 100},
		// Beside other databases' transactions Postgres may still read the 110 entries of deliveries ended before.
		{"adopt", func() error { _, _, err := deliveries.Adopt(ctx, 10); return err }, 500},
		{"trim", func() error { return deliveries.Trim(ctx, lists) }, 1500},
		{"prune", func() error { _, err := deliveries.Prune(ctx, time.Now().Add(-time.Hour)); return err }, 100},
		{"forget", func() error {
			return pg.InTx(ctx, pool, func(tx pgx.Tx) error { return deliveries.Forget(ctx, tx, lists[0]) })
		}, 500},
	}
	// Statistics that an autovacuum takes midway would change the plans.
	if _, err := pool.Exec(ctx, "ALTER TABLE delivery SET (autovacuum_enabled = false)"); err != nil {
		t.Fatal(err)
	}
	for range 10 { // enough for Postgres to keep the plans
		for _, s := range steps {
			if err := s.do(); err != nil {
				t.Fatalf("%s: %v", s.name, err)
			}
		}
	}
	// 100,000 open deliveries of another live holder and 100,000 ended ones, of 1000
	// waitlists.
	testenv.Fill(t, pool, `
		WITH h AS (INSERT INTO holder VALUES (gen_random_uuid(), now() + interval '1 hour') RETURNING id)
		INSERT INTO delivery (event_id, channel, event, waitlist_id, owner_id, number, position, referral_count, occurred_at, traceparent,
			holder, ended_at, outcome)
		SELECT gen_random_uuid(), 'webhook', 'signup.created', ('0197f0c4-6d0e-7cc1-a2a3-' || lpad((i % 1000)::text, 12, '0'))::uuid,
			gen_random_uuid(), i, i, 0, now(), '', h.id,
			CASE WHEN i % 2 = 0 THEN now() END, CASE WHEN i % 2 = 0 THEN 'delivered' ELSE '' END
		FROM h, generate_series(1, 200000) i`)
	read := func() (n int64) {
		t.Helper()
		if _, err := pool.Exec(ctx, "SELECT pg_stat_force_next_flush()"); err != nil {
			t.Fatal(err)
		}
		err := pool.QueryRow(context.WithoutCancel(ctx), `
			SELECT (SELECT sum(idx_tup_read) FROM pg_stat_user_indexes WHERE relname IN ('delivery', 'holder'))
				+ (SELECT sum(seq_tup_read) FROM pg_stat_user_tables WHERE relname IN ('delivery', 'holder'))`).Scan(&n)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	for _, s := range steps {
		before := read()
		if err := s.do(); err != nil {
			t.Fatalf("%s: %v", s.name, err)
		}
		if n := read() - before; n > s.most {
			t.Errorf("%s reads %d rows", s.name, n)
		}
	}
}
