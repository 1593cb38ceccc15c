package deploy

import (
	"fmt"
	"maps"
	"net/http"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"waitlist.internal/libs/testenv"
)

// restoredName is the database that a backup is restored into.
const restoredName = "restored"

// testRestore restores a backup as docs/operations.md describes, once with a Redis that
// holds changes made after the backup and once with an empty Redis. In both cases all
// positions must come from Postgres.
func testRestore(t *testing.T, programs string) {
	db := newDatabase(t)
	db.applyRoles(t, "postgres")
	d := newDeployment(t, db, programs)
	maps.Copy(d.base, map[string]string{"RATE_LIMIT_RPS": "100000", "RATE_LIMIT_BURST": "100000", "SHUTDOWN_DELAY": "0s"})
	d.migrate()
	stop := d.startAll(t)
	key, list := d.owner()
	c := &client{d: d, key: key, list: list}
	t.Cleanup(c.CloseIdleConnections)

	// Enough signups that the index answers in place of Postgres.
	var rows []string
	for i := range 1200 {
		rows = append(rows, fmt.Sprintf(`{"email":"i%d@example.com"}`, i))
	}
	d.post(http.StatusOK, "signup", "/v1/waitlists/"+list+"/import", key, `{"signups":[`+strings.Join(rows, ",")+`]}`)
	c.traffic("before", 30)
	truth := c.queue(db, databaseName)
	backup := filepath.Join(t.TempDir(), "waitlist.dump")
	db.tool(t, "pg_dump", "--format=custom", "--file="+backup, db.server.URL(databaseName))

	// Changes after the backup, which reach the index.
	c.traffic("lost", 40)
	later := c.queue(db, databaseName)
	for i := 0; i < len(later); i += 100 {
		c.place(t, later[i], i+1)
	}
	stop()

	for _, tt := range []struct{ name, redis string }{
		{"redis of later", d.base["REDIS_URL"]},
		{"empty redis", testenv.Redis(t)},
	} {
		t.Run(tt.name, func(t *testing.T) {
			admin := db.connect(t, "postgres")
			if _, err := admin.Exec(t.Context(), "CREATE DATABASE "+restoredName+" TEMPLATE template0"); err != nil {
				t.Fatal(err)
			}
			defer func() {
				if _, err := admin.Exec(t.Context(), "DROP DATABASE "+restoredName+" WITH (FORCE)"); err != nil {
					t.Error(err)
				}
			}()
			restored := db.server.URL(restoredName)
			roles := func() {
				db.tool(t, "psql", "-v", "ON_ERROR_STOP=1", "-qf", "../../../k8s/postgres/roles.sql", restored)
			}
			roles()
			db.tool(t, "pg_restore", "--exit-on-error", "--clean", "--if-exists", "--dbname="+restored, backup)
			roles()
			db.tool(t, "psql", "-qc", "ANALYZE", restored)

			after := *d
			after.t = t
			after.base, after.env = maps.Clone(d.base), map[string]map[string]string{}
			after.base["REDIS_URL"] = tt.redis
			for s, env := range d.env {
				after.env[s] = maps.Clone(env)
				after.env[s]["POSTGRES_URL"] = strings.Replace(env["POSTGRES_URL"], "/"+databaseName+"?", "/"+restoredName+"?", 1)
			}
			stop := after.startAll(t)
			defer stop()
			c := &client{d: &after, key: key, list: list}
			defer c.CloseIdleConnections()

			if got := c.queue(db, restoredName); !slices.Equal(got, truth) {
				t.Fatalf("%d signups in another order than the %d of the backup", len(got), len(truth))
			}
			for i, email := range truth {
				c.place(t, email, i+1)
			}
			c.traffic("after", 30)
			now := c.queue(db, restoredName)
			if len(now) != len(truth)+30-1 {
				t.Errorf("%d signups, after %d", len(now), len(truth))
			}
			for i, email := range now {
				c.place(t, email, i+1)
			}
		})
	}
}

// tool runs a Postgres client program of the newest installed version.
func (d database) tool(t *testing.T, name string, args ...string) {
	t.Helper()
	program := name
	if found, _ := filepath.Glob("/usr/lib/postgresql/*/bin/" + name); len(found) > 0 { // fails on a malformed pattern only
		program = slices.Max(found)
	}
	if out, err := exec.CommandContext(t.Context(), program, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", name, err, out)
	}
}

// client is an owner's HTTP client for one waitlist.
type client struct {
	http.Transport

	d         *deployment
	key, list string
}

func (c *client) do(want int, method, path, body string) map[string]any {
	c.d.t.Helper()
	status, answer, err := send(c.d.t.Context(), c, method, "http://"+c.d.host("signup", 0)+":8080"+path, c.key, body)
	if err != nil || status != want {
		c.d.t.Fatalf("%s %s: %d %v %v", method, path, status, answer, err)
	}
	return answer
}

// traffic signs n people up, each at the end of the queue, and then changes the order:
// each signup is referred by the previous one, every fifth moves to the front, and one
// leaves.
func (c *client) traffic(label string, n int) {
	c.d.t.Helper()
	token := ""
	var total float64
	for i := range n {
		email := fmt.Sprintf("%s%d@example.com", label, i)
		got := c.do(http.StatusCreated, http.MethodPost, "/v1/public/waitlists/"+c.list+"/signups",
			fmt.Sprintf(`{"email":%q,"referred_by_token":%q}`, email, token))
		token, _ = got["referral_token"].(string)
		position, _ := got["position"].(float64)
		if i > 0 && position != total+1 {
			c.d.t.Errorf("%s is at %v, after %v", email, position, total)
		}
		total = position
		if i%5 == 4 {
			c.do(http.StatusOK, http.MethodPatch, "/v1/waitlists/"+c.list+"/signups/"+email+"/position", `{"position":1}`)
		}
	}
	c.do(http.StatusNoContent, http.MethodDelete, "/v1/waitlists/"+c.list+"/signups/"+label+"0@example.com", "")
}

// place requires that a signup has the given position.
func (c *client) place(t *testing.T, email string, want int) {
	t.Helper()
	got := c.do(http.StatusOK, http.MethodGet, "/v1/public/waitlists/"+c.list+"/signups/"+email, "")
	if got["position"] != float64(want) {
		t.Errorf("%s is at %v, want %d", email, got["position"], want)
	}
}

// queue returns the list's order as stored in the database.
func (c *client) queue(db database, name string) []string {
	t := c.d.t
	t.Helper()
	conn, err := pgx.Connect(t.Context(), db.server.URL(name))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	rows, err := conn.Query(t.Context(), "SELECT email FROM signup.signup WHERE waitlist_id = $1 ORDER BY queue_key", uuid.MustParse(c.list))
	if err != nil {
		t.Fatal(err)
	}
	emails, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	return emails
}
