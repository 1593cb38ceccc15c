package e2e

import (
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"
)

func invite(email, role string) Request {
	body := Obj{"email": email}
	if role != "" {
		body["role"] = role
	}
	return Post("/team/invite", body)
}

func removeMember(email string) Request { return Delete("/team/" + url.PathEscape(email)) }

// members returns an account's team as "address role", in the list's order.
func (o *owner) members(t testing.TB) string {
	t.Helper()
	var list struct {
		Members []struct{ Email, Role string } `json:"members"`
	}
	o.Do(t, Get("/team").As(o.token)).Want(http.StatusOK).Decode(&list)
	var out []string
	for _, m := range list.Members {
		out = append(out, m.Email+" "+m.Role)
	}
	return strings.Join(out, ", ")
}

// verify verifies an account's address with the mail sent at registration.
func (d *deployment) verify(t testing.TB, o *owner) {
	t.Helper()
	o.Do(t, Post("/auth/verify-email", Obj{"token": d.server.AwaitMails(t, o.email, 1)[0].Token()}).As(o.token)).Want(http.StatusOK)
}

func testTeam(t *testing.T, d *deployment) {
	t.Run("invite, list, remove", func(t *testing.T) { testInvite(t, d) })
	t.Run("bodies", func(t *testing.T) { testInviteBodies(t, d) })
	t.Run("mail", func(t *testing.T) { testInviteMail(t, d) })
	t.Run("membership", func(t *testing.T) { testMembership(t, d) })
	t.Run("plans", func(t *testing.T) { testTeamPlans(t, d) })
}

func testInvite(t *testing.T, d *deployment) {
	o := d.owner(t)
	if got := o.members(t); got != "" {
		t.Fatalf("a new team has the members %s", got)
	}
	ada, bob, eve := address("ada"), "b/o'b+%#?@example.com", address("eve")
	r := o.Do(t, invite(" "+strings.ToUpper(ada)+" ", "admin").As(o.token)).Want(http.StatusCreated).
		WantJSON("email", ada).WantJSON("role", "admin")
	if age := time.Since(r.Time("invited_at")); age < -time.Second || age > time.Minute {
		t.Errorf("invited_at is %s old", age)
	}
	o.Do(t, invite(bob, "").Key(o.key)).Want(http.StatusCreated).WantJSON("email", bob).WantJSON("role", "viewer")
	o.Do(t, Post("/team/invite", Obj{"email": eve, "role": nil, "name": "ignored"}).As(o.token)).Want(http.StatusCreated).
		WantJSON("role", "viewer")
	if got, want := o.members(t), ada+" admin, "+bob+" viewer, "+eve+" viewer"; got != want {
		t.Fatalf("members %s, want %s", got, want)
	}
	o.Do(t, Get("/team").Key(o.key)).Want(http.StatusOK)
	o.Do(t, NewRequest(http.MethodHead, "/team", nil).As(o.token)).Want(http.StatusOK)

	// A role changes by removal and a new invitation.
	o.Do(t, invite(ada, "viewer").As(o.token)).WantError(http.StatusConflict, "DUPLICATE")
	o.Do(t, invite(strings.ToUpper(ada), "admin").As(o.token)).WantError(http.StatusConflict, "DUPLICATE")
	for _, own := range []string{o.email, strings.ToUpper(o.email), " " + o.email} {
		o.Do(t, invite(own, "").As(o.token).Invalid()).Invalid("email")
	}
	for _, stranger := range []string{address("nobody"), o.email, "nobody", "%", " "} {
		o.Do(t, removeMember(stranger).As(o.token).Invalid()).WantError(http.StatusNotFound, "NOT_FOUND")
	}
	// A team is visible to its owner only.
	other := d.owner(t)
	other.Do(t, removeMember(ada).As(other.token)).WantError(http.StatusNotFound, "NOT_FOUND")
	other.Do(t, invite(ada, "admin").As(other.token)).Want(http.StatusCreated)

	o.Do(t, removeMember(strings.ToUpper(bob)).As(o.token)).Want(http.StatusNoContent)
	o.Do(t, removeMember(bob).As(o.token)).WantError(http.StatusNotFound, "NOT_FOUND")
	o.Do(t, removeMember(ada).Key(o.key)).Want(http.StatusNoContent)
	o.Do(t, invite(ada, "viewer").As(o.token)).Want(http.StatusCreated)
	if got, want := o.members(t), eve+" viewer, "+ada+" viewer"; got != want {
		t.Errorf("members %s, want %s", got, want)
	}
	if got, want := other.members(t), ada+" admin"; got != want {
		t.Errorf("the other's members %s, want %s", got, want)
	}
	o.Do(t, Post("/team", Obj{}).As(o.token)).WantError(http.StatusNotFound, "NOT_FOUND")
	o.Do(t, Get("/team/"+url.PathEscape(ada)).As(o.token)).WantError(http.StatusNotFound, "NOT_FOUND")
	o.Do(t, Get("/team/").As(o.token)).WantError(http.StatusNotFound, "NOT_FOUND")
}

func testInviteBodies(t *testing.T, d *deployment) {
	o := d.owner(t)
	member := address("m")
	o.Do(t, invite(member, "").As(o.token)).Want(http.StatusCreated)
	testBodies(t, o.Client, Post("/team/invite", nil).As(o.token), `{"email":"`+member+`"%s}`, http.StatusConflict)
	good := address("good")
	for _, tc := range []struct {
		name   string
		body   Obj
		fields []string
	}{
		{"nothing", Obj{}, []string{"email"}},
		{"null", Obj{"email": nil}, []string{"email"}},
		{"numbers", Obj{"email": 5, "role": 5}, []string{"email", "role"}},
		{"both bad", Obj{"email": "x", "role": "owner"}, []string{"email", "role"}},
		{"owner", Obj{"email": good, "role": "owner"}, []string{"role"}},
		{"upper case", Obj{"email": good, "role": "Admin"}, []string{"role"}},
		{"empty role", Obj{"email": good, "role": ""}, []string{"role"}},
		{"roles", Obj{"email": good, "role": []any{"admin"}}, []string{"role"}},
		{"U+0000", Obj{"email": "a\x00@example.com"}, []string{"email"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			o.Do(t, Post("/team/invite", tc.body).As(o.token).Invalid()).Invalid(tc.fields...)
		})
	}
	for _, bad := range badAddresses() {
		o.Do(t, invite(bad, "admin").As(o.token).Invalid()).Invalid("email")
	}
	if got, want := o.members(t), member+" viewer"; got != want {
		t.Errorf("members %s, want %s", got, want)
	}
	email := long(254)
	o.Do(t, invite(email, "").As(o.token)).Want(http.StatusCreated).WantJSON("email", email)
	local := strings.TrimSuffix(address("idn"), "@example.com")
	o.Do(t, invite(local+"@Bücher.example", "").As(o.token)).Want(http.StatusCreated).WantJSON("email", local+"@xn--bcher-kva.example")
	o.Do(t, removeMember(local+"@bücher.example").As(o.token)).Want(http.StatusNoContent)
}

func testInviteMail(t *testing.T, d *deployment) {
	o := d.owner(t)
	email := "o'hara+x%y-" + address("m")
	o.Do(t, invite(email, "admin").As(o.token)).Want(http.StatusCreated)
	o.Do(t, invite(email, "admin").As(o.token)).WantError(http.StatusConflict, "DUPLICATE")
	m := d.server.AwaitMails(t, email, 1)[0]
	for media, body := range map[string]string{"text": m.Text, "HTML": m.HTML} {
		if !strings.Contains(body, o.email) || !strings.Contains(body, "read and change") {
			t.Errorf("the %s names neither owner nor role: %s", media, body)
		}
	}
	links := m.Links()
	if len(links) != 1 || links[0].Path != "/login" || links[0].Query().Get("email") != email ||
		!strings.HasPrefix(links[0].String(), d.server.URL+"/") {
		t.Errorf("links %v", links)
	}
	reader := address("reader")
	o.Do(t, invite(reader, "").As(o.token)).Want(http.StatusCreated)
	if m := d.server.AwaitMails(t, reader, 1)[0]; strings.Contains(m.Text, "change") {
		t.Errorf("the mail to a viewer says %s", m.Text)
	}
	if mails, err := d.server.Mails(email); err != nil || len(mails) != 1 {
		t.Errorf("%d mails after one invitation and a rejected one, %v", len(mails), err)
	}
}

// testMembership checks what an invitation grants, from the verification of the address to the removal.
func testMembership(t *testing.T, d *deployment) {
	o := d.owner(t)
	id := o.waitlist(t, nil)
	// The invitation comes before the account exists.
	email := address("member")
	o.Do(t, invite(email, "viewer").As(o.token)).Want(http.StatusCreated)
	c := d.client(t)
	key := c.Do(t, Post("/auth/register", Obj{"email": email, "password": "correct horse battery"})).Want(http.StatusCreated).Str("api_key")
	m := &owner{Client: c, email: email, password: "correct horse battery", key: key}
	m.login(t)
	read, write := Get("/waitlists/"+id), Patch("/waitlists/"+id, Obj{"name": "Theirs"})
	m.Do(t, read.As(m.token)).WantError(http.StatusForbidden, "EMAIL_NOT_VERIFIED")
	m.Do(t, read.Key(m.key)).WantError(http.StatusForbidden, "EMAIL_NOT_VERIFIED")
	// The last mail is the one from the registration.
	var confirm string
	Await(t, mailTimeout, "the verification mail", func() bool {
		mails, err := d.server.Mails(m.email)
		if err != nil {
			t.Fatal(err)
		}
		for _, mail := range mails {
			if mail.Token() != "" {
				confirm = mail.Token()
			}
		}
		return confirm != ""
	})
	m.Do(t, Post("/auth/verify-email", Obj{"token": confirm}).As(m.token)).Want(http.StatusOK)
	m.Do(t, read.As(m.token)).Want(http.StatusOK)
	m.Do(t, read.Key(m.key)).Want(http.StatusOK)
	m.Do(t, write.As(m.token)).WantError(http.StatusForbidden, "FORBIDDEN")

	o.Do(t, removeMember(email).As(o.token)).Want(http.StatusNoContent)
	for _, r := range []Request{
		read.As(m.token), read.Key(m.key), write.As(m.token),
		Post("/waitlists", Obj{"name": "x"}).As(m.token).With("X-Account-Email", o.email),
	} {
		m.Do(t, r).WantError(http.StatusForbidden, "FORBIDDEN")
	}
	o.Do(t, invite(email, "admin").As(o.token)).Want(http.StatusCreated)
	m.Do(t, write.As(m.token)).Want(http.StatusOK)
	theirs := Post("/waitlists", Obj{"name": "New"}).As(m.token).With("X-Account-Email", o.email)
	m.Do(t, theirs).Want(http.StatusCreated)

	// The team stays the owner's: an admin sees and changes only their own team, whatever X-Account-Email says.
	friend := address("friend")
	m.Do(t, invite(friend, "").As(m.token).With("X-Account-Email", o.email)).Want(http.StatusCreated)
	m.Do(t, removeMember(email).As(m.token).With("X-Account-Email", o.email)).WantError(http.StatusNotFound, "NOT_FOUND")
	if got, want := m.members(t), friend+" viewer"; got != want {
		t.Errorf("the member's team is %s, want %s", got, want)
	}
	if got, want := o.members(t), email+" admin"; got != want {
		t.Errorf("the owner's team is %s, want %s", got, want)
	}

	// A membership ends with the member's account; a new account with that address is nobody's member.
	m.Do(t, Delete("/auth/me").As(m.token)).Want(http.StatusNoContent)
	if got := o.members(t); got != "" {
		t.Errorf("members after the account's deletion: %s", got)
	}
}

func testTeamPlans(t *testing.T, d *deployment) {
	o := d.owner(t)
	member := address("m")
	o.Do(t, invite(member, "").As(o.token)).Want(http.StatusCreated)
	all := func(status int, code string) {
		t.Helper()
		for _, r := range []Request{invite(address("x"), ""), Get("/team"), removeMember(member), removeMember("nobody@example.com")} {
			res := o.Do(t, r.As(o.token)).WantError(status, code)
			if code == "TIER_REQUIRED" && !strings.Contains(res.Str("error"), "Pro") {
				t.Errorf("%s: message %q does not name the plan", r, res.Str("error"))
			}
		}
	}
	d.setTier(t, o, "advanced", "active")
	all(http.StatusForbidden, "TIER_REQUIRED")
	// The body is checked before the tier, and the subscription before the body.
	broken := Post("/team/invite", nil).Raw([]byte("{")).As(o.token).Invalid()
	o.Do(t, broken).WantError(http.StatusBadRequest, "INVALID_BODY")
	o.Do(t, invite(o.email, "").As(o.token).Invalid()).Invalid("email")
	o.Do(t, invite(member, "").As(o.token)).WantError(http.StatusForbidden, "TIER_REQUIRED")
	d.setTier(t, o, "pro", "inactive")
	all(http.StatusForbidden, "FORBIDDEN")
	o.Do(t, broken).WantError(http.StatusForbidden, "FORBIDDEN")
	d.endTrial(t, o)
	all(http.StatusForbidden, "TRIAL_EXPIRED")
	d.setTier(t, o, "pro", "canceling")
	if got, want := o.members(t), member+" viewer"; got != want {
		t.Errorf("members %s, want %s", got, want)
	}
}

// testVerifiedOnly tests a deployment in which only accounts with a verified address may write to other people.
func (s *suite) testVerifiedOnly(t *testing.T) {
	d := s.deploy(t, map[string]string{"ENFORCE_EMAIL_VERIFICATION": "true"})
	o := d.owner(t)
	member := address("m")
	o.Do(t, invite(member, "").As(o.token)).WantError(http.StatusForbidden, "EMAIL_NOT_VERIFIED")
	o.Do(t, invite(member, "").Key(o.key)).WantError(http.StatusForbidden, "EMAIL_NOT_VERIFIED")
	o.Do(t, Post("/team/invite", nil).Raw([]byte("{")).As(o.token).Invalid()).WantError(http.StatusForbidden, "EMAIL_NOT_VERIFIED")
	if got := o.members(t); got != "" {
		t.Errorf("members %s", got)
	}
	o.Do(t, removeMember(member).As(o.token)).WantError(http.StatusNotFound, "NOT_FOUND")
	id := o.waitlist(t, nil)
	ada := address("ada")
	o.join(t, id, ada)
	name := domainName()
	for _, r := range []Request{newBlast(id, nil), newDomain(name), newDomain("nope").Invalid()} {
		o.Do(t, r.As(o.token)).WantError(http.StatusForbidden, "EMAIL_NOT_VERIFIED")
	}
	o.template(t, "blast", nil)
	d.verify(t, o)
	o.Do(t, invite(member, "").As(o.token)).Want(http.StatusCreated)
	d.server.AwaitMails(t, member, 1)
	o.Do(t, newBlast(id, nil).As(o.token)).Want(http.StatusOK).WantJSON("recipient_count", 1)
	if got := inBoxes(t, d.server, ada); got[0] != 1 {
		t.Errorf("%d mails after a rejected blast and an accepted one", got[0])
	}
	o.claim(t, name)
}
