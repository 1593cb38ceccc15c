package testenv

import (
	"fmt"
	"go/ast"
	"go/constant"
	"go/parser"
	"go/token"
	"go/types"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

var parameter = regexp.MustCompile(`\$(\d+)`)

// StatementsHaveIndexes checks that every statement finds its rows by an index: with
// sequential scans switched off, a plan that still has one shows that there is no index
// for it. The statements are the constants that begin with "-- name: x", each with a
// name of its own, in the Go files that match pattern. There must be at least atLeast
// of them. pool has the migrated schema.
func StatementsHaveIndexes(t *testing.T, pool *pgxpool.Pool, pattern string, atLeast int) {
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
	all := statements(t, pattern)
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

// statements returns the constants that are statements, by name.
func statements(t *testing.T, pattern string) map[string]string {
	t.Helper()
	paths, err := filepath.Glob(pattern)
	if err != nil {
		t.Fatal(err)
	}
	fset := token.NewFileSet()
	files := make([]*ast.File, len(paths))
	for i, path := range paths {
		if files[i], err = parser.ParseFile(fset, path, nil, 0); err != nil {
			t.Fatal(err)
		}
	}
	// Without its imports the package has errors, but it still has its constants.
	conf := types.Config{Error: func(error) {}}
	pkg, _ := conf.Check("statements", fset, files, nil)
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
