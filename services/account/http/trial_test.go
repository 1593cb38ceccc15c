package http_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"waitlist.internal/libs/access"
	"waitlist.internal/libs/testenv"
	eventv1 "waitlist.internal/proto/gen/waitlist/event/v1"
	"waitlist.internal/services/account"
)

const marker = "@marker.example.com"

// reminded returns the sorted addresses that got a reminder of the end of their trial.
func (e *env) reminded() (out []string) {
	e.t.Helper()
	for _, p := range published(e, (*eventv1.Event).GetTrialEnding) {
		if !strings.HasSuffix(p.GetEmail(), marker) {
			out = append(out, p.GetEmail())
		}
	}
	slices.Sort(out)
	return out
}

// verified registers accounts whose addresses are verified.
func (e *env) verified(emails ...string) {
	e.t.Helper()
	for _, email := range emails {
		e.register(email)
		e.exec(`UPDATE account SET email_verified_at = now() WHERE email = $1`, email)
	}
}

// look runs the worker until it has sent every reminder that is due. It registers a
// marker whose trial ends last and waits for the marker's reminder.
func (e *env) look() {
	e.t.Helper()
	email := fmt.Sprint(e.clock.Now().UnixNano(), marker)
	e.register(email)
	end := e.clock.Now().Add(account.TrialNotice).Truncate(time.Millisecond)
	e.exec(`UPDATE account SET valid_until = $2, created_at = $3 WHERE email = $1`, email, end, end.Add(-30*24*time.Hour))
	stop := e.run(e.svc.RunTrialEndings)
	testenv.Eventually(e.t, "the last reminder", func() bool {
		return e.count(`SELECT count(*) FROM account WHERE email = '`+email+`' AND trial_ending_at IS NULL`) == 0
	})
	stop()
	e.exec(`DELETE FROM account WHERE email = $1`, email)
}

// TestTrialEnding: each trial of a verified address that ends within a day gets one reminder before its end.
func TestTrialEnding(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	e.verified("ada@example.com")
	e.clock.Add(time.Hour)
	e.verified("bob@example.com", "active@example.com", "ended@example.com", "gone@example.com")
	e.register("unverified@example.com")
	idOf := func(email string) (id string) {
		t.Helper()
		if err := e.pool.QueryRow(t.Context(), `SELECT id FROM account WHERE email = $1`, email).Scan(&id); err != nil {
			t.Fatal(err)
		}
		return id
	}
	set := func(email string, ent access.Entitlement) {
		t.Helper()
		if _, err := e.svc.SetEntitlement(t.Context(), idOf(email), ent); err != nil {
			t.Fatal(err)
		}
	}
	end := e.clock.Now().Add(e.cfg.TrialDuration)
	set("active@example.com", access.Entitlement{Tier: access.Pro, Status: access.Active, ValidUntil: end, Version: 2})
	set("ended@example.com", access.Entitlement{Tier: access.Pro, Status: access.Inactive, ValidUntil: end, Trial: true, Version: 2})
	id, _ := e.login("gone@example.com")
	e.do("DELETE", "/me", nil, bearer(id)).expect(t, 204, "")

	step := func(d time.Duration, want ...string) {
		t.Helper()
		e.clock.Add(d)
		e.look()
		if got := e.reminded(); !slices.Equal(got, want) {
			t.Errorf("at %s: reminded %v, want %v", e.clock.Now(), got, want)
		}
	}
	step(0)
	step(e.cfg.TrialDuration - account.TrialNotice - time.Hour - time.Second)
	step(time.Second, "ada@example.com")
	step(30*time.Minute, "ada@example.com")
	step(30*time.Minute, "ada@example.com", "bob@example.com")
	all := published(e, (*eventv1.Event).GetTrialEnding)
	p := all[slices.IndexFunc(all, func(p *eventv1.TrialEnding) bool { return p.GetEmail() == "ada@example.com" })]
	if p.GetAccountId() != idOf("ada@example.com") || !p.GetEndsAt().AsTime().Equal(end.Add(-time.Hour).UTC().Truncate(time.Millisecond)) {
		t.Errorf("%v", p)
	}
	// A newer version of the same trial gets no reminder; a trial with another end does.
	same := access.Entitlement{Tier: access.Pro, Status: access.Trialing, ValidUntil: p.GetEndsAt().AsTime(), Trial: true, Version: 3}
	set("ada@example.com", same)
	step(time.Minute, "ada@example.com", "bob@example.com")
	same.ValidUntil, same.Version = same.ValidUntil.Add(time.Hour), 4
	set("ada@example.com", same)
	step(time.Minute, "ada@example.com", "ada@example.com", "bob@example.com")
}

// TestTrialThatIsOver: a trial that has ended gets no reminder, even if no worker ran
// in time.
func TestTrialThatIsOver(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	e.verified("ada@example.com")
	e.clock.Add(e.cfg.TrialDuration)
	e.verified("bob@example.com")
	e.clock.Add(e.cfg.TrialDuration - time.Second)
	e.look()
	if got := e.reminded(); !slices.Equal(got, []string{"bob@example.com"}) {
		t.Errorf("reminded %v", got)
	}
}

// TestShortTrials: a trial of less than two days gets no reminder.
func TestShortTrials(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	for _, tt := range []struct {
		email    string
		duration time.Duration
	}{{"short@example.com", 2*account.TrialNotice - time.Second}, {"long@example.com", 2 * account.TrialNotice}} {
		e.cfg.TrialDuration = tt.duration
		e.serve()
		e.verified(tt.email)
	}
	e.clock.Add(account.TrialNotice)
	e.look()
	if got := e.reminded(); !slices.Equal(got, []string{"long@example.com"}) {
		t.Errorf("reminded %v", got)
	}
}

// TestReplicasRemindOnce: replicas that run at the same time send each reminder once.
func TestReplicasRemindOnce(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	want := []string{}
	for _, name := range []string{"a", "b", "c", "d", "e", "f", "g", "h"} {
		want = append(want, name+"@example.com")
		e.verified(name + "@example.com")
	}
	e.clock.Add(e.cfg.TrialDuration - account.TrialNotice/2)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var replicas sync.WaitGroup
	for range 4 {
		replicas.Go(func() {
			if err := e.svc.RunTrialEndings(ctx); err != nil {
				t.Errorf("worker: %v", err)
			}
		})
	}
	testenv.Eventually(e.t, "all reminders", func() bool { return len(e.reminded()) >= len(want) })
	cancel()
	replicas.Wait()
	if got := e.reminded(); !slices.Equal(got, want) {
		t.Errorf("reminded %v", got)
	}
}
