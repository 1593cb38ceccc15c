package e2e

import (
	"bytes"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/emersion/go-msgauth/dkim"
)

// record is a DNS record that verifying a domain requires.
type record struct {
	Type, Name, Value, Purpose string
	TTL                        any
}

func newDomain(name any) Request { return Post("/domains/verify", Obj{"domain": name}) }

func domainStatus(name string) Request { return Get("/domains/" + name + "/status") }

// domainName returns an unclaimed name.
func domainName() string { return strings.Replace(address("mail"), "@", ".", 1) }

// claim starts the verification of a domain and returns its records.
func (o *owner) claim(t testing.TB, name string) []record {
	t.Helper()
	var claimed struct {
		Records []record `json:"dns_records"`
	}
	r := o.Do(t, newDomain(name).As(o.token)).Want(http.StatusOK)
	r.Decode(&claimed)
	return claimed.Records
}

// domains returns an account's domains as "name state", in the list's order.
func (o *owner) domains(t testing.TB) []string {
	t.Helper()
	var list struct {
		Domains []struct {
			Domain string
			Status string `json:"verification_status"`
		} `json:"domains"`
	}
	o.Do(t, Get("/domains").As(o.token)).Want(http.StatusOK).Decode(&list)
	out := []string{}
	for _, d := range list.Domains {
		out = append(out, d.Domain+" "+d.Status)
	}
	return out
}

// check requires a domain's state.
func (o *owner) check(t testing.TB, name, want string) {
	t.Helper()
	o.Do(t, domainStatus(name).As(o.token)).Want(http.StatusOK).WantJSON("domain", name).WantJSON("status", want)
}

// testDomains tests sending domains against a DNS server of the test.
func (s *suite) testDomains(t *testing.T) {
	names := newNameServer(t)
	env := map[string]string{"DNS_RESOLVER": names.addr}
	d := s.deploy(t, env)
	t.Run("life", func(t *testing.T) { testDomainLife(t, d, names) })
	t.Run("names", func(t *testing.T) { testDomainNames(t, d) })
	t.Run("claims", func(t *testing.T) { testDomainClaims(t, d, names) })
	t.Run("accounts", func(t *testing.T) { testDomainAccounts(t, d) })
	t.Run("plans", func(t *testing.T) { testDomainPlans(t, d) })
	t.Run("sender", func(t *testing.T) { testSender(t, d, names) })
	t.Run("bodies", func(t *testing.T) {
		o := d.owner(t)
		testBodies(t, o.Client, Post("/domains/verify", nil).As(o.token), `{"domain":"`+domainName()+`"%s}`, http.StatusOK)
	})
}

func testDomainLife(t *testing.T, d *deployment, names *nameServer) {
	o := d.owner(t)
	o.Do(t, Get("/domains").As(o.token)).Want(http.StatusOK).WantJSON("domains", []any{})
	name := domainName()
	r := o.Do(t, newDomain(" "+strings.ToUpper(name)+" ").As(o.token)).Want(http.StatusOK).WantJSON("domain", name).
		WantJSON("status", "pending")
	records := o.claim(t, name)
	if again := o.Do(t, newDomain(name).Key(o.key)).Want(http.StatusOK); string(again.Body) != string(r.Body) {
		t.Errorf("claimed again: %s, before %s", again.Body, r.Body)
	}
	if !slices.ContainsFunc(records, func(r record) bool {
		return r.Type == "TXT" && strings.Contains(r.Name, "._domainkey.") && strings.Contains(r.Value, "p=")
	}) {
		t.Errorf("no DKIM key in %+v", records)
	}
	for _, r := range records {
		if !strings.HasSuffix(strings.TrimSuffix(r.Name, "."), name) {
			t.Errorf("a record outside of %s: %+v", name, r)
		}
	}
	o.check(t, name, "pending")
	if got := o.domains(t); !slices.Equal(got, []string{name + " pending"}) {
		t.Errorf("domains %v", got)
	}
	// The same names with other values prove nothing.
	wrong := slices.Clone(records)
	for i := range wrong {
		wrong[i].Value = strings.Replace(wrong[i].Value, wrong[i].Value[len(wrong[i].Value)-8:], "AAAAAAAA", 1)
	}
	names.publish(t, wrong)
	o.check(t, name, "pending")
	names.publish(t, records) // in addition to the wrong ones
	o.check(t, name, "verified")
	o.check(t, name, "verified")
	if got := o.domains(t); !slices.Equal(got, []string{name + " verified"}) {
		t.Errorf("domains %v", got)
	}
	o.Do(t, newDomain(name).As(o.token)).Want(http.StatusOK).WantJSON("status", "verified")
	o.Do(t, domainStatus(strings.ToUpper(name)).Key(o.key)).Want(http.StatusOK).WantJSON("domain", name)
	o.Do(t, NewRequest(http.MethodHead, "/domains/"+name+"/status", nil).As(o.token)).Want(http.StatusOK)

	// A failing name server says nothing about the records.
	names.change(func() { names.broken = true })
	o.check(t, name, "verified")
	names.change(func() { names.broken, names.silent = false, true })
	o.check(t, name, "verified")
	names.change(func() { names.silent = false })
	names.withdraw()
	o.check(t, name, "pending")
	names.publish(t, records)
	o.check(t, name, "verified")

	o.Do(t, Delete("/domains/"+strings.ToUpper(name)).As(o.token)).Want(http.StatusNoContent)
	for _, none := range []string{name, domainName(), "nope", "verify", "%00", strings.Repeat("x", 300), "%F0%9F%9A%80"} {
		o.Do(t, domainStatus(none).As(o.token)).WantError(http.StatusNotFound, "NOT_FOUND")
		o.Do(t, Delete("/domains/"+none).As(o.token)).WantError(http.StatusNotFound, "NOT_FOUND")
	}
	if got := o.domains(t); len(got) != 0 {
		t.Errorf("domains %v", got)
	}
	// The next account that claims the domain gets other records.
	other := d.owner(t)
	if fresh := other.claim(t, name); canonical(fresh) == canonical(records) {
		t.Error("another account got the same records")
	}
	other.check(t, name, "pending")
	t.Run("unknown paths", func(t *testing.T) {
		for _, r := range []Request{
			Get("/domains/" + name), Post("/domains", Obj{}), Get("/domains/verify"), Post("/domains/"+name, Obj{}),
			Post("/domains/"+name+"/status", Obj{}), Get("/domains/" + name + "/status/"), Delete("/domains/" + name + "/"),
		} {
			o.Do(t, r).WantError(http.StatusNotFound, "NOT_FOUND")
			o.Do(t, r.As(o.token)).WantError(http.StatusNotFound, "NOT_FOUND")
		}
	})
}

func testDomainNames(t *testing.T, d *deployment) {
	o := d.owner(t)
	for _, bad := range []any{
		nil, "", " ", "nope", "example", ".example.com", "example..com", "-x.example.com", "x-.example.com", "exa mple.com",
		"*.example.com", "ada@example.com", "https://example.com",
		"example.com/x", "example.com:25", "127.0.0.1", "[::1]", "::1", "exam_ple.com", "a\x00.example.com",
		strings.Repeat("x", 64) + ".example.com", strings.Repeat("x.", 126) + "com", 5, true,
		[]any{"example.com"},
		"localhost",
		"example.com\nx", "%65xample.com",
	} {
		o.Do(t, newDomain(bad).As(o.token).Invalid()).Invalid("domain")
	}
	o.Do(t, Post("/domains/verify", Obj{}).As(o.token).Invalid()).Invalid("domain")
	if got := o.domains(t); len(got) != 0 {
		t.Errorf("domains %v", got)
	}
	sub := domainName()
	for given, want := range map[string]string{
		"Bücher." + sub: "xn--bcher-kva." + sub, "a.b.c." + sub: "a.b.c." + sub, "0-1." + sub: "0-1." + sub,
	} {
		o.Do(t, newDomain(given).As(o.token)).Want(http.StatusOK).WantJSON("domain", want)
		o.Do(t, Delete("/domains/"+want).As(o.token)).Want(http.StatusNoContent)
	}
}

// testDomainClaims checks that a domain belongs to the account that proves it; mere claims block nobody.
func testDomainClaims(t *testing.T, d *deployment, names *nameServer) {
	a, b := d.owner(t), d.owner(t)
	name := domainName()
	as, bs := a.claim(t, name), b.claim(t, name)
	if canonical(as) == canonical(bs) {
		t.Fatal("two accounts got the same records")
	}
	names.publish(t, bs)
	a.check(t, name, "pending")
	b.check(t, name, "verified")
	c := d.owner(t)
	c.Do(t, newDomain(name).As(c.token)).WantError(http.StatusConflict, "DUPLICATE")
	names.withdraw()
	names.publish(t, as)
	b.check(t, name, "pending")
	a.check(t, name, "verified")
	b.check(t, name, "pending")
	// If both are proven at once, the first claim wins.
	names.publish(t, bs)
	b.check(t, name, "pending")
	a.check(t, name, "verified")
	a.Do(t, Delete("/domains/"+name).As(a.token)).Want(http.StatusNoContent)
	b.check(t, name, "verified")

	t.Run("abandoned", func(t *testing.T) {
		o := d.owner(t)
		late := domainName()
		records := o.claim(t, late)
		d.exec(t, "UPDATE messaging.domain SET since = since - interval '73 hours' WHERE name = $1", late)
		o.check(t, late, "failed")
		if got := o.domains(t); !slices.Equal(got, []string{late + " failed"}) {
			t.Errorf("domains %v", got)
		}
		// Starting again gives another 72 hours.
		o.Do(t, newDomain(late).As(o.token)).Want(http.StatusOK).WantJSON("status", "pending")
		names.publish(t, records)
		o.check(t, late, "verified")
	})
}

func testDomainAccounts(t *testing.T, d *deployment) {
	o, admin, viewer, stranger := d.owner(t), d.owner(t), d.owner(t), d.owner(t)
	name := domainName()
	o.claim(t, name)
	for m, role := range map[*owner]string{admin: "admin", viewer: "viewer"} {
		d.verify(t, m)
		o.Do(t, invite(m.email, role).As(o.token)).Want(http.StatusCreated)
	}
	theirs := func(m *owner, r Request) *Response {
		t.Helper()
		return m.Do(t, r.As(m.token).With("X-Account-Email", o.email))
	}
	for _, m := range []*owner{admin, viewer, stranger} {
		m.Do(t, domainStatus(name).As(m.token)).WantError(http.StatusNotFound, "NOT_FOUND")
		m.Do(t, Delete("/domains/"+name).As(m.token)).WantError(http.StatusNotFound, "NOT_FOUND")
	}
	for _, r := range []Request{Get("/domains"), domainStatus(name)} {
		theirs(viewer, r).Want(http.StatusOK)
		theirs(stranger, r).WantError(http.StatusForbidden, "FORBIDDEN")
	}
	for _, r := range []Request{newDomain(domainName()), Delete("/domains/" + name)} {
		theirs(viewer, r).WantError(http.StatusForbidden, "FORBIDDEN")
		theirs(stranger, r).WantError(http.StatusForbidden, "FORBIDDEN")
	}
	second := domainName()
	theirs(admin, newDomain(second)).Want(http.StatusOK)
	if got := o.domains(t); !slices.Equal(got, []string{name + " pending", second + " pending"}) {
		t.Errorf("domains %v", got)
	}
	theirs(admin, Delete("/domains/"+name)).Want(http.StatusNoContent)
}

func testDomainPlans(t *testing.T, d *deployment) {
	o := d.owner(t)
	name := domainName()
	o.claim(t, name)
	all := func(code string) {
		t.Helper()
		for _, r := range []Request{newDomain(name), Get("/domains"), domainStatus(name), Delete("/domains/" + name), domainStatus("nope")} {
			res := o.Do(t, r.As(o.token)).WantError(http.StatusForbidden, code)
			if code == "TIER_REQUIRED" && !strings.Contains(res.Str("error"), "Pro") {
				t.Errorf("%s: message %q does not name the plan", r, res.Str("error"))
			}
		}
	}
	d.setTier(t, o, "advanced", "active")
	all("TIER_REQUIRED")
	o.Do(t, Post("/domains/verify", nil).Raw([]byte("{")).As(o.token).Invalid()).WantError(http.StatusBadRequest, "INVALID_BODY")
	o.Do(t, newDomain("nope").As(o.token).Invalid()).Invalid("domain")
	d.setTier(t, o, "pro", "inactive")
	all("FORBIDDEN")
	d.endTrial(t, o)
	all("TRIAL_EXPIRED")
	d.setTier(t, o, "pro", "active")
	if got := o.domains(t); !slices.Equal(got, []string{name + " pending"}) {
		t.Errorf("domains %v", got)
	}
}

// testSender checks that mails come from the newest verified domain and are signed with its key.
func testSender(t *testing.T, d *deployment, names *nameServer) {
	o := d.owner(t)
	id := o.waitlist(t, nil)
	ada := address("ada")
	o.join(t, id, ada)
	first, second, third := domainName(), domainName(), domainName()
	sent := 0
	from := func(want string) {
		t.Helper()
		sent++
		o.Do(t, newBlast(id, Obj{"html_body": "<p>Hi"}).As(o.token)).Want(http.StatusOK).WantJSON("status", "sent")
		m := d.server.AwaitMails(t, ada, sent)[sent-1]
		if m.From != "no-reply@"+want {
			t.Errorf("from %s, want %s", m.From, want)
		}
		signatures, err := dkim.VerifyWithOptions(bytes.NewReader(m.Raw), &dkim.VerifyOptions{LookupTXT: names.lookup})
		if want == "localhost" {
			if len(signatures) != 0 {
				t.Errorf("signed by %+v", signatures)
			}
			return
		}
		if err != nil || len(signatures) != 1 || signatures[0].Err != nil || signatures[0].Domain != want {
			t.Fatalf("signatures %+v, %v", signatures, err)
		}
		for _, h := range []string{"from", "to", "subject", "date", "message-id", "list-unsubscribe", "list-unsubscribe-post"} {
			if !slices.ContainsFunc(signatures[0].HeaderKeys, func(k string) bool { return strings.EqualFold(k, h) }) {
				t.Errorf("%s is not signed: %v", h, signatures[0].HeaderKeys)
			}
		}
	}
	from("localhost")
	records := o.claim(t, first)
	from("localhost")
	names.publish(t, records)
	o.check(t, first, "verified")
	from(first)
	o.claim(t, third)
	names.publish(t, o.claim(t, second))
	o.check(t, second, "verified")
	from(second)
	o.Do(t, Delete("/domains/"+second).As(o.token)).Want(http.StatusNoContent)
	from(first)
	names.withdraw()
	o.check(t, first, "pending")
	from("localhost")
}

// lookup resolves TXT records for a test that verifies signatures.
func (n *nameServer) lookup(name string) ([]string, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.texts[strings.ToLower(strings.TrimSuffix(name, "."))], nil
}
