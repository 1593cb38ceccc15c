package standalone

import (
	"maps"
	"slices"
	"testing"

	"github.com/jackc/pgx/v5"

	"waitlist.internal/libs/service"
	"waitlist.internal/libs/testenv"
)

// goroutines are those of each service: what every replica does, and what one does for all. Whoever adds one decides here which it is:
// what a request or an event of this replica starts is the replica's own; what the clock starts is work for all.
func goroutines() map[string]struct{ own, forAll []string } {
	return map[string]struct{ own, forAll []string }{
		"account": {
			own:    []string{"password resets"},
			forAll: []string{"audit retention", "closings", "outbox relay", "sweep", "trials that end"},
		},
		"signup": {
			own:    []string{"account events", "page views", "signup batches"},
			forAll: []string{"audit retention", "change log retention", "inbox retention of signup", "outbox relay", "purge"},
		},
		"messaging": {
			own: []string{"age of the oldest mail", "blasts", "consumer", "mail sender"},
			forAll: []string{
				"audit retention", "inbox retention of messaging", "outbox relay", "plans of blasts", "purge", "retention of blasts",
				"retention of mails", "sending domains",
			},
		},
		"admin-analytics": {
			own:    []string{"consumer"},
			forAll: []string{"fold", "inbox retention of admin-analytics", "purge"},
		},
		"billing": {
			own:    []string{"consumer"},
			forAll: []string{"checks", "deletions", "inbox retention of billing", "pushes", "reconciliations", "sweep"},
		},
		"notifier": {
			own:    []string{"consumer", "dispatcher"},
			forAll: []string{"inbox retention of notifier", "retention of deliveries"},
		},
	}
}

// running starts the suite and returns its services and its database.
func running(t *testing.T, environ ...string) (map[string]*service.Runtime, string) {
	t.Helper()
	url := testenv.Postgres(t)
	cfg, err := Load(append([]string{"HTTP_ADDR=127.0.0.1:0", "DATA_DIR=" + t.TempDir(), "PAGES=false", "POSTGRES_URL=" + url}, environ...))
	if err != nil {
		t.Fatal(err)
	}
	cfg.Stderr = t.Output()
	s, err := Start(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Stop(); err != nil {
			t.Error(err)
		}
	})
	all := map[string]*service.Runtime{}
	for _, a := range s.apps {
		all[a.Name] = a
	}
	return all, url
}

// TestWorkForAll: by default a replica does everything, and a candidate nothing of what one replica does for all.
func TestWorkForAll(t *testing.T) {
	t.Parallel()
	check := func(t *testing.T, name, what string, got, want []string) {
		t.Helper()
		slices.Sort(got)
		slices.Sort(want)
		if !slices.Equal(got, want) {
			t.Errorf("%s %s %q, want %q", name, what, got, want)
		}
	}
	leaders := func(t *testing.T, url string) (n int) {
		t.Helper()
		conn, err := pgx.Connect(t.Context(), url)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close(t.Context())
		if err := conn.QueryRow(t.Context(), `
			SELECT count(*) FROM pg_locks l JOIN pg_stat_activity a USING (pid)
			WHERE l.locktype = 'advisory' AND l.granted AND a.application_name LIKE '%outbox relay' AND a.datname = current_database()`,
		).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	const everywhere = "dependencies"
	t.Run("replica", func(t *testing.T) {
		t.Parallel()
		all, url := running(t)
		for _, name := range slices.Sorted(maps.Keys(goroutines())) {
			want := goroutines()[name]
			own, left := all[name].Goroutines()
			check(t, name, "runs", own, append(append([]string{everywhere}, want.own...), want.forAll...))
			check(t, name, "leaves", left, nil)
		}
		testenv.Eventually(t, "three relays lead", func() bool { return leaders(t, url) == 3 })
	})
	t.Run("candidate", func(t *testing.T) {
		t.Parallel()
		all, url := running(t, "CANDIDATE=true")
		for _, name := range slices.Sorted(maps.Keys(goroutines())) {
			want := goroutines()[name]
			own, left := all[name].Goroutines()
			extra := []string{everywhere}
			if slices.Contains(want.forAll, "outbox relay") {
				extra = append(extra, "outbox wake-ups")
			}
			check(t, name, "runs", own, append(extra, want.own...))
			check(t, name, "leaves", left, want.forAll)
		}
		if n := leaders(t, url); n > 0 {
			t.Errorf("%d relays of candidates lead", n)
		}
	})
}
