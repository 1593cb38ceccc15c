package postgres

import (
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"waitlist.internal/libs/pg"
	"waitlist.internal/libs/testenv"
	"waitlist.internal/services/signup/postgres/db"
)

// blocks returns how many blocks a prepared statement reads, the functions in it
// included.
func blocks(t *testing.T, conn *pgxpool.Conn, name string, args ...any) int {
	t.Helper()
	given := make([]string, len(args))
	for i, a := range args {
		given[i] = fmt.Sprintf("'%v'", a)
	}
	execute := "EXECUTE " + name + "(" + strings.Join(given, ", ") + ")"
	// The first time reads the catalog as well.
	if _, err := conn.Exec(t.Context(), execute, pgx.QueryExecModeSimpleProtocol); err != nil {
		t.Fatal(err)
	}
	var plan string
	if err := conn.QueryRow(t.Context(), "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) "+execute,
		pgx.QueryExecModeSimpleProtocol).Scan(&plan); err != nil {
		t.Fatal(err)
	}
	var nodes []struct {
		Plan struct {
			Hit  int `json:"Shared Hit Blocks"`
			Read int `json:"Shared Read Blocks"`
		} `json:"Plan"`
	}
	if err := json.Unmarshal([]byte(plan), &nodes); err != nil {
		t.Fatal(err)
	}
	return nodes[0].Plan.Hit + nodes[0].Plan.Read
}

// TestReadsOfALongQueue: what owners see of a queue costs the same anywhere in a
// long one, among others, with a long log behind it: by a plan that was made
// before the first signup, and by one that knows the tables.
func TestReadsOfALongQueue(t *testing.T) {
	t.Parallel()
	pool := testenv.Migrated(t, "signup", 2, Migrations)
	conn, err := pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	exec := func(sql string) {
		t.Helper()
		if _, err := conn.Exec(t.Context(), sql, pgx.QueryExecModeSimpleProtocol); err != nil {
			t.Fatal(err)
		}
	}
	// The insertions take seconds on a busy machine.
	if err := pgx.BeginFunc(t.Context(), conn, func(tx pgx.Tx) error { return pg.NoTimeouts(t.Context(), tx) }); err != nil {
		t.Fatal(err)
	}
	exec("SET plan_cache_mode = force_generic_plan; SET statement_timeout = 0")
	for name, sql := range map[string]string{
		"page": pageSQL, "counters": stateSQL, "leaderboard": db.Leaderboard, "referrers": db.TopReferrers, "trim": trimShiftsSQL,
	} {
		exec("PREPARE " + name + " AS " + sql)
	}
	const many = 50_000
	id := uuid.NewString()
	measure := func() {
		t.Helper()
		for _, tt := range []struct {
			what, name string
			args       []any
			most       int
		}{
			// 101 rows, up to 4096 keys of a bucket, the 11 buckets before.
			{"first page", "page", []any{id, int64(math.MinInt64), int64(math.MaxInt64), 101, false}, 250},
			{"page in the middle", "page", []any{id, int64(many/2) << 20, 4990, 101, false}, 250},
			{"last page", "page", []any{id, int64(many-50) << 20, 5000, 101, false}, 250},
			{"page behind the end", "page", []any{id, int64(many) << 21, 5000, 101, false}, 30},
			{"page of an empty queue", "page", []any{uuid.NewString(), math.MinInt64, int64(math.MaxInt64), 101, false}, 30},
			{"counters", "counters", []any{id}, 10},
			{"leaderboard", "leaderboard", []any{id, 50}, 80},
			{"top referrers", "referrers", []any{id, 10}, 30},
			{"trim", "trim", []any{100}, 10},
		} {
			n := blocks(t, conn, tt.name, tt.args...)
			t.Logf("%s: %d blocks", tt.what, n)
			if n > tt.most {
				t.Errorf("%s reads %d blocks, more than %d", tt.what, n, tt.most)
			}
		}
	}
	for _, sql := range []string{
		`INSERT INTO signup (waitlist_id, number, queue_key, email, token, created_at, referral_count, referral_at)
		 SELECT '` + id + `', n, n::bigint << 20, 'p' || n || '@example.com', gen_random_uuid(), now(), n % 3, now()
		     FROM generate_series(1, 50000) n`,
		`INSERT INTO signup (waitlist_id, number, queue_key, email, token, created_at)
		 SELECT w, n, n::bigint << 20, 'p' || n || '@example.com', gen_random_uuid(), now() FROM generate_series(1, 500) n,
		 (SELECT gen_random_uuid() w FROM generate_series(1, 20)) ws`,
		`INSERT INTO queue_bucket (waitlist_id, bucket, live) SELECT waitlist_id, queue_key >> 32, count(*) FROM signup GROUP BY 1, 2`,
		`INSERT INTO change (waitlist_id, no, nonce, live, total, credited, last_number, first_number)
		 SELECT waitlist_id, n, 1, 1, 1, 0, 1, 2 FROM signup, generate_series(1, 5001) n WHERE number = 1`,
		`INSERT INTO queue_shift (waitlist_id, no, first_key, end_key, old_keys, new_keys, created_at)
		 SELECT waitlist_id, n, 5, 6, '{5}', '{5}', now() - interval '1 second' * n FROM signup, generate_series(1, 5000) n WHERE number = 1`,
	} {
		exec(sql)
	}
	t.Run("plan of empty tables", func(*testing.T) { measure() })
	exec("VACUUM (ANALYZE) signup, queue_bucket, change, queue_shift")
	t.Run("plan of full tables", func(*testing.T) { measure() })
}
