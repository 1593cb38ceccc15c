package postgres_test

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"waitlist.internal/libs/pg"
	"waitlist.internal/libs/testenv"
	"waitlist.internal/services/admin-analytics/postgres"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// database returns a pool of a migrated schema of the test's own.
func database(t testing.TB) *pgxpool.Pool {
	t.Helper()
	url := testenv.PostgresFrom(t, postgres.Schema, func(ctx context.Context, url string) error {
		pool, err := pg.Open(ctx, url, postgres.Schema, 2)
		if err != nil {
			return err
		}
		defer pool.Close()
		migrations, err := postgres.Migrations()
		if err != nil {
			return err
		}
		return pg.Migrate(ctx, pool, postgres.Schema, migrations)
	})
	pool, err := pg.Open(t.Context(), url, postgres.Schema, 8)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}
