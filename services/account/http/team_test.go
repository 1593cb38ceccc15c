package http_test

import (
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"waitlist.internal/libs/access"
	eventv1 "waitlist.internal/proto/gen/waitlist/event/v1"
	"waitlist.internal/services/account"
)

func (e *env) invite(body any, options ...option) answer {
	e.t.Helper()
	return e.send(http.MethodPost, "/v1/team/invite", body, options...)
}

func (e *env) members(options ...option) answer {
	e.t.Helper()
	return e.send(http.MethodGet, "/v1/team", nil, options...)
}

func (e *env) removeMember(email string, options ...option) answer {
	e.t.Helper()
	return e.send(http.MethodDelete, "/v1/team/"+url.PathEscape(email), nil, options...)
}

// team returns the list of members as one string.
func (e *env) team(options ...option) string {
	e.t.Helper()
	list, ok := e.members(options...).expect(e.t, 200, "").body["members"].([]any)
	if !ok {
		e.t.Fatal("no members")
	}
	var out []string
	for _, m := range list {
		m, _ := m.(map[string]any)
		out = append(out, fmt.Sprint(m["email"], " ", m["role"]))
	}
	return strings.Join(out, ", ")
}

func (e *env) setTier(tier access.Tier, status access.Status, trial bool) {
	e.t.Helper()
	e.exec(`UPDATE account SET tier = $1, status = $2, trial = $3`, tier, status, trial)
}

func TestTeam(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	owner := key(e.register("owner@example.com"))
	if got := e.team(owner); got != "" {
		t.Fatalf("members %s", got)
	}
	a := e.invite(map[string]any{"email": " Zoe@Bücher.example ", "role": "admin"}, owner).expect(t, 201, "")
	want := map[string]any{
		"email": "zoe@xn--bcher-kva.example", "role": "admin",
		"invited_at": e.clock.Now().UTC().Format("2006-01-02T15:04:05.000Z"),
	}
	if fmt.Sprint(a.body) != fmt.Sprint(want) {
		t.Fatalf("answer %s, want %v", a.raw, want)
	}
	// Members come in order of invitation, even if the clock goes back.
	e.clock.Add(-time.Hour)
	e.invite(map[string]any{"email": "a/b%c+d@example.com"}, owner).expect(t, 201, "")
	e.invite(map[string]any{"email": "c@example.com", "role": nil}, owner).expect(t, 201, "")
	if got := e.team(owner); got != "zoe@xn--bcher-kva.example admin, a/b%c+d@example.com viewer, c@example.com viewer" {
		t.Fatalf("members %s", got)
	}
	e.invite(map[string]any{"email": "C@example.com", "role": "admin"}, owner).expect(t, 409, "DUPLICATE")

	events := published(e, func(ev *eventv1.Event) *eventv1.TeamMemberInvited { return ev.GetTeamMemberInvited() })
	if len(events) != 3 || events[0].GetOwnerEmail() != "owner@example.com" || events[0].GetEmail() != "zoe@xn--bcher-kva.example" ||
		events[0].GetRole() != "admin" || events[1].GetRole() != "viewer" || events[0].GetAccountId() == "" {
		t.Fatalf("events %v", events)
	}

	for _, stranger := range []string{"nobody@example.com", "nobody", "owner@example.com", "%", "\x00"} {
		e.removeMember(stranger, owner).expect(t, 404, "NOT_FOUND")
	}
	e.removeMember("A/b%c+D@example.com", owner).expect(t, 204, "")
	e.removeMember("a/b%c+d@example.com", owner).expect(t, 404, "NOT_FOUND")
	e.removeMember("zoe@bücher.example", owner).expect(t, 204, "")
	if got := e.team(owner); got != "c@example.com viewer" {
		t.Fatalf("members %s", got)
	}
	// A removed member can be invited again and is then last.
	e.invite(map[string]any{"email": "a/b%c+d@example.com", "role": "admin"}, owner).expect(t, 201, "")
	if got := e.team(owner); got != "c@example.com viewer, a/b%c+d@example.com admin" {
		t.Fatalf("members %s", got)
	}
}

func TestInvitationBodies(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	owner := key(e.register("owner@example.com"))
	for _, body := range []string{"", "{", "[]", "null", `{} {}`, "{\"email\":\"\xff\"}", `{"` + strings.Repeat("x", 1<<20) + `":1}`} {
		e.invite(body, owner).expect(t, 400, "INVALID_BODY")
	}
	for body, fields := range map[string]string{
		`{}`:                             "email",
		`{"email": null}`:                "email",
		`{"email": 5, "role": 5}`:        "email,role",
		`{"email": "nobody"}`:            "email",
		`{"email": "a@b.co, c@d.co"}`:    "email",
		`{"email": "a\u0000@b.co"}`:      "email",
		`{"email": "OWNER@example.com"}`: "email",
		`{"email": "` + strings.Repeat("a", 64) + `@` + strings.Repeat("b", 63) + `.` + strings.Repeat("c",
			63) + `.` + strings.Repeat("d", 63) + `.example"}`: "email",
		`{"email": "a@b.co", "role": "owner"}`:   "role",
		`{"email": "a@b.co", "role": "Admin"}`:   "role",
		`{"email": "a@b.co", "role": ""}`:        "role",
		`{"email": "a@b.co", "role": ["admin"]}`: "role",
	} {
		a := e.invite(body, owner).expect(t, 400, "VALIDATION_ERROR")
		errs, _ := a.body["errors"].([]any)
		var named []string
		for _, entry := range errs {
			entry, _ := entry.(map[string]any)
			named = append(named, fmt.Sprint(entry["field"]))
		}
		if got := strings.Join(named, ","); got != fields {
			t.Errorf("%.60s: fields %s, want %s", body, got, fields)
		}
	}
	if n := e.count(`SELECT count(*) FROM team_member`); n != 0 {
		t.Errorf("%d members from bad bodies", n)
	}
}

// An invitation is checked in this order: credentials, verification, subscription,
// body, tier, member.
func TestTeamOrder(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	e.cfg.EnforceVerification = true
	e.serve()
	owner := key(e.register("owner@example.com"))
	good := map[string]any{"email": "m@example.com"}
	is := func(status int, code string, answers ...answer) {
		t.Helper()
		for _, a := range answers {
			a.expect(t, status, code)
		}
	}
	all := func(options ...option) []answer {
		return []answer{e.invite(good, options...), e.invite("{", options...), e.members(options...), e.removeMember("x@example.com",
			options...)}
	}
	is(401, "AUTHENTICATION_REQUIRED", all()...)
	is(401, "AUTHENTICATION_REQUIRED", all(key("x"))...)

	e.setTier(access.Basic, access.Inactive, false)
	is(403, "EMAIL_NOT_VERIFIED", e.invite(good, owner), e.invite("{", owner))
	is(403, "FORBIDDEN", e.members(owner), e.removeMember("x@example.com", owner))
	e.exec(`UPDATE account SET email_verified_at = now()`)
	is(403, "FORBIDDEN", all(owner)...)
	e.setTier(access.Basic, access.Inactive, true)
	is(403, "TRIAL_EXPIRED", all(owner)...)
	e.setTier(access.Advanced, access.Active, false)
	is(403, "TIER_REQUIRED", e.members(owner), e.removeMember("x@example.com", owner))
	is(400, "INVALID_BODY", e.invite("{", owner))
	is(400, "VALIDATION_ERROR", e.invite(map[string]any{"email": "owner@example.com"}, owner))
	is(403, "TIER_REQUIRED", e.invite(good, owner))
	if text := e.invite(good, owner).str("error"); !strings.Contains(text, "Pro") {
		t.Errorf("%q does not name the plan", text)
	}
	e.setTier(access.Pro, access.Canceling, false)
	is(201, "", e.invite(good, owner))
	is(409, "DUPLICATE", e.invite(good, owner))
	// A downgrade keeps the members for a later upgrade.
	e.setTier(access.Basic, access.Active, false)
	is(403, "TIER_REQUIRED", e.invite(good, owner), e.members(owner), e.removeMember("m@example.com", owner))
	e.setTier(access.Pro, access.Active, false)
	if got := e.team(owner); got != "m@example.com viewer" {
		t.Errorf("members %s", got)
	}
}

// A member manages the team of its own account, whatever its role in other teams.
func TestMembersHaveTeamsOfTheirOwn(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	owner, member := e.register("owner@example.com"), e.register("member@example.com")
	memberID, _ := e.login("member@example.com")
	e.invite(map[string]any{"email": "member@example.com", "role": "admin"}, key(owner)).expect(t, 201, "")
	theirs := func(r *http.Request) { r.Header.Set("X-Account-Email", "owner@example.com") }
	e.invite(map[string]any{"email": "friend@example.com"}, bearer(memberID), theirs).expect(t, 201, "")
	if mine, other := e.team(key(owner)), e.team(key(member), theirs); mine != "member@example.com admin" ||
		other != "friend@example.com viewer" {
		t.Fatalf("%s; %s", mine, other)
	}
	e.removeMember("friend@example.com", key(owner)).expect(t, 404, "NOT_FOUND")
	// Each account is on the other's team.
	e.invite(map[string]any{"email": "owner@example.com"}, key(member)).expect(t, 201, "")

	actor, err := e.svc.Authorize(t.Context(), memberID, "")
	if err != nil || len(actor.Grants) != 2 || actor.Grants[1].Role != access.Admin || actor.Grants[1].OwnerEmail != "owner@example.com" {
		t.Fatalf("grants %+v, %v", actor.Grants, err)
	}
	e.removeMember("member@example.com", key(owner)).expect(t, 204, "")
	if actor, err = e.svc.Authorize(t.Context(), memberID, ""); err != nil || len(actor.Grants) != 1 {
		t.Fatalf("after the removal: grants %+v, %v", actor.Grants, err)
	}
	// Deleting an account ends its team and its memberships.
	e.invite(map[string]any{"email": "member@example.com"}, key(owner)).expect(t, 201, "")
	e.do(http.MethodDelete, "/me", nil, key(member)).expect(t, 204, "")
	if n := e.count(`SELECT count(*) FROM team_member`); n != 0 {
		t.Fatalf("%d memberships left", n)
	}
}

// Strangers cannot make an address's requests expensive by inviting it from very many
// accounts. Only the oldest invitations count.
func TestMembershipsAreBounded(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	owner, member := e.register("owner@example.com"), e.register("member@example.com")
	e.invite(map[string]any{"email": "member@example.com", "role": "admin"}, key(owner)).expect(t, 201, "")
	e.exec(`
		WITH stranger AS (
			INSERT INTO account (id, email, password_hash, api_key_lookup, api_key_hash, tier, status, trial, entitlement_version,
				has_used_trial, verify_cycle, verify_started_at, verify_resends, created_at)
			SELECT gen_random_uuid(), 'stranger' || i || '@example.com', '', 'x' || i, '', 'pro', 'active', false, 1, true, 1, now(), 0, now()
			FROM generate_series(1, 1100) i RETURNING id)
		INSERT INTO team_member (owner_id, email, role, invited_at) SELECT id, 'member@example.com', 'viewer', now() FROM stranger`)
	actor, err := e.svc.Authorize(t.Context(), "", member)
	if err != nil || len(actor.Grants) != 1001 || actor.Grants[0].Role != access.Owner || actor.Grants[1].OwnerEmail != "owner@example.com" {
		t.Fatalf("%d grants, %v", len(actor.Grants), err)
	}
}

func TestConcurrentInvitations(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	owner := key(e.register("owner@example.com"))
	var mu sync.Mutex
	got := map[int]int{}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			a := e.invite(map[string]any{"email": "m@example.com"}, owner)
			mu.Lock()
			defer mu.Unlock()
			got[a.status]++
		})
	}
	wg.Wait()
	if got[201] != 1 || got[409] != 7 {
		t.Fatalf("statuses %v", got)
	}
	if n := len(published(e, func(ev *eventv1.Event) *eventv1.TeamMemberInvited { return ev.GetTeamMemberInvited() })); n != 1 {
		t.Fatalf("%d mails asked for", n)
	}
}

func TestInvitationsAreBounded(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	owner, other := key(e.register("owner@example.com")), key(e.register("other@example.com"))
	invite := func(i int) answer {
		return e.invite(map[string]any{"email": "m" + strconv.Itoa(i) + "@example.com"}, owner)
	}
	for i := range account.InviteLimit {
		invite(i).expect(t, 201, "")
		// Rejected invitations do not count. Removing a member does not free an invitation.
		e.invite(map[string]any{"email": "m" + strconv.Itoa(i) + "@example.com"}, owner).expect(t, 409, "DUPLICATE")
		if i%2 == 0 {
			e.removeMember("m"+strconv.Itoa(i)+"@example.com", owner).expect(t, 204, "")
		}
	}
	e.clock.Add(time.Hour)
	a := invite(0).expect(t, 429, "RATE_LIMITED")
	if after := a.header.Get("Retry-After"); after != strconv.Itoa(23*60*60) {
		t.Errorf("Retry-After %s", after)
	}
	e.invite(map[string]any{"email": "m@example.com"}, other).expect(t, 201, "")
	if n := e.count(`SELECT count(*) FROM team_member`); n != account.InviteLimit/2+1 {
		t.Errorf("%d members", n)
	}
	e.clock.Add(23 * time.Hour)
	invite(0).expect(t, 201, "")
}

func TestTeamsAreBounded(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	e.cfg.MaxMembers = 2
	e.serve()
	owner := key(e.register("owner@example.com"))
	invite := func(email string) answer { return e.invite(map[string]any{"email": email}, owner) }
	invite("a@example.com").expect(t, 201, "")
	invite("b@example.com").expect(t, 201, "")
	invite("c@example.com").expect(t, 409, "CONFLICT")
	invite("b@example.com").expect(t, 409, "DUPLICATE")
	e.removeMember("a@example.com", owner).expect(t, 204, "")
	invite("c@example.com").expect(t, 201, "")
	if n := len(published(e, (*eventv1.Event).GetTeamMemberInvited)); n != 3 {
		t.Errorf("%d invitations", n)
	}
}
