package postgres_test

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"waitlist.internal/libs/testenv"
	"waitlist.internal/services/admin-analytics/postgres"
)

// TestFoldOfManyWaitlists: a fold's cost is that of its rows, also where each is
// of another waitlist. Statements have four and a half seconds.
func TestFoldOfManyWaitlists(t *testing.T) {
	t.Parallel()
	pool := database(t)
	const many = 20_000
	testenv.Fill(t, pool, `
		INSERT INTO arrival (event_id, waitlist_id, day, views, signups, referral_signups, number, source, medium, campaign)
		SELECT gen_random_uuid(), gen_random_uuid(), '2026-03-01', 0, 1, 0, n, 'a' || n, 'b' || n, 'c' || n
			FROM generate_series(1, $1::int) n`, many)
	start := time.Now()
	if err := postgres.New(pool).Fold(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Logf("%d waitlists in %s", many, time.Since(start))
	var days, values int
	if err := pool.QueryRow(t.Context(), `SELECT (SELECT count(*) FROM day), (SELECT count(*) FROM utm_value)`).Scan(&days,
		&values); err != nil {
		t.Fatal(err)
	}
	if days != many || values != 3*many {
		t.Errorf("%d days, %d values", days, values)
	}
}

// TestArrivalsWakeTheFold: the fold does not wait for its next sweep, which is thirty
// seconds away after one that took three.
func TestArrivalsWakeTheFold(t *testing.T) {
	t.Parallel()
	pool := database(t)
	s := postgres.New(pool)
	looks := func(and string) (n int) {
		if err := pool.QueryRow(t.Context(), `
			SELECT count(*) FROM pg_stat_activity
			WHERE datname = current_database() AND state = 'active' AND query LIKE '%-- name: ArrivalsWait%' AND pid <> pg_backend_pid() `+
			and).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	slow, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer slow.Rollback(context.Background()) //nolint:errcheck // after the commit it does nothing
	if _, err := slow.Exec(t.Context(), `LOCK TABLE arrival`); err != nil {
		t.Fatal(err)
	}
	defer testenv.Run(t, func(ctx context.Context) error { return s.Folding(ctx, slog.New(slog.DiscardHandler)) })()
	testenv.Eventually(t, "a sweep takes three seconds", func() bool {
		return looks(`AND now() - query_start > interval '3 seconds'`) > 0
	})
	if err := slow.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, "the sweep ends", func() bool { return looks("") == 0 })
	if _, err := pool.Exec(t.Context(), `
		INSERT INTO arrival (event_id, waitlist_id, day, views, signups, referral_signups, number, source, medium, campaign)
		VALUES (gen_random_uuid(), gen_random_uuid(), '2026-03-01', 0, 1, 0, 1, '', '', '')`); err != nil {
		t.Fatal(err)
	}
	s.Wake()
	testenv.Within(t, 20*time.Second, "the arrival is folded", func() bool {
		var days int
		if err := pool.QueryRow(t.Context(), `SELECT count(*) FROM day`).Scan(&days); err != nil {
			t.Fatal(err)
		}
		return days == 1
	})
}
