package e2e

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"waitlist.internal/libs/token"
)

// Shapes of answers: an Obj has exactly these keys, each is a list of one shape, and scalar is a string, a number, a
// boolean or null.
type (
	scalar struct{}
	each   struct{ of any }
	// dictionary has keys of the caller's own, such as dates, and scalar values.
	dictionary struct{}
)

// fields returns an object of scalars, with more besides.
func fields(names string, more ...Obj) Obj {
	out := Obj{}
	for name := range strings.FieldsSeq(names) {
		out[name] = scalar{}
	}
	for _, m := range more {
		maps.Copy(out, m)
	}
	return out
}

const (
	utmFields       = "utm_source utm_medium utm_campaign utm_term utm_content"
	waitlistSummary = "waitlist_id name signup_count created_at"
	blastCounts     = "blast_id recipient_count failed_count status"
	publicStatus    = "email first_name last_name position referral_count total_signups created_at"
	publicConfig    = "waitlist_id name headline subheadline hero_image_url name_field phone_field signup_count status show_social_proof " +
		"require_consent consent_text referral_boost position_offset"
	plainSettings = "headline subheadline hero_image_url name_field phone_field redirect_url hide_branding hide_position " +
		"exclude_personal_emails webhook_url slack_webhook_url discord_webhook_url status show_social_proof require_consent " +
		"consent_text referral_boost position_offset notify_referrer sms_notify_referrer require_email_verification"
)

// answers has what the interface says about each of its routes: by method, path, status and, if there are several answers of
// one status, a word for the case. nil is an answer without a body.
func answers() map[string]any {
	questions := Obj{"custom_questions": each{fields("id label type required", Obj{"options": each{scalar{}}})}}
	joined := fields(publicStatus + " referral_token")
	hidden := fields("email first_name last_name referral_count created_at")
	config := fields(publicConfig, questions)
	settings := fields(plainSettings, questions, Obj{
		"allowed_email_domains": each{scalar{}}, "webhook_events": each{scalar{}}, "referral_milestones": each{scalar{}},
		"email_templates": fields("signup_confirmation referral_milestone offboarding"),
	})
	waitlist := fields(waitlistSummary, Obj{"settings": settings})
	records := Obj{"dns_records": each{fields("type name value purpose ttl")}}
	verified, done := fields("verified message"), fields("success message")
	template := "template_id template_type name subject_template created_at"
	return map[string]any{
		"POST /public/waitlists/{id}/signups 201":                joined,
		"POST /public/waitlists/{id}/signups 201 redirected":     fields(publicStatus + " referral_token redirect_url"),
		"POST /public/waitlists/{id}/signups 201 hidden":         fields("email first_name last_name referral_count created_at referral_token"),
		"POST /public/waitlists/{id}/signups 201 trapped":        joined,
		"POST /public/waitlists/{id}/signups 200":                joined,
		"GET /public/waitlists/{id}/signups/{email} 200":         fields(publicStatus),
		"GET /public/waitlists/{id}/signups/{email} 200 hidden":  hidden,
		"GET /public/waitlists/{id}/signups/{email}/status 200":  fields(publicStatus),
		"POST /public/waitlists/{id}/signups/{email}/verify 200": verified,
		"GET /public/waitlists/{id}/signups/{email}/verify 200":  verified,
		"GET /public/waitlists/{id}/config 200 pro":              fields("hide_branding hide_position require_email_verification", config),
		"GET /public/waitlists/{id}/config 200 advanced":         fields("hide_branding hide_position", config),
		"GET /public/waitlists/{id}/config 200 basic":            config,
		"GET /public/waitlists/{id}/count 200":                   fields("waitlist_id count"),
		"GET /public/waitlists/{id}/leaderboard 200":             fields("waitlist_id", Obj{"leaderboard": each{fields("rank referral_count")}}),
		"POST /public/waitlists/{id}/unsubscribe 200":            fields("success message delete_token"),
		"POST /public/waitlists/{id}/delete-my-data 200":         done,
		"POST /auth/register 201":                                fields("email api_key subscription_tier subscription_status"),
		"GET /auth/me 200": fields("email has_api_key subscription_tier subscription_status trial_ends_at payment_customer_id " +
			"has_used_trial trial_end"),
		"POST /auth/regenerate-api-key 200":   fields("api_key"),
		"DELETE /auth/me 204":                 nil,
		"POST /auth/resend-verification 200":  fields("message"),
		"POST /billing/checkout 200 new":      fields("url"),
		"POST /billing/checkout 200 upgraded": fields("upgraded tier status"),
		"POST /billing/checkout 200 declined": fields("upgraded payment_failed"),
		"POST /billing/preview 200": fields("current_plan new_plan proration_amount proration_formatted new_recurring_price " +
			"new_recurring_formatted is_upgrade immediate_charge"),
		"POST /billing/preview 200 same":    fields("already_on_plan actual_tier"),
		"POST /billing/start-trial 200":     fields("status tier trial_end"),
		"POST /billing/cancel 200 active":   fields("status canceled_immediately cancel_at current_period_end"),
		"POST /billing/cancel 200 trialing": fields("status canceled_immediately"),
		"GET /billing/info 200": Obj{
			"invoices":       each{fields("id date amount amount_formatted status description invoice_pdf hosted_invoice_url")},
			"payment_method": fields("brand last4 exp_month exp_year"),
		},
		"POST /billing/portal 200":   fields("url"),
		"POST /waitlists 201":        fields(waitlistSummary),
		"GET /waitlists 200":         Obj{"waitlists": each{fields(waitlistSummary)}},
		"GET /waitlists/{id} 200":    waitlist,
		"PATCH /waitlists/{id} 200":  waitlist,
		"DELETE /waitlists/{id} 204": nil,
		"GET /waitlists/{id}/signups 200": fields("count last_key", Obj{"signups": each{fields(
			"email first_name last_name phone position referral_token referral_count referred_by email_verified email_opt_out "+
				"email_opt_out_at device_type created_at", Obj{"utm": fields(utmFields), "custom_answers": dictionary{}},
		)}}),
		"DELETE /waitlists/{id}/signups/{email} 204":         nil,
		"PATCH /waitlists/{id}/signups/{email}/position 200": fields("email position"),
		"GET /waitlists/{id}/stats 200":                      fields("waitlist_id total_signups referral_signups created_at"),
		"GET /waitlists/{id}/export 200":                     nil, // CSV
		"POST /waitlists/{id}/import 200":                    fields("imported skipped", Obj{"errors": each{fields("row email error")}}),
		"GET /waitlists/{id}/analytics 200": fields("waitlist_id range", Obj{
			"views_by_day": dictionary{}, "signups_by_day": dictionary{}, "referral_signups_by_day": dictionary{},
			"conversion_rate_by_day": dictionary{}, "top_referrers": each{fields("email first_name referral_count")},
		}),
		"GET /waitlists/{id}/analytics/utm 200": fields("waitlist_id", Obj{
			"by_source": each{fields("value count")}, "by_medium": each{fields("value count")}, "by_campaign": each{fields("value count")},
		}),
		"POST /waitlists/{id}/blasts 200":     fields(blastCounts),
		"GET /waitlists/{id}/blasts 200":      Obj{"blasts": each{fields(blastCounts + " subject sent_at")}},
		"POST /templates 201":                 fields(template),
		"GET /templates 200":                  Obj{"templates": each{fields(template)}},
		"GET /templates/{template_id} 200":    fields(template + " html_body_template text_body_template"),
		"PATCH /templates/{template_id} 200":  fields("template_id updated"),
		"DELETE /templates/{template_id} 204": nil,
		"POST /domains/verify 200":            fields("domain status", records),
		"GET /domains 200":                    Obj{"domains": each{fields("domain verification_status created_at")}},
		"GET /domains/{domain}/status 200":    fields("domain status"),
		"DELETE /domains/{domain} 204":        nil,
		"POST /team/invite 201":               fields("email role invited_at"),
		"GET /team 200":                       Obj{"members": each{fields("email role invited_at")}},
		"DELETE /team/{email} 204":            nil,
	}
}

// departures lists where v has not the shape, as paths with + for what is too much and - for what is missing. An empty list
// shows nothing of its elements, so it is missing, too.
func departures(path string, v, shape any) (out []string) {
	switch shape := shape.(type) {
	case scalar:
		switch v.(type) {
		case map[string]any, []any:
			return []string{path + " is no scalar"}
		}
	case dictionary:
		in, ok := v.(map[string]any)
		if !ok {
			return []string{path + " is no object"}
		}
		for key, e := range in {
			out = append(out, departures(path+"."+key, e, scalar{})...)
		}
	case each:
		in, ok := v.([]any)
		if !ok || len(in) == 0 {
			return []string{path + " is no list, or an empty one"}
		}
		for i, e := range in {
			out = append(out, departures(fmt.Sprintf("%s[%d]", path, i), e, shape.of)...)
		}
	case Obj:
		in, ok := v.(map[string]any)
		if !ok {
			return []string{path + " is no object"}
		}
		for key, of := range shape {
			if e, ok := in[key]; ok {
				out = append(out, departures(path+"."+key, e, of)...)
			} else {
				out = append(out, "-"+path+"."+key)
			}
		}
		for key := range in {
			if _, ok := shape[key]; !ok {
				out = append(out, "+"+path+"."+key)
			}
		}
	default:
		return []string{fmt.Sprintf("%s: %T is no shape", path, shape)}
	}
	slices.Sort(out)
	return out
}

func requireShape(t *testing.T, r *Response, shape any) {
	t.Helper()
	if shape == nil {
		return
	}
	var v any
	r.Decode(&v)
	if got := departures("", v, shape); len(got) > 0 {
		t.Errorf("%s → %s\n%s", r.Request, clip(r.Body), strings.Join(got, "\n"))
	}
}

// errorShape is the body of every error; a validation error also has errors.
func errorShape(r *Response) Obj {
	if r.ErrorCode() == "VALIDATION_ERROR" {
		return fields("error error_code request_id", Obj{"errors": each{fields("field message")}})
	}
	return fields("error error_code request_id")
}

// testFields compares every answer of the interface's routes with exactly the interface's fields, for accounts that use nothing
// else. The table is written from the interface, not from the OpenAPI document.
func (s *suite) testFields(t *testing.T) {
	d := s.open(t, "usd", [3]int64{300, 1000, 5000})
	expected := answers()
	seen := map[string]bool{}
	o := d.subscriber(t, "pay", "pro")
	// want sends a request with the caller's token and compares the answer with that of answers()[name].
	want := func(t *testing.T, o *owner, name string, r Request) *Response {
		t.Helper()
		shape, ok := expected[name]
		if !ok {
			t.Fatalf("the interface has no %s", name)
		}
		method, rest, _ := strings.Cut(name, " ")
		if r.method != method || !strings.Contains(name, " 20") {
			t.Fatalf("%s is no %s", r, name)
		}
		template, rest, _ := strings.Cut(rest, " ")
		if !matches(template, r.path) {
			t.Fatalf("%s is no %s", r, name)
		}
		status := http.StatusOK
		if _, err := fmt.Sscan(rest, &status); err != nil {
			t.Fatal(err)
		}
		seen[name] = true
		if !strings.HasPrefix(template, "/public/") {
			r = r.As(o.token)
		}
		got := o.Do(t, r).Want(status)
		requireShape(t, got, shape)
		return got
	}

	fresh := d.owner(t)
	requireShape(t, fresh.Do(t, Post("/auth/register", Obj{"email": address("new"), "password": password})).Want(http.StatusCreated),
		expected["POST /auth/register 201"])
	seen["POST /auth/register 201"] = true
	want(t, fresh, "GET /auth/me 200", Get("/auth/me"))
	want(t, fresh, "POST /auth/resend-verification 200", Post("/auth/resend-verification", nil))
	want(t, fresh, "POST /auth/regenerate-api-key 200", Post("/auth/regenerate-api-key", nil))
	want(t, fresh, "POST /billing/cancel 200 trialing", Post("/billing/cancel", nil))
	d.exec(t, "UPDATE account.account SET has_used_trial = false, trial_ends_at = NULL WHERE email = $1", fresh.email)
	want(t, fresh, "POST /billing/start-trial 200", Post("/billing/start-trial", nil))
	want(t, fresh, "POST /billing/checkout 200 new", Post("/billing/checkout", plan("basic")))
	want(t, fresh, "DELETE /auth/me 204", Delete("/auth/me"))
	late := d.subscriber(t, "later", "basic")
	want(t, late, "POST /billing/checkout 200 declined", Post("/billing/checkout", plan("pro")))

	want(t, o, "GET /auth/me 200", Get("/auth/me"))
	want(t, o, "GET /billing/info 200", Get("/billing/info"))
	want(t, o, "POST /billing/portal 200", Post("/billing/portal", nil))
	want(t, o, "POST /billing/preview 200", Post("/billing/preview", plan("pro", "yearly")))
	want(t, o, "POST /billing/preview 200 same", Post("/billing/preview", plan("pro")))
	want(t, o, "POST /billing/checkout 200 upgraded", Post("/billing/checkout", plan("pro", "yearly")))

	// A list that uses all that the interface names.
	mails := Obj{}
	for _, kind := range []string{"signup_confirmation", "referral_milestone", "offboarding"} {
		mails[kind] = want(t, o, "POST /templates 201", Post("/templates", Obj{
			"template_type": kind, "subject_template": "Hello", "html_body_template": "<p>Hello", "text_body_template": "Hello",
		})).Str("template_id")
	}
	id := want(t, o, "POST /waitlists 201", Post("/waitlists", Obj{"name": "Launch"})).Str("waitlist_id")
	settings := Obj{
		"headline": "Soon", "subheadline": "Very", "hero_image_url": "https://example.com/a.png", "name_field": "optional",
		"phone_field": "optional", "require_consent": false, "consent_text": "Yes", "referral_boost": 2, "position_offset": 5,
		"custom_questions": []any{Obj{
			"id": "team_size", "label": "Team size", "type": "dropdown", "required": false,
			"options": []any{"1", "2"},
		}},
		"allowed_email_domains": []any{"example.com", "example.org"}, "webhook_events": []any{"signup.created"},
		"referral_milestones": []any{1}, "email_templates": mails, "require_email_verification": true,
	}
	want(t, o, "PATCH /waitlists/{id} 200", Patch("/waitlists/"+id, Obj{"settings": settings}))
	want(t, o, "GET /waitlists/{id} 200", Get("/waitlists/"+id))
	want(t, o, "GET /waitlists 200", Get("/waitlists"))

	public := "/public/waitlists/" + id
	ada, bob, eve := "ada@example.com", "bob@example.com", "eve@example.com"
	person := func(email string, more Obj) Request {
		body := Obj{
			"email": email, "first_name": "A", "last_name": "B", "phone": "+4930123456", "timezone": "Europe/Berlin",
			"custom_answers": Obj{"team_size": "1"}, "consent": true,
		}
		for name := range strings.FieldsSeq(utmFields) {
			body[name] = "x"
		}
		maps.Copy(body, more)
		return Post(public+"/signups", body)
	}
	referrer := want(t, o, "POST /public/waitlists/{id}/signups 201", person(ada, nil)).Str("referral_token")
	want(t, o, "POST /public/waitlists/{id}/signups 201", person(bob, Obj{"referred_by_token": referrer}))
	want(t, o, "POST /public/waitlists/{id}/signups 201", Post(public+"/signups", Obj{"email": eve}))
	want(t, o, "POST /public/waitlists/{id}/signups 200", person(ada, nil))
	want(t, o, "POST /public/waitlists/{id}/signups 201 trapped", person("bot@example.com", Obj{"website": "x"}))
	want(t, o, "GET /public/waitlists/{id}/signups/{email} 200", Get(public+"/signups/"+ada))
	want(t, o, "GET /public/waitlists/{id}/signups/{email}/status 200", Get(public+"/signups/"+ada+"/status"))
	for _, tc := range []struct{ method, email string }{{http.MethodPost, ada}, {http.MethodGet, bob}, {http.MethodPost, ada}} {
		path := public + "/signups/" + tc.email + "/verify"
		link := d.links.Mint(token.VerifySignup, token.SignupSubject(id, d.number(t, id, tc.email)), time.Now().Add(time.Hour))
		if tc.method == http.MethodGet {
			want(t, o, "GET /public/waitlists/{id}/signups/{email}/verify 200", Get(path+"?token="+link))
		} else {
			want(t, o, "POST /public/waitlists/{id}/signups/{email}/verify 200", Post(path, Obj{"token": link}))
		}
	}
	want(t, o, "GET /public/waitlists/{id}/config 200 pro", Get(public+"/config"))
	want(t, o, "GET /public/waitlists/{id}/count 200", Get(public+"/count"))
	want(t, o, "GET /public/waitlists/{id}/leaderboard 200", Get(public+"/leaderboard"))
	want(t, o, "GET /waitlists/{id}/signups 200", Get("/waitlists/"+id+"/signups?limit=2"))
	want(t, o, "GET /waitlists/{id}/signups 200", Get("/waitlists/"+id+"/signups"))
	want(t, o, "PATCH /waitlists/{id}/signups/{email}/position 200", Patch("/waitlists/"+id+"/signups/"+ada+"/position", Obj{"position": 2}))
	want(t, o, "GET /waitlists/{id}/stats 200", Get("/waitlists/"+id+"/stats"))
	want(t, o, "POST /waitlists/{id}/import 200", Post("/waitlists/"+id+"/import", Obj{"signups": []any{
		Obj{"email": "one@example.com"}, Obj{"email": "one@example.com"}, Obj{"email": "none"},
	}}))
	header, _, _ := strings.Cut(string(want(t, o, "GET /waitlists/{id}/export 200", Get("/waitlists/"+id+"/export")).Body), "\r\n")
	if header != "email,first_name,last_name,phone,position,referral_count,referral_token,referred_by,"+
		"utm_source,utm_medium,utm_campaign,utm_term,utm_content,Team size,email_opt_out,email_opt_out_at,"+
		"consent_given_at,consent_text_version,privacy_policy_version,email_verified,created_at" {
		t.Errorf("the export has the columns %s", header)
	}
	o.awaitSeries(t, id, 1, 4, 1)
	want(t, o, "GET /waitlists/{id}/analytics 200", Get("/waitlists/"+id+"/analytics?range=7d"))
	want(t, o, "GET /waitlists/{id}/analytics/utm 200", Get("/waitlists/"+id+"/analytics/utm"))
	want(t, o, "POST /waitlists/{id}/blasts 200", Post("/waitlists/"+id+"/blasts", Obj{"subject": "Hi", "text_body": "Hi"}))
	want(t, o, "GET /waitlists/{id}/blasts 200", Get("/waitlists/"+id+"/blasts"))

	template := "/templates/" + fmt.Sprint(mails["offboarding"])
	want(t, o, "GET /templates 200", Get("/templates"))
	want(t, o, "GET /templates/{template_id} 200", Get(template))
	want(t, o, "PATCH /templates/{template_id} 200", Patch(template, Obj{"name": "Bye"}))
	want(t, o, "DELETE /templates/{template_id} 204", Delete(template))
	domain := domainName()
	want(t, o, "POST /domains/verify 200", newDomain(domain))
	want(t, o, "GET /domains 200", Get("/domains"))
	want(t, o, "GET /domains/{domain}/status 200", domainStatus(domain))
	want(t, o, "DELETE /domains/{domain} 204", Delete("/domains/"+domain))
	mate := address("mate")
	want(t, o, "POST /team/invite 201", invite(mate, "admin"))
	want(t, o, "GET /team 200", Get("/team"))
	want(t, o, "DELETE /team/{email} 204", Delete("/team/"+mate))

	// Every error of every route has the same body.
	for name := range expected {
		method, rest, _ := strings.Cut(name, " ")
		template, _, _ := strings.Cut(rest, " ")
		if template == "/auth/register" {
			continue
		}
		path := strings.NewReplacer("{id}", "00000000-0000-7000-8000-000000000000", "{email}", ada, "{template_id}", "x",
			"{domain}", domain).Replace(template)
		status := http.StatusUnauthorized
		if strings.HasPrefix(template, "/public/") {
			status = http.StatusNotFound
		}
		r := o.Do(t, NewRequest(method, path+"?token=x", bodyOf(method, Obj{"email": ada, "token": "x"})).Invalid()).Want(status)
		requireShape(t, r, errorShape(r))
	}
	for _, r := range []*Response{
		o.Do(t, Post("/auth/register", Obj{"email": "x", "password": "x"}).Invalid()).Invalid("email", "password"),
		o.Do(t, Post("/auth/register", nil).Raw([]byte("{")).Invalid()).WantError(http.StatusBadRequest, "INVALID_BODY"),
		o.Do(t, Post("/auth/register", Obj{"email": o.email, "password": password})).WantError(http.StatusConflict, "CONFLICT"),
		o.Do(t, Post("/auth/regenerate-api-key", nil).Key(o.key)).WantError(http.StatusForbidden, "FORBIDDEN"),
		late.Do(t, Get("/team").As(late.token)).WantError(http.StatusForbidden, "TIER_REQUIRED"),
		o.Do(t, Post(public+"/signups", Obj{"email": "x"}).Invalid()).Invalid("email"),
		o.Do(t, Post(public+"/signups", Obj{"email": "x@example.net"})).WantError(http.StatusForbidden, "DOMAIN_RESTRICTED"),
		o.Do(t, Post("/waitlists/"+id+"/blasts", Obj{
			"subject": "x", "text_body": "x", "send_at": "2030-01-01T00:00:00Z", "segment": "x", "filter": Obj{}, "test": true,
			"test_to": []any{}, "draft": false,
		}).As(o.token).Invalid()).Invalid("send_at", "segment", "filter", "test", "test_to", "draft"),
		o.Do(t, Post(public+"/unsubscribe", Obj{"email": ada, "token": "x"})).WantError(http.StatusForbidden, "INVALID_TOKEN"),
	} {
		requireShape(t, r, errorShape(r))
	}

	del := want(t, o, "POST /public/waitlists/{id}/unsubscribe 200",
		Post(public+"/unsubscribe", Obj{"email": ada, "token": d.unsubscribeToken(t, id, ada)})).Str("delete_token")
	want(t, o, "POST /public/waitlists/{id}/delete-my-data 200", Post(public+"/delete-my-data", Obj{"email": ada, "token": del}))
	want(t, o, "DELETE /waitlists/{id}/signups/{email} 204", Delete("/waitlists/"+id+"/signups/"+bob))
	o.set(t, id, Obj{"redirect_url": "https://example.com/thanks"})
	want(t, o, "POST /public/waitlists/{id}/signups 201 redirected", person("x@example.com", nil))
	o.set(t, id, Obj{"redirect_url": nil, "hide_position": true})
	want(t, o, "POST /public/waitlists/{id}/signups 201 hidden", person("y@example.com", nil))
	want(t, o, "GET /public/waitlists/{id}/signups/{email} 200 hidden", Get(public+"/signups/"+eve))
	want(t, o, "POST /billing/cancel 200 active", Post("/billing/cancel", nil))
	for _, tier := range []string{"advanced", "basic"} {
		d.setTier(t, o, tier, "active")
		want(t, o, "GET /public/waitlists/{id}/config 200 "+tier, Get(public+"/config"))
	}
	want(t, o, "DELETE /waitlists/{id} 204", Delete("/waitlists/"+id))

	for name := range expected {
		if !seen[name] {
			t.Errorf("nothing has asked for %s", name)
		}
	}
}

func bodyOf(method string, body Obj) any {
	if method == http.MethodGet || method == http.MethodDelete {
		return nil
	}
	return body
}

// matches reports whether a path is one of a template.
func matches(template, path string) bool {
	path, _, _ = strings.Cut(path, "?")
	parts, of := strings.Split(path, "/"), strings.Split(template, "/")
	return slices.EqualFunc(parts, of, func(part, of string) bool { return part == of || strings.HasPrefix(of, "{") })
}
