package postgres_test

import (
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"waitlist.internal/libs/testenv"
	"waitlist.internal/services/admin-analytics/postgres"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// database returns a pool of a migrated schema of the test's own.
func database(t testing.TB) *pgxpool.Pool {
	t.Helper()
	pool := testenv.Migrated(t, postgres.Schema, 8, postgres.Migrations)
	return pool
}
