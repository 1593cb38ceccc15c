package http_test

import (
	"context"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"waitlist.internal/libs/access"
	"waitlist.internal/services/messaging/domains"
)

// zone holds the TXT records of all name servers. It implements domains.Texts.
type zone struct {
	mu    sync.Mutex
	texts map[string][]string
	// silent means that no name server answers.
	silent bool
	asked  int
}

func (z *zone) Texts(_ context.Context, name string) ([]string, error) {
	z.mu.Lock()
	defer z.mu.Unlock()
	z.asked++
	if z.silent {
		return nil, domains.ErrNoAnswer
	}
	return z.texts[name], nil
}

func (z *zone) change(f func()) {
	z.mu.Lock()
	defer z.mu.Unlock()
	f()
}

// publish adds the records that an answer of POST /domains/verify lists.
func (z *zone) publish(t testing.TB, a answer) {
	t.Helper()
	records, _ := a.body["dns_records"].([]any)
	z.change(func() {
		for _, r := range records {
			r, _ := r.(map[string]any)
			name, _ := r["name"].(string)
			value, _ := r["value"].(string)
			z.texts[name] = append(z.texts[name], value)
		}
	})
	if len(records) == 0 {
		t.Fatalf("no records in %s", a.raw)
	}
}

func (e *env) claim(who, domain string) answer {
	e.t.Helper()
	return e.do(who, post, "/domains/verify", map[string]string{"domain": domain})
}

func (e *env) status(who, domain string) string {
	e.t.Helper()
	return e.do(who, get, "/domains/"+domain+"/status", nil).want(http.StatusOK, "").str("status")
}

func TestDomainsLiveAndDie(t *testing.T) {
	e := newEnv(t)
	claimed := e.claim("owner", " News.Example.COM ").want(http.StatusOK, "")
	if claimed.str("domain") != "news.example.com" || claimed.str("status") != "pending" {
		t.Fatal(claimed.raw)
	}
	again := e.claim("owner", "news.example.com").want(http.StatusOK, "")
	if again.raw != claimed.raw {
		t.Errorf("claimed again: %s, before %s", again.raw, claimed.raw)
	}
	if s := e.status("owner", "news.example.com"); s != "pending" {
		t.Error(s)
	}
	e.zone.publish(t, claimed)
	all := maps.Clone(e.zone.texts)
	// Every proving record is required.
	for name := range all {
		want := "pending"
		if strings.HasPrefix(name, "_dmarc.") {
			want = "verified"
		}
		value := all[name][0]
		for what, texts := range map[string][]string{
			"none": nil, "another": {value[:len(value)-1] + "x"}, "less": {value[:len(value)-1]},
			"more": {value + "x"},
		} {
			e.zone.change(func() { e.zone.texts = maps.Clone(all); e.zone.texts[name] = texts })
			if s := e.status("owner", "news.example.com"); s != want {
				t.Errorf("%s at %s: %s", what, name, s)
			}
		}
		// The value as some DNS control panels rewrite it, beside other values.
		e.zone.change(func() { e.zone.texts[name] = []string{"v=spf1 -all", strings.ReplaceAll(value, "; ", ";") + ";"} })
		if s := e.status("owner", "news.example.com"); s != "verified" {
			t.Errorf("rewritten at %s: %s", name, s)
		}
	}
	e.zone.change(func() { e.zone.texts = all })
	if s := e.status("owner", "NEWS.example.com"); s != "verified" {
		t.Error(s)
	}
	list := e.do("owner", get, "/domains", nil).want(http.StatusOK, "")
	if !strings.Contains(list.raw, `{"domain":"news.example.com","verification_status":"verified","created_at":"20`) {
		t.Error(list.raw)
	}
	from, key, err := e.domains.Sender(t.Context(), ownerID)
	if err != nil || from.Address != "no-reply@news.example.com" || from.Name != "Waitlist" || key == nil ||
		key.Domain != "news.example.com" {
		t.Fatalf("%v %v %v", from, key, err)
	}
	// No name server answers: nothing changes.
	e.zone.change(func() { e.zone.silent = true })
	if s := e.status("owner", "news.example.com"); s != "verified" {
		t.Error(s)
	}
	e.now = e.now.Add(1000 * time.Hour)
	e.zone.change(func() { e.zone.silent, e.zone.texts = false, map[string][]string{} })
	if s := e.status("owner", "news.example.com"); s != "pending" {
		t.Error(s)
	}
	if from, _, err := e.domains.Sender(t.Context(), ownerID); err != nil || from.Address != "" {
		t.Errorf("%v %v", from, err)
	}
	// The 72 hours begin when the records vanished.
	e.now = e.now.Add(72*time.Hour - time.Second)
	if s := e.status("owner", "news.example.com"); s != "pending" {
		t.Error(s)
	}
	e.now = e.now.Add(time.Second)
	e.zone.change(func() { e.zone.silent = true })
	if s := e.status("owner", "news.example.com"); s != "pending" {
		t.Errorf("without an answer: %s", s)
	}
	e.zone.change(func() { e.zone.silent = false })
	if s := e.status("owner", "news.example.com"); s != "failed" {
		t.Error(s)
	}
	e.zone.change(func() { e.zone.texts = all })
	if s := e.status("owner", "news.example.com"); s != "failed" {
		t.Errorf("not claimed again: %s", s)
	}
	if again := e.claim("owner", "news.example.com").want(http.StatusOK, ""); again.raw != claimed.raw {
		t.Errorf("claimed again: %s, before %s", again.raw, claimed.raw)
	}
	if s := e.status("owner", "news.example.com"); s != "verified" {
		t.Error(s)
	}
	e.do("owner", remove, "/domains/news.example.com", nil).want(http.StatusNoContent, "")
	e.do("owner", remove, "/domains/news.example.com", nil).want(http.StatusNotFound, "NOT_FOUND")
	if n := e.count("SELECT count(*) FROM domain"); n != 0 {
		t.Errorf("%d rows", n)
	}
}

func TestADomainIsOneAccounts(t *testing.T) {
	e := newEnv(t)
	first, second := e.claim("owner", "example.com").want(http.StatusOK, ""), e.claim("other", "example.com").want(http.StatusOK, "")
	e.zone.publish(t, second)
	// The other account's records prove nothing for the owner.
	if s := e.status("owner", "example.com"); s != "pending" {
		t.Error(s)
	}
	if s := e.status("other", "example.com"); s != "verified" {
		t.Error(s)
	}
	// Both accounts have published their records: the one that was verified first stays verified.
	e.zone.publish(t, first)
	if s := e.status("owner", "example.com"); s != "pending" {
		t.Error(s)
	}
	e.do("owner", remove, "/domains/example.com", nil).want(http.StatusNoContent, "")
	e.claim("owner", "example.com").want(http.StatusConflict, "DUPLICATE")
	e.claim("other", "example.com").want(http.StatusOK, "")
	e.claim("owner", "mail.example.org").want(http.StatusConflict, "DUPLICATE") // the owner's own claim
	e.do("other", remove, "/domains/example.com", nil).want(http.StatusNoContent, "")
	e.claim("owner", "example.com").want(http.StatusOK, "")
	for _, path := range []string{
		"/domains/example.com/status", "/domains/nowhere.example/status", "/domains/%20/status",
		"/domains/verify/status",
	} {
		e.do("other", get, path, nil).want(http.StatusNotFound, "NOT_FOUND")
	}
	e.do("other", remove, "/domains/example.com", nil).want(http.StatusNotFound, "NOT_FOUND")
}

func TestManyClaimsAtATime(t *testing.T) {
	e := newEnv(t)
	var wg sync.WaitGroup
	answers := make([]string, 4)
	for i := range answers {
		wg.Go(func() { answers[i] = e.claim("owner", "example.com").want(http.StatusOK, "").raw })
	}
	wg.Wait()
	if slices.Sort(answers); answers[0] != answers[len(answers)-1] || e.count("SELECT count(*) FROM domain") != 1 {
		t.Errorf("%d rows, answers %v", e.count("SELECT count(*) FROM domain"), answers)
	}
	if _, err := e.pool.Exec(t.Context(), `
		INSERT INTO domain
		SELECT gen_random_uuid(), method, owner_id, 'd' || i || '.example', state, since, created_at, records, '', '', '', false, due_at
		FROM domain, generate_series(2, 100) i`); err != nil {
		t.Fatal(err)
	}
	if f := e.claim("owner", "one-more.example").want(http.StatusBadRequest, "VALIDATION_ERROR").fields(); f != "domain" {
		t.Error(f)
	}
}

func TestDomainsThatAreNone(t *testing.T) {
	e := newEnv(t)
	for _, name := range []any{
		"", "  ", "localhost", "a b.example", "http://example.com", "example.com/x", "192.0.2.1", "-a.example",
		strings.Repeat("a", 64) + ".example", "x@example.com", "exa\nmple.com", 5, nil,
		[]string{"example.com"},
	} {
		if f := e.do("owner", post, "/domains/verify", map[string]any{"domain": name}).want(http.StatusBadRequest,
			"VALIDATION_ERROR").fields(); f != "domain" {
			t.Errorf("%v: %s", name, f)
		}
	}
	e.do("owner", post, "/domains/verify", "no JSON").want(http.StatusBadRequest, "INVALID_BODY")
	if d := e.claim("owner", "Bücher.example").want(http.StatusOK, "").str("domain"); d != "xn--bcher-kva.example" {
		t.Error(d)
	}
}

func TestWhoMayDoWhatWithDomains(t *testing.T) {
	e := newEnv(t)
	e.claim("owner", "example.com").want(http.StatusOK, "")
	team := func(role access.Role, owner access.Entitlement) access.Grant {
		return access.Grant{OwnerID: ownerID, OwnerEmail: "owner@example.com", Role: role, Entitlement: owner}
	}
	basic := access.Entitlement{Tier: access.Basic, Status: access.Active}
	ended := access.Entitlement{Tier: access.Pro, Status: access.Inactive, Trial: true}
	unverified := actor(memberID, "unverified@example.com", pro())
	unverified.EmailVerified = false
	e.actors["admin"] = actor(memberID, "admin@example.com", ended, team(access.Admin, pro()))
	e.actors["viewer"] = actor(memberID, "viewer@example.com", ended, team(access.Viewer, pro()))
	e.actors["basic"] = actor(memberID, "basic@example.com", basic)
	e.actors["ended"] = actor(memberID, "ended@example.com", ended)
	e.actors["unverified"] = unverified
	const list, state, own = "/domains", "/domains/example.com/status", "owner@example.com"
	claim := map[string]string{"domain": "more.example"}
	for _, tc := range []struct {
		who, method, path string
		body              any
		account           string
		status            int
		code              string
	}{
		{"nobody", post, "/domains/verify", claim, "", 401, "AUTHENTICATION_REQUIRED"},
		{"nobody", get, list, nil, "", 401, "AUTHENTICATION_REQUIRED"},
		{"nobody", get, state, nil, "", 401, "AUTHENTICATION_REQUIRED"},
		{"nobody", remove, "/domains/example.com", nil, "", 401, "AUTHENTICATION_REQUIRED"},
		{"nobody", remove, "/domains/verify", nil, "", 404, "NOT_FOUND"},
		{"nobody", get, "/domains/verify", nil, "", 404, "NOT_FOUND"},
		{"nobody", get, "/domains/example.com", nil, "", 404, "NOT_FOUND"},
		{"nobody", post, "/domains", claim, "", 404, "NOT_FOUND"},
		{"nobody", post, "/domains/notifications/resend", "{}", "", 404, "NOT_FOUND"}, // no such provider is configured
		{"other", get, list, nil, own, 403, "FORBIDDEN"},
		{"other", post, "/domains/verify", "no JSON", own, 403, "FORBIDDEN"},
		{"viewer", post, "/domains/verify", "no JSON", own, 403, "FORBIDDEN"},
		{"viewer", remove, "/domains/example.com", nil, own, 403, "FORBIDDEN"},
		{"viewer", get, list, nil, own, 200, ""},
		{"viewer", get, state, nil, own, 200, ""},
		{"viewer", get, list, nil, "", 403, "TRIAL_EXPIRED"},
		{"ended", post, "/domains/verify", "no JSON", "", 403, "TRIAL_EXPIRED"},
		{"ended", remove, "/domains/example.com", nil, "", 403, "TRIAL_EXPIRED"},
		{"basic", post, "/domains/verify", "no JSON", "", 400, "INVALID_BODY"},
		{"basic", post, "/domains/verify", claim, "", 403, "TIER_REQUIRED"},
		{"basic", get, list, nil, "", 403, "TIER_REQUIRED"},
		{"basic", get, state, nil, "", 403, "TIER_REQUIRED"},
		{"basic", remove, "/domains/example.com", nil, "", 403, "TIER_REQUIRED"},
		{"unverified", post, "/domains/verify", "no JSON", "", 403, "EMAIL_NOT_VERIFIED"},
		{"unverified", get, list, nil, "", 200, ""},
		{"admin", post, "/domains/verify", claim, own, 200, ""},
		{"admin", remove, "/domains/more.example", nil, own, 204, ""},
	} {
		account := []string{tc.account}
		if tc.account == "" {
			account = nil
		}
		e.t = t
		a := e.do(tc.who, tc.method, tc.path, tc.body, account...)
		if code, _ := a.body["error_code"].(string); a.status != tc.status || code != tc.code {
			t.Errorf("%s %s %s for %q: %d %s, want %d %s", tc.who, tc.method, tc.path, tc.account, a.status, a.raw, tc.status, tc.code)
		}
	}
}

func TestDomainsAreLookedAfter(t *testing.T) {
	e := newEnv(t)
	for _, d := range []string{"a.example", "b.example", "c.example"} {
		e.zone.publish(t, e.claim("owner", d).want(http.StatusOK, ""))
	}
	if n, err := e.owners.Once(t.Context()); n != 3 || err != nil {
		t.Fatal(n, err)
	}
	if n := e.count("SELECT count(*) FROM domain WHERE state = 'verified'"); n != 3 {
		t.Errorf("%d verified", n)
	}
	// The newest domain is the owner's sender.
	if from, key, err := e.domains.Sender(t.Context(), ownerID); err != nil || from.Address != "no-reply@c.example" ||
		key.Domain != "c.example" {
		t.Errorf("%v %v", from, err)
	}
	// All domains were checked just now.
	asked := e.zone.asked
	if n, err := e.owners.Once(t.Context()); n != 0 || err != nil || e.zone.asked != asked {
		t.Error(n, err)
	}
	if _, err := e.pool.Exec(t.Context(), "UPDATE domain SET due_at = now()"); err != nil {
		t.Fatal(err)
	}
	e.zone.change(func() { e.zone.silent = true })
	if n, err := e.owners.Once(t.Context()); n != 3 || err != nil || e.count("SELECT count(*) FROM domain WHERE state = 'verified'") != 3 {
		t.Error(n, err)
	}
}

func TestKeysAreKeptSealed(t *testing.T) {
	e := newEnv(t)
	e.claim("owner", "example.com").want(http.StatusOK, "")
	if n := e.count("SELECT count(*) FROM domain WHERE key LIKE 's1.k1.%' AND selector LIKE 'wl%'"); n != 1 {
		t.Error(n)
	}
	// The sealed key opens only in its own row.
	e.claim("owner", "example.net").want(http.StatusOK, "")
	if _, err := e.pool.Exec(t.Context(), "UPDATE domain d SET state = 'verified', key = o.key FROM domain o WHERE o.id <> "+
		"d.id"); err != nil {
		t.Fatal(err)
	}
	if _, _, err := e.domains.Sender(t.Context(), ownerID); err == nil {
		t.Error("another domain's key was opened")
	}
}

func TestClaimsOfDeletedAccounts(t *testing.T) {
	e := newEnv(t)
	e.zone.publish(t, e.claim("owner", "example.com").want(http.StatusOK, ""))
	e.claim("other", "example.net").want(http.StatusOK, "")
	if s := e.status("owner", "example.com"); s != "verified" {
		t.Fatal(s)
	}
	e.forget(ownerID)
	if n := e.count("SELECT count(*) FROM domain"); n != 1 {
		t.Errorf("%d claims", n)
	}
	e.claim("owner", "example.org").want(http.StatusUnauthorized, "AUTHENTICATION_REQUIRED")
	e.claim("other", "example.com").want(http.StatusOK, "")
}
