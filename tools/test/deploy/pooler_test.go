package deploy

import (
	"net/http"
	"testing"

	"waitlist.internal/libs/devservers"
	"waitlist.internal/libs/testenv"
)

// testPooled uses the suite behind a PgBouncer, and again after that has restarted.
func testPooled(t *testing.T, programs, mode string) {
	db := newDatabase(t)
	db.applyRoles(t, "postgres")
	o := devservers.PgBouncerOptions{Dir: t.TempDir(), Server: db.server.URL(databaseName), Mode: mode, Port: testenv.FreePort(t)}
	pooler := testenv.PgBouncer(t, o)
	d := newDeployment(t, db, programs)
	for _, s := range services() {
		direct := d.env[s]["POSTGRES_URL"]
		d.env[s]["POSTGRES_URL"] = pooler.Through(direct)
		if mode == "transaction" {
			d.env[s]["POSTGRES_URL"] += "&default_query_exec_mode=cache_describe"
			d.env[s]["POSTGRES_DIRECT_URL"] = direct
		}
	}
	d.migrate()
	defer d.startAll(t)()
	key, list := d.use(t)

	admin := db.connect(t, "postgres")
	var before []int32
	if err := admin.QueryRow(t.Context(), "SELECT array_agg(pid) FROM pg_locks WHERE locktype = 'advisory'").Scan(&before); err != nil {
		t.Fatal(err)
	}
	if err := pooler.Stop(); err != nil {
		t.Fatal(err)
	}
	testenv.PgBouncer(t, o)
	d.eventually(t, "signup", "/v1/public/waitlists/"+list+"/signups", "", `{"email":"cy@example.com"}`)
	testenv.Within(t, patience, "its event", func() bool {
		n, err := d.count(d.host("signup", 0), key, list)
		return err == nil && n == 3
	})
	d.eventually(t, "billing", "/v1/billing/checkout", key, `{"tier":"pro","interval":"monthly"}`)
	// What needs a session has gone past a pooler of transactions, whose end it did not notice.
	var kept int
	if err := admin.QueryRow(t.Context(), "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = ANY ($1)", before).
		Scan(&kept); err != nil {
		t.Fatal(err)
	}
	if past := mode == "transaction"; past != (kept > 0) {
		t.Errorf("of %d advisory locks, %d outlived the pooler", len(before), kept)
	}
}

// eventually sends a request to the first replica of a service until it succeeds: a
// connection that has just broken costs a request.
func (d *deployment) eventually(t *testing.T, service, path, key, body string) {
	t.Helper()
	testenv.Within(t, patience, path, func() bool {
		url := "http://" + d.host(service, 0) + ":8080" + path
		status, _, err := send(t.Context(), &http.Transport{DisableKeepAlives: true}, http.MethodPost, url, key, body)
		if err != nil {
			t.Fatal(err)
		}
		return status == http.StatusCreated || status == http.StatusOK
	})
}
