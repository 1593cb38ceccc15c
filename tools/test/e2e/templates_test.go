package e2e

import (
	"net/http"
	"strings"
	"testing"
	"time"
)

// kinds are the template types.
var kinds = []string{"signup_confirmation", "referral_milestone", "offboarding", "blast"}

// newTemplate returns a request for a template with a text body.
func newTemplate(kind string, more Obj) Request {
	body := Obj{"template_type": kind, "subject_template": "Hello", "text_body_template": "Hello {{first_name}}"}
	for k, v := range more {
		if v == absent {
			delete(body, k)
		} else {
			body[k] = v
		}
	}
	return Post("/templates", body)
}

// template creates a template and returns its id.
func (o *owner) template(t testing.TB, kind string, more Obj) string {
	t.Helper()
	return o.Do(t, newTemplate(kind, more).As(o.token)).Want(http.StatusCreated).Str("template_id")
}

// templates returns the ids in the list's order.
func (o *owner) templates(t testing.TB) []string {
	t.Helper()
	var list struct {
		Templates []struct {
			ID string `json:"template_id"`
		} `json:"templates"`
	}
	o.Do(t, Get("/templates").As(o.token)).Want(http.StatusOK).Decode(&list)
	out := []string{}
	for _, m := range list.Templates {
		out = append(out, m.ID)
	}
	return out
}

func testTemplates(t *testing.T, d *deployment) {
	t.Run("life", func(t *testing.T) { testTemplateLife(t, d) })
	t.Run("fields", func(t *testing.T) { testTemplateFields(t, d) })
	t.Run("placeholders", func(t *testing.T) { testPlaceholders(t, d) })
	t.Run("changes", func(t *testing.T) { testTemplateChanges(t, d) })
	t.Run("bodies", func(t *testing.T) {
		o := d.owner(t)
		id := o.template(t, "blast", nil)
		testBodies(t, o.Client, Post("/templates", nil).As(o.token),
			`{"template_type":"blast","subject_template":"x","text_body_template":"x"%s}`, http.StatusCreated)
		testBodies(t, o.Client, Patch("/templates/"+id, nil).As(o.token), `{"name":"x"%s}`, http.StatusOK)
	})
	t.Run("accounts", func(t *testing.T) { testTemplateAccounts(t, d) })
	t.Run("plans", func(t *testing.T) { testTemplatePlans(t, d) })
	t.Run("assignment", func(t *testing.T) { testAssignment(t, d) })
}

func testTemplateLife(t *testing.T, d *deployment) {
	o := d.owner(t)
	o.Do(t, Get("/templates").As(o.token)).Want(http.StatusOK).WantJSON("templates", []any{})
	var summaries []any
	for i, kind := range kinds {
		body := Obj{"template_type": kind, "subject_template": "For {{first_name}} " + emoji, "html_body_template": "<p>" + kind, "unknown": 1}
		name := kind
		if i == 0 {
			name = "Mine " + emoji
			body["name"], body["text_body_template"] = "  "+name+" ", " Text\r\n"
		}
		r := o.Do(t, Post("/templates", body).As(o.token)).Want(http.StatusCreated).
			WantJSON("template_type", kind).WantJSON("name", name).WantJSON("subject_template", body["subject_template"])
		if age := time.Since(r.Time("created_at")); age < -time.Second || age > time.Minute {
			t.Errorf("created_at is %s ago", age)
		}
		summaries = append(summaries, Obj{
			"template_id": r.Str("template_id"), "template_type": kind, "name": name, "subject_template": body["subject_template"],
			"created_at": r.Str("created_at"),
		})
		got := o.Do(t, Get("/templates/"+r.Str("template_id")).Key(o.key)).Want(http.StatusOK).WantJSON("html_body_template", "<p>"+kind)
		if i == 0 {
			got.WantJSON("text_body_template", " Text\r\n")
		} else {
			got.WantJSON("text_body_template", "")
		}
		for k, v := range summaries[i].(Obj) {
			got.WantJSON(k, v)
		}
	}
	o.Do(t, Get("/templates").Key(o.key)).Want(http.StatusOK).WantJSON("templates", summaries)
	id := o.templates(t)[0]
	o.Do(t, NewRequest(http.MethodHead, "/templates/"+id, nil).As(o.token)).Want(http.StatusOK)
	// Two equal templates are two templates.
	if twin := o.template(t, kinds[0], nil); twin == o.template(t, kinds[0], nil) {
		t.Error("two templates have the same id")
	}
	o.Do(t, Delete("/templates/"+id).Key(o.key)).Want(http.StatusNoContent)
	for _, none := range []string{id, unknownID, "nope", "%00", strings.Repeat("x", 1000), "%F0%9F%9A%80", id + "0"} {
		for _, r := range []Request{Get("/templates/" + none), Patch("/templates/"+none, Obj{"name": "x"}), Delete("/templates/" + none)} {
			o.Do(t, r.As(o.token)).WantError(http.StatusNotFound, "NOT_FOUND")
		}
	}
	o.Do(t, Patch("/templates/"+unknownID, Obj{"name": strings.Repeat("x", 201)}).As(o.token).Invalid()).Invalid("name")
	if n := len(o.templates(t)); n != len(kinds)+1 {
		t.Errorf("%d templates are left", n)
	}
}

// testTemplateFields tests the bounds of every field, with POST and PATCH.
func testTemplateFields(t *testing.T, d *deployment) {
	o := d.owner(t)
	id := o.template(t, "offboarding", Obj{"html_body_template": "<p>Hi"})
	const most = 512 << 10
	for field, v := range map[string]struct{ good, bad []any }{
		"template_type": {nil, []any{"", "Blast", "nope", 5, true, []any{"blast"}}},
		"subject_template": {
			[]any{"x", strings.Repeat("x", 998), strings.Repeat(emoji, 998), "Zoë & <b>\"'", "{first_name} {"},
			[]any{"", strings.Repeat("x", 999), strings.Repeat(emoji, 999), "a\nb", "a\rb", "a\r\nBcc: eve@example.com", 5, []any{}, "a\x00b"},
		},
		"html_body_template": {
			[]any{"x", strings.Repeat("x", most), strings.Repeat("é", most/2), "<script>alert(1)</script>\r\n\t&amp;", "{ {} }"},
			[]any{strings.Repeat("x", most+1), strings.Repeat("é", most/2+1), 5, true, Obj{}, "a\x00b"},
		},
		"text_body_template": {
			[]any{"x", strings.Repeat("x", most), strings.Repeat("é", most/2), "a\nb"},
			[]any{strings.Repeat("x", most+1), strings.Repeat("é", most/2+1), 5, true, Obj{}, "a\x00b"},
		},
		"name": {
			[]any{"x", strings.Repeat("x", 200), strings.Repeat(emoji, 200), " x "},
			[]any{strings.Repeat("x", 201), strings.Repeat(emoji, 201), 5, []any{}, "a\x00b"},
		},
	} {
		t.Run(field, func(t *testing.T) {
			for _, good := range v.good {
				want := good
				if field == "name" {
					want = strings.TrimSpace(good.(string))
				}
				made := o.template(t, "offboarding", Obj{field: good})
				o.Do(t, Get("/templates/"+made).As(o.token)).Want(http.StatusOK).WantJSON(field, want)
				o.Do(t, Delete("/templates/"+made).As(o.token)).Want(http.StatusNoContent)
				o.Do(t, Patch("/templates/"+id, Obj{field: good}).As(o.token)).Want(http.StatusOK)
				o.Do(t, Get("/templates/"+id).As(o.token)).Want(http.StatusOK).WantJSON(field, want)
			}
			before := o.Do(t, Get("/templates/"+id).As(o.token)).Want(http.StatusOK)
			for _, bad := range v.bad {
				o.Do(t, newTemplate("offboarding", Obj{field: bad}).As(o.token).Invalid()).Invalid(field)
				o.Do(t, Patch("/templates/"+id, Obj{field: bad}).As(o.token).Invalid()).Invalid(field)
			}
			if after := o.Do(t, Get("/templates/"+id).As(o.token)); string(after.Body) != string(before.Body) {
				t.Errorf("rejected requests changed %s to %s", clip(before.Body), clip(after.Body))
			}
		})
	}
	if n := len(o.templates(t)); n != 1 {
		t.Errorf("the rejected requests left %d templates", n)
	}
	for _, tc := range []struct {
		name   string
		body   Obj
		fields []string
	}{
		{"nothing", Obj{}, []string{"template_type", "subject_template", "html_body_template"}},
		{
			"null",
			Obj{"template_type": nil, "subject_template": nil, "html_body_template": nil},
			[]string{"template_type", "subject_template", "html_body_template"},
		},
		{"no body", Obj{"template_type": "blast", "subject_template": "x"}, []string{"html_body_template"}},
		{
			"empty bodies",
			Obj{"template_type": "blast", "subject_template": "x", "html_body_template": "", "text_body_template": ""},
			[]string{"html_body_template"},
		},
		{
			"all at once",
			Obj{
				"template_type": "x", "subject_template": "a\nb", "html_body_template": 5,
				"text_body_template": "{{nope}}", "name": 5,
			},
			[]string{"template_type", "subject_template", "html_body_template", "text_body_template", "name"},
		},
	} {
		t.Run(tc.name, func(t *testing.T) { o.Do(t, Post("/templates", tc.body).As(o.token).Invalid()).Invalid(tc.fields...) })
	}
	o.Do(t, newTemplate("blast", Obj{"name": nil, "html_body_template": nil}).As(o.token)).Want(http.StatusCreated).WantJSON("name", "blast")
	o.Do(t, newTemplate("blast", Obj{"name": " "}).As(o.token)).Want(http.StatusCreated).WantJSON("name", "blast")
}

// testPlaceholders tests which placeholders each field and type allows.
func testPlaceholders(t *testing.T, d *deployment) {
	o := d.owner(t)
	fields := []string{"subject_template", "html_body_template", "text_body_template"}
	common := []string{"email", "first_name", "last_name", "position", "referral_count", "referral_link", "waitlist_name", "unsubscribe_url"}
	var all strings.Builder
	for _, name := range common {
		all.WriteString("{{" + name + "}}{{ " + name + "  }}")
	}
	for _, kind := range kinds {
		t.Run(kind, func(t *testing.T) {
			for _, field := range fields {
				o.Do(t, newTemplate(kind, Obj{field: all.String()}).As(o.token)).Want(http.StatusCreated)
				milestone := newTemplate(kind, Obj{field: "{{milestone}}"}).As(o.token)
				if kind == "referral_milestone" {
					o.Do(t, milestone).Want(http.StatusCreated)
				} else {
					o.Do(t, milestone).Invalid(field)
				}
			}
		})
	}
	id := o.template(t, "signup_confirmation", nil)
	for _, bad := range []string{
		"{{nope}}", "{{Email}}", "{{EMAIL}}", "{{.Email}}", "{{.email}}", "{{first name}}", "{{first-name}}", "{{email|html}}",
		"{{printf email}}", "{{email email}}", "{{\"email\"}}",
		"{{if email}}x{{end}}", "{{/* email */}}", "{{template \"x\"}}", "{{#each}}", "{{}}", "{{ }}", "{{\t}}", "{{", "x {{",
		"{{email", "{{email}", "{{email }", "{{email} }",
		"{{email}} and {{", "{{{{email}}}}", "{{е mail}}", "{{emаil}}", "{{email\u200b}}", "{{token}}", "{{referral_token}}",
		"{{phone}}", "{{referral_count}} {{x}}",
	} {
		t.Run(bad, func(t *testing.T) {
			for _, field := range fields {
				o.Do(t, newTemplate("signup_confirmation", Obj{field: bad}).As(o.token).Invalid()).Invalid(field)
				o.Do(t, Patch("/templates/"+id, Obj{field: bad}).As(o.token).Invalid()).Invalid(field)
			}
		})
	}
	o.Do(t, newTemplate("signup_confirmation",
		Obj{"subject_template": "{{a}}", "html_body_template": "{{b}}", "text_body_template": "{{c}}"}).As(o.token)).Invalid(fields...)
}

// testTemplateChanges checks that only the sent fields change and that the result must be valid as a whole.
func testTemplateChanges(t *testing.T, d *deployment) {
	o := d.owner(t)
	id := o.template(t, "referral_milestone", Obj{"text_body_template": "{{milestone}}", "name": "Mine"})
	patch := func(body Obj) *Response {
		t.Helper()
		return o.Do(t, Patch("/templates/"+id, body).As(o.token).Invalid())
	}
	read := func() *Response {
		t.Helper()
		return o.Do(t, Get("/templates/"+id).As(o.token)).Want(http.StatusOK)
	}
	before := read()
	for _, nothing := range []Obj{
		{},
		{"unknown": 1},
		{"name": nil, "subject_template": nil, "html_body_template": nil, "text_body_template": nil, "template_type": nil},
		{"template_type": "referral_milestone"},
	} {
		patch(nothing).Want(http.StatusOK).WantJSON("template_id", id).WantJSON("updated", true)
		if after := read(); string(after.Body) != string(before.Body) {
			t.Errorf("%v changed %s to %s", nothing, before.Body, after.Body)
		}
	}
	patch(Obj{"text_body_template": ""}).Invalid("html_body_template")
	patch(Obj{"template_type": "offboarding"}).Invalid("template_type")
	patch(Obj{"template_type": "offboarding", "text_body_template": "{{milestone}}"}).Invalid("text_body_template")
	patch(Obj{"subject_template": "New", "html_body_template": "<p>{{milestone}}", "text_body_template": ""}).Want(http.StatusOK)
	read().WantJSON("subject_template", "New").WantJSON("html_body_template", "<p>{{milestone}}").
		WantJSON("text_body_template", "").WantJSON("name", "Mine").
		WantJSON("created_at", before.Str("created_at")).WantJSON("template_type", "referral_milestone")
	patch(Obj{"html_body_template": "", "text_body_template": "Hello"}).Want(http.StatusOK)
	read().WantJSON("html_body_template", "").WantJSON("text_body_template", "Hello")
	patch(Obj{"template_type": "offboarding"}).Want(http.StatusOK)
	read().WantJSON("template_type", "offboarding").WantJSON("name", "Mine")
}

// testTemplateAccounts checks which account owns a template.
func testTemplateAccounts(t *testing.T, d *deployment) {
	o, admin, viewer, stranger := d.owner(t), d.owner(t), d.owner(t), d.owner(t)
	id := o.template(t, "blast", nil)
	for m, role := range map[*owner]string{admin: "admin", viewer: "viewer"} {
		d.verify(t, m)
		o.Do(t, invite(m.email, role).As(o.token)).Want(http.StatusCreated)
	}
	for _, m := range []*owner{admin, viewer, stranger} {
		// Without the header, the request is about the caller's own account, which has no template.
		for _, r := range []Request{Get("/templates/" + id), Patch("/templates/"+id, Obj{"name": "x"}), Delete("/templates/" + id)} {
			m.Do(t, r.As(m.token)).WantError(http.StatusNotFound, "NOT_FOUND")
		}
		m.Do(t, Get("/templates").As(m.token)).Want(http.StatusOK).WantJSON("templates", []any{})
	}
	theirs := func(m *owner, r Request) *Response {
		t.Helper()
		return m.Do(t, r.As(m.token).With("X-Account-Email", " "+strings.ToUpper(o.email)))
	}
	for _, r := range []Request{Get("/templates"), Get("/templates/" + id)} {
		theirs(viewer, r).Want(http.StatusOK)
		theirs(stranger, r).WantError(http.StatusForbidden, "FORBIDDEN")
	}
	for _, r := range []Request{
		newTemplate("blast", nil), Patch("/templates/"+id, Obj{"name": "x"}), Delete("/templates/" + id),
		Delete("/templates/" + unknownID),
	} {
		theirs(viewer, r).WantError(http.StatusForbidden, "FORBIDDEN")
		theirs(stranger, r).WantError(http.StatusForbidden, "FORBIDDEN")
	}
	made := theirs(admin, newTemplate("blast", nil)).Want(http.StatusCreated).Str("template_id")
	if got := o.templates(t); len(got) != 2 || got[1] != made {
		t.Errorf("templates %v", got)
	}
	theirs(admin, Patch("/templates/"+id, Obj{"name": "Theirs"})).Want(http.StatusOK)
	o.Do(t, Get("/templates/"+id).As(o.token)).WantJSON("name", "Theirs")
	own := admin.template(t, "blast", nil)
	theirs(admin, Get("/templates/"+own)).WantError(http.StatusNotFound, "NOT_FOUND")
	theirs(admin, Delete("/templates/"+id)).Want(http.StatusNoContent)
	if got := o.templates(t); len(got) != 1 || got[0] != made {
		t.Errorf("templates %v", got)
	}
	d.setTier(t, o, "advanced", "active")
	theirs(admin, Get("/templates")).WantError(http.StatusForbidden, "TIER_REQUIRED")
}

func testTemplatePlans(t *testing.T, d *deployment) {
	o := d.owner(t)
	id := o.template(t, "blast", nil)
	all := func(code string) {
		t.Helper()
		for _, r := range []Request{
			newTemplate("blast", nil), Get("/templates"), Get("/templates/" + id), Patch("/templates/"+id, Obj{"name": "x"}),
			Delete("/templates/" + id), Get("/templates/" + unknownID),
		} {
			res := o.Do(t, r.As(o.token)).WantError(http.StatusForbidden, code)
			if code == "TIER_REQUIRED" && !strings.Contains(res.Str("error"), "Pro") {
				t.Errorf("%s: message %q does not name the plan", r, res.Str("error"))
			}
		}
	}
	d.setTier(t, o, "advanced", "active")
	all("TIER_REQUIRED")
	broken := Post("/templates", nil).Raw([]byte("{")).As(o.token).Invalid()
	o.Do(t, broken).WantError(http.StatusBadRequest, "INVALID_BODY")
	o.Do(t, newTemplate("x", nil).As(o.token).Invalid()).Invalid("template_type")
	d.setTier(t, o, "pro", "inactive")
	all("FORBIDDEN")
	o.Do(t, broken).WantError(http.StatusForbidden, "FORBIDDEN")
	d.endTrial(t, o)
	all("TRIAL_EXPIRED")
	d.setTier(t, o, "pro", "active")
	o.Do(t, Get("/templates/"+id).As(o.token)).Want(http.StatusOK).WantJSON("name", "blast")
}

// testAssignment checks which templates a waitlist may use and that a deleted template leaves the waitlist.
func testAssignment(t *testing.T, d *deployment) {
	o, other := d.owner(t), d.owner(t)
	ids := Obj{}
	for _, kind := range kinds {
		ids[kind] = o.template(t, kind, nil)
	}
	id := o.waitlist(t, Obj{"email_templates": Obj{"signup_confirmation": ids["signup_confirmation"]}})
	all := Obj{
		"signup_confirmation": ids["signup_confirmation"], "referral_milestone": ids["referral_milestone"],
		"offboarding": ids["offboarding"],
	}
	o.set(t, id, Obj{"email_templates": all}).WantJSON("settings.email_templates", all)
	change := func(templates Obj) Request {
		return Patch("/waitlists/"+id, Obj{"settings": Obj{"email_templates": templates}}).As(o.token)
	}
	for _, kind := range []string{"signup_confirmation", "referral_milestone", "offboarding"} {
		field := "settings.email_templates." + kind
		for _, wrong := range []string{ids["blast"].(string), unknownID, "nope", other.template(t, kind, nil)} {
			o.Do(t, change(Obj{kind: wrong}).Invalid()).Invalid(field)
		}
	}
	o.Do(t, change(Obj{"signup_confirmation": ids["offboarding"], "offboarding": ids["signup_confirmation"]})).
		Invalid("settings.email_templates.signup_confirmation", "settings.email_templates.offboarding")
	o.Do(t, Post("/waitlists", Obj{"name": "x", "settings": Obj{"email_templates": Obj{"offboarding": ids["blast"]}}}).
		As(o.token)).Invalid("settings.email_templates.offboarding")
	o.Do(t, Get("/waitlists/"+id).As(o.token)).WantJSON("settings.email_templates", all)

	o.Do(t, Delete("/templates/"+ids["signup_confirmation"].(string)).As(o.token)).Want(http.StatusNoContent)
	delete(all, "signup_confirmation")
	Await(t, mailTimeout, "a deleted template leaves the settings", func() bool {
		return canonical(o.Do(t, Get("/waitlists/"+id).As(o.token)).Want(http.StatusOK).Get("settings.email_templates")) == canonical(all)
	})
	o.Do(t, change(Obj{"signup_confirmation": ids["signup_confirmation"]})).Invalid("settings.email_templates.signup_confirmation")
	o.set(t, id, Obj{"email_templates": Obj{"referral_milestone": nil, "offboarding": ids["offboarding"]}}).
		WantJSON("settings.email_templates", Obj{"offboarding": ids["offboarding"]})
	o.set(t, id, Obj{"email_templates": nil}).WantJSON("settings.email_templates", Obj{})
	// Validation comes before the tier's gate, and unchanged values are not gated.
	o.set(t, id, Obj{"email_templates": all})
	d.setTier(t, o, "advanced", "active")
	o.Do(t, change(all)).Want(http.StatusOK)
	o.Do(t, change(Obj{"offboarding": unknownID}).Invalid()).Invalid("settings.email_templates.offboarding")
	o.Do(t, change(Obj{"offboarding": ids["offboarding"]})).WantError(http.StatusForbidden, "TIER_REQUIRED")
}
