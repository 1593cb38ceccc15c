package postgres

import (
	"fmt"
	"go/ast"
	"go/constant"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"waitlist.internal/libs/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// statements returns the constants of queries.go that are statements, by name.
func statements(t *testing.T) map[string]string {
	t.Helper()
	fset := token.NewFileSet()
	file, err := parser.ParseFile(fset, "queries.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	pkg, err := (&types.Config{Importer: importer.Default()}).Check("postgres", fset, []*ast.File{file}, nil)
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	for _, name := range pkg.Scope().Names() {
		c, ok := pkg.Scope().Lookup(name).(*types.Const)
		if !ok || c.Val().Kind() != constant.String {
			continue
		}
		if sql := constant.StringVal(c.Val()); strings.HasPrefix(sql, "-- name: ") {
			out[name] = sql
		}
	}
	return out
}

// Every statement finds its rows by an index: with sequential scans switched
// off, a plan that still has one shows that there is no index for it.
func TestEveryStatementHasAnIndex(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	pool := testenv.Migrated(t, Schema, 1, Migrations)
	conn, err := pool.Acquire(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	for _, set := range []string{"SET enable_seqscan = off", "SET plan_cache_mode = force_generic_plan"} {
		if _, err := conn.Exec(ctx, set); err != nil {
			t.Fatal(err)
		}
	}
	parameter := regexp.MustCompile(`\$(\d+)`)
	all := statements(t)
	if len(all) < 20 {
		t.Fatalf("only %d statements found", len(all))
	}
	names := map[string]bool{}
	for _, id := range slices.Sorted(maps.Keys(all)) {
		sql := all[id]
		name, _, _ := strings.Cut(strings.TrimPrefix(sql, "-- name: "), "\n")
		if names[name] {
			t.Errorf("two statements are named %s", name)
		}
		names[name] = true
		highest := 0
		for _, m := range parameter.FindAllStringSubmatch(sql, -1) {
			n, err := strconv.Atoi(m[1])
			if err != nil {
				t.Fatal(err)
			}
			highest = max(highest, n)
		}
		execute := "EXPLAIN EXECUTE " + id
		if highest > 0 {
			execute += "(" + strings.TrimSuffix(strings.Repeat("NULL,", highest), ",") + ")"
		}
		if _, err := conn.Exec(ctx, fmt.Sprintf("PREPARE %s AS %s", id, sql)); err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		rows, err := conn.Query(ctx, execute, pgx.QueryExecModeSimpleProtocol)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		plan, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if text := strings.Join(plan, "\n"); strings.Contains(text, "Seq Scan") {
			t.Errorf("%s has no index:\n%s", name, text)
		}
	}
}
