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
	explain := func(when, name, sql, nulls string) (plan string) {
		t.Helper()
		for _, sql := range []string{"SET plan_cache_mode = force_generic_plan", "PREPARE " + name + when + " AS " + sql} {
			if _, err := pool.Exec(t.Context(), sql, pgx.QueryExecModeSimpleProtocol); err != nil {
				t.Fatal(err)
			}
		}
		var b pgx.Batch
		b.Queue(inOrder)
		b.Queue("EXPLAIN EXECUTE " + name + when + nulls).Query(func(rows pgx.Rows) error {
			lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
			plan = strings.Join(lines, "\n")
			return err
		})
		if err := pool.SendBatch(t.Context(), &b).Close(); err != nil {
			t.Fatal(err)
		}
		return plan
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
		testenv.Fill(t, pool, `
			INSERT INTO signup (waitlist_id, number, queue_key, email, token, created_at)
			SELECT gen_random_uuid(), n, n, n || '@example.com', md5(n::text)::uuid, now() FROM generate_series(1, 20000) AS n`)
		if _, err := pool.Exec(t.Context(), `ANALYZE signup`); err != nil {
			t.Fatal(err)
		}
	}
}
