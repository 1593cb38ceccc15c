package testenv

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
	"github.com/jackc/pgx/v5/pgxpool"
)

var parameter = regexp.MustCompile(`\$(\d+)`)

// StatementsHaveIndexes checks the statements in a file of constants, of which
// there are at least so many, against a migrated schema. Each has a name of its
// own in its first line, "-- name: x", and finds its rows by an index: with
// sequential scans switched off, a plan that still has one shows that there is no
// index for it.
func StatementsHaveIndexes(t *testing.T, pool *pgxpool.Pool, file string, atLeast int) {
	t.Helper()
	ctx := t.Context()
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
	all := statements(t, file)
	if len(all) < atLeast {
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

// statements returns a file's constants that are statements, by name.
func statements(t *testing.T, path string) map[string]string {
	t.Helper()
	fset := token.NewFileSet()
	file, err := parser.ParseFile(fset, path, nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	pkg, err := (&types.Config{Importer: importer.Default()}).Check("statements", fset, []*ast.File{file}, nil)
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
