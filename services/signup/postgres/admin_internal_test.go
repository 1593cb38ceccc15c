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
)

// blocks returns how many blocks a statement reads, the functions in it
// included, under a plan for any arguments.
func blocks(t *testing.T, pool *pgxpool.Pool, sql string, args ...any) int {
	t.Helper()
	conn, err := pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	given := make([]string, len(args))
	for i, a := range args {
		given[i] = fmt.Sprintf("'%v'", a)
	}
	list := strings.Join(given, ", ")
	if _, err := conn.Exec(t.Context(), "SET plan_cache_mode = force_generic_plan; PREPARE measured AS "+sql, pgx.QueryExecModeSimpleProtocol); err != nil {
		t.Fatal(err)
	}
	// The first time reads the catalog as well.
	if _, err := conn.Exec(t.Context(), "EXECUTE measured("+list+")", pgx.QueryExecModeSimpleProtocol); err != nil {
		t.Fatal(err)
	}
	var plan string
	if err := conn.QueryRow(t.Context(), "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) EXECUTE measured("+list+")", pgx.QueryExecModeSimpleProtocol).Scan(&plan); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Exec(t.Context(), "DEALLOCATE measured", pgx.QueryExecModeSimpleProtocol); err != nil {
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

// TestPagesOfALongQueue: a page costs the same anywhere in a long queue, among
// many waitlists, with a long log of shifts; so does what trims the log.
func TestPagesOfALongQueue(t *testing.T) {
	t.Parallel()
	pool, err := pg.Open(t.Context(), testenv.Postgres(t), "signup", 2)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	migrations, err := Migrations()
	if err != nil {
		t.Fatal(err)
	}
	if err := pg.Migrate(t.Context(), pool, "signup", migrations); err != nil {
		t.Fatal(err)
	}
	const many = 50_000
	id := uuid.NewString()
	conn, err := pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	for _, sql := range []string{
		`SET statement_timeout = 0`,
		`INSERT INTO signup (waitlist_id, number, queue_key, email, token, created_at)
		 SELECT '` + id + `', n, n::bigint << 20, 'p' || n || '@example.com', gen_random_uuid(), now() FROM generate_series(1, 50000) n`,
		`INSERT INTO signup (waitlist_id, number, queue_key, email, token, created_at)
		 SELECT w, n, n::bigint << 20, 'p' || n || '@example.com', gen_random_uuid(), now() FROM generate_series(1, 500) n,
		 (SELECT gen_random_uuid() w FROM generate_series(1, 20)) ws`,
		`INSERT INTO queue_bucket (waitlist_id, bucket, live) SELECT waitlist_id, queue_key >> 32, count(*) FROM signup GROUP BY 1, 2`,
		`INSERT INTO change (waitlist_id, no, nonce, live, total, credited, last_number, first_number)
		 SELECT DISTINCT waitlist_id, n, 1, 1, 1, 0, 1, 2 FROM signup, generate_series(1, 100) n WHERE number = 1`,
		`INSERT INTO queue_shift (waitlist_id, no, first_key, end_key, old_keys, new_keys, created_at)
		 SELECT waitlist_id, n, 5, 6, '{5}', '{5}', now() - interval '1 second' * n FROM signup, generate_series(1, 5000) n WHERE number = 1`,
		`VACUUM (ANALYZE) signup, queue_bucket, change, queue_shift`,
	} {
		if _, err := conn.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	// 101 rows, up to 4096 keys of a bucket, the 11 buckets before.
	const most = 250
	for name, args := range map[string][]any{
		"first":       {id, int64(math.MinInt64), int64(math.MaxInt64), 101},
		"middle":      {id, int64(many/2) << 20, 4990, 101},
		"last":        {id, int64(many-50) << 20, 5000, 101},
		"behind":      {id, int64(many) << 21, 5000, 101},
		"other queue": {uuid.NewString(), 0, 0, 101},
	} {
		if n := blocks(t, pool, pageSQL, args...); n > most {
			t.Errorf("page %s reads %d blocks", name, n)
		} else {
			t.Logf("page %s reads %d blocks", name, n)
		}
	}
	// A range of blocks is summarized once it is full: up to 128.
	for name, n := range map[string]int{
		"state": blocks(t, pool, stateSQL, id),
		"trim":  blocks(t, pool, trimShiftsSQL, 100),
	} {
		t.Logf("%s reads %d blocks", name, n)
		if n > 150 {
			t.Errorf("%s reads %d blocks", name, n)
		}
	}
}
