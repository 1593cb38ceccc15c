package e2e

import (
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// auditEntry is an entry of the audit trail. What is null is empty.
type auditEntry struct {
	At                                      time.Time
	Actor, Credential, Role, Action, Target string
	RequestID                               string `json:"request_id"`
}

// trail reads the whole trail of an account, newest first, in pages of limit.
func (o *owner) trail(t testing.TB, limit int, action string) (all []auditEntry) {
	t.Helper()
	for last := ""; ; {
		q := url.Values{"limit": {strconv.Itoa(limit)}}
		if last != "" {
			q.Set("last_key", last)
		}
		if action != "" {
			q.Set("action", action)
		}
		var page struct {
			Entries []auditEntry
			Count   int
			LastKey string `json:"last_key"`
		}
		o.Do(t, Get("/auth/audit?"+q.Encode()).As(o.token)).Want(http.StatusOK).Decode(&page)
		if page.Count != len(page.Entries) || page.Count > limit || (page.Count < limit && page.LastKey != "") {
			t.Fatalf("count %d of %d, limit %d, last_key %q", page.Count, len(page.Entries), limit, page.LastKey)
		}
		all = append(all, page.Entries...)
		if last = page.LastKey; last == "" {
			return all
		}
	}
}

// testAudit does what owners and their teams do, and reads it in the trail.
func (s *suite) testAudit(t *testing.T) {
	d := s.deploy(t, nil)
	o, member, other := d.owner(t), d.owner(t), d.owner(t)
	d.verify(t, member)
	sub := func(o *owner) string { id, _ := claims(t, o.token)["sub"].(string); return id }
	if got := o.trail(t, 100, ""); len(got) != 2 || got[0].Action != "auth.login" || got[1].Action != "account.registered" {
		t.Fatalf("a new account's trail: %+v", got)
	}

	// wanted is what the trail must have, oldest first. want adds an entry about a request that was just answered.
	var wanted []auditEntry
	want := func(r *Response, by *owner, role, action, target string) {
		t.Helper()
		e := auditEntry{Role: role, Action: action, Target: target, RequestID: r.Header.Get("X-Request-Id")}
		if by != nil {
			e.Actor = sub(by)
		}
		wanted = append(wanted, e)
	}
	do := func(r Request, status int) *Response { t.Helper(); return o.Do(t, r).Want(status) }
	theirs := func(r Request) Request { return r.As(member.token).With("X-Account-Email", o.email) }

	wrong := Obj{"email": o.email, "password": "wrong password"}
	want(do(Post("/auth/login", wrong), http.StatusUnauthorized), nil, "", "auth.login_refused", "")
	verify := Obj{"token": d.server.AwaitMails(t, o.email, 1)[0].Token()}
	want(do(Post("/auth/verify-email", verify).As(o.token), http.StatusOK), o, "owner", "account.verified", "")
	want(do(invite(member.email, "admin").As(o.token), http.StatusCreated), o, "owner", "team.invited", "*")

	// The member works for the owner. Signups of people are in no trail.
	r := do(theirs(Post("/waitlists", Obj{"name": "x"})), http.StatusCreated)
	id := r.Str("waitlist_id")
	want(r, member, "admin", "waitlist.created", id)
	ada, bob, eve := address("ada"), address("bob"), address("eve")
	o.join(t, id, ada)
	o.join(t, id, bob)
	d.deleteMyData(t, o.Client, id, ada)
	want(do(theirs(Patch("/waitlists/"+id, Obj{"settings": Obj{"headline": eve}})), http.StatusOK), member, "admin", "waitlist.updated", id)
	want(do(theirs(Post("/waitlists/"+id+"/import", Obj{"signups": []any{Obj{"email": eve}}})), http.StatusOK),
		member, "admin", "signups.imported", id)
	want(do(theirs(Patch("/waitlists/"+id+"/signups/"+eve+"/position", Obj{"position": 1})), http.StatusOK),
		member, "admin", "signup.moved", id+"/3")
	want(do(Delete("/waitlists/"+id+"/signups/"+bob).Key(o.key), http.StatusNoContent), o, "owner", "signup.removed", id+"/2")
	want(do(Get("/waitlists/"+id+"/export").As(o.token), http.StatusOK), o, "owner", "signups.exported", id)
	r = do(theirs(Post("/templates", Obj{"template_type": "blast", "subject_template": eve, "text_body_template": "x"})), http.StatusCreated)
	template := r.Str("template_id")
	want(r, member, "admin", "template.created", template)
	want(do(theirs(Patch("/templates/"+template, Obj{"name": eve})), http.StatusOK), member, "admin", "template.updated", template)
	want(do(theirs(Delete("/templates/"+template)), http.StatusNoContent), member, "admin", "template.deleted", template)
	r = do(newBlast(id, Obj{"subject": eve, "text_body": "x"}).As(o.token), http.StatusOK)
	want(r, o, "owner", "blast.created", r.Str("blast_id"))
	domain := domainName()
	want(do(Post("/domains/verify", Obj{"domain": domain}).As(o.token), http.StatusOK), o, "owner", "domain.created", "*")
	want(do(Delete("/domains/"+domain).As(o.token), http.StatusNoContent), o, "owner", "domain.deleted", "*")
	want(do(theirs(Delete("/waitlists/"+id)), http.StatusNoContent), member, "admin", "waitlist.deleted", id)
	want(do(Delete("/team/memberships/"+url.PathEscape(o.email)).As(member.token), http.StatusNoContent), member, "admin", "team.left", "*")
	want(do(invite(eve, "viewer").As(o.token), http.StatusCreated), o, "owner", "team.invited", "*")
	want(do(removeMember(eve).As(o.token), http.StatusNoContent), o, "owner", "team.removed", "*")
	r = do(Post("/auth/regenerate-api-key", nil).As(o.token), http.StatusOK)
	want(r, o, "owner", "auth.api_key_rotated", strings.TrimPrefix(r.Str("api_key"), "wl_live_")[:13])
	change := Obj{"current_password": o.password, "password": "another good password"}
	want(do(Post("/auth/change-password", change).As(o.token), http.StatusNoContent), o, "owner", "auth.password_changed", "")

	got := o.trail(t, 100, "")
	mine := slices.Clone(got[:len(got)-2])
	slices.Reverse(mine)
	if len(mine) != len(wanted) {
		t.Fatalf("%d entries, want %d: %+v", len(mine), len(wanted), mine)
	}
	for i, e := range mine {
		w := wanted[i]
		if w.Target == "*" && e.Target != "" {
			w.Target = e.Target
		}
		w.At, w.Credential = e.At, e.Credential
		if e != w || (e.Actor == "") != (e.Credential == "") || time.Since(e.At).Abs() > 5*time.Minute ||
			(i > 0 && e.At.Before(mine[i-1].At)) {
			t.Errorf("entry %d: %+v, want %+v", i, e, w)
		}
	}
	// Pages of any length are the same trail.
	for _, limit := range []int{1, 3, 24} {
		if pages := o.trail(t, limit, ""); !slices.Equal(pages, got) {
			t.Errorf("in pages of %d: %+v, want %+v", limit, pages, got)
		}
	}
	invited := slices.DeleteFunc(slices.Clone(got), func(e auditEntry) bool { return e.Action != "team.invited" })
	if pages := o.trail(t, 1, "team.invited"); len(invited) != 2 || !slices.Equal(pages, invited) {
		t.Errorf("invitations %+v, want %+v", pages, invited)
	}
	// Nothing of it is in the trails of others, not even of who did it; and nobody reads another's.
	for _, who := range []*owner{member, other} {
		for _, e := range who.trail(t, 100, "") {
			if e.Actor != sub(who) {
				t.Errorf("in another's trail: %+v", e)
			}
		}
	}
	r = o.Do(t, Get("/auth/audit").As(member.token).With("X-Account-Email", o.email)).Want(http.StatusOK)
	if strings.Contains(string(r.Body), sub(o)) {
		t.Error("a member read the owner's trail")
	}
	// No address is in any trail: not in what was answered, and not in the tables.
	for _, schema := range []string{"account", "signup", "messaging"} {
		if n := d.query(t, "SELECT count(*) FROM "+schema+".audit a WHERE a::text ~ '@|example'"); n != 0 {
			t.Errorf("%d entries of %s with an address", n, schema)
		}
		if n := d.query(t, "SELECT count(*) FROM "+schema+".audit"); n == 0 {
			t.Errorf("no entries in %s", schema)
		}
	}

	for _, query := range []string{"limit=0", "limit=101", "limit=x", "last_key=x", "action=login"} {
		field, _, _ := strings.Cut(query, "=")
		o.Do(t, Get("/auth/audit?"+query).As(o.token).Invalid()).Invalid(field)
	}
	o.Do(t, Get("/auth/audit")).WantError(http.StatusUnauthorized, "AUTHENTICATION_REQUIRED")
	// Without a subscription, the trail can still be read.
	d.setTier(t, o, "basic", "inactive")
	o.trail(t, 100, "")
}
