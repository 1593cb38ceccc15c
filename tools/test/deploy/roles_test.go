package deploy

import (
	"context"
	"os"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"waitlist.internal/libs/devservers"
	"waitlist.internal/libs/pg"
	"waitlist.internal/libs/testenv"
)

// schema returns the name of a service's schema, which is also its role's name.
func schema(service string) string { return strings.ReplaceAll(service, "-", "_") }

// database is a Postgres server with the suite's roles. The test starts its own server
// because roles belong to the whole server.
type database struct{ server *devservers.Postgres }

const databaseName = "waitlist"

func newDatabase(t *testing.T) database {
	t.Helper()
	settings := testenv.FastPostgres()
	settings["track_commit_timestamp"] = "on" // for testLinearizable
	d := database{testenv.PostgresServer(t, devservers.PostgresOptions{Settings: settings})}
	if err := d.server.CreateDatabase(t.Context(), databaseName); err != nil {
		t.Fatal(err)
	}
	return d
}

// url returns the database's URL for a role.
func (d database) url(role string) string {
	return strings.Replace(d.server.URL(databaseName), "postgres@", role+"@", 1)
}

func (d database) connect(t *testing.T, role string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), d.url(role))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.WithoutCancel(t.Context())) })
	return conn
}

// applyRoles runs k8s/postgres/roles.sql, as an operator does.
func (d database) applyRoles(t *testing.T, as string) {
	t.Helper()
	sql, err := os.ReadFile("../../../k8s/postgres/roles.sql")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := d.connect(t, as).Exec(t.Context(), string(sql)); err != nil {
		t.Fatal(err)
	}
}

const denied = "42501"

// checkRoles tests what the role of each service may and may not do in the migrated
// schemas.
func (d database) checkRoles(t *testing.T) {
	t.Helper()
	tables := d.tables(t)
	for _, service := range services() {
		role := "waitlist_" + schema(service)
		conn := d.connect(t, role)
		try := func(sql string) string {
			_, err := conn.Exec(t.Context(), sql)
			return pg.SQLState(err)
		}
		if code := try("CREATE TABLE " + schema(service) + ".probe (id int); DROP TABLE " + schema(service) + ".probe"); code != "" {
			t.Errorf("%s cannot work in its own schema: %s", role, code)
		}
		for _, sql := range []string{
			"CREATE TABLE public.probe (id int)", "CREATE SCHEMA probe", "CREATE DATABASE probe", "CREATE ROLE probe",
			"ALTER ROLE " + role + " CONNECTION LIMIT -1", "SELECT * FROM pg_authid", "SELECT pg_read_file('/etc/hostname')",
		} {
			if code := try(sql); code != denied {
				t.Errorf("%s: %s: %q, want %s", role, sql, code, denied)
			}
		}
		want := denied
		if service == "admin-analytics" {
			want = ""
		}
		if code := try("CREATE TEMPORARY TABLE held (id int)"); code != want {
			t.Errorf("%s: a temporary table: %q, want %q", role, code, want)
		}
		for _, other := range services() {
			if other == service {
				continue
			}
			if len(tables[schema(other)]) < 2 {
				t.Fatalf("%s has %d tables", other, len(tables[schema(other)]))
			}
			for _, table := range tables[schema(other)] {
				for _, sql := range []string{
					"SELECT FROM " + table, "INSERT INTO " + table + " DEFAULT VALUES", "DELETE FROM " + table, "DROP TABLE " + table,
				} {
					if code := try(sql); code != denied {
						t.Errorf("%s: %s: %q, want %s", role, sql, code, denied)
					}
				}
			}
			for _, sql := range []string{"CREATE TABLE " + schema(other) + ".probe (id int)", "SET ROLE waitlist_" + schema(other)} {
				if code := try(sql); code != denied {
					t.Errorf("%s: %s: %q, want %s", role, sql, code, denied)
				}
			}
		}
		var limit int
		var odd bool
		err := conn.QueryRow(t.Context(), `
			SELECT rolconnlimit, rolsuper OR rolcreatedb OR rolcreaterole OR rolreplication OR rolbypassrls
			FROM pg_roles WHERE rolname = current_user`).Scan(&limit, &odd)
		if err != nil || limit <= 0 || odd {
			t.Errorf("%s: %v, connection limit %d, unexpected privileges %v", role, err, limit, odd)
		}
	}
}

// tables returns the tables of each schema, by schema name.
func (d database) tables(t *testing.T) map[string][]string {
	t.Helper()
	rows, err := d.connect(t, "postgres").Query(t.Context(), "SELECT schemaname, tablename FROM pg_tables")
	if err != nil {
		t.Fatal(err)
	}
	out := map[string][]string{}
	var s, name string
	if _, err := pgx.ForEachRow(rows, []any{&s, &name}, func() error {
		out[s] = append(out[s], pgx.Identifier{s, name}.Sanitize())
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return out
}

// TestRolesMadeByTheOwner checks that an operator without superuser rights can run
// roles.sql, and can run it again.
func TestRolesMadeByTheOwner(t *testing.T) {
	d := newDatabase(t)
	admin := d.connect(t, "postgres")
	create := "CREATE ROLE operator LOGIN CREATEROLE; ALTER DATABASE " + databaseName + " OWNER TO operator"
	if _, err := admin.Exec(t.Context(), create); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		d.applyRoles(t, "operator")
	}
	var owned, members int
	err := admin.QueryRow(t.Context(), `
		SELECT (SELECT count(*) FROM pg_namespace WHERE nspname = ANY ($1) AND pg_get_userbyid(nspowner) = 'waitlist_' || nspname),
		       (SELECT count(*) FROM pg_auth_members WHERE pg_get_userbyid(roleid) LIKE 'waitlist_%' AND NOT admin_option)`,
		schemas()).Scan(&owned, &members)
	if err != nil || owned != len(services()) || members != 0 {
		t.Errorf("%v: %d schemas belong to their roles, %d memberships are left", err, owned, members)
	}
}

func schemas() []string {
	var out []string
	for _, s := range services() {
		out = append(out, schema(s))
	}
	return out
}
