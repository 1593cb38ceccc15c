package http_test

import (
	"context"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"google.golang.org/protobuf/proto"

	"waitlist.internal/libs/access"
	"waitlist.internal/libs/apierr"
	"waitlist.internal/libs/audit"
	"waitlist.internal/libs/pg"
	eventv1 "waitlist.internal/proto/gen/waitlist/event/v1"
	"waitlist.internal/services/messaging/postgres"
	"waitlist.internal/services/messaging/templates"
)

type obj = map[string]any

func confirmation() obj {
	return obj{
		"template_type": "signup_confirmation", "subject_template": "Hello {{first_name}}",
		"html_body_template": "<p>{{ email }}</p>", "text_body_template": "{{position}}", "name": " Welcome ",
	}
}

func without(o obj, names ...string) obj {
	out := maps.Clone(o)
	for _, n := range names {
		delete(out, n)
	}
	return out
}

func with(o obj, name string, v any) obj {
	out := maps.Clone(o)
	out[name] = v
	return out
}

func TestTemplates(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	if raw := e.do("owner", get, "/templates", nil).want(200, "").raw; raw != `{"templates":[]}`+"\n" {
		t.Fatalf("none: %s", raw)
	}
	a := e.do("owner", post, "/templates", confirmation()).want(201, "")
	id, created := a.str("template_id"), a.str("created_at")
	if at, err := time.Parse("2006-01-02T15:04:05.000Z", created); err != nil || time.Since(at) > time.Minute {
		t.Errorf("created_at %s, %v", created, err)
	}
	summary := `"template_id":"` + id + `","template_type":"signup_confirmation",` +
		`"name":"Welcome","subject_template":"Hello {{first_name}}","created_at":"` + created + `"`
	if a.raw != "{"+summary+"}\n" {
		t.Errorf("created %s", a.raw)
	}
	if u, err := uuid.Parse(id); err != nil || u.Version() != 7 {
		t.Errorf("id %s", id)
	}
	full := "{" + summary + `,"html_body_template":"<p>{{ email }}</p>","text_body_template":"{{position}}"}` + "\n"
	if raw := e.do("owner", get, "/templates/"+id, nil).want(200, "").raw; raw != full {
		t.Errorf("read %s, want %s", raw, full)
	}
	// One body is enough, and the name is the type by default.
	second := e.do("owner", post, "/templates", obj{
		"template_type": "blast", "subject_template": "x", "html_body_template": nil,
		"text_body_template": "y", "name": "  ",
	}).want(201, "")
	if second.str("name") != "blast" {
		t.Errorf("name %s", second.raw)
	}
	list := e.do("owner", get, "/templates", nil).want(200, "").raw
	if want := `{"templates":[{` + summary + `},` + strings.TrimSpace(second.raw) + "]}\n"; list != want {
		t.Errorf("list %s, want %s", list, want)
	}

	if raw := e.do("owner", patch, "/templates/"+id, obj{"subject_template": "Hi"}).want(200,
		"").raw; raw != `{"template_id":"`+id+`","updated":true}`+"\n" {
		t.Errorf("changed %s", raw)
	}
	e.do("owner", patch, "/templates/"+id, `{}`).want(200, "")
	e.do("owner", patch, "/templates/"+id, obj{"html_body_template": "", "text_body_template": nil, "name": nil}).want(200, "")
	got := e.do("owner", get, "/templates/"+id, nil)
	if got.str("subject_template") != "Hi" || got.str("html_body_template") != "" || got.str("text_body_template") != "{{position}}" ||
		got.str("name") != "Welcome" {
		t.Errorf("after the changes %s", got.raw)
	}
	// The last body cannot be removed.
	if f := e.do("owner", patch, "/templates/"+id, obj{"text_body_template": ""}).want(400,
		"VALIDATION_ERROR").fields(); f != "html_body_template" {
		t.Errorf("fields %s", f)
	}

	// No other account can reach the template by any route.
	for _, id := range []string{id, strings.ToUpper(id), strings.ReplaceAll(id, "-", ""), uuid.NewString(), "x", "%00", "%ff", "a%2Fb"} {
		who := "other"
		for _, a := range []answer{
			e.do(who, get, "/templates/"+id, nil), e.do(who, patch, "/templates/"+id, obj{"subject_template": "mine"}),
			e.do(who, remove, "/templates/"+id, nil),
		} {
			a.want(404, "NOT_FOUND")
		}
	}
	if e.do("owner", get, "/templates/"+id, nil).str("subject_template") != "Hi" {
		t.Error("changed by somebody else")
	}

	if a := e.do("owner", remove, "/templates/"+id, nil).want(204, ""); a.raw != "" {
		t.Errorf("deleted: %s", a.raw)
	}
	e.do("owner", remove, "/templates/"+id, nil).want(404, "NOT_FOUND")
	e.do("owner", get, "/templates/"+id, nil).want(404, "NOT_FOUND")
	var payloads [][]byte
	var topic, key string
	if err := e.pool.QueryRow(t.Context(), "SELECT topic, key, payloads FROM outbox").Scan(&topic, &key, &payloads); err != nil {
		t.Fatal(err)
	}
	ev := new(eventv1.Event)
	if err := proto.Unmarshal(payloads[0], ev); err != nil {
		t.Fatal(err)
	}
	if d := ev.GetTemplateDeleted(); topic != "waitlist.accounts.v1" || key != ownerID || d.GetAccountId() != ownerID ||
		d.GetTemplateId() != id || e.woken != 1 {
		t.Errorf("%s %s %v, woken %d times", topic, key, ev, e.woken)
	}
}

func TestTemplateBodies(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	for _, body := range []string{"", "{", "[]", "null", `{} {}`, "{\"name\":\"\xff\"}", `{"` + strings.Repeat("x", 1<<20) + `":1}`} {
		e.do("owner", post, "/templates", body).want(400, "INVALID_BODY")
		e.do("owner", patch, "/templates/"+uuid.NewString(), body).want(400, "INVALID_BODY")
	}
	good := confirmation()
	long := func(n int) string { return strings.Repeat("x", n) }
	for name, tc := range map[string]struct {
		body   obj
		fields string
	}{
		"nothing": {obj{}, "template_type,subject_template,html_body_template"},
		"nulls": {
			obj{"template_type": nil, "subject_template": nil, "html_body_template": nil, "text_body_template": nil},
			"template_type,subject_template,html_body_template",
		},
		"wrong types": {obj{
			"template_type": 1, "subject_template": true, "html_body_template": obj{}, "text_body_template": 5,
			"name": []int{},
		}, "template_type,subject_template,html_body_template,text_body_template,name"},
		"unknown type":     {with(good, "template_type", "Blast"), "template_type"},
		"empty type":       {with(good, "template_type", ""), "template_type"},
		"empty subject":    {with(good, "subject_template", ""), "subject_template"},
		"blank subject":    {with(good, "subject_template", " \t"), "subject_template"},
		"CR":               {with(good, "subject_template", "a\rb"), "subject_template"},
		"LF":               {with(good, "subject_template", "a\nBcc: x@example.com"), "subject_template"},
		"long subject":     {with(good, "subject_template", strings.Repeat("ä", 999)), "subject_template"},
		"long name":        {with(good, "name", long(201)), "name"},
		"long html":        {with(good, "html_body_template", long(512<<10+1)), "html_body_template"},
		"long text":        {with(good, "text_body_template", strings.Repeat("ä", 256<<10)+"x"), "text_body_template"},
		"no body":          {without(good, "html_body_template", "text_body_template"), "html_body_template"},
		"U+0000":           {with(good, "text_body_template", "a\x00"), "text_body_template"},
		"unknown variable": {with(good, "subject_template", "{{phone}}"), "subject_template"},
		"several": {
			with(with(good, "subject_template", "{{a}} {{b}}"), "text_body_template", "{{c"),
			"subject_template,text_body_template",
		},
		"case":               {with(good, "html_body_template", "{{Email}}"), "html_body_template"},
		"unclosed":           {with(good, "html_body_template", "{{email"), "html_body_template"},
		"half closed":        {with(good, "html_body_template", "{{email}"), "html_body_template"},
		"empty":              {with(good, "text_body_template", "a {{}} b"), "text_body_template"},
		"blank placeholder":  {with(good, "text_body_template", "a {{  }} b"), "text_body_template"},
		"three braces":       {with(good, "text_body_template", "{{{email}}}"), "text_body_template"},
		"an expression":      {with(good, "text_body_template", "{{.Email}}"), "text_body_template"},
		"a function":         {with(good, "text_body_template", "{{printf \"%s\" email}}"), "text_body_template"},
		"milestone":          {with(good, "text_body_template", "{{milestone}}"), "text_body_template"},
		"milestone in blast": {with(with(good, "template_type", "blast"), "html_body_template", "{{milestone}}"), "html_body_template"},
	} {
		t.Run(name, func(t *testing.T) {
			a := e.do("owner", post, "/templates", tc.body)
			if a.status != 400 || a.str("error_code") != "VALIDATION_ERROR" || a.fields() != tc.fields {
				t.Errorf("%d %.300s, want fields %s", a.status, a.raw, tc.fields)
			}
		})
	}
	if n := e.count("SELECT count(*) FROM template"); n != 0 {
		t.Errorf("%d templates from bad bodies", n)
	}
	for name, body := range map[string]obj{
		"bounds": {
			"template_type": "referral_milestone", "subject_template": strings.Repeat("ä", 998), "name": strings.Repeat("ä", 200),
			"html_body_template": long(512 << 10), "text_body_template": long(512<<10 - 4000),
		},
		"every variable": {
			"template_type": "referral_milestone", "subject_template": "{{milestone}}{{email}}",
			"text_body_template": "{{email}}{{ first_name " +
				"}}{{\tlast_name}}{{position}}{{referral_count}}{{referral_link}}{{waitlist_name}}{{unsubscribe_url}}{{milestone}}",
		},
		"braces":       with(good, "html_body_template", "a { b } }} {x} <style>p{color:red}</style>"),
		"unknown keys": with(good, "owner_id", otherID),
	} {
		if a := e.do("owner", post, "/templates", body); a.status != 201 {
			t.Errorf("%s: %d %s", name, a.status, a.raw)
		}
	}
	if n := e.count("SELECT count(*) FROM template WHERE owner_id = '" + ownerID + "'"); n != 4 {
		t.Errorf("%d templates", n)
	}
}

// A new type must fit the fields that do not change.
func TestTemplateTypeChanges(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	id := e.do("owner", post, "/templates", obj{
		"template_type": "referral_milestone", "subject_template": "{{milestone}}",
		"text_body_template": "x {{milestone}}",
	}).want(201, "").str("template_id")
	path := "/templates/" + id
	for body, fields := range map[string]string{
		`{"template_type":"offboarding"}`:                                                             "template_type",
		`{"template_type":"offboarding","subject_template":"x"}`:                                      "template_type",
		`{"template_type":"offboarding","text_body_template":"x"}`:                                    "template_type",
		`{"text_body_template":"{{x}}"}`:                                                              "text_body_template",
		`{"template_type":"x","text_body_template":"{{milestone}}"}`:                                  "template_type",
		`{"template_type":"offboarding","subject_template":"x","text_body_template":"{{milestone}}"}`: "text_body_template",
	} {
		if f := e.do("owner", patch, path, body).want(400, "VALIDATION_ERROR").fields(); f != fields {
			t.Errorf("%s: fields %s, want %s", body, f, fields)
		}
	}
	if got := e.do("owner", get, path, nil); got.str("template_type") != "referral_milestone" ||
		got.str("text_body_template") != "x {{milestone}}" {
		t.Errorf("changed by what was refused: %s", got.raw)
	}
	e.do("owner", patch, path, `{"template_type":"offboarding","subject_template":"x","text_body_template":"y"}`).want(200, "")
	// A default name follows the type.
	if got := e.do("owner", get, path, nil); got.str("template_type") != "offboarding" || got.str("name") != "offboarding" {
		t.Errorf("%s", got.raw)
	}
	e.do("owner", patch, path, `{"template_type":"blast","name":"offboarding"}`).want(200, "")
	if got := e.do("owner", get, path, nil); got.str("name") != "offboarding" {
		t.Errorf("%s", got.raw)
	}
}

// The order of refusals: credentials, account, subscription, role, body, tier, template.
func TestTemplateOrder(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	missing := "/templates/" + uuid.NewString()
	all := func(who, body string, account ...string) map[string]answer {
		return map[string]answer{
			"create": e.do(who, post, "/templates", body, account...), "list": e.do(who, get, "/templates", nil, account...),
			"get": e.do(who, get, missing, nil, account...), "update": e.do(who, patch, missing, body, account...),
			"delete": e.do(who, remove, missing, nil, account...),
		}
	}
	is := func(status int, code string, answers map[string]answer, names ...string) {
		t.Helper()
		if names == nil {
			names = slices.Collect(maps.Keys(answers))
		}
		for _, n := range names {
			answers[n].want(status, code)
		}
	}
	good := `{"template_type":"blast","subject_template":"x","text_body_template":"y"}`
	is(401, "AUTHENTICATION_REQUIRED", all("nobody", "{", "owner@example.com"))
	is(403, "FORBIDDEN", all("other", "{", "owner@example.com"))
	is(403, "FORBIDDEN", all("owner", "{", "nobody"))
	is(403, "FORBIDDEN", all("owner", "{", "\xff"))

	at := func(e access.Entitlement) access.Grant {
		return access.Grant{OwnerID: ownerID, OwnerEmail: "owner@example.com", Role: access.Viewer, Entitlement: e}
	}
	inactive := access.Entitlement{Tier: access.Pro, Status: access.Inactive}
	over := access.Entitlement{Tier: access.Pro, Status: access.Trialing, Trial: true, ValidUntil: time.Now().Add(-time.Second)}
	advanced := access.Entitlement{Tier: access.Advanced, Status: access.Active}

	e.actors["owner"] = actor(ownerID, "owner@example.com", inactive)
	is(403, "FORBIDDEN", all("owner", "{"))
	e.actors["owner"] = actor(ownerID, "owner@example.com", over)
	is(403, "TRIAL_EXPIRED", all("owner", "{"))
	e.actors["owner"] = actor(ownerID, "owner@example.com", advanced)
	is(400, "INVALID_BODY", all("owner", "{"), "create", "update")
	is(400, "VALIDATION_ERROR", all("owner", `{"template_type":"x"}`), "create", "update")
	is(400, "VALIDATION_ERROR", all("owner", `{"text_body_template":"{{x}}"}`), "create", "update")
	is(403, "TIER_REQUIRED", all("owner", good))
	if text := e.do("owner", get, "/templates", nil).str("error"); !strings.Contains(text, "Pro") {
		t.Errorf("%q does not name the plan", text)
	}

	// For a member, the owner's subscription counts, not the member's own.
	const theirs = " OWNER@example.com "
	member := actor(memberID, "member@example.com", inactive, at(pro()))
	e.actors["member"] = member
	is(403, "FORBIDDEN", all("member", good))
	is(403, "FORBIDDEN", all("member", "{", theirs), "create", "update", "delete") // a viewer
	is(200, "", all("member", good, theirs), "list")
	is(404, "NOT_FOUND", all("member", good, theirs), "get")
	for _, tc := range []struct {
		owner    access.Entitlement
		verified bool
		code     string
	}{{inactive, true, "FORBIDDEN"}, {over, true, "TRIAL_EXPIRED"}, {advanced, true, "TIER_REQUIRED"}, {pro(), false, "EMAIL_NOT_VERIFIED"}} {
		m := actor(memberID, "member@example.com", pro(), at(tc.owner))
		m.EmailVerified = tc.verified
		e.actors["member"] = m
		is(403, tc.code, all("member", "{", theirs))
	}
	member.Grants[1].Role = access.Admin
	e.actors["member"] = member
	is(400, "INVALID_BODY", all("member", "{", theirs), "create", "update")
	answers := all("member", good, theirs)
	is(201, "", answers, "create")
	is(404, "NOT_FOUND", answers, "get", "update", "delete")
	e.actors["owner"] = actor(ownerID, "owner@example.com", pro())
	e.do("owner", get, "/templates/"+answers["create"].str("template_id"), nil).want(200, "")
	e.do("other", get, "/templates/"+answers["create"].str("template_id"), nil).want(404, "NOT_FOUND")
}

// No template of an account remains if the account is deleted while templates are inserted.
func TestTemplatesOfADeletedAccount(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	kept := e.do("other", post, "/templates", confirmation()).want(201, "").str("template_id")
	for range 60 {
		e.do("owner", post, "/templates", confirmation()).want(201, "")
	}
	mails := postgres.NewMails(e.pool)
	purge := &postgres.Purge{Pool: e.pool}
	lock := func(how string) pgx.Tx {
		t.Helper()
		tx, err := e.pool.Begin(t.Context())
		if err == nil {
			_, err = tx.Exec(t.Context(), "SELECT pg_advisory_xact_lock"+how+"(hashtextextended('purge/' || $1, 0))", ownerID)
		}
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) }) // if the test fails before the commit
		return tx
	}
	waits := func(done <-chan error) {
		t.Helper()
		for e.count("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted") == 0 {
			select {
			case err := <-done:
				t.Fatalf("does not wait, %v", err)
			default:
			}
		}
	}
	// The purge waits for the template whose insertion began before it. A later request checks for the deletion
	// only then.
	inserts, holds := lock("_shared"), lock("_shared")
	if _, err := inserts.Exec(t.Context(), "INSERT INTO template SELECT gen_random_uuid(), owner_id, template_type, name, subject, "+
		"html_body, text_body, created_at FROM template WHERE owner_id = $1 LIMIT 1", ownerID); err != nil {
		t.Fatal(err)
	}
	if err := pg.InTx(t.Context(), e.pool, func(tx pgx.Tx) error { return mails.Forget(t.Context(), tx, ownerID) }); err != nil {
		t.Fatal(err)
	}
	e.do("owner", post, "/templates", confirmation()).want(401, "AUTHENTICATION_REQUIRED")
	purged := make(chan error, 1)
	go func() { purged <- purge.Once(t.Context()) }()
	waits(purged)
	if err := inserts.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	waits(purged)
	if err := holds.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-purged; err != nil {
		t.Fatal(err)
	}
	e.do("owner", post, "/templates", confirmation()).want(401, "AUTHENTICATION_REQUIRED")
	if n := e.count("SELECT count(*) FROM template"); n != 1 {
		t.Errorf("%d templates left", n)
	}
	e.do("other", get, "/templates/"+kept, nil).want(200, "")

	// A request that waits for a purge finds the account deleted.
	exclusive := lock("")
	inserted := make(chan error, 1)
	go func() {
		inserted <- postgres.NewTemplates(e.pool, func() {}).InsertTemplate(t.Context(),
			templates.Template{ID: uuid.NewString(), OwnerID: ownerID, Type: "blast", Text: "x"}, 0, audit.Entry{})
	}()
	waits(inserted)
	if err := exclusive.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-inserted; !apierr.Is(err, apierr.AuthenticationRequired) {
		t.Errorf("inserted: %v", err)
	}
}
