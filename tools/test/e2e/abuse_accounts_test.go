package e2e

import (
	"net/http"
	"net/url"
	"slices"
	"testing"
	"time"

	"waitlist.internal/libs/token"
)

// testAccountAbuse replays attacks on accounts: by whoever registers another person's address, and by whoever holds a link
// that was meant for somebody else.
func testAccountAbuse(t *testing.T, d *deployment) {
	t.Run("a stranger registers the victim's address", func(t *testing.T) { testPreHijack(t, d) })
	t.Run("a link alone verifies nothing", func(t *testing.T) { testLinkAlone(t, d) })
	t.Run("a stolen signup mints links of accounts", func(t *testing.T) { testStolenSignupKeys(t, d) })
	t.Run("a member leaves", func(t *testing.T) { testLeave(t, d) })
	t.Run("a team has bounds", func(t *testing.T) { testTeamBounds(t, d) })
	t.Run("sessions", func(t *testing.T) { testSessionList(t, d) })
}

// resetPassword redeems a fresh reset mail and logs in with the new password.
func (d *deployment) resetPassword(t *testing.T, o *owner, password string) {
	t.Helper()
	resets := func() (out []Mail) {
		t.Helper()
		mails, err := d.server.Mails(o.email)
		if err != nil {
			t.Fatal(err)
		}
		return slices.DeleteFunc(mails, func(m Mail) bool { return m.Subject != "Reset your password" })
	}
	had := len(resets())
	o.Do(t, Post("/auth/forgot-password", Obj{"email": o.email})).Want(http.StatusAccepted)
	Await(t, time.Minute, "the reset mail", func() bool { return len(resets()) > had })
	token := resets()[had].Token()
	o.Do(t, Post("/auth/reset-password", Obj{"token": token, "password": password})).Want(http.StatusNoContent)
	o.password = password
	o.login(t)
}

// testStolenSignupKeys checks that the keys of signup's links sign no link of an account.
func testStolenSignupKeys(t *testing.T, d *deployment) {
	o := d.owner(t)
	// The real link tells what to forge.
	id, generation, _, err := token.ParseAccount(d.server.AwaitMails(t, o.email, 1)[0].Token())
	if err != nil {
		t.Fatal(err)
	}
	forged := d.links.MintAccount(token.VerifyAccount, id, generation, time.Now().Add(time.Hour))
	o.Do(t, Post("/auth/verify-email", Obj{"token": forged}).As(o.token)).WantError(http.StatusBadRequest, "INVALID_TOKEN")
	o.Do(t, Post("/auth/forgot-password", Obj{"email": o.email})).Want(http.StatusAccepted)
	id, generation, _, err = token.ParseAccount(d.server.AwaitMails(t, o.email, 2)[1].Token())
	if err != nil {
		t.Fatal(err)
	}
	forged = d.links.MintAccount(token.ResetPassword, id, generation, time.Now().Add(time.Hour))
	o.Do(t, Post("/auth/reset-password", Obj{"token": forged, "password": "the thief's own"})).
		WantError(http.StatusBadRequest, "INVALID_TOKEN")
}

func testPreHijack(t *testing.T, d *deployment) {
	host := d.owner(t)
	id := host.waitlist(t, nil)
	// The attacker registers the victim's address and keeps everything that the registration gave away.
	victim := d.owner(t)
	d.server.AwaitMails(t, victim.email, 1)
	key, token, refresh := victim.key, victim.token, victim.refresh
	host.Do(t, invite(victim.email, "admin").As(host.token)).Want(http.StatusCreated)
	d.server.AwaitMails(t, victim.email, 2)
	mole := d.owner(t)
	d.verify(t, mole)
	victim.Do(t, invite(mole.email, "admin").As(victim.token)).Want(http.StatusCreated)
	trap := victim.waitlist(t, nil)
	mole.Do(t, Get("/waitlists/"+trap).As(mole.token)).Want(http.StatusOK)

	d.resetPassword(t, victim, "the victim's own")
	for name, r := range map[string]Request{
		"key":     Get("/auth/me").Key(key),
		"token":   Get("/auth/me").As(token),
		"refresh": Post("/auth/refresh", Obj{"refresh_token": refresh}),
		"team":    Get("/waitlists/" + id).Key(key),
	} {
		t.Run(name, func(t *testing.T) { victim.Do(t, r).WantError(http.StatusUnauthorized, "AUTHENTICATION_REQUIRED") })
	}
	victim.Do(t, Get("/auth/me").As(victim.token)).Want(http.StatusOK).WantJSON("has_api_key", false)
	mole.Do(t, Get("/waitlists/"+trap).As(mole.token)).Want(http.StatusForbidden)
	if got := victim.members(t); got != "" {
		t.Errorf("the team after the reset: %s", got)
	}
	victim.Do(t, Delete("/waitlists/"+trap).As(victim.token)).Want(http.StatusNoContent)
	// The reset has proved the mailbox, so the invitation counts.
	victim.Do(t, Get("/waitlists/"+id).As(victim.token)).Want(http.StatusOK)

	// The integration of an owner who had verified the address goes on.
	victim.key = victim.Do(t, Post("/auth/regenerate-api-key", nil).As(victim.token)).Want(http.StatusOK).Str("api_key")
	d.exec(t, "UPDATE account.account SET reset_sent_at = NULL WHERE email = $1", victim.email)
	d.resetPassword(t, victim, "yet another one")
	victim.Do(t, Get("/auth/me").Key(victim.key)).Want(http.StatusOK).WantJSON("has_api_key", true)
}

func testLinkAlone(t *testing.T, d *deployment) {
	o, stranger := d.owner(t), d.owner(t)
	token := d.server.AwaitMails(t, o.email, 1)[0].Token()
	verify := func(password string) Request {
		return Post("/auth/verify-email", Obj{"token": token, "password": password})
	}
	for name, r := range map[string]Request{
		"nothing":            Post("/auth/verify-email", Obj{"token": token}),
		"no password":        verify(""),
		"a wrong password":   verify("not the password"),
		"another account":    verify("").As(stranger.token),
		"another's key":      verify("").Key(stranger.key),
		"another's password": verify("not the password").As(stranger.token),
		"a bad credential":   verify(o.password).Key("wl_live_x"),
	} {
		t.Run(name, func(t *testing.T) { o.Do(t, r).WantError(http.StatusUnauthorized, "AUTHENTICATION_REQUIRED") })
	}
	o.Do(t, Post("/auth/verify-email", Obj{}).Invalid().As(stranger.token)).Invalid("token")
	o.Do(t, Post("/auth/verify-email", Obj{"token": token, "password": 5}).Invalid()).Invalid("password")
	o.Do(t, verify(o.password).As(stranger.token)).Want(http.StatusOK)
	o.Do(t, verify(o.password)).WantError(http.StatusBadRequest, "INVALID_TOKEN")
}

func leave(ownerEmail string) Request {
	return Delete("/team/memberships/" + url.PathEscape(ownerEmail))
}

func testLeave(t *testing.T, d *deployment) {
	host, m := d.owner(t), d.owner(t)
	id := host.waitlist(t, nil)
	host.Do(t, invite(m.email, "admin").As(host.token)).Want(http.StatusCreated)
	// Whoever has not verified the address is on no team, and cannot turn the invitation down for its owner.
	m.Do(t, leave(host.email).As(m.token)).WantError(http.StatusNotFound, "NOT_FOUND")
	d.verify(t, m)
	m.Do(t, Get("/waitlists/"+id).As(m.token)).Want(http.StatusOK)
	for _, email := range []string{m.email, address("nobody"), "nobody", "%", " "} {
		m.Do(t, leave(email).As(m.token).Invalid()).WantError(http.StatusNotFound, "NOT_FOUND")
	}
	host.Do(t, leave(m.email).As(host.token)).WantError(http.StatusNotFound, "NOT_FOUND")
	m.Do(t, leave(host.email).Key(m.key)).Want(http.StatusNoContent)
	m.Do(t, leave(host.email).As(m.token)).WantError(http.StatusNotFound, "NOT_FOUND")
	m.Do(t, Get("/waitlists/"+id).As(m.token)).WantError(http.StatusForbidden, "FORBIDDEN")
	if got := host.members(t); got != "" {
		t.Errorf("members %s after the only one has left", got)
	}
}

func testSessionList(t *testing.T, d *deployment) {
	o, stranger := d.owner(t), d.owner(t)
	d.verify(t, o)
	first := *o
	o.Do(t, Post("/auth/login", Obj{"email": o.email, "password": o.password}).With("User-Agent", "a stolen laptop")).Want(http.StatusOK)
	o.login(t)
	type list struct {
		Sessions []struct {
			ID        string `json:"id"`
			UserAgent string `json:"user_agent"`
		} `json:"sessions"`
	}
	sessions := func() (l list) {
		t.Helper()
		o.Do(t, Get("/auth/sessions").Key(o.key)).Want(http.StatusOK).Decode(&l)
		return l
	}
	l := sessions()
	if len(l.Sessions) != 3 || l.Sessions[1].UserAgent != "a stolen laptop" {
		t.Fatalf("sessions %+v", l)
	}
	end := func(id string) Request { return Delete("/auth/sessions/" + url.PathEscape(id)) }
	for _, id := range []string{unknownID, "nothing", "%"} {
		o.Do(t, end(id).As(o.token).Invalid()).WantError(http.StatusNotFound, "NOT_FOUND")
	}
	stranger.Do(t, end(l.Sessions[1].ID).As(stranger.token)).WantError(http.StatusNotFound, "NOT_FOUND")
	o.Do(t, end(l.Sessions[1].ID).As(o.token)).Want(http.StatusNoContent)
	if l := sessions(); len(l.Sessions) != 2 {
		t.Fatalf("sessions %+v after one ended", l)
	}

	change := func(current, password any) Request {
		return Post("/auth/change-password", Obj{"current_password": current, "password": password}).Invalid().As(o.token)
	}
	o.Do(t, change("not the password", "a new password")).Invalid("current_password")
	o.Do(t, change(o.password, "short")).Invalid("password")
	o.Do(t, change(nil, nil)).Invalid("current_password", "password")
	o.Do(t, change(o.password, "a new password")).Want(http.StatusNoContent)
	o.Do(t, Get("/auth/me").As(o.token)).Want(http.StatusOK)
	o.Do(t, Get("/auth/me").As(first.token)).WantError(http.StatusUnauthorized, "AUTHENTICATION_REQUIRED")
	o.Do(t, Post("/auth/refresh", Obj{"refresh_token": first.refresh})).WantError(http.StatusUnauthorized, "AUTHENTICATION_REQUIRED")
	o.Do(t, Post("/auth/login", Obj{"email": o.email, "password": o.password})).WantError(http.StatusUnauthorized, "AUTHENTICATION_REQUIRED")
	o.password = "a new password"
	o.login(t)
	o.Do(t, Post("/auth/regenerate-api-key", nil).As(o.token)).Want(http.StatusOK)
	// The owner hears of both, in any order: two workers send them.
	mails := d.server.AwaitMails(t, o.email, 3)
	heard := []string{mails[1].Subject, mails[2].Subject}
	slices.Sort(heard)
	if !slices.Equal(heard, []string{"Your API key was replaced", "Your password was changed"}) {
		t.Errorf("subjects %q", heard)
	}
}

func testTeamBounds(t *testing.T, d *deployment) {
	o := d.owner(t)
	d.exec(t, `INSERT INTO account.team_member (owner_id, email, role, invited_at)
		SELECT id, 'm' || i || '@example.com', 'viewer', now() FROM account.account, generate_series(1, 99) i WHERE email = $1`, o.email)
	o.Do(t, invite(address("last"), "").As(o.token)).Want(http.StatusCreated)
	o.Do(t, invite(address("more"), "").As(o.token)).WantError(http.StatusConflict, "CONFLICT")
	o.Do(t, removeMember("m1@example.com").As(o.token)).Want(http.StatusNoContent)
	o.Do(t, invite(address("more"), "").As(o.token)).Want(http.StatusCreated)
}
