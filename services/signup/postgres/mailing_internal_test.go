package postgres

import (
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"waitlist.internal/libs/testenv"
)

// TestPlansOfRecipients: also by plans that a connection made before the first
// signup and keeps, a page reads the primary key from its beginning on, in its
// order, and an address is found by the whole key.
func TestPlansOfRecipients(t *testing.T) {
	t.Parallel()
	pool := testenv.Migrated(t, "signup", 1, Migrations)
	explain := func(when, name, sql, nulls string) string {
		t.Helper()
		for _, sql := range []string{"SET plan_cache_mode = force_generic_plan", "PREPARE " + name + when + " AS " + sql} {
			if _, err := pool.Exec(t.Context(), sql, pgx.QueryExecModeSimpleProtocol); err != nil {
				t.Fatal(err)
			}
		}
		rows, err := pool.Query(t.Context(), "EXPLAIN EXECUTE "+name+when+nulls, pgx.QueryExecModeSimpleProtocol)
		if err != nil {
			t.Fatal(err)
		}
		lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			t.Fatal(err)
		}
		return strings.Join(lines, "\n")
	}
	for _, when := range []string{"empty", "full"} {
		plan := explain(when, "opted_in_", optedInSQL, "(NULL, NULL, NULL)")
		if !strings.Contains(plan, "Index Cond: ((waitlist_id = $1) AND (number > $2))") || strings.Contains(plan, "Sort") {
			t.Errorf("%s: a page of recipients:\n%s", when, plan)
		}
		plan = explain(when, "recipients_", recipientsSQL, "(NULL, NULL)")
		if !strings.Contains(plan, "Index Cond: ((waitlist_id = $1) AND (number = n.number))") {
			t.Errorf("%s: addresses of recipients:\n%s", when, plan)
		}
		if _, err := pool.Exec(t.Context(), `
			INSERT INTO signup (waitlist_id, number, queue_key, email, token, created_at)
			SELECT md5((n % 4)::text)::uuid, n, n, n || '@example.com', md5(n::text)::uuid, now() FROM generate_series(1, 20000) AS n
			ON CONFLICT DO NOTHING`); err != nil {
			t.Fatal(err)
		}
		if _, err := pool.Exec(t.Context(), `ANALYZE signup`); err != nil {
			t.Fatal(err)
		}
	}
}
