package postgres

import (
	"testing"

	"waitlist.internal/libs/testenv"
	"waitlist.internal/services/account"
)

func TestMain(m *testing.M) { testenv.Main(m) }

func TestEveryStatementHasAnIndex(t *testing.T) {
	t.Parallel()
	testenv.StatementsHaveIndexes(t, testenv.Migrated(t, account.Name, 1, Migrations), "db/*.sql.go", 35)
}
