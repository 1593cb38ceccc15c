package postgres_test

import (
	"encoding/base64"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"waitlist.internal/libs/seal"
	"waitlist.internal/libs/testenv"
	"waitlist.internal/services/signup"
	"waitlist.internal/services/signup/postgres"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// database returns a pool of a migrated schema of the test's own.
func database(t testing.TB) *pgxpool.Pool {
	t.Helper()
	pool := testenv.Migrated(t, signup.Name, 16, postgres.Migrations)
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
