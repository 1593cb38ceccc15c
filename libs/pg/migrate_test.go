package pg_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net/url"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"waitlist.internal/libs/devservers"
	"waitlist.internal/libs/pg"
	"waitlist.internal/libs/testenv"
)

// files returns migrations that run the given statements.
func files(statements ...string) fstest.MapFS {
	out := fstest.MapFS{}
	for i, sql := range statements {
		out[fmt.Sprintf("%05d_step.sql", i+1)] = &fstest.MapFile{Data: []byte("-- +goose Up\n" + sql + ";\n")}
	}
	return out
}

// with adds a connection parameter to url.
func with(t *testing.T, raw, name, value string) string {
	t.Helper()
	u, err := url.Parse(raw)
	if err != nil {
		t.Fatal(err)
	}
	q := u.Query()
	q.Set(name, value)
	u.RawQuery = q.Encode()
	return u.String()
}

// onWarning calls fn with the first warning.
type onWarning struct {
	slog.Handler
	fn func()
}

func (h onWarning) Handle(ctx context.Context, r slog.Record) error {
	if r.Level == slog.LevelWarn {
		h.fn()
	}
	return h.Handler.Handle(ctx, r)
}

// A migration behind a long transaction gives up its place in the lock queue, so
// that others pass, and tries again.
func TestMigrateTriesAgainForLocks(t *testing.T) {
	p := pool(t, with(t, testenv.Postgres(t), "lock_timeout", "100ms"))
	quiet := slog.New(slog.DiscardHandler)
	first := files("CREATE TABLE thing (id int)")
	if err := pg.Migrate(t.Context(), p, "app", first, quiet); err != nil {
		t.Fatal(err)
	}
	long, err := p.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := long.Exec(t.Context(), "SELECT FROM thing"); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	warnings := 0
	log := slog.New(onWarning{slog.NewTextHandler(&out, nil), func() {
		warnings++
		// No migration waits for the table now.
		err := pg.InTx(t.Context(), p, func(tx pgx.Tx) error {
			_, err := tx.Exec(t.Context(), "LOCK TABLE thing IN SHARE MODE NOWAIT")
			return err
		})
		if err != nil {
			t.Errorf("a statement is blocked: %v", err)
		}
		if err := long.Rollback(t.Context()); err != nil {
			t.Error(err)
		}
	}})
	all := files("CREATE TABLE thing (id int)", "CREATE TABLE other (id int)", "ALTER TABLE thing ADD n int")
	if err := pg.Migrate(t.Context(), p, "app", all, log); err != nil {
		t.Fatal(err)
	}
	if warnings != 1 {
		t.Errorf("%d warnings", warnings)
	}
	for _, file := range []string{"00002_step.sql", "00003_step.sql"} {
		if n := strings.Count(out.String(), file+" took="); n != 1 {
			t.Errorf("%d lines say that %s was applied:\n%s", n, file, &out)
		}
	}
	if strings.Contains(out.String(), "00001_step.sql took=") {
		t.Errorf("a migration is told of twice:\n%s", &out)
	}
	if _, err := p.Exec(t.Context(), "INSERT INTO thing (id, n) VALUES (1, 1)"); err != nil {
		t.Error(err)
	}
}

func TestCheckMigrated(t *testing.T) {
	p := pool(t, testenv.Postgres(t))
	old, all := files("CREATE TABLE a (id int)"), files("CREATE TABLE a (id int)", "CREATE TABLE b (id int)")
	check := func(migrations fstest.MapFS, want ...string) {
		t.Helper()
		err := pg.CheckMigrated(t.Context(), p, "app", migrations)
		if (err == nil) != (len(want) == 0) {
			t.Errorf("CheckMigrated = %v", err)
		}
		for _, w := range want {
			if err != nil && !strings.Contains(err.Error(), w) {
				t.Errorf("%v does not say %s", err, w)
			}
		}
	}
	check(all, "schema app lacks 00001_step.sql, 00002_step.sql", "migrate")
	for _, migrations := range []fstest.MapFS{old, all} {
		if err := pg.Migrate(t.Context(), p, "app", migrations, slog.New(slog.DiscardHandler)); err != nil {
			t.Fatal(err)
		}
		if len(migrations) == 1 {
			check(all, "schema app lacks 00002_step.sql:")
		}
	}
	check(all)
	// The database is newer than the program.
	check(old)
}

// A baseline takes the place of the migrations up to its number: a schema that has
// them all has nothing to do, and one that lacks some of them is told what to do.
func TestBaseline(t *testing.T) {
	p := pool(t, testenv.Postgres(t))
	quiet := slog.New(slog.DiscardHandler)
	former := files("CREATE TABLE a (id int)", "ALTER TABLE a ADD n int")
	baseline := fstest.MapFS{
		"00002_baseline.sql": {Data: []byte("-- +goose Up\nCREATE TABLE a (id int, n int);\n")},
		"00003_step.sql":     {Data: []byte("-- +goose Up\nCREATE TABLE b (id int);\n")},
	}
	if err := pg.Migrate(t.Context(), p, "app", fstest.MapFS{"00001_step.sql": former["00001_step.sql"]}, quiet); err != nil {
		t.Fatal(err)
	}
	for name, do := range map[string]func() error{
		"Migrate":       func() error { return pg.Migrate(t.Context(), p, "app", baseline, quiet) },
		"CheckMigrated": func() error { return pg.CheckMigrated(t.Context(), p, "app", baseline) },
	} {
		const want = "schema app is at migration 1, which this version can't update: it begins with 00002_baseline.sql. Start "
		if err := do(); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%s of a schema before the baseline: %v", name, err)
		}
	}
	if err := pg.Migrate(t.Context(), p, "app", former, quiet); err != nil {
		t.Fatal(err)
	}
	for name, p := range map[string]*pgxpool.Pool{"former": p, "fresh": pool(t, testenv.Postgres(t))} {
		if err := pg.Migrate(t.Context(), p, "app", baseline, quiet); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := p.Exec(t.Context(), "INSERT INTO a (id, n) SELECT id, id FROM b"); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A role that owns its schema can migrate it without the right to create schemas.
func TestMigrateWithoutTheRightToCreateSchemas(t *testing.T) {
	server := testenv.PostgresServer(t, devservers.PostgresOptions{Settings: testenv.FastPostgres()})
	admin, err := pgx.Connect(t.Context(), server.URL("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = admin.Close(context.WithoutCancel(t.Context())) }()
	if _, err := admin.Exec(t.Context(), `CREATE ROLE narrow LOGIN; CREATE SCHEMA app AUTHORIZATION narrow`); err != nil {
		t.Fatal(err)
	}
	p := pool(t, strings.Replace(server.URL("postgres"), "postgres@", "narrow@", 1))
	migrations := files("CREATE TABLE a (id int)")
	if err := pg.Migrate(t.Context(), p, "app", migrations, slog.New(slog.DiscardHandler)); err != nil {
		t.Error(err)
	}
	if err := pg.Migrate(t.Context(), p, "other", migrations, slog.New(slog.DiscardHandler)); pg.SQLState(err) != "42501" {
		t.Errorf("a schema that is not there: %v", err)
	}
}
