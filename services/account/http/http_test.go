package http_test

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"waitlist.internal/libs/access"
	"waitlist.internal/libs/apierr"
	"waitlist.internal/libs/testenv"
	"waitlist.internal/libs/token"
	"waitlist.internal/libs/token/tokentest"
	eventv1 "waitlist.internal/proto/gen/waitlist/event/v1"
	"waitlist.internal/services/account"
)

func TestRegister(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	a := e.post("/register", pair("  Owner@Example.COM ", password)).expect(t, 201, "")
	if a.str("email") != "owner@example.com" || a.str("subscription_tier") != "pro" ||
		a.str("subscription_status") != "trialing" || len(a.body) != 4 {
		t.Fatalf("answer %s", a.raw)
	}
	if !strings.HasPrefix(a.str("api_key"), "wl_live_") {
		t.Fatalf("API key %q", a.str("api_key"))
	}
	e.post("/register", pair("OWNER@example.com", "another password")).expect(t, 409, "CONFLICT")

	me := e.me(key(a.str("api_key"))).expect(t, 200, "")
	end := e.clock.Now().UTC().Truncate(time.Millisecond).Add(7 * 24 * time.Hour)
	want := map[string]any{
		"email": "owner@example.com", "has_api_key": true, "subscription_tier": "pro", "subscription_status": "trialing",
		"trial_ends_at": end.Format("2006-01-02T15:04:05.000Z"), "payment_customer_id": nil, "has_used_trial": true,
		"trial_end": float64(end.Unix()),
	}
	if got := fmt.Sprint(me.body); got != fmt.Sprint(want) {
		t.Fatalf("profile\n%s, want\n%v", got, want)
	}

	events := e.events()
	if len(events) != 2 {
		t.Fatalf("%d events", len(events))
	}
	ent := events[0].GetEntitlementChanged()
	if ent.GetEntitlement().GetTier() != "pro" || ent.GetEntitlement().GetVersion() != 1 ||
		!ent.GetEntitlement().GetValidUntil().AsTime().Equal(end) {
		t.Fatalf("entitlement event %v", ent)
	}
	v := events[1].GetAccountVerificationRequested()
	if v.GetEmail() != "owner@example.com" || v.GetCycle() != 1 || v.GetAccountId() != ent.GetAccountId() {
		t.Fatalf("verification event %v", v)
	}
}

func TestBadBodies(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	for _, path := range []string{"/register", "/login", "/refresh", "/logout", "/forgot-password", "/reset-password", "/verify-email"} {
		for _, body := range []string{"", "{", "[]", "null", "1", `{} {}`, "{\"email\":\"\xff\"}"} {
			e.post(path, body).expect(t, 400, "INVALID_BODY")
		}
		a := e.post(path, "{}").expect(t, 400, "VALIDATION_ERROR")
		if errs, _ := a.body["errors"].([]any); len(errs) == 0 {
			t.Errorf("%s: no errors in %s", path, a.raw)
		}
		e.post(path, `{"`+strings.Repeat("x", 1<<20)+`":1}`).expect(t, 400, "INVALID_BODY")
	}
	for name, tc := range map[string]struct{ path, body, field string }{
		"address and password": {"/register", `{"password": "1234567"}`, "email,password"},
		"type":                 {"/register", `{"email": 5, "password": "12345678"}`, "email"},
		"no address":           {"/register", `{"email": "nobody", "password": "12345678"}`, "email"},
		"two addresses":        {"/register", `{"email": "a@b.co,c@d.co", "password": "12345678"}`, "email"},
		"null":                 {"/register", `{"email": null, "password": "12345678"}`, "email"},
		"NUL":                  {"/register", `{"email": "a\u0000@b.co", "password": "12345678"}`, "email"},
		"short password":       {"/register", `{"email": "a@b.co", "password": "1234567"}`, "password"},
		"long password":        {"/register", `{"email": "a@b.co", "password": "` + strings.Repeat("x", 1025) + `"}`, "password"},
		"password type":        {"/register", `{"email": "a@b.co", "password": 12345678}`, "password"},
		"login address":        {"/login", `{"email": "nobody", "password": "12345678"}`, "email"},
		"long login":           {"/login", `{"email": "a@b.co", "password": "` + strings.Repeat("x", 1025) + `"}`, "password"},
		"forgotten address":    {"/forgot-password", `{"email": "nobody"}`, "email"},
		"reset password":       {"/reset-password", `{"token": "x", "password": "short"}`, "password"},
		"token type":           {"/verify-email", `{"token": true}`, "token"},
		"refresh type":         {"/refresh", `{"refresh_token": []}`, "refresh_token"},
	} {
		a := e.post(tc.path, tc.body).expect(t, 400, "VALIDATION_ERROR")
		errs, _ := a.body["errors"].([]any)
		var named []string
		for _, e := range errs {
			entry, _ := e.(map[string]any)
			named = append(named, fmt.Sprint(entry["field"]))
		}
		if got := strings.Join(named, ","); got != tc.field || !strings.HasPrefix(a.str("error"), `Check the field "`+named[0]+`". `) {
			t.Errorf("%s: %s", name, a.raw)
		}
	}
	if n := e.count(`SELECT count(*) FROM account`); n != 0 {
		t.Errorf("%d accounts from bad bodies", n)
	}
	// Both bounds of a password are inclusive.
	e.post("/register", pair("a@b.co", "12345678")).expect(t, 201, "")
	e.post("/register", pair("b@b.co", strings.Repeat("x", 1024))).expect(t, 201, "")
	e.post("/login", pair("b@b.co", strings.Repeat("x", 1024))).expect(t, 200, "")
}

func TestCommonPasswords(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	e.post("/register", pair("before@example.com", "password1")).expect(t, 201, "")
	e.cfg.RefuseCommonPasswords = true
	e.serve()
	for _, bad := range []string{"password1", "PassWord1", "qwertyuiop", "owner@example.com", "Owner@Example.com"} {
		e.post("/register", pair("owner@example.com", bad)).expect(t, 400, "VALIDATION_ERROR")
	}
	e.post("/register", pair("owner@example.com", "another@example.com")).expect(t, 201, "")
	// Whoever has such a password keeps it until the next change.
	old := bearer(e.post("/login", pair("before@example.com", "password1")).expect(t, 200, "").str("id_token"))
	change := func(password string) answer {
		return e.post("/change-password", map[string]string{"current_password": "password1", "password": password}, old)
	}
	change("football").expect(t, 400, "VALIDATION_ERROR")
	change("before@example.com").expect(t, 400, "VALIDATION_ERROR")
	id := published(e, (*eventv1.Event).GetAccountVerificationRequested)[0].GetAccountId()
	reset := func(password string) answer {
		tok := e.tokens.MintAccount(token.ResetPassword, id, 1, e.clock.Now().Add(time.Hour))
		return e.post("/reset-password", map[string]string{"token": tok, "password": password})
	}
	reset("football").expect(t, 400, "VALIDATION_ERROR")
	reset("before@example.com").expect(t, 400, "VALIDATION_ERROR")
	reset("none of those").expect(t, 204, "")
}

func TestOneTrialPerPerson(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	trial := func(email string) string {
		t.Helper()
		return e.post("/register", pair(email, password)).expect(t, 201, "").str("subscription_status")
	}
	if trial("ada@gmail.com") != "trialing" || trial("a.da+1@gmail.com") != "trialing" {
		t.Error("without the setting, each address has a trial")
	}
	e.cfg.TrialPerPerson = true
	e.serve()
	for email, want := range map[string]string{
		"ad.a+2@googlemail.com": "inactive", "bob+1@example.com": "trialing", "bob+2@example.com": "trialing", "eve@gmail.com": "trialing",
	} {
		if got := trial(email); got != want {
			t.Errorf("%s is %s, want %s", email, got, want)
		}
	}
	if got := trial("e.ve@gmail.com"); got != "inactive" {
		t.Errorf("a second address of eve is %s", got)
	}
}

func TestUnknownPaths(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	for _, path := range []string{"", "/", "/me/", "/nothing", "/register/x"} {
		e.do(http.MethodGet, path, nil).expect(t, 404, "NOT_FOUND")
	}
	e.do(http.MethodGet, "/login", nil).expect(t, 404, "NOT_FOUND")
	e.do(http.MethodPut, "/me", nil).expect(t, 404, "NOT_FOUND")
}

func TestConcurrentRegistration(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	const n = 8
	var mu sync.Mutex
	got := map[int]int{}
	var wg sync.WaitGroup
	for range n {
		wg.Go(func() {
			a := e.post("/register", pair("owner@example.com", password))
			mu.Lock()
			defer mu.Unlock()
			got[a.status]++
		})
	}
	wg.Wait()
	if got[201] != 1 || got[409] != n-1 {
		t.Fatalf("statuses %v", got)
	}
	if n := len(e.events()); n != 2 {
		t.Fatalf("%d events", n)
	}
}

func TestLoginAndCredentials(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	k := e.register("owner@example.com")
	a := e.post("/login", pair("Owner@example.com", password)).expect(t, 200, "")
	if a.str("token_type") != "Bearer" || a.body["expires_in"] != float64(3600) || len(a.body) != 4 {
		t.Fatalf("answer %s", a.raw)
	}
	id := a.str("id_token")
	e.me(bearer(id)).expect(t, 200, "")
	e.me().expect(t, 401, "AUTHENTICATION_REQUIRED")
	e.me(bearer("x")).expect(t, 401, "AUTHENTICATION_REQUIRED")
	e.me(key("x")).expect(t, 401, "AUTHENTICATION_REQUIRED")
	// With both credentials, the token decides.
	e.me(bearer(id), key("x")).expect(t, 200, "")
	e.me(bearer(id[:len(id)-2]), key(k)).expect(t, 401, "AUTHENTICATION_REQUIRED")
	e.me(func(r *http.Request) { r.Header.Set("Authorization", "Basic eDp5") }, key(k)).expect(t, 401, "AUTHENTICATION_REQUIRED")

	wrong := e.post("/login", pair("owner@example.com", "wrong password")).expect(t, 401, "AUTHENTICATION_REQUIRED")
	unknown := e.post("/login", pair("nobody@example.com", password)).expect(t, 401, "AUTHENTICATION_REQUIRED")
	if wrong.str("error") != unknown.str("error") || len(wrong.body) != len(unknown.body) {
		t.Errorf("wrong: %s, unknown: %s", wrong.raw, unknown.raw)
	}
	e.clock.Add(time.Hour)
	e.me(bearer(id)).expect(t, 401, "AUTHENTICATION_REQUIRED")
}

func TestRefresh(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	e.register("owner@example.com")
	refresh := func(token string) answer {
		return e.post("/refresh", map[string]string{"refresh_token": token})
	}
	_, first := e.login("owner@example.com")
	otherID, other := e.login("owner@example.com")
	a := refresh(first).expect(t, 200, "")
	second, id := a.str("refresh_token"), a.str("id_token")
	if second == first {
		t.Fatal("the refresh token did not rotate")
	}
	third := refresh(second).expect(t, 200, "").str("refresh_token")
	e.me(bearer(id)).expect(t, 200, "")

	refresh(first).expect(t, 401, "AUTHENTICATION_REQUIRED") // reuse
	for _, dead := range []string{first, second, third, "unknown"} {
		refresh(dead).expect(t, 401, "AUTHENTICATION_REQUIRED")
	}
	e.me(bearer(id)).expect(t, 401, "AUTHENTICATION_REQUIRED")
	// Another login starts another token family.
	e.me(bearer(otherID)).expect(t, 200, "")
	other = refresh(other).expect(t, 200, "").str("refresh_token")

	// Each refresh extends the session.
	e.clock.Add(29 * 24 * time.Hour)
	other = refresh(other).expect(t, 200, "").str("refresh_token")
	e.clock.Add(29 * 24 * time.Hour)
	other = refresh(other).expect(t, 200, "").str("refresh_token")
	e.clock.Add(30 * 24 * time.Hour)
	refresh(other).expect(t, 401, "AUTHENTICATION_REQUIRED")
}

func TestConcurrentRefresh(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	e.register("owner@example.com")
	_, refresh := e.login("owner@example.com")
	var mu sync.Mutex
	var good []string
	var wg sync.WaitGroup
	for range 6 {
		wg.Go(func() {
			a := e.post("/refresh", map[string]string{"refresh_token": refresh})
			mu.Lock()
			defer mu.Unlock()
			if a.status == 200 {
				good = append(good, a.str("refresh_token"))
			}
		})
	}
	wg.Wait()
	if len(good) != 1 {
		t.Fatalf("%d of 6 uses of one token succeeded", len(good))
	}
	e.post("/refresh", map[string]string{"refresh_token": good[0]}).expect(t, 401, "AUTHENTICATION_REQUIRED")
}

func TestLogout(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	e.register("owner@example.com")
	id, refresh := e.login("owner@example.com")
	for range 2 {
		e.post("/logout", map[string]string{"refresh_token": refresh}).expect(t, 204, "")
	}
	e.post("/logout", map[string]string{"refresh_token": "unknown"}).expect(t, 204, "")
	e.me(bearer(id)).expect(t, 401, "AUTHENTICATION_REQUIRED")
	e.post("/refresh", map[string]string{"refresh_token": refresh}).expect(t, 401, "AUTHENTICATION_REQUIRED")
}

func TestRegenerateAPIKey(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	old := e.register("owner@example.com")
	id, _ := e.login("owner@example.com")
	e.post("/regenerate-api-key", nil, key(old)).expect(t, 403, "FORBIDDEN")
	e.post("/regenerate-api-key", nil).expect(t, 401, "AUTHENTICATION_REQUIRED")
	fresh := e.post("/regenerate-api-key", nil, bearer(id), key(old)).expect(t, 200, "").str("api_key")
	e.me(key(old)).expect(t, 401, "AUTHENTICATION_REQUIRED")
	e.me(key(fresh)).expect(t, 200, "")
}

func TestAPIKeyTampering(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	k := e.register("owner@example.com")
	tried := 0
	for bad := range tokentest.Tampered(k, tokentest.Bytes()) {
		if a := e.me(key(bad)); a.status != http.StatusUnauthorized {
			t.Errorf("%q for %q: %d", bad, k, a.status)
		}
		tried++
	}
	t.Logf("%d refused", tried)
	e.me(key(strings.ToLower(k))).expect(t, 401, "AUTHENTICATION_REQUIRED")
	e.me(key(k)).expect(t, 200, "")
	// A key with the right format and lookup part but another secret.
	e.exec(`UPDATE account SET api_key_hash = sha256('other')`)
	e.me(key(k)).expect(t, 401, "AUTHENTICATION_REQUIRED")
}

func TestBruteForce(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	e.register("owner@example.com")
	for range 10 {
		e.post("/login", pair("owner@example.com", "wrong password"), from("192.0.2.7")).expect(t, 401, "AUTHENTICATION_REQUIRED")
		e.post("/login", pair("nobody@example.com", "wrong password"), from("192.0.2.7")).expect(t, 401, "AUTHENTICATION_REQUIRED")
		e.clock.Add(time.Second)
	}
	// The lock also holds for the right password and for an address without an account.
	a := e.post("/login", pair("owner@example.com", password), from("192.0.2.7")).expect(t, 429, "RATE_LIMITED")
	if got := a.header.Get("Retry-After"); got != strconv.Itoa(15*60-10) {
		t.Errorf("Retry-After %q", got)
	}
	e.post("/login", pair("nobody@example.com", password), from("192.0.2.7")).expect(t, 429, "RATE_LIMITED")
	// Attempts during the lock do not prolong it. Only this pair is locked.
	e.post("/login", pair("third@example.com", password), from("192.0.2.7")).expect(t, 401, "AUTHENTICATION_REQUIRED")
	e.post("/login", pair("owner@example.com", password), from("192.0.2.8")).expect(t, 200, "")
	e.clock.Add(15*time.Minute - 10*time.Second)
	e.post("/login", pair("owner@example.com", password), from("192.0.2.7")).expect(t, 200, "")

	// IPv6 clients choose addresses within their /64.
	for i := range 10 {
		e.post("/login", pair("six@example.com", password), from(fmt.Sprintf("[2001:db8::%d]", i))).expect(t, 401, "AUTHENTICATION_REQUIRED")
	}
	e.post("/login", pair("six@example.com", password), from("[2001:db8::ffff:1]")).expect(t, 429, "RATE_LIMITED")
	e.post("/login", pair("six@example.com", password), from("[2001:db8:0:1::1]")).expect(t, 401, "AUTHENTICATION_REQUIRED")
}

func TestBruteForceByAddress(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	e.register("owner@example.com")
	e.post("/login", pair("a@example.com", "wrong password"), from("192.0.2.7")).expect(t, 401, "AUTHENTICATION_REQUIRED")
	// 98 more failures, each for another account.
	e.exec(`INSERT INTO login_failure (account, address, failed_at)
		SELECT sha256(n::text::bytea), f.address, f.failed_at FROM login_failure f, generate_series(1, 98) n`)
	e.post("/login", pair("owner@example.com", password), from("192.0.2.7")).expect(t, 200, "")
	e.post("/login", pair("b@example.com", "wrong password"), from("192.0.2.7")).expect(t, 401, "AUTHENTICATION_REQUIRED")
	e.post("/login", pair("owner@example.com", password), from("192.0.2.7")).expect(t, 429, "RATE_LIMITED")
	e.post("/login", pair("owner@example.com", password), from("192.0.2.8")).expect(t, 200, "")
}

func TestStrangersOnlySlowAnOwner(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	e.register("owner@example.com")
	e.post("/login", pair("owner@example.com", "wrong password"), from("198.51.100.1")).expect(t, 401, "AUTHENTICATION_REQUIRED")
	e.exec(`INSERT INTO login_failure (account, address, failed_at)
		SELECT f.account, sha256(n::text::bytea), f.failed_at FROM login_failure f, generate_series(1, 1000) n`)
	e.post("/login", pair("owner@example.com", password), from("192.0.2.7")).expect(t, 200, "")
	e.mu.Lock()
	defer e.mu.Unlock()
	if want := []time.Duration{0, 2 * time.Second}; !slices.Equal(e.waits, want) {
		t.Errorf("waits %v, want %v", e.waits, want)
	}
}

// A burst of guesses gets no more attempts than guesses in sequence.
func TestBruteForceBurst(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	var mu sync.Mutex
	got := map[int]int{}
	var wg sync.WaitGroup
	for range 30 {
		wg.Go(func() {
			a := e.post("/login", pair("owner@example.com", "wrong password"))
			mu.Lock()
			defer mu.Unlock()
			got[a.status]++
		})
	}
	wg.Wait()
	// Guesses that are hashed concurrently may exceed the limit by their number minus one.
	if got[401] < 10 || got[401] > 11 || got[401]+got[429] != 30 {
		t.Errorf("statuses %v", got)
	}
}

func (e *env) verificationToken(i int) string {
	e.t.Helper()
	sent := published(e, (*eventv1.Event).GetAccountVerificationRequested)
	if i >= len(sent) {
		e.t.Fatalf("%d verification mails, want number %d", len(sent), i)
	}
	return e.tokens.MintAccount(token.VerifyAccount, sent[i].GetAccountId(), sent[i].GetCycle(), sent[i].GetExpiresAt().AsTime())
}

func TestVerification(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	k := key(e.register("owner@example.com"))
	verify := func(token string) answer { return e.post("/verify-email", map[string]string{"token": token}, k) }
	first := e.verificationToken(0)

	e.post("/resend-verification", nil).expect(t, 401, "AUTHENTICATION_REQUIRED")
	// The mail sent at registration does not count.
	for i := range 10 {
		if a := e.post("/resend-verification", nil, k).expect(t, 200, ""); a.str("message") == "" {
			t.Fatal("no message")
		}
		e.clock.Add(59 * time.Second)
		if i < 9 {
			if a := e.post("/resend-verification", nil, k).expect(t, 429, "RATE_LIMITED"); a.header.Get("Retry-After") != "1" {
				t.Fatalf("Retry-After %q", a.header.Get("Retry-After"))
			}
		}
		e.clock.Add(time.Second)
	}
	a := e.post("/resend-verification", nil, k).expect(t, 429, "RATE_LIMITED")
	if got := a.header.Get("Retry-After"); got != strconv.Itoa(24*60*60-10*60) {
		t.Fatalf("Retry-After at the cycle's end: %q", got)
	}
	if n := len(published(e, (*eventv1.Event).GetAccountVerificationRequested)); n != 11 {
		t.Fatalf("%d mails", n)
	}
	// The next cycle starts 24 hours after the first. A mail of the old cycle
	// stays valid for its own 24 hours.
	tenth := e.verificationToken(10)
	e.clock.Add(24*time.Hour - 10*time.Minute)
	verify(first).expect(t, 400, "INVALID_TOKEN")
	e.post("/resend-verification", nil, k).expect(t, 200, "")
	mails := published(e, (*eventv1.Event).GetAccountVerificationRequested)
	if last := mails[len(mails)-1]; last.GetCycle() != 2 {
		t.Fatalf("cycle %d", last.GetCycle())
	}
	for i := range len(tenth) {
		b := []byte(tenth)
		b[i] ^= 1
		verify(string(b)).expect(t, 400, "INVALID_TOKEN")
	}
	id := mails[0].GetAccountId()
	for name, bad := range map[string]string{
		"another purpose": e.tokens.MintAccount(token.ResetPassword, id, 2, e.clock.Now().Add(time.Hour)),
		"future cycle":    e.tokens.MintAccount(token.VerifyAccount, id, 3, e.clock.Now().Add(time.Hour)),
		"old cycle":       e.tokens.MintAccount(token.VerifyAccount, id, 0, e.clock.Now().Add(time.Hour)),
		"no account":      "x.1.y",
	} {
		if a := verify(bad); a.status != 400 || a.str("error_code") != "INVALID_TOKEN" {
			t.Errorf("%s: %d %s", name, a.status, a.raw)
		}
	}
	if a := verify(tenth).expect(t, 200, ""); a.body["verified"] != true || a.str("message") == "" {
		t.Fatalf("answer %s", a.raw)
	}
	verify(tenth).expect(t, 400, "INVALID_TOKEN")
	verify(e.verificationToken(len(mails)-1)).expect(t, 400, "INVALID_TOKEN")
	// After verification, the service sends no more mails and applies no limit.
	for range 2 {
		e.post("/resend-verification", nil, k).expect(t, 200, "")
	}
	if n := len(published(e, (*eventv1.Event).GetAccountVerificationRequested)); n != len(mails) {
		t.Fatalf("%d mails", n)
	}
	actor, err := e.svc.Authorize(t.Context(), "", mustKey(k))
	if err != nil || !actor.EmailVerified {
		t.Fatalf("actor %+v, %v", actor, err)
	}
}

// mustKey returns the API key that an option sets.
func mustKey(o option) string {
	r := &http.Request{Header: http.Header{}}
	o(r)
	return r.Header.Get("X-Api-Key")
}

// The token of a verification mail proves the mailbox. Whoever redeems it must have the
// account as well.
func TestVerificationNeedsTheAccount(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	e.register("owner@example.com")
	stranger := e.register("stranger@example.com")
	id, _ := e.login("owner@example.com")
	mail := e.verificationToken(0)
	verify := func(fields map[string]string, options ...option) answer {
		return e.post("/verify-email", fields, options...)
	}
	with := func(password string) map[string]string { return map[string]string{"token": mail, "password": password} }
	bare := map[string]string{"token": mail}

	verify(map[string]string{}).expect(t, 400, "VALIDATION_ERROR")
	verify(map[string]string{"token": "x"}).expect(t, 400, "INVALID_TOKEN")
	verify(bare).expect(t, 401, "AUTHENTICATION_REQUIRED")
	verify(with("")).expect(t, 401, "AUTHENTICATION_REQUIRED")
	verify(with(strings.Repeat("x", 1025))).expect(t, 400, "VALIDATION_ERROR")
	verify(bare, key(stranger)).expect(t, 401, "AUTHENTICATION_REQUIRED")
	verify(bare, key("wl_live_x")).expect(t, 401, "AUTHENTICATION_REQUIRED")
	verify(bare, bearer("x")).expect(t, 401, "AUTHENTICATION_REQUIRED")
	// Guesses count like those at login.
	for range account.PairLimit {
		verify(with("a wrong guess")).expect(t, 401, "AUTHENTICATION_REQUIRED")
	}
	verify(with(password)).expect(t, 429, "RATE_LIMITED")
	e.post("/login", pair("owner@example.com", password)).expect(t, 429, "RATE_LIMITED")
	if n := e.count(`SELECT count(*) FROM account WHERE email_verified_at IS NOT NULL`); n != 0 {
		t.Fatalf("%d verified addresses", n)
	}
	verify(with(password), from("192.0.2.7")).expect(t, 200, "")
	verify(bare, bearer(id)).expect(t, 400, "INVALID_TOKEN")
	gone := e.tokens.MintAccount(token.VerifyAccount, "0198c0de-0000-7000-8000-000000000001", 1, e.clock.Now().Add(time.Hour))
	verify(map[string]string{"token": gone, "password": password}).expect(t, 400, "INVALID_TOKEN")

	verify(map[string]string{"token": e.verificationToken(1)}, key(stranger)).expect(t, 200, "")
}

// Somebody registers another person's address. When that person resets the password,
// nothing that the registration gave away works any more.
func TestResetTakesAnUnverifiedAccountOver(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	k := key(e.register("victim@example.com"))
	id, refresh := e.login("victim@example.com")
	mail := e.verificationToken(0)
	reset := func(generation int64, password string) {
		t.Helper()
		accountID := published(e, (*eventv1.Event).GetAccountVerificationRequested)[0].GetAccountId()
		tok := e.tokens.MintAccount(token.ResetPassword, accountID, generation, e.clock.Now().Add(time.Hour))
		e.post("/reset-password", map[string]string{"token": tok, "password": password}).expect(t, 204, "")
	}
	reset(1, "the victim's own")
	for name, c := range map[string]option{"key": k, "token": bearer(id)} {
		if a := e.me(c); a.status != 401 {
			t.Errorf("the %s survived: %s", name, a.raw)
		}
	}
	e.post("/refresh", map[string]string{"refresh_token": refresh}).expect(t, 401, "AUTHENTICATION_REQUIRED")
	a := e.post("/login", pair("victim@example.com", "the victim's own")).expect(t, 200, "")
	own := bearer(a.str("id_token"))
	if me := e.me(own).expect(t, 200, ""); me.body["has_api_key"] != false {
		t.Errorf("profile %s", me.raw)
	}
	actor, err := e.svc.Authorize(t.Context(), a.str("id_token"), "")
	if err != nil || !actor.EmailVerified {
		t.Errorf("actor %+v, %v: a reset proves the mailbox", actor, err)
	}
	e.post("/verify-email", map[string]string{"token": mail}, own).expect(t, 400, "INVALID_TOKEN")

	// The integration of an owner who had verified the address goes on.
	fresh := key(e.post("/regenerate-api-key", nil, own).expect(t, 200, "").str("api_key"))
	if me := e.me(fresh).expect(t, 200, ""); me.body["has_api_key"] != true {
		t.Errorf("profile %s", me.raw)
	}
	reset(2, "another password")
	e.me(fresh).expect(t, 200, "")
	e.me(own).expect(t, 401, "AUTHENTICATION_REQUIRED")
}

func TestPasswordReset(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	stop := e.run(e.svc.RunResets)
	e.register("owner@example.com")
	id, refresh := e.login("owner@example.com")
	resets := func() []*eventv1.PasswordResetRequested {
		return published(e, (*eventv1.Event).GetPasswordResetRequested)
	}
	forgot := func(email string) {
		t.Helper()
		e.post("/forgot-password", map[string]string{"email": email}).expect(t, 202, "")
	}
	forgot("nobody@example.com")
	forgot("Owner@example.com")
	testenv.Eventually(e.t, "a reset mail", func() bool { return len(resets()) == 1 })
	idle := func() bool { return e.count(`SELECT count(*) FROM reset_request`) == 0 }
	// A second request within a minute sends no mail and gets the same response.
	e.clock.Add(59 * time.Second)
	forgot("owner@example.com")
	testenv.Eventually(e.t, "an empty queue", idle)
	e.clock.Add(time.Second)
	forgot("owner@example.com")
	testenv.Eventually(e.t, "a second reset mail", func() bool { return len(resets()) == 2 })
	stop()
	if n := len(resets()); n != 2 {
		t.Fatalf("%d reset mails", n)
	}

	mint := func(r *eventv1.PasswordResetRequested) string {
		return e.tokens.MintAccount(token.ResetPassword, r.GetAccountId(), r.GetGeneration(), r.GetExpiresAt().AsTime())
	}
	first, second := mint(resets()[0]), mint(resets()[1])
	reset := func(token, password string) answer {
		return e.post("/reset-password", map[string]string{"token": token, "password": password})
	}
	reset(e.tokens.MintAccount(token.VerifyAccount, resets()[0].GetAccountId(), 1, e.clock.Now().Add(time.Hour)),
		"new password").expect(t, 400, "INVALID_TOKEN")
	reset(first, "short").expect(t, 400, "VALIDATION_ERROR")
	e.clock.Add(59 * time.Minute) // an hour after the first mail
	reset(first, "new password").expect(t, 400, "INVALID_TOKEN")
	e.me(bearer(id)).expect(t, 401, "AUTHENTICATION_REQUIRED") // expired
	id = e.post("/refresh", map[string]string{"refresh_token": refresh}).expect(t, 200, "").str("id_token")
	e.me(bearer(id)).expect(t, 200, "")

	reset(second, "new password").expect(t, 204, "")
	reset(second, "newer password").expect(t, 400, "INVALID_TOKEN")
	// An event that comes once more asks for nothing.
	if m, err := e.svc.Mail(t.Context(), resets()[1].GetAccountId(), account.ResetMail, ""); !apierr.Is(err, apierr.NotFound) {
		t.Errorf("mail %+v, %v", m, err)
	}
	// The reset verified the address, so it is told there, as what it was.
	notices := published(e, (*eventv1.Event).GetCredentialChanged)
	if len(notices) != 1 || notices[0].GetCredential() != eventv1.CredentialChanged_CREDENTIAL_PASSWORD_RESET {
		t.Errorf("notices %v", notices)
	}
	e.me(bearer(id)).expect(t, 401, "AUTHENTICATION_REQUIRED")
	e.post("/refresh", map[string]string{"refresh_token": refresh}).expect(t, 401, "AUTHENTICATION_REQUIRED")
	e.post("/login", pair("owner@example.com", password)).expect(t, 401, "AUTHENTICATION_REQUIRED")
	e.post("/login", pair("owner@example.com", "new password")).expect(t, 200, "")
}

func TestEntitlement(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	k := key(e.register("owner@example.com"))
	actor, err := e.svc.Authorize(t.Context(), "", mustKey(k))
	if err != nil {
		t.Fatal(err)
	}
	trialEnd := e.me(k).body["trial_end"]
	profile := func(tier, status string) {
		t.Helper()
		a := e.me(k).expect(t, 200, "")
		if a.str("subscription_tier") != tier || a.str("subscription_status") != status || a.body["trial_end"] != trialEnd ||
			a.body["has_used_trial"] != true {
			t.Fatalf("profile %s, want %s %s", a.raw, tier, status)
		}
	}
	e.clock.Add(7*24*time.Hour - time.Second)
	profile("pro", "trialing")
	e.clock.Add(time.Second)
	// The gate does not apply to the account's own routes.
	profile("pro", "inactive")
	e.post("/resend-verification", nil, k).expect(t, 200, "")

	set := func(version int64, tier access.Tier, status access.Status) access.Entitlement {
		t.Helper()
		got, err := e.svc.SetEntitlement(t.Context(), actor.AccountID, access.Entitlement{
			Tier: tier, Status: status, ValidUntil: e.clock.Now().Add(time.Hour), Version: version,
		})
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	set(3, access.Basic, access.Active)
	profile("basic", "active")
	for _, version := range []int64{1, 2, 3} {
		if got := set(version, access.Pro, access.Active); got.Tier != access.Basic || got.Version != 3 {
			t.Fatalf("version %d: in force %+v", version, got)
		}
	}
	profile("basic", "active")
	set(4, access.Advanced, access.Canceling)
	profile("advanced", "canceling")
	changes := published(e, (*eventv1.Event).GetEntitlementChanged)
	if len(changes) != 3 || changes[2].GetEntitlement().GetVersion() != 4 {
		t.Fatalf("changes %v", changes)
	}
	e.clock.Add(2*time.Hour + time.Second)
	profile("advanced", "inactive")

	for name, tc := range map[string]struct {
		id     string
		tier   access.Tier
		status access.Status
	}{
		"no such account": {"0198c0de-0000-7000-8000-000000000001", access.Pro, access.Active},
		"no id":           {"x", access.Pro, access.Active},
		"no tier":         {actor.AccountID, "gold", access.Active},
		"no status":       {actor.AccountID, access.Pro, "late"},
	} {
		if _, err := e.svc.SetEntitlement(t.Context(), tc.id, access.Entitlement{Tier: tc.tier, Status: tc.status, Version: 9}); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

// Billing may start one trial per account: once, even with concurrent requests, and
// not while another entitlement is in force.
func TestStartTrial(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	k := key(e.register("owner@example.com"))
	actor, err := e.svc.Authorize(t.Context(), "", mustKey(k))
	if err != nil {
		t.Fatal(err)
	}
	start := func(want apierr.Code) access.Entitlement {
		t.Helper()
		trial, err := e.svc.StartTrial(t.Context(), actor.AccountID)
		if want == "" && err != nil || want != "" && !apierr.Is(err, want) {
			t.Fatalf("%+v, %v; want %q", trial, err, want)
		}
		return trial
	}
	start(apierr.Conflict) // during the registration's trial
	e.clock.Add(8 * 24 * time.Hour)
	start(apierr.Conflict) // after that trial
	e.exec(`UPDATE account SET has_used_trial = false, status = 'active', trial = false, valid_until = NULL, trial_ends_at = NULL`)
	start(apierr.Conflict) // during a paid subscription
	e.exec(`UPDATE account SET status = 'inactive'`)
	e.exec(`DELETE FROM used_trial`)
	var all sync.WaitGroup
	var started atomic.Int64
	for range 10 {
		all.Go(func() {
			if _, err := e.svc.StartTrial(t.Context(), actor.AccountID); err == nil {
				started.Add(1)
			} else if !apierr.Is(err, apierr.Conflict) {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if started.Load() != 1 {
		t.Errorf("%d trials began", started.Load())
	}
	a := e.me(k).expect(t, 200, "")
	if a.str("subscription_tier") != "pro" || a.str("subscription_status") != "trialing" || a.body["has_used_trial"] != true ||
		a.body["trial_end"] != float64(e.clock.Now().Add(7*24*time.Hour).Unix()) {
		t.Errorf("%s", a.raw)
	}
	changes := published(e, (*eventv1.Event).GetEntitlementChanged)
	if last := changes[len(changes)-1].GetEntitlement(); last.GetVersion() != 2 || last.GetStatus() != "trialing" || !last.GetTrial() {
		t.Errorf("%v", last)
	}
	if e.count("SELECT count(*) FROM used_trial") != 1 {
		t.Error("the address can get another trial")
	}
	for _, id := range []string{"x", "0198c0de-0000-7000-8000-000000000001"} {
		if _, err := e.svc.StartTrial(t.Context(), id); !apierr.Is(err, apierr.NotFound) {
			t.Errorf("%s: %v", id, err)
		}
	}
}

func TestPaymentCustomer(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	k := key(e.register("owner@example.com"))
	actor, err := e.svc.Authorize(t.Context(), "", mustKey(k))
	if err != nil {
		t.Fatal(err)
	}
	for customer, want := range map[string]any{"cus_1": "cus_1", "": nil} {
		if err := e.svc.SetPaymentCustomer(t.Context(), actor.AccountID, customer); err != nil {
			t.Fatal(err)
		}
		if got := e.me(k).expect(t, 200, "").body["payment_customer_id"]; got != want {
			t.Errorf("%v, want %v", got, want)
		}
	}
	for _, id := range []string{"x", "0198c0de-0000-7000-8000-000000000001"} {
		if err := e.svc.SetPaymentCustomer(t.Context(), id, "cus_1"); !apierr.Is(err, apierr.NotFound) {
			t.Errorf("%s: %v", id, err)
		}
	}
}

// TestAuthorizeUnderWay: an ID token counts for an hour longer for what was begun with
// it, but only while its session exists.
func TestAuthorizeUnderWay(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	k := key(e.register("owner@example.com"))
	id, _ := e.login("owner@example.com")
	check := func(want bool) {
		t.Helper()
		if _, err := e.svc.Authorize(t.Context(), id, ""); !apierr.Is(err, apierr.AuthenticationRequired) {
			t.Errorf("an expired token: %v", err)
		}
		if _, err := e.svc.AuthorizeUnderWay(t.Context(), id, ""); want != (err == nil) {
			t.Errorf("a request under way: %v", err)
		}
	}
	e.clock.Add(time.Hour + time.Minute)
	check(true)
	e.clock.Add(time.Hour)
	check(false)
	e.clock.Add(-time.Hour)
	e.do(http.MethodDelete, "/me", nil, k).expect(t, 204, "")
	check(false)
}

func TestDeletion(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	k := key(e.register("owner@example.com"))
	id, refresh := e.login("owner@example.com")
	actor, err := e.svc.Authorize(t.Context(), id, "")
	if err != nil {
		t.Fatal(err)
	}
	e.do(http.MethodDelete, "/me", nil).expect(t, 401, "AUTHENTICATION_REQUIRED")
	e.do(http.MethodDelete, "/me", nil, k).expect(t, 204, "")
	if got := e.owner.got(); len(got) != 1 || got[0] != actor.AccountID {
		t.Fatalf("closed %v", got)
	}
	for _, table := range []string{"account", "session", "refresh_token", "closing"} {
		if n := e.count(`SELECT count(*) FROM ` + table); n != 0 {
			t.Errorf("%d rows left in %s", n, table)
		}
	}
	if n := e.count(`SELECT count(*) FROM used_trial`); n != 1 {
		t.Errorf("%d rows in used_trial", n)
	}
	if got := published(e, (*eventv1.Event).GetAccountDeleted); len(got) != 1 || got[0].GetAccountId() != actor.AccountID {
		t.Errorf("events %v", got)
	}
	e.me(k).expect(t, 401, "AUTHENTICATION_REQUIRED")
	e.me(bearer(id)).expect(t, 401, "AUTHENTICATION_REQUIRED")
	e.do(http.MethodDelete, "/me", nil, bearer(id)).expect(t, 401, "AUTHENTICATION_REQUIRED")
	e.post("/refresh", map[string]string{"refresh_token": refresh}).expect(t, 401, "AUTHENTICATION_REQUIRED")
	e.post("/login", pair("owner@example.com", password)).expect(t, 401, "AUTHENTICATION_REQUIRED")
	e.post("/verify-email", map[string]string{"token": e.verificationToken(0), "password": password}).expect(t, 400, "INVALID_TOKEN")

	// The same address gets another account but no second trial.
	a := e.post("/register", pair("owner@example.com", "another password")).expect(t, 201, "")
	if a.str("subscription_status") != "inactive" {
		t.Fatalf("answer %s", a.raw)
	}
	me := e.me(key(a.str("api_key"))).expect(t, 200, "")
	if me.str("subscription_status") != "inactive" || me.body["has_used_trial"] != true || me.body["trial_ends_at"] != nil ||
		me.body["trial_end"] != nil {
		t.Fatalf("profile %s", me.raw)
	}
	e.me(k).expect(t, 401, "AUTHENTICATION_REQUIRED")
	e.me(bearer(id)).expect(t, 401, "AUTHENTICATION_REQUIRED")
	fresh, err := e.svc.Authorize(t.Context(), "", a.str("api_key"))
	if err != nil || fresh.AccountID == actor.AccountID {
		t.Fatalf("actor %+v, %v", fresh, err)
	}
}

// TestAClosingIsTakenForAnAttempt: whoever takes one has the time of an attempt for it.
func TestAClosingIsTakenForAnAttempt(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	e.owner.setAway(true)
	e.do(http.MethodDelete, "/me", nil, key(e.register("owner@example.com"))).expect(t, 204, "")
	e.clock.Add(time.Minute)
	e.serve()
	e.run(e.svc.RunClosings)
	testenv.Eventually(t, "a taken closing", func() bool {
		return e.count(`SELECT count(*) FROM closing WHERE due_at > $1`, e.clock.Now().Add(5*time.Second)) == 1
	})
}

func TestDeletionWhileSignupIsAway(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	e.owner.setAway(true)
	k := key(e.register("owner@example.com"))
	e.do(http.MethodDelete, "/me", nil, k).expect(t, 204, "")
	e.me(k).expect(t, 401, "AUTHENTICATION_REQUIRED")
	if n := e.count(`SELECT count(*) FROM closing`); n != 1 {
		t.Fatalf("%d closings", n)
	}
	// Another process retries the closing.
	e.serve()
	e.run(e.svc.RunClosings)
	e.owner.setAway(false)
	testenv.Eventually(e.t, "the closing", func() bool {
		e.clock.Add(time.Second)
		return len(e.owner.got()) > 0
	})
	testenv.Eventually(e.t, "the end of the closing", func() bool { return e.count(`SELECT count(*) FROM closing`) == 0 })
}

func TestTeamGrants(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	owner, member := e.register("owner@example.com"), e.register("member@example.com")
	e.exec(`INSERT INTO team_member (owner_id, email, role, invited_at)
		SELECT id, 'member@example.com', 'admin', now() FROM account WHERE email = 'owner@example.com'`)
	id, _ := e.login("member@example.com")
	for _, credential := range [][2]string{{id, ""}, {"", member}} {
		actor, err := e.svc.Authorize(t.Context(), credential[0], credential[1])
		if err != nil {
			t.Fatal(err)
		}
		g := actor.Grants
		if len(g) != 2 || g[0].OwnerID != actor.AccountID || g[0].Role != access.Owner || g[1].OwnerEmail != "owner@example.com" ||
			g[1].Role != access.Admin || g[1].Entitlement.Tier != access.Pro || actor.Email != "member@example.com" || actor.EmailVerified {
			t.Fatalf("actor %+v", actor)
		}
		if actor.APIKey != (credential[1] != "") {
			t.Fatalf("method of %+v", actor)
		}
	}
	// A membership ends with the member's or the owner's account.
	e.do(http.MethodDelete, "/me", nil, key(member)).expect(t, 204, "")
	if n := e.count(`SELECT count(*) FROM team_member`); n != 0 {
		t.Fatalf("%d memberships", n)
	}
	member = e.register("member@example.com")
	e.exec(`INSERT INTO team_member (owner_id, email, role, invited_at)
		SELECT id, 'member@example.com', 'viewer', now() FROM account WHERE email = 'owner@example.com'`)
	e.do(http.MethodDelete, "/me", nil, key(owner)).expect(t, 204, "")
	actor, err := e.svc.Authorize(t.Context(), "", member)
	if err != nil || len(actor.Grants) != 1 {
		t.Fatalf("actor %+v, %v", actor, err)
	}
}

func TestSweep(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	e.register("owner@example.com")
	e.login("owner@example.com")
	e.post("/login", pair("owner@example.com", "wrong password")).expect(t, 401, "AUTHENTICATION_REQUIRED")
	e.clock.Add(31 * 24 * time.Hour)
	_, live := e.login("owner@example.com")
	e.run(e.svc.RunSweep)
	testenv.Eventually(e.t, "the sweep", func() bool {
		return e.count(`SELECT count(*) FROM session`) == 1 && e.count(`SELECT count(*) FROM refresh_token`) == 1 &&
			e.count(`SELECT count(*) FROM login_failure`) == 0
	})
	e.post("/refresh", map[string]string{"refresh_token": live}).expect(t, 200, "")
}

// A login gets no session if the password is reset between the comparison and the
// creation of the session.
func TestSessionNeedsTheGeneration(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	e.register("owner@example.com")
	a, err := e.store.AccountByEmail(t.Context(), "owner@example.com")
	if err != nil {
		t.Fatal(err)
	}
	reset := e.tokens.MintAccount(token.ResetPassword, a.ID, a.PasswordGeneration, e.clock.Now().Add(time.Hour))
	resetter := e.svc
	e.cfg.Store = lateReset{e.store, func() {
		if err := resetter.ResetPassword(t.Context(), reset, "new password"); err != nil {
			t.Error(err)
		}
	}}
	e.serve()
	e.post("/login", pair("owner@example.com", password)).expect(t, 401, "AUTHENTICATION_REQUIRED")
	if n := e.count(`SELECT count(*) FROM session`); n != 0 {
		t.Fatalf("%d sessions", n)
	}
}

// A login waits for a password reset that is being committed, and then fails.
func TestLoginWaitsForReset(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	e.register("owner@example.com")
	reset, err := e.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = reset.Rollback(context.WithoutCancel(t.Context())) }()
	if _, err := reset.Exec(t.Context(), `UPDATE account SET password_generation = password_generation + 1`); err != nil {
		t.Fatal(err)
	}
	got := make(chan answer, 1)
	go func() { got <- e.post("/login", pair("owner@example.com", password)) }()
	testenv.Eventually(e.t, "the login waits", func() bool {
		return len(got) > 0 || e.count(`SELECT count(*) FROM pg_stat_activity
			WHERE datname = current_database() AND wait_event_type = 'Lock'`) > 0
	})
	if err := reset.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	(<-got).expect(t, 401, "AUTHENTICATION_REQUIRED")
}

// A login replaces an outdated hash.
func TestRehash(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	e.register("owner@example.com")
	// "correct horse" with m=8192, t=1.
	old := weakHash(t, password)
	e.exec(`UPDATE account SET password_hash = $1`, old)
	e.login("owner@example.com")
	if n := e.count(`SELECT count(*) FROM account WHERE password_hash LIKE '$argon2id$v=19$m=19456,t=2,p=1$%'`); n != 1 {
		t.Error("the hash was not replaced")
	}
	e.login("owner@example.com")
}

func TestJWKS(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	a := e.do(http.MethodGet, "/jwks.json", nil).expect(t, 200, "")
	var set struct{ Keys []map[string]string }
	if err := json.Unmarshal([]byte(a.raw), &set); err != nil {
		t.Fatal(err)
	}
	if len(set.Keys) != 1 || set.Keys[0]["kty"] != "EC" || set.Keys[0]["alg"] != "ES256" || set.Keys[0]["use"] != "sig" ||
		set.Keys[0]["d"] != "" {
		t.Fatalf("keys %v", set.Keys)
	}
	if got := a.header.Get("Cache-Control"); got != "public, max-age=300" {
		t.Errorf("Cache-Control %q", got)
	}
}

// Login times do not reveal whether an address has an account. The logins come in random
// order, so that a load that comes and goes meets both kinds alike. Mann and Whitney's U
// then says how unlikely the order of the times would be if the kinds were the same: beyond
// 4.9 standard deviations it is one in a million. BenchmarkKnownAgainstUnknown measures the
// ratio of the medians.
func TestLoginTiming(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	e.register("owner@example.com")
	const each = 40
	i := 0
	sameTimes(t, slices.Repeat([]string{"owner@example.com"}, each), slices.Repeat([]string{"nobody@example.com"}, each), func(email string) {
		i++
		e.post("/login", pair(email, "wrong password"), from(fmt.Sprintf("192.0.2.%d", i))).expect(t, 401, "AUTHENTICATION_REQUIRED")
	})
}

// TestForgotPasswordTiming: the time of an answer does not tell who has an account, while
// resets are processed beside it.
func TestForgotPasswordTiming(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	e.run(e.svc.RunResets)
	var known, unknown []string
	for i := range 60 {
		known = append(known, fmt.Sprintf("owner%d@example.com", i))
		unknown = append(unknown, fmt.Sprintf("nobody%d@example.com", i))
		e.register(known[i])
	}
	sameTimes(t, known, unknown, func(email string) {
		e.post("/forgot-password", map[string]string{"email": email}).expect(t, 202, "")
	})
}

// sameTimes fails if send takes longer for the known addresses than for the unknown ones,
// or the other way round, by more than a chance of one in a million. The order is random.
func sameTimes(t *testing.T, known, unknown []string, send func(email string)) {
	t.Helper()
	emails := slices.Concat(known, unknown)
	rand.Shuffle(len(emails), func(i, j int) { emails[i], emails[j] = emails[j], emails[i] })
	var of, others []time.Duration
	for _, email := range emails {
		start := time.Now()
		send(email)
		if took := time.Since(start); slices.Contains(known, email) {
			of = append(of, took)
		} else {
			others = append(others, took)
		}
	}
	z := mannWhitney(of, others)
	slices.Sort(of)
	slices.Sort(others)
	t.Logf("%.1f standard deviations apart; medians: known %v, unknown %v", z, of[len(of)/2], others[len(others)/2])
	if math.Abs(z) > 4.9 {
		t.Error("the times tell who has an account")
	}
}

// mannWhitney returns how many standard deviations U is above what it is for equal distributions.
func mannWhitney(a, b []time.Duration) float64 {
	u := 0.0
	for _, x := range a {
		for _, y := range b {
			switch {
			case x > y:
				u++
			case x == y:
				u += 0.5
			}
		}
	}
	n, m := float64(len(a)), float64(len(b))
	return (u - n*m/2) / math.Sqrt(n*m*(n+m+1)/12)
}

// TestRefreshTokenTampering: a refresh token with any byte changed, cut or added is none, and
// does not end the session that it resembles.
func TestRefreshTokenTampering(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	e.register("owner@example.com")
	_, good := e.login("owner@example.com")
	refresh := func(token string) answer { return e.post("/refresh", map[string]string{"refresh_token": token}) }
	tried := 0
	for bad := range tokentest.Tampered(good, tokentest.Base64URL) {
		if bad == "" {
			continue // answered as a missing field
		}
		if a := refresh(bad); a.status != http.StatusUnauthorized {
			t.Errorf("%q for %q: %d", bad, good, a.status)
		}
		tried++
	}
	t.Logf("%d refused", tried)
	refresh(good).expect(t, 200, "")
}

func TestEventsOfOneAccountShareItsKey(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	k := key(e.register("owner@example.com"))
	e.do(http.MethodDelete, "/me", nil, k).expect(t, 204, "")
	if n := e.count(`SELECT count(DISTINCT key) FROM outbox`); n != 1 {
		t.Errorf("%d keys", n)
	}
	seen := map[string]bool{}
	for _, ev := range e.events() {
		if seen[ev.GetId()] || ev.GetOccurredAt().AsTime().Equal((&timestamppb.Timestamp{}).AsTime()) {
			t.Errorf("event %v", ev)
		}
		seen[ev.GetId()] = true
	}
}

func TestCancelledLoginStillCounts(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	ctx, cancel := context.WithCancel(t.Context())
	e.cfg.Store = cancelling{e.store, cancel}
	e.serve()
	_, err := e.svc.Login(ctx, "owner@example.com", "wrong password", account.Client{IP: "192.0.2.1"})
	if err == nil {
		t.Fatal("no error")
	}
	if n := e.count(`SELECT count(*) FROM login_failure`); n != 1 {
		t.Errorf("%d failures recorded", n)
	}
}

// What was authorized before a reset and acts after it leaves no way in.
func TestTheResetEndsCallsUnderWay(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	apiKey := e.register("owner@example.com")
	id, _ := e.login("owner@example.com")
	bySession, err := e.svc.Authorize(t.Context(), id, "")
	if err != nil {
		t.Fatal(err)
	}
	byKey, err := e.svc.Authorize(t.Context(), "", apiKey)
	if err != nil {
		t.Fatal(err)
	}
	invite := []byte(`{"email": "accomplice@example.com", "role": "admin"}`)
	a, err := e.store.AccountByEmail(t.Context(), "owner@example.com")
	if err != nil {
		t.Fatal(err)
	}
	reset := e.tokens.MintAccount(token.ResetPassword, a.ID, a.PasswordGeneration, e.clock.Now().Add(time.Hour))
	if err := e.svc.ResetPassword(t.Context(), reset, "new password"); err != nil {
		t.Fatal(err)
	}
	if _, err := e.svc.RegenerateAPIKey(t.Context(), bySession); !apierr.Is(err, apierr.AuthenticationRequired) {
		t.Errorf("a new key: %v", err)
	}
	for _, actor := range []access.Actor{bySession, byKey} {
		if _, err := e.svc.Invite(t.Context(), actor, invite); !apierr.Is(err, apierr.AuthenticationRequired) {
			t.Errorf("an invitation: %v", err)
		}
	}
	if n := e.count(`SELECT count(*) FROM team_member`); n != 0 {
		t.Errorf("%d members", n)
	}
}
