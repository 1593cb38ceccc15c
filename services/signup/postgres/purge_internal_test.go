package postgres

import (
	"slices"
	"testing"

	"github.com/jackc/pgx/v5"

	"waitlist.internal/libs/testenv"
)

// TestPurgedTables: whatever table has rows of waitlists is purged with them.
func TestPurgedTables(t *testing.T) {
	t.Parallel()
	pool := testenv.Migrated(t, "signup", 2, Migrations)
	rows, err := pool.Query(t.Context(), `
		SELECT table_name::text FROM information_schema.columns
		WHERE table_schema = 'signup' AND column_name = 'waitlist_id'`)
	if err != nil {
		t.Fatal(err)
	}
	tables, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	purged := purgedTables()
	slices.Sort(tables)
	slices.Sort(purged)
	if !slices.Equal(tables, purged) {
		t.Fatalf("tables with a waitlist_id %v, purged %v", tables, purged)
	}
}
