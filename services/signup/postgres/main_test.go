package postgres_test

import (
	"context"
	"encoding/base64"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"waitlist.internal/libs/pg"
	"waitlist.internal/libs/seal"
	"waitlist.internal/libs/testenv"
	"waitlist.internal/services/signup/postgres"
)

const schema = "signup"

func TestMain(m *testing.M) { testenv.Main(m) }

// database returns a pool of a migrated schema of the test's own.
func database(t testing.TB) *pgxpool.Pool {
	t.Helper()
	url := testenv.PostgresFrom(t, schema, func(ctx context.Context, url string) error {
		pool, err := pg.Open(ctx, url, schema, 2)
		if err != nil {
			return err
		}
		defer pool.Close()
		migrations, err := postgres.Migrations()
		if err != nil {
			return err
		}
		return pg.Migrate(ctx, pool, schema, migrations)
	})
	pool, err := pg.Open(t.Context(), url, schema, 16)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

func secrets(t testing.TB) *seal.Ring {
	t.Helper()
	ring, err := seal.ParseRing("k1:" + base64.StdEncoding.EncodeToString([]byte(strings.Repeat("k", 32))))
	if err != nil {
		t.Fatal(err)
	}
	return ring
}
