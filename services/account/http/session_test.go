package http_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	eventv1 "waitlist.internal/proto/gen/waitlist/event/v1"
	"waitlist.internal/services/account"
)

// agent sets the User-Agent.
func agent(name string) option { return func(r *http.Request) { r.Header.Set("User-Agent", name) } }

// sessions returns an account's sessions as "id user agent", newest first.
func (e *env) sessions(options ...option) (out []string) {
	e.t.Helper()
	list, _ := e.do(http.MethodGet, "/sessions", nil, options...).expect(e.t, 200, "").body["sessions"].([]any)
	for _, item := range list {
		s, _ := item.(map[string]any)
		out = append(out, fmt.Sprint(s["id"], " ", s["user_agent"]))
	}
	return out
}

func TestSessions(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	k := key(e.register("owner@example.com"))
	other := key(e.register("other@example.com"))
	if got := e.sessions(k); len(got) != 0 {
		t.Fatalf("sessions %v before the first login", got)
	}
	login := func(name string) answer {
		return e.post("/login", pair("owner@example.com", password), agent(name)).expect(t, 200, "")
	}
	laptop := login("laptop \xff\x00" + strings.Repeat("x", 300))
	e.clock.Add(time.Minute)
	phone := login("phone")
	got := e.sessions(bearer(phone.str("id_token")))
	if len(got) != 2 || !strings.HasSuffix(got[0], " phone") || !strings.Contains(got[1], " laptop xxx") ||
		len(got[1]) > 36+1+account.MaxUserAgent {
		t.Fatalf("sessions %q", got)
	}
	phoneID, laptopID := got[0][:36], got[1][:36]

	e.clock.Add(time.Minute)
	next := e.post("/refresh", map[string]string{"refresh_token": laptop.str("refresh_token")}).expect(t, 200, "")
	list, _ := e.do(http.MethodGet, "/sessions", nil, k).body["sessions"].([]any)
	s, _ := list[1].(map[string]any)
	used, err := time.Parse(time.RFC3339, fmt.Sprint(s["last_used_at"]))
	if err != nil || !used.Equal(e.clock.Now().UTC().Truncate(time.Millisecond)) || s["created_at"] == s["last_used_at"] || len(s) != 4 {
		t.Errorf("session %v at %v: %v", s, e.clock.Now(), err)
	}

	for _, id := range []string{
		"x", "0198c0de-0000-7000-8000-000000000001", "urn:uuid:" + laptopID, "{" + laptopID + "}", strings.ReplaceAll(laptopID, "-", ""),
	} {
		e.do(http.MethodDelete, "/sessions/"+id, nil, k).expect(t, 404, "NOT_FOUND")
	}
	e.do(http.MethodDelete, "/sessions/"+laptopID, nil, other).expect(t, 404, "NOT_FOUND")
	e.do(http.MethodDelete, "/sessions/"+laptopID, nil, bearer(phone.str("id_token"))).expect(t, 204, "")
	e.me(bearer(next.str("id_token"))).expect(t, 401, "AUTHENTICATION_REQUIRED")
	e.post("/refresh", map[string]string{"refresh_token": next.str("refresh_token")}).expect(t, 401, "AUTHENTICATION_REQUIRED")
	if got := e.sessions(k); len(got) != 1 || got[0] != phoneID+" phone" {
		t.Errorf("sessions %q after one ended", got)
	}
	e.clock.Add(e.cfg.RefreshTokenTTL)
	if got := e.sessions(k); len(got) != 0 {
		t.Errorf("sessions %q after they expired", got)
	}
}

// A session ends 90 days after its login, however often it is refreshed.
func TestSessionsEnd(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	e.register("owner@example.com")
	_, refresh := e.login("owner@example.com")
	for day := 20; day < 90; day += 20 {
		e.clock.Add(20 * 24 * time.Hour)
		refresh = e.post("/refresh", map[string]string{"refresh_token": refresh}).expect(t, 200, "").str("refresh_token")
	}
	e.clock.Add(10*24*time.Hour - time.Second)
	a := e.post("/refresh", map[string]string{"refresh_token": refresh}).expect(t, 200, "")
	e.me(bearer(a.str("id_token"))).expect(t, 200, "")
	e.clock.Add(time.Second)
	e.me(bearer(a.str("id_token"))).expect(t, 401, "AUTHENTICATION_REQUIRED")
	e.post("/refresh", map[string]string{"refresh_token": a.str("refresh_token")}).expect(t, 401, "AUTHENTICATION_REQUIRED")
}

func TestChangePassword(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	k := key(e.register("owner@example.com"))
	e.exec(`UPDATE account SET email_verified_at = now()`)
	id, _ := e.login("owner@example.com")
	otherID, otherRefresh := e.login("owner@example.com")
	change := func(current, password any, options ...option) answer {
		return e.post("/change-password", map[string]any{"current_password": current, "password": password}, options...)
	}
	mails := func() (out []string) {
		for _, c := range published(e, (*eventv1.Event).GetCredentialChanged) {
			out = append(out, c.GetEmail()+" "+c.GetCredential().String())
		}
		return out
	}
	change(password, "a new password").expect(t, 401, "AUTHENTICATION_REQUIRED")
	for _, bad := range []answer{
		change(password, "short", bearer(id)), change("", "a new password", bearer(id)), change(nil, nil, bearer(id)),
		change("a wrong one", "a new password", bearer(id)), change(strings.Repeat("x", 1025), "a new password", bearer(id)),
	} {
		bad.expect(t, 400, "VALIDATION_ERROR")
	}
	e.me(bearer(otherID)).expect(t, 200, "")
	if got := mails(); len(got) != 0 {
		t.Fatalf("mails %v before a change", got)
	}

	change(password, "a new password", bearer(id)).expect(t, 204, "")
	e.me(bearer(id)).expect(t, 200, "") // the session of the change
	e.me(k).expect(t, 200, "")
	e.me(bearer(otherID)).expect(t, 401, "AUTHENTICATION_REQUIRED")
	e.post("/refresh", map[string]string{"refresh_token": otherRefresh}).expect(t, 401, "AUTHENTICATION_REQUIRED")
	e.post("/login", pair("owner@example.com", password)).expect(t, 401, "AUTHENTICATION_REQUIRED")
	e.post("/login", pair("owner@example.com", "a new password")).expect(t, 200, "")

	// By an API key, every session ends.
	change("a new password", "another password", k).expect(t, 204, "")
	if got := e.sessions(k); len(got) != 0 {
		t.Errorf("sessions %v", got)
	}
	e.clock.Add(account.FailureWindow)
	fresh := e.post("/login", pair("owner@example.com", "another password")).expect(t, 200, "")
	e.post("/regenerate-api-key", nil, bearer(fresh.str("id_token"))).expect(t, 200, "")
	want := "[owner@example.com CREDENTIAL_PASSWORD owner@example.com CREDENTIAL_PASSWORD owner@example.com CREDENTIAL_API_KEY]"
	if got := fmt.Sprint(mails()); got != want {
		t.Errorf("mails %s, want %s", got, want)
	}
	// Guesses of the current password count like those at login.
	for range account.PairLimit {
		change("a wrong one", "a new password", bearer(fresh.str("id_token"))).expect(t, 400, "VALIDATION_ERROR")
	}
	change("another password", "a new password", bearer(fresh.str("id_token"))).expect(t, 429, "RATE_LIMITED")
}

// A notice goes to a verified address only: whoever registers a stranger's could have it mailed without end.
func TestNoticesGoToVerifiedAddresses(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	e.register("owner@example.com")
	id, _ := e.login("owner@example.com")
	current := password
	both := func() {
		t.Helper()
		next := current + "."
		e.post("/change-password", map[string]string{"current_password": current, "password": next}, bearer(id)).expect(t, 204, "")
		e.post("/regenerate-api-key", nil, bearer(id)).expect(t, 200, "")
		current = next
	}
	both()
	if got := published(e, (*eventv1.Event).GetCredentialChanged); len(got) != 0 {
		t.Errorf("notices to an address that nobody verified: %v", got)
	}
	e.exec(`UPDATE account SET email_verified_at = now()`)
	both()
	if got := published(e, (*eventv1.Event).GetCredentialChanged); len(got) != 2 {
		t.Errorf("notices to a verified address: %v", got)
	}
}
