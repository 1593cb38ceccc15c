package deploy

import (
	"context"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"testing"
	"time"

	"waitlist.internal/libs/testenv"
)

// healed is how long the suite may take to write again once a server takes writes.
const healed = 10 * time.Second

// testFailover lets Redis change roles with its replica, and then the primary of Postgres turn
// read-only and promotes a standby. All sessions stay, as with a demoted server that nobody
// stops: the services must leave them.
func testFailover(t *testing.T, programs string) {
	db := newDatabase(t)
	db.applyRoles(t, "postgres")
	standby, err := db.server.Standby(t.Context(), t.TempDir(), testenv.FastPostgres())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := standby.Stop(); err != nil {
			t.Error(err)
		}
	})
	d := newDeployment(t, db, programs)
	for _, s := range services() {
		u, err := url.Parse(d.env[s]["POSTGRES_URL"])
		if err != nil {
			t.Fatal(err)
		}
		u.Host += "," + net.JoinHostPort("127.0.0.1", strconv.Itoa(standby.Port()))
		d.env[s]["POSTGRES_URL"] = u.String()
	}
	redisURL, swap, move := testenv.RedisFailover(t)
	d.base["REDIS_URL"] = redisURL
	d.migrate()
	defer d.startAll(t)()
	key, list := d.use(t)

	redisIs := func(state string) {
		t.Helper()
		testenv.Within(t, healed, "Redis is "+state, func() bool {
			url := "http://" + d.host("signup", 0) + ":8081/readyz"
			status, got, err := send(t.Context(), &http.Transport{DisableKeepAlives: true}, http.MethodGet, url, "", "")
			checks, _ := got["checks"].(map[string]any)
			return err == nil && status == http.StatusOK && checks["redis"] == state
		})
	}
	redisIs("ok")
	swap()
	redisIs("away")
	move()
	redisIs("ok")

	old, next := db.connect(t, "postgres"), database{standby}.connect(t, "postgres")
	for _, sql := range []string{"ALTER SYSTEM SET default_transaction_read_only = on", "SELECT pg_reload_conf()"} {
		if _, err := old.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	ready := func(service string) bool { return (&process{service: service, host: d.host(service, 0)}).ready(t) }
	for _, s := range services() {
		testenv.Within(t, healed, s+" is not ready", func() bool { return !ready(s) })
	}
	var newest string
	if err := old.QueryRow(t.Context(), "SELECT pg_current_wal_lsn()").Scan(&newest); err != nil {
		t.Fatal(err)
	}
	testenv.Within(t, patience, "the standby has all", func() (all bool) {
		if err := next.QueryRow(t.Context(), "SELECT pg_last_wal_replay_lsn() >= $1::pg_lsn", newest).Scan(&all); err != nil {
			t.Fatal(err)
		}
		return all
	})
	if _, err := next.Exec(context.WithoutCancel(t.Context()), "SELECT pg_promote()"); err != nil {
		t.Fatal(err)
	}
	from := time.Now()
	d.eventually(t, "signup", "/v1/public/waitlists/"+list+"/signups", "", `{"email":"cy@example.com"}`)
	for _, s := range services() {
		testenv.Within(t, healed, s+" is ready", func() bool { return ready(s) })
	}
	testenv.Within(t, healed, "the event", func() bool {
		n, err := d.count(d.host("signup", 0), key, list)
		return err == nil && n == 3
	})
	if took := time.Since(from); took > healed {
		t.Errorf("the suite wrote again after %s", took)
	}
}
