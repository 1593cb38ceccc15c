package postgres

import (
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"waitlist.internal/libs/testenv"
	"waitlist.internal/services/signup/postgres/db"
)

// TestPlansOfTransfers: an export reads the index on queue_key in its order, so
// that the first row comes before the last one was read, and an import looks
// addresses up one by one.
func TestPlansOfTransfers(t *testing.T) {
	t.Parallel()
	pool := testenv.Migrated(t, "signup", 2, Migrations)
	const list = "00000000-0000-4000-8000-000000000001"
	// Keys without any order among the rows, which makes an index costly to follow.
	testenv.Fill(t, pool, `
		INSERT INTO signup (waitlist_id, number, queue_key, email, token, created_at, first_name)
		SELECT $1::uuid, n, (n * 7919 % 20000) << 20, n || '@example.com', md5(n::text)::uuid, now(), repeat('x', 100)
		    FROM generate_series(1, 20000::bigint) AS n`, list)
	testenv.Fill(t, pool, `
		INSERT INTO departed (waitlist_id, hash, offboarded) SELECT $1, sha256(n::text::bytea), n FROM generate_series(1, 20000) AS n`,
		list)
	if _, err := pool.Exec(t.Context(), `ANALYZE signup, departed`); err != nil {
		t.Fatal(err)
	}
	explain := func(settings, sql string, args ...any) string {
		t.Helper()
		var plan string
		err := pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
			if settings != "" {
				if _, err := tx.Exec(t.Context(), settings); err != nil {
					return err
				}
			}
			rows, err := tx.Query(t.Context(), "EXPLAIN "+sql, args...)
			if err != nil {
				return err
			}
			lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
			plan = strings.Join(lines, "\n")
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		return plan
	}
	// As for a list that no cache holds, which the planner would rather sort.
	const large = "SELECT set_config('effective_cache_size', '8kB', true)"
	if plan := explain(large, exportSQL(0, false), list); !strings.Contains(plan, "Sort") {
		t.Errorf("without its settings an export would not sort either:\n%s", plan)
	}
	for questions, args := range [][]any{{list}, {list, "a"}, {list, "a", "b"}} {
		plan := explain(large+" FROM ("+exportSettings+") s", exportSQL(questions, questions > 0), args...)
		if !strings.Contains(plan, "Index Scan using signup_queue_key") || strings.Contains(plan, "Sort") || strings.Contains(plan, "Gather") {
			t.Errorf("export with %d answers:\n%s", questions, plan)
		}
	}
	plan := explain("SET LOCAL plan_cache_mode = force_generic_plan", presentSQL, list, []string{"1@example.com"})
	if !strings.Contains(plan, "Index Scan using signup_email_key") || !strings.Contains(plan, "Index Cond: ((waitlist_id = $1") &&
		!strings.Contains(plan, "AND (email = e.email)") {
		t.Errorf("look-up of an import:\n%s", plan)
	}
	plan = explain("SET LOCAL plan_cache_mode = force_generic_plan", db.OptedOutDeparted, [][]byte{{1}}, list)
	if !strings.Contains(plan, "using departed_pkey") || !strings.Contains(plan, "AND (hash = h.hash)") {
		t.Errorf("look-up of people who had left:\n%s", plan)
	}
}
