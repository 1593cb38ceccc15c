package pg_test

import (
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"waitlist.internal/libs/devservers"
	"waitlist.internal/libs/pg"
	"waitlist.internal/libs/testenv"
)

// A pooler of transactions gives a session of the role, so the role must have the settings.
// A pooler of sessions gives one that the pool can set.
func TestPgBouncer(t *testing.T) {
	server := testenv.PostgresServer(t, devservers.PostgresOptions{Settings: testenv.FastPostgres()})
	url := strings.Replace(server.URL("postgres"), "postgres@", "app@", 1)
	admin, err := pgx.Connect(t.Context(), server.URL("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = admin.Close(t.Context()) }()
	alter := func(sql string) {
		t.Helper()
		if _, err := admin.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	alter("CREATE ROLE app LOGIN; CREATE SCHEMA app AUTHORIZATION app")
	start := func(mode string) *devservers.PgBouncer {
		return testenv.PgBouncer(t, devservers.PgBouncerOptions{Server: server.URL("postgres"), Mode: mode})
	}
	var path, limit string
	read := func(url string) error {
		return pool(t, url).QueryRow(t.Context(), "SELECT current_schema(), current_setting('lock_timeout')").Scan(&path, &limit)
	}
	if err := read(start("session").Through(url) + "&lock_timeout=1500ms"); err != nil || path != "app" || limit != "1500ms" {
		t.Errorf("sessions: %v, schema %q, lock_timeout %s", err, path, limit)
	}
	transactions := func() string { return start("transaction").Through(url) + "&default_query_exec_mode=cache_describe" }
	want := "needs other settings (enable_seqscan, idle_in_transaction_session_timeout, lock_timeout, " +
		"search_path, statement_timeout, timezone)"
	if err := read(transactions()); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("a role without settings: %v", err)
	}
	for name, value := range map[string]string{
		"enable_seqscan": "off", "idle_in_transaction_session_timeout": "30s", "jit": "off", "lock_timeout": "4s",
		"search_path": "app", "statement_timeout": "4500ms", "timezone": "UTC",
	} {
		alter("ALTER ROLE app SET " + name + " TO '" + value + "'")
	}
	if err := read(transactions()); err != nil || path != "app" || limit != "4s" {
		t.Errorf("transactions: %v, schema %q, lock_timeout %s", err, path, limit)
	}
	if _, err := pg.Open(t.Context(), url+"&default_query_exec_mode=exec", "app", 1); err == nil {
		t.Error("a mode that guesses types is taken")
	}
}
