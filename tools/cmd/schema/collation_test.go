package main

import (
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/jackc/pgx/v5"

	"waitlist.internal/libs/pg"
	"waitlist.internal/libs/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// Any other collation than "C" may order its texts anew with a release of the operating
// system or of ICU. The index is then corrupt: a lookup misses rows that are there, and
// a unique index takes the same address twice.
func TestIndexedTextsHaveCollationC(t *testing.T) {
	folders, err := filepath.Glob(filepath.Join("..", "..", "..", "services", "*", "postgres", "migrations"))
	if err != nil || len(folders) == 0 {
		t.Fatalf("no migrations: %v", err)
	}
	for _, folder := range folders {
		name := filepath.Base(filepath.Dir(filepath.Dir(folder)))
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool, err := pg.Open(t.Context(), testenv.Postgres(t), "app", 2)
			if err != nil {
				t.Fatal(err)
			}
			defer pool.Close()
			if err := pg.Migrate(t.Context(), pool, "app", os.DirFS(folder), slog.New(slog.DiscardHandler)); err != nil {
				t.Fatal(err)
			}
			// CollectRows returns the query's own error, too. An index on an expression has the
			// collation of its own column.
			rows, _ := pool.Query(t.Context(), `
				SELECT i.indrelid::regclass || ': ' || a.attname || ' of ' || a.attrelid::regclass
				FROM pg_index i
				JOIN pg_attribute a ON a.attrelid = i.indexrelid
				JOIN pg_class c ON c.oid = i.indexrelid AND c.relnamespace = 'app'::regnamespace
				WHERE a.attcollation NOT IN (0, 'pg_catalog."C"'::regcollation)
				ORDER BY 1`)
			columns, err := pgx.CollectRows(rows, pgx.RowTo[string])
			if err != nil {
				t.Fatal(err)
			}
			for _, column := range columns {
				t.Errorf(`%s has another collation than "C"; write text COLLATE "C"`, column)
			}
		})
	}
}
