package postgres

import (
	"regexp"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"waitlist.internal/libs/testenv"
)

func TestStatementsHaveIndexes(t *testing.T) {
	t.Parallel()
	testenv.StatementsHaveIndexes(t, testenv.Migrated(t, "signup", 1, Migrations), "db/*.sql.go", 21)
}

// TestPlansOfAnEmptyTable: a plan made before the first signup, and kept by a
// connection, looks signups up by whole keys of their indexes.
func TestPlansOfAnEmptyTable(t *testing.T) {
	t.Parallel()
	pool := testenv.Migrated(t, "signup", 2, Migrations)
	conn, err := pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	if _, err := conn.Exec(t.Context(), "SET plan_cache_mode = force_generic_plan"); err != nil {
		t.Fatal(err)
	}
	// A scan of the table, with the two lines behind it.
	scan := regexp.MustCompile(`Scan .*on signup\b.*\n(.*)\n(.*)`)
	parameter := regexp.MustCompile(`\$\d`)
	for name, sql := range map[string]string{
		"present":   presentSQL,
		"head":      headSQL,
		"referrers": referrersSQL,
		"place":     placeSQL,
		"since":     sinceSQL,
		"status":    viewSQL + addressSQL,
		"statuses":  viewSQL + addressesSQL,
		"number":    viewSQL + numberSQL,
		"page":      pageSQL,
	} {
		if _, err := conn.Exec(t.Context(), "PREPARE "+name+" AS "+sql, pgx.QueryExecModeSimpleProtocol); err != nil {
			t.Fatal(name, err)
		}
		distinct := map[string]bool{}
		for _, p := range parameter.FindAllString(sql, -1) {
			distinct[p] = true
		}
		nulls := strings.TrimSuffix(strings.Repeat("NULL,", len(distinct)), ",")
		rows, err := conn.Query(t.Context(), "EXPLAIN EXECUTE "+name+"("+nulls+")", pgx.QueryExecModeSimpleProtocol)
		if err != nil {
			t.Fatal(name, err)
		}
		lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			t.Fatal(name, err)
		}
		plan := strings.Join(lines, "\n") + "\n\n"
		found := scan.FindStringSubmatch(plan)
		if found == nil || !strings.Contains(found[1], "Index Cond: ") || !strings.Contains(found[1], " AND ") || strings.Contains(found[2],
			"Filter: ") || strings.Contains(plan, "Seq Scan") {
			t.Errorf("%s reads more than the rows that it names:\n%s", name, plan)
		}
	}
}
