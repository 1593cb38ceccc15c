package e2e

import (
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"waitlist.internal/libs/token"
)

func testTokens(t *testing.T, d *deployment) {
	t.Run("verify", func(t *testing.T) { testSignupVerification(t, d) })
	t.Run("unsubscribe and delete", func(t *testing.T) { testUnsubscribe(t, d) })
	t.Run("bodies", func(t *testing.T) {
		o := d.owner(t)
		id := o.waitlist(t, nil)
		ada := address("ada")
		o.join(t, id, ada)
		unsubscribe := d.unsubscribeToken(t, id, ada)
		testBodies(t, o.Client, Post(statusPath(id, ada)+"/verify", nil), `{"token":"x"%s}`, http.StatusBadRequest)
		testBodies(t, o.Client, Post("/public/waitlists/"+id+"/link", nil), `{"email":"nobody"%s}`, http.StatusBadRequest)
		testBodies(t, o.Client, Post("/public/waitlists/"+id+"/delete-my-data", nil), `{"email":"`+ada+`","token":"x"%s}`, http.StatusForbidden)
		testBodies(t, o.Client, Post("/auth/login", nil), `{"email":"`+o.email+`","password":"`+o.password+`"%s}`, http.StatusOK)
		testBodies(t, o.Client, Post("/auth/forgot-password", nil), `{"email":"`+address("nobody")+`"%s}`, http.StatusAccepted)
		testBodies(t, o.Client, Post("/auth/logout", nil), `{"refresh_token":"x"%s}`, http.StatusNoContent)
		testBodies(t, o.Client, Post("/auth/refresh", nil), `{"refresh_token":"x"%s}`, http.StatusUnauthorized)
		testBodies(t, o.Client, Post("/auth/verify-email", nil), `{"token":"x"%s}`, http.StatusBadRequest)
		testBodies(t, o.Client, Post("/auth/reset-password", nil), `{"token":"x","password":"12345678"%s}`, http.StatusBadRequest)
		testBodies(t, o.Client, Post("/auth/register", nil), `{"email":"`+o.email+`","password":"12345678"%s}`, http.StatusConflict)
		// The one-click form has its own content type and tokens in the query; without them the body is JSON as everywhere.
		unsub := Post("/public/waitlists/"+id+"/unsubscribe", nil)
		o.Do(t, unsub.Raw([]byte("{")).Invalid()).WantError(http.StatusBadRequest, "INVALID_BODY")
		o.Do(t, unsub.Raw(nil).Invalid()).WantError(http.StatusBadRequest, "INVALID_BODY")
		o.Do(t, unsub.Raw([]byte(`{"email":"`+ada+`","token":"`+unsubscribe+`"}`)).With("Content-Type", "text/plain").Invalid()).
			Want(http.StatusOK)
	})
}

// badTokens returns invalid tokens derived from a valid one.
func badTokens(good string) map[string]string {
	flip := func(i int) string {
		b := []byte(good)
		if b[i] == 'A' {
			b[i] = 'B'
		} else {
			b[i] = 'A'
		}
		return string(b)
	}
	return map[string]string{
		"none of ours": "x", "cut": good[:len(good)-1], "longer": good + "A", "first byte": flip(0), "middle byte": flip(len(good) / 2),
		"a late byte": flip(len(good) - 5), "huge": strings.Repeat("x", 5000), "blank": " ", "not ASCII": emoji,
	}
}

func testSignupVerification(t *testing.T, d *deployment) {
	o := d.owner(t)
	id := o.waitlist(t, Obj{"require_email_verification": true})
	ada, bob, quiet := address("ada"), address("bob"), address("quiet")
	o.join(t, id, ada)
	o.join(t, id, bob)
	good := d.server.AwaitMails(t, ada, 1)[0].Token()
	bobs := d.server.AwaitMails(t, bob, 1)[0].Token()
	if good == "" || bobs == "" {
		t.Fatal("the mail has no link with a token")
	}
	post := func(email string, token any) Request {
		return Post(statusPath(id, email)+"/verify", Obj{"token": token}).Invalid()
	}
	get := func(email, token string) Request {
		return Get(statusPath(id, email) + "/verify?token=" + url.QueryEscape(token)).Invalid()
	}
	n := d.number(t, id, ada)
	subject := token.SignupSubject(id, n)
	bad := badTokens(good)
	bad["another signup's"] = bobs
	bad["to unsubscribe"] = d.unsubscribeToken(t, id, ada)
	bad["expired"] = d.links.Mint(token.VerifySignup, subject, time.Now().Add(-time.Second))
	bad["another waitlist's"] = d.links.Mint(token.VerifySignup, token.SignupSubject(o.waitlist(t, nil), n), time.Now().Add(time.Hour))
	for name, bad := range bad {
		t.Run(name, func(t *testing.T) {
			o.Do(t, post(ada, bad)).WantError(http.StatusBadRequest, "INVALID_TOKEN")
			o.Do(t, get(ada, bad)).WantError(http.StatusBadRequest, "INVALID_TOKEN")
		})
	}
	t.Run("missing", func(t *testing.T) {
		for _, none := range []any{nil, "", 5, true} {
			o.Do(t, post(ada, none)).Invalid("token")
		}
		o.Do(t, Post(statusPath(id, ada)+"/verify", Obj{}).Invalid()).Invalid("token")
		o.Do(t, get(ada, "")).Invalid("token")
		o.Do(t, Get(statusPath(id, ada)+"/verify").Invalid()).Invalid("token")
	})
	t.Run("nobody", func(t *testing.T) {
		o.Do(t, post(address("nobody"), good)).WantError(http.StatusNotFound, "NOT_FOUND")
		o.Do(t, get(address("nobody"), good)).WantError(http.StatusNotFound, "NOT_FOUND")
	})
	t.Run("good", func(t *testing.T) {
		first := o.Do(t, post(ada, good)).Want(http.StatusOK).WantJSON("verified", true)
		again := o.Do(t, post(strings.ToUpper(ada), good)).Want(http.StatusOK).WantJSON("verified", true)
		if first.Str("message") == again.Str("message") || !strings.Contains(strings.ToLower(again.Str("message")), "already") {
			t.Errorf("first answer %q, second %q", first.Str("message"), again.Str("message"))
		}
		o.Do(t, get(ada, good)).Want(http.StatusOK).WantJSON("message", again.Str("message"))
		o.Do(t, get(bob, bobs)).Want(http.StatusOK).WantJSON("verified", true).WantJSON("message", first.Str("message"))
		o.Do(t, get(ada, bobs)).WantError(http.StatusBadRequest, "INVALID_TOKEN")
	})
	t.Run("with the mail's link", func(t *testing.T) {
		odd := "o'x/y+z%20&?#" + address("")
		o.join(t, id, odd)
		links := d.server.AwaitMails(t, odd, 1)[0].Links()
		if len(links) != 1 {
			t.Fatalf("links %v", links)
		}
		q := links[0].Query()
		o.Do(t, get(q.Get("email"), q.Get("token"))).Want(http.StatusOK).WantJSON("verified", true)
	})
	t.Run("only if the setting requires it", func(t *testing.T) {
		o.set(t, id, Obj{"require_email_verification": false})
		o.join(t, id, quiet)
		o.set(t, id, Obj{"require_email_verification": true})
		loud := address("loud")
		o.join(t, id, loud)
		d.server.AwaitMails(t, loud, 1)
		if mails, err := d.server.Mails(quiet); err != nil || len(mails) > 0 {
			t.Errorf("%d mails, %v; want none", len(mails), err)
		}
		// An existing address gets no second mail.
		o.Do(t, signup(id, loud)).Want(http.StatusOK)
		after := address("after")
		o.join(t, id, after)
		d.server.AwaitMails(t, after, 1)
		if mails, err := d.server.Mails(loud); err != nil || len(mails) != 1 {
			t.Errorf("%d mails, %v; want one", len(mails), err)
		}
	})
}

func testUnsubscribe(t *testing.T, d *deployment) {
	o := d.owner(t)
	id := o.waitlist(t, nil)
	people := []string{address("ada"), address("bob"), address("eve")}
	for _, p := range people {
		o.join(t, id, p)
	}
	ada, bob, eve := people[0], people[1], people[2]
	out := func(email, token any) Request {
		return Post("/public/waitlists/"+id+"/unsubscribe", Obj{"email": email, "token": token}).Invalid()
	}
	del := func(email, token any) Request {
		return Post("/public/waitlists/"+id+"/delete-my-data", Obj{"email": email, "token": token}).Invalid()
	}
	good := d.unsubscribeToken(t, id, ada)
	adas := token.SignupSubject(id, d.number(t, id, ada))
	for name, r := range map[string]func(email, token any) Request{"unsubscribe": out, "delete": del} {
		t.Run(name, func(t *testing.T) {
			o.Do(t, r(nil, nil)).Invalid("email", "token")
			o.Do(t, r("", "")).Invalid("email", "token")
			o.Do(t, r(5, true)).Invalid("email", "token")
			o.Do(t, r(ada, nil)).Invalid("token")
			o.Do(t, r(nil, good)).Invalid("email")
			o.Do(t, r(address("nobody"), good)).WantError(http.StatusNotFound, "NOT_FOUND")
			bad := badTokens(good)
			bad["another signup's"] = d.unsubscribeToken(t, id, bob)
			bad["to verify"] = d.links.Mint(token.VerifySignup, adas, time.Now().Add(time.Hour))
			for what, token := range bad {
				t.Run(what, func(t *testing.T) { o.Do(t, r(ada, token)).WantError(http.StatusForbidden, "INVALID_TOKEN") })
			}
		})
	}
	o.Do(t, del(ada, good)).WantError(http.StatusForbidden, "INVALID_TOKEN")
	o.Do(t, Get("/public/waitlists/"+id+"/unsubscribe?email="+url.QueryEscape(ada)+"&token="+url.QueryEscape(good))).
		WantError(http.StatusNotFound, "NOT_FOUND")

	first := o.Do(t, out(strings.ToUpper(ada), good)).Want(http.StatusOK).WantJSON("success", true).Str("delete_token")
	second := o.Do(t, out(ada, good)).Want(http.StatusOK).WantJSON("success", true).Str("delete_token")
	o.status(t, id, ada).WantJSON("position", 1) // the position is kept
	for _, wrong := range []string{first, second} {
		o.Do(t, out(ada, wrong)).WantError(http.StatusForbidden, "INVALID_TOKEN")
		o.Do(t, del(bob, wrong)).WantError(http.StatusForbidden, "INVALID_TOKEN")
		o.Do(t, Get(statusPath(id, ada)+"/verify?token="+url.QueryEscape(wrong))).WantError(http.StatusBadRequest, "INVALID_TOKEN")
	}
	o.Do(t, del(ada, d.links.Mint(token.DeleteData, adas, time.Now().Add(-time.Second)))).WantError(http.StatusForbidden, "INVALID_TOKEN")

	t.Run("one click", func(t *testing.T) {
		click := func(email, token string) Request {
			return Post("/public/waitlists/"+id+"/unsubscribe?email="+url.QueryEscape(email)+"&token="+url.QueryEscape(token), nil).
				Raw([]byte("List-Unsubscribe=One-Click")).With("Content-Type", "application/x-www-form-urlencoded")
		}
		bobs := d.unsubscribeToken(t, id, bob)
		o.Do(t, click(bob, "x")).WantError(http.StatusForbidden, "INVALID_TOKEN")
		o.Do(t, click(ada, bobs)).WantError(http.StatusForbidden, "INVALID_TOKEN")
		o.Do(t, click(address("nobody"), bobs)).WantError(http.StatusNotFound, "NOT_FOUND")
		o.Do(t, click(bob, bobs)).Want(http.StatusOK).WantJSON("success", true)
	})
	t.Run("delete my data", func(t *testing.T) {
		token := o.Do(t, Get(statusPath(id, ada))).Want(http.StatusOK)
		o.Do(t, del(ada, first)).Want(http.StatusOK).WantJSON("success", true).WantAbsent("delete_token")
		o.status(t, id, ada).WantError(http.StatusNotFound, "NOT_FOUND")
		o.Do(t, del(ada, first)).WantError(http.StatusNotFound, "NOT_FOUND")
		o.Do(t, out(ada, good)).WantError(http.StatusNotFound, "NOT_FOUND")
		o.status(t, id, bob).WantJSON("position", 1).WantJSON("total_signups", 2)
		o.status(t, id, eve).WantJSON("position", 2).WantJSON("total_signups", 2)
		o.Do(t, Get("/waitlists/"+id).As(o.token)).WantJSON("signup_count", 2)
		// The address may join again: last, and as a new person.
		back := o.join(t, id, ada).WantJSON("position", 3).WantJSON("referral_count", 0).WantJSON("total_signups", 3)
		if back.Time("created_at").Before(token.Time("created_at")) {
			t.Error("the new signup has the created_at of the removed one")
		}
		o.Do(t, del(ada, first)).WantError(http.StatusForbidden, "INVALID_TOKEN")
		o.Do(t, out(ada, good)).WantError(http.StatusForbidden, "INVALID_TOKEN")
	})
	t.Run("a removed signup's token refers nobody", func(t *testing.T) {
		old := o.Do(t, signup(id, eve)).Want(http.StatusOK).Str("referral_token")
		dt := o.Do(t, out(eve, d.unsubscribeToken(t, id, eve))).Want(http.StatusOK).Str("delete_token")
		o.Do(t, del(eve, dt)).Want(http.StatusOK)
		fresh := o.join(t, id, eve).Str("referral_token")
		if fresh == old {
			t.Error("the new signup has the old token")
		}
		o.join(t, id, address("friend"), Obj{"referred_by_token": old})
		o.status(t, id, eve).WantJSON("referral_count", 0)
	})
}
