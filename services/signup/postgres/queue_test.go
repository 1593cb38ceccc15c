package postgres_test

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"waitlist.internal/libs/testenv"
	"waitlist.internal/services/signup/postgres"
)

// TestMovesWriteFewRows moves people into the same room again and again (B5): the order
// is that of a slice, the buckets are right, and a move writes at most 2 rows on average.
func TestMovesWriteFewRows(t *testing.T) {
	t.Parallel()
	const moves = 500
	pool := testenv.Migrated(t, "signup", 8, postgres.Migrations)
	seed := testenv.Seed(t)
	for name, tt := range map[string]struct {
		people int
		// position is where the last one goes at a step.
		position func(step int, rnd *rand.Rand) int
	}{
		// A bucket ends 4096 before the key of 299.
		"behind one person":            {600, func(int, *rand.Rand) int { return 300 }},
		"behind whoever moved last":    {600, func(step int, _ *rand.Rand) int { return 300 + step%100 }},
		"at two spots that part":       {600, func(step int, _ *rand.Rand) int { return 300 + step%2*step/4 }},
		"somewhere among twenty":       {600, func(_ int, r *rand.Rand) int { return 290 + r.IntN(20) }},
		"second":                       {600, func(int, *rand.Rand) int { return 2 }},
		"last but one":                 {600, func(int, *rand.Rand) int { return 599 }},
		"in the middle of three":       {3, func(int, *rand.Rand) int { return 2 }},
		"second of less than a window": {100, func(int, *rand.Rand) int { return 2 }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			list := uuid.NewString()
			queue := make([]int64, tt.people)
			for i := range queue {
				queue[i] = int64(i + 1)
			}
			for _, sql := range []string{
				`INSERT INTO signup (waitlist_id, number, queue_key, email, token, created_at)
				 SELECT $1, n, (n + 3797 << 20) + 4096, n || '@example.com', gen_random_uuid(), now() FROM generate_series(1, $2::bigint) n`,
				`INSERT INTO queue_bucket SELECT $1, queue_key >> 32, count(*) FROM signup WHERE waitlist_id = $1 AND $2 > 0 GROUP BY 2`,
			} {
				testenv.Fill(t, pool, sql, list, tt.people)
			}
			rnd := rand.New(rand.NewPCG(seed, 0))
			rows := 0
			for step := range moves {
				last, to := queue[len(queue)-1], tt.position(step, rnd)
				var written int
				if err := pool.QueryRow(t.Context(), `SELECT coalesce(cardinality(queue_move($1, $2, $3, $4)), 0)`,
					list, last, to, len(queue)).Scan(&written); err != nil {
					t.Fatal(err)
				}
				rows += written
				queue = slices.Insert(queue[:len(queue)-1], to-1, last)
			}
			stored, err := pool.Query(t.Context(), `SELECT number FROM signup WHERE waitlist_id = $1 ORDER BY queue_key`, list)
			if err != nil {
				t.Fatal(err)
			}
			if got, err := pgx.CollectRows(stored, pgx.RowTo[int64]); err != nil || !slices.Equal(got, queue) {
				t.Errorf("the order is not that of the slice: %v", err)
			}
			var wrong int
			if err := pool.QueryRow(t.Context(), `SELECT count(*) FROM
				(SELECT queue_key >> 32 AS bucket, count(*) AS live FROM signup WHERE waitlist_id = $1 GROUP BY 1) s
				FULL JOIN (SELECT bucket, live FROM queue_bucket WHERE waitlist_id = $1 AND live <> 0) b USING (bucket)
				WHERE s.live IS DISTINCT FROM b.live`, list).Scan(&wrong); err != nil || wrong > 0 {
				t.Errorf("%d buckets are wrong, %v", wrong, err)
			}
			each := float64(rows) / moves
			t.Logf("%.2f rows a move", each)
			if each > 2 {
				t.Errorf("%.2f rows a move", each)
			}
		})
	}
}
