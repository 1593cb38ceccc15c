package postgres_test

import (
	"testing"
	"time"

	"waitlist.internal/services/admin-analytics/postgres"
)

// TestFoldOfManyWaitlists: a fold's cost is that of its rows, also where each is
// of another waitlist. Statements have four and a half seconds.
func TestFoldOfManyWaitlists(t *testing.T) {
	t.Parallel()
	pool := database(t)
	const many = 20_000
	if _, err := pool.Exec(t.Context(), `
		INSERT INTO arrival (event_id, waitlist_id, day, views, signups, referral_signups, number, source, medium, campaign)
		SELECT gen_random_uuid(), gen_random_uuid(), '2026-03-01', 0, 1, 0, n, 'a' || n, 'b' || n, 'c' || n
			FROM generate_series(1, $1::int) n`, many); err != nil {
		t.Fatal(err)
	}
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
