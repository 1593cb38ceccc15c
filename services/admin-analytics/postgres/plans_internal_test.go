package postgres

import (
	"encoding/json"
	"fmt"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"waitlist.internal/libs/pg"
	"waitlist.internal/libs/testenv"
	"waitlist.internal/services/admin-analytics/postgres/db"
)

// blocks returns how many blocks a prepared statement touches.
func blocks(t *testing.T, conn *pgxpool.Conn, name, args string) int {
	t.Helper()
	// The first time reads the catalog as well.
	var plan string
	for range 2 {
		if err := conn.QueryRow(t.Context(), "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) EXECUTE "+name+"("+args+")",
			pgx.QueryExecModeSimpleProtocol).Scan(&plan); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
	}
	var tops []struct {
		Plan node `json:"Plan"`
	}
	if err := json.Unmarshal([]byte(plan), &tops); err != nil {
		t.Fatal(err)
	}
	return tops[0].Plan.most()
}

// node is one of a plan's.
type node struct {
	Hit   int    `json:"Shared Hit Blocks"`
	Read  int    `json:"Shared Read Blocks"`
	Plans []node `json:"Plans"`
}

// most is what the node with the most blocks touches. A node has those below it
// among its own, but for the ones that write beside it.
func (n node) most() int {
	most := n.Hit + n.Read
	for _, below := range n.Plans {
		most = max(most, below.most())
	}
	return most
}

// TestPlans: what is asked and what is counted costs the same on an empty table,
// whose plans connections keep, and among many waitlists, days and values.
func TestPlans(t *testing.T) {
	t.Parallel()
	pool := testenv.Migrated(t, Schema, 2, Migrations)
	conn, err := pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	exec := func(sql string) {
		t.Helper()
		if _, err := conn.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	// The insertions take seconds on a busy machine.
	if err := pgx.BeginFunc(t.Context(), conn, func(tx pgx.Tx) error { return pg.NoTimeouts(t.Context(), tx) }); err != nil {
		t.Fatal(err)
	}
	exec("SET plan_cache_mode = force_generic_plan; SET statement_timeout = 0")
	id := uuid.NewString()
	statements := []struct {
		name, sql, args string
		// most blocks: a few levels of each index, the rows, and what is written.
		most int
	}{
		{"days", db.Days, fmt.Sprintf("'%s', current_date - 89", id), 100},
		// 3 × 1000 values of an index that is in order, of a heap that is not.
		{"origins", db.GetOrigins, fmt.Sprintf("'%s', '(other)', 1000", id), 3500},
		// One event: its row, and those of its sums.
		{"count", db.CountEvents, fmt.Sprintf("ARRAY[gen_random_uuid()], ARRAY['%s'::uuid], ARRAY[current_date], "+
			"'{1}', '{1}', '{1}', '{1000000}', '{v7}', '{v8}', '{v9}'", id), 10},
		{"waiting", db.ArrivalsWait, "0", 10},
		{"fold", db.FoldArrivals, "0, 1", 200},
	}
	for _, s := range statements {
		exec("PREPARE " + s.name + " AS " + s.sql)
		if _, err := conn.Exec(t.Context(), "EXECUTE "+s.name+"("+s.args+")", pgx.QueryExecModeSimpleProtocol); err != nil {
			t.Fatalf("%s: %v", s.name, err)
		}
	}
	for _, sql := range []string{
		`TRUNCATE arrival, day, utm_value, utm_total`,
		`INSERT INTO day SELECT w, current_date - n, n, n, n FROM generate_series(0, 999) n, (SELECT gen_random_uuid() w
			FROM generate_series(1, 50)) ws`,
		`INSERT INTO day SELECT '` + id + `', current_date - n, n, n, n FROM generate_series(0, 999) n`,
		`INSERT INTO utm_value SELECT '` + id + `', f, 'v' || n, 1 + n % 1000, n
			FROM generate_series(1, 50000) n, unnest(ARRAY['utm_source', 'utm_medium', 'utm_campaign']) f`,
		`INSERT INTO utm_value SELECT w, 'utm_source', 'v' || n, n, n FROM generate_series(1, 1000) n, (SELECT gen_random_uuid() w
			FROM generate_series(1, 50)) ws`,
		`INSERT INTO utm_total SELECT waitlist_id, field, sum(count) FROM utm_value GROUP BY 1, 2`,
		`INSERT INTO waitlist (waitlist_id, built_to, deleted_at) SELECT gen_random_uuid(), n, CASE WHEN n % 2 = 0 THEN now() END
			FROM generate_series(1, 5000) n`,
		`INSERT INTO tombstone (hash) SELECT sha256(n::text::bytea) FROM generate_series(1, 5000) n`,
	} {
		exec(sql)
	}
	for _, when := range []string{"kept from the empty table", "made anew"} {
		if when == "made anew" {
			exec("VACUUM (ANALYZE) arrival, day, utm_value, utm_total, waitlist, tombstone")
			exec("DISCARD PLANS")
		}
		// One for each of the two times that the fold runs.
		exec(`INSERT INTO arrival (event_id, waitlist_id, day, views, signups, referral_signups, number, source, medium, campaign)
			SELECT gen_random_uuid(), '` + id + `', current_date, 1, 1, 1, 1000000, 'v7', 'v8', 'v9' FROM generate_series(1, 2)`)
		for _, s := range statements {
			n := blocks(t, conn, s.name, s.args)
			t.Logf("%s, %s: %d blocks", s.name, when, n)
			if n > s.most {
				t.Errorf("%s, plan %s: %d blocks", s.name, when, n)
			}
		}
	}
}
