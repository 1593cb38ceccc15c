package postgres

import (
	"testing"

	"waitlist.internal/libs/testenv"
	"waitlist.internal/services/billing"
)

func TestMain(m *testing.M) { testenv.Main(m) }

func TestEveryStatementHasAnIndex(t *testing.T) {
	t.Parallel()
	testenv.StatementsHaveIndexes(t, testenv.Migrated(t, billing.Name, 1, Migrations), "db/*.sql.go", 20)
}
