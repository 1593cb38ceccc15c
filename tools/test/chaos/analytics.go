package chaos

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// AuditAnalytics waits until the analytics count every stored signup exactly once. Call
// it while the suite runs, on a list that nobody has left.
func AuditAnalytics(t testing.TB, postgresURL, waitlistID string, stored []row) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), postgresURL)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.WithoutCancel(t.Context()))
	var referred int64
	for _, s := range stored {
		if s.referred {
			referred++
		}
	}
	var signups, referrals, inbox int64
	sums := func() bool {
		err = conn.QueryRow(t.Context(), `
			SELECT coalesce(sum(signups), 0), coalesce(sum(referral_signups), 0), (SELECT count(*) FROM admin_analytics.inbox)
			FROM admin_analytics.day WHERE waitlist_id = $1`, waitlistID).Scan(&signups, &referrals, &inbox)
		return err == nil && signups == int64(len(stored)) && referrals == referred
	}
	if !within(time.Minute, sums) {
		t.Errorf("analytics count %d signups and %d referrals after %d events (%v), want %d and %d",
			signups, referrals, inbox, err, len(stored), referred)
	}
}

// RunningPostgres returns the URL of a database on the server that uses the data
// directory dir.
func RunningPostgres(t testing.TB, dir, database string) string {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(dir, "postmaster.pid"))
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(string(raw), "\n")
	if len(lines) < 4 {
		t.Fatalf("no port in postmaster.pid: %q", raw)
	}
	return "postgres://postgres@127.0.0.1:" + lines[3] + "/" + database + "?sslmode=disable"
}
