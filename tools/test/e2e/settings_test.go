package e2e

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
)

// question returns a valid custom question with changes.
func question(id string, changes Obj) Obj {
	q := Obj{"id": id, "label": "Team size?", "type": "dropdown", "required": false, "options": []any{"1-10", "11+"}}
	for k, v := range changes {
		if v == absent {
			delete(q, k)
		} else {
			q[k] = v
		}
	}
	return q
}

// absent removes a key in question.
const absent = "\x01absent"

func repeated(n int, f func(i int) any) []any {
	out := make([]any, n)
	for i := range out {
		out[i] = f(i)
	}
	return out
}

func testSettings(t *testing.T, d *deployment) {
	o := d.owner(t)
	id := o.waitlist(t, nil)
	options := func(n int) []any { return repeated(n, func(i int) any { return fmt.Sprint("option ", i) }) }
	domains := func(n int) []any { return repeated(n, func(i int) any { return fmt.Sprintf("d%d.example.com", i) }) }
	questions := func(n int) []any { return repeated(n, func(i int) any { return question(fmt.Sprint("q", i), nil) }) }
	numbers := func(n int) []any { return repeated(n, func(i int) any { return i + 1 }) }
	one := func(changes Obj) []any { return []any{question("q", changes)} }
	url := func(n int) string { return "https://example.com/" + strings.Repeat("x", n-len("https://example.com/")) }
	flags := struct{ good, bad []any }{[]any{true, false}, []any{"true", 1, 0, []any{}, Obj{}}}

	for _, tc := range []struct {
		setting string
		good    []any
		bad     []any
	}{
		{
			"headline",
			[]any{"x", strings.Repeat("x", 100), strings.Repeat(emoji, 100), "<b>&\"'", "line\nbreak"},
			[]any{strings.Repeat("x", 101), strings.Repeat(emoji, 101), 5, true, []any{}, Obj{}, "a\x00b"},
		},
		{"subheadline", []any{strings.Repeat("é", 200)}, []any{strings.Repeat("é", 201), 5, "\x00"}},
		{
			"hero_image_url",
			[]any{"https://example.com/a.png", "http://example.com/a.png?x=y#z", url(2000)},
			[]any{
				url(2001), "javascript:alert(1)", "data:image/png;base64,AAAA", "ftp://example.com/a", "example.com/a.png",
				"//example.com/a.png", "https://", "x", 5, " javascript:alert(1)", "java\nscript:alert(1)", "https://exa mple.com/",
			},
		},
		{"name_field", []any{"optional", "required", "hidden"}, []any{"Optional", "", "none", 1, true, []any{"optional"}}},
		{"phone_field", []any{"hidden", "optional", "required"}, []any{"HIDDEN", "", "none", 1, nil2()}},
		{
			"custom_questions",
			[]any{
				[]any{},
				questions(10), one(Obj{"id": "a"}), one(Obj{"id": strings.Repeat("a", 64)}), one(Obj{"id": "A-z_0"}),
				one(Obj{"label": strings.Repeat(emoji, 200)}), one(Obj{"options": options(1)}), one(Obj{"options": options(50)}),
				one(Obj{"options": []any{strings.Repeat(emoji, 200)}}), one(Obj{"required": true}),
			},
			[]any{
				questions(11), "x", 5,
				Obj{},
				[]any{"x"},
				[]any{nil},
				one(Obj{"id": ""}), one(Obj{"id": strings.Repeat("a", 65)}),
				one(Obj{"id": "a b"}), one(Obj{"id": "ä"}), one(Obj{"id": 5}), one(Obj{"id": absent}), one(Obj{"id": nil}),
				[]any{question("same", nil), question("same", nil)},
				one(Obj{"label": ""}), one(Obj{"label": "  "}), one(Obj{"label": absent}), one(Obj{"label": nil}), one(Obj{"label": 5}),
				one(Obj{"label": strings.Repeat("x", 201)}),
				one(Obj{"type": "radio"}), one(Obj{"type": absent}), one(Obj{"type": 5}), one(Obj{"type": ""}),
				one(Obj{"required": "yes"}), one(Obj{"required": 1}),
				one(Obj{"options": absent}), one(Obj{"options": nil}), one(Obj{"options": []any{}}), one(Obj{"options": options(51)}),
				one(Obj{"options": "x"}),
				one(Obj{"options": []any{""}}), one(Obj{"options": []any{"a", "a"}}), one(Obj{"options": []any{5}}),
				one(Obj{"options": []any{strings.Repeat("x", 201)}}),
				one(Obj{"label": "a\x00"}),
			},
		},
		{
			"redirect_url",
			[]any{"https://example.com/thanks", url(500)},
			[]any{url(501), "http://example.com/", "javascript:alert(1)", "https://", "https:///x", "example.com", 5, true},
		},
		{"hide_branding", flags.good, flags.bad},
		{"hide_position", flags.good, flags.bad},
		{"exclude_personal_emails", flags.good, flags.bad},
		{
			"allowed_email_domains",
			[]any{[]any{}, []any{"example.com"}, domains(100)},
			[]any{
				domains(101), "example.com",
				Obj{},
				[]any{"nope"},
				[]any{"ada@example.com"},
				[]any{""},
				[]any{"-x.com"},
				[]any{"x..com"},
				[]any{"*.example.com"},
				[]any{5},
				[]any{nil},
				[]any{"https://example.com"},
				[]any{"exa mple.com"},
			},
		},
		{"webhook_events", []any{
			[]any{},
			[]any{"signup.created"},
			[]any{"referral.credited"},
			[]any{"signup.created", "referral.credited"},
		}, []any{"signup.created", []any{"signup.deleted"}, []any{""}, []any{5}, Obj{}, true}},
		{"status", []any{"closed", "open"}, []any{"paused", "", "Open", 1, true}},
		{"show_social_proof", flags.good, flags.bad},
		{"require_consent", flags.good, flags.bad},
		{
			"consent_text",
			[]any{
				"I agree", strings.Repeat(emoji, 500),
				"See [terms](https://example.com/terms) and [us](mailto:us@example.com), [old](http://example.com)",
			},
			[]any{
				strings.Repeat("x", 501), 5, "[x](javascript:alert(1))", "[x](data:text/html,x)",
				"ok [a](https://example.com) [x](JaVaScRiPt:alert(1))",
			},
		},
		{"referral_boost", []any{1, 100, 50}, []any{0, 101, -1, 1.5, "5", true, []any{1}, 1e300}},
		{"position_offset", []any{0, 1000000, 17}, []any{-1, 1000001, 0.5, "0", false}},
		{"notify_referrer", flags.good, flags.bad},
		{"sms_notify_referrer", flags.good, flags.bad},
		{"require_email_verification", flags.good, flags.bad},
		{"referral_guard", []any{"flag", "withhold", "off"}, []any{"on", "", "Flag", 1, true, []any{"flag"}}},
		{"credit_after_verification", flags.good, flags.bad},
		{
			"appearance",
			[]any{
				Obj{},
				Obj{"accent": "#3730a3"},
				Obj{"logo_url": url(2000), "button_text": strings.Repeat(emoji, 40), "locale": "de"},
			},
			[]any{
				Obj{"accent": "red"},
				Obj{"accent": "#fff"},
				Obj{"accent": "#3730a3;"},
				Obj{"accent": 5},
				Obj{"logo_url": "http://example.com/logo.png"},
				Obj{"logo_url": url(2001)},
				Obj{"logo_url": "javascript:alert(1)"},
				Obj{"button_text": strings.Repeat("x", 41)},
				Obj{"button_text": true},
				Obj{"locale": "fr"},
				Obj{"locale": "DE"},
				Obj{"font": "Arial"},
				[]any{},
				"dark", 5,
			},
		},
		{
			"referral_milestones",
			[]any{[]any{}, []any{1}, []any{10000}, numbers(10), []any{5, 5}},
			[]any{numbers(11), []any{0}, []any{10001}, []any{-1}, []any{1.5}, []any{"5"}, []any{nil}, 5, "5", Obj{}},
		},
		{
			"email_templates",
			[]any{Obj{}},
			[]any{
				Obj{"signup_confirmation": unknownID},
				Obj{"referral_milestone": "nope"},
				Obj{"offboarding": 5},
				Obj{"blast": unknownID},
				Obj{"nope": unknownID},
				[]any{},
				"x",
			},
		},
	} {
		t.Run(tc.setting, func(t *testing.T) {
			for i, v := range tc.good {
				t.Run(fmt.Sprintf("good %d", i), func(t *testing.T) {
					o.set(t, id, Obj{tc.setting: v}).WantJSON("settings."+tc.setting, v)
					o.Do(t, Get("/waitlists/"+id).As(o.token)).WantJSON("settings."+tc.setting, v)
				})
			}
			for i, v := range tc.bad {
				t.Run(fmt.Sprintf("bad %d", i), func(t *testing.T) {
					before := o.Do(t, Get("/waitlists/"+id).As(o.token))
					r := o.Do(t, Patch("/waitlists/"+id, Obj{"settings": Obj{tc.setting: v}}).As(o.token).Invalid())
					r.WantError(http.StatusBadRequest, "VALIDATION_ERROR")
					for _, f := range r.Fields() {
						if !strings.HasPrefix(f, "settings."+tc.setting) {
							t.Errorf("%s → field %q", r.Request, f)
						}
					}
					after := o.Do(t, Get("/waitlists/"+id).As(o.token))
					if string(before.Body) != string(after.Body) {
						t.Errorf("a rejected request changed %s to %s", before.Body, after.Body)
					}
				})
			}
			t.Run("null", func(t *testing.T) {
				r := o.set(t, id, Obj{tc.setting: nil})
				if standard, always := defaults()[tc.setting]; always {
					r.WantJSON("settings."+tc.setting, standard)
				} else {
					r.WantAbsent("settings." + tc.setting)
				}
			})
		})
	}
	t.Run("channel URLs", func(t *testing.T) { testChannelURLs(t, o, id) })
	t.Run("integers", func(t *testing.T) {
		body := []byte(`{"settings":{"referral_boost":5.0}}`)
		o.Do(t, Patch("/waitlists/"+id, nil).Raw(body).With("Content-Type", "application/json").As(o.token)).Want(http.StatusOK).
			WantJSON("settings.referral_boost", 5)
	})
	t.Run("domains are lower-cased", func(t *testing.T) {
		o.set(t, id, Obj{"allowed_email_domains": []any{"Example.COM"}}).WantJSON("settings.allowed_email_domains", []any{"example.com"})
	})
	t.Run("types of questions", func(t *testing.T) {
		o.set(t, id, Obj{"custom_questions": []any{
			Obj{"id": "a", "label": "A", "type": "text"}, Obj{"id": "b", "label": "B", "type": "checkbox", "required": true},
		}})
	})
	t.Run("whole replacement", func(t *testing.T) {
		o.set(t, id, Obj{"custom_questions": []any{question("one", nil), question("two", nil)}})
		o.set(t, id, Obj{"custom_questions": []any{question("three", nil)}}).WantJSON("settings.custom_questions", []any{question("three", nil)})
	})
	t.Run("unknown keys", func(t *testing.T) {
		o.Do(t, Patch("/waitlists/"+id, Obj{"settings": Obj{"headlines": "x", "Headline": "x", "": 1}}).As(o.token).Invalid()).
			Invalid("settings.headlines", "settings.Headline", "settings.")
	})
}

// nil2 returns a value that has no setting's type.
func nil2() any { return []any{nil} }

// testChannelURLs sends every notation of hosts that must not be called.
func testChannelURLs(t *testing.T, o *owner, id string) {
	refused := []string{
		"http://example.com/hook", "ftp://example.com/hook", "example.com/hook", "https://", "https:///hook", "https:example.com",
		"//example.com/hook",
		"https://exa mple.com/", "https://example.com:port/", "https://user@example.com/", "https://user:secret@example.com/",
		"https://@example.com/",
		"https://localhost/", "https://LOCALHOST/", "https://localhost./", "https://api.localhost/", "https://a.b.localhost:8443/",
		"https://loc%61lhost/",
		"https://127.0.0.1/", "https://127.0.0.2/", "https://127.255.255.255/", "https://127.0.0.1:8443/x", "https://127.0.0.1./",
		"https://127.1/", "https://127.0.1/", "https://2130706433/", "https://0x7f000001/", "https://0x7f.1/", "https://0177.0.0.1/",
		"https://017700000001/", "https://127.0.0.01/",
		"https://%31%32%37.0.0.1/", "https://１２７.０.０.１/", "https://①②⑦.⓪.⓪.①/",
		"https://ⓛⓞⓒⓐⓛⓗⓞⓢⓣ/", "https://127。0。0。1/",
		"https://0.0.0.0/", "https://0/", "https://0.1.2.3/", "https://10.0.0.0/", "https://10.255.255.255/", "https://172.16.0.0/",
		"https://172.31.255.255/",
		"https://192.168.0.1/", "https://192.168.255.255/", "https://169.254.169.254/", "https://169.254.0.1/", "https://100.64.0.0/",
		"https://100.127.255.255/",
		"https://192.0.0.1/", "https://192.0.2.1/", "https://198.51.100.1/", "https://203.0.113.1/", "https://198.18.0.1/",
		"https://198.19.255.255/",
		"https://224.0.0.1/", "https://239.255.255.255/", "https://240.0.0.1/", "https://255.255.255.255/",
		"https://[::1]/", "https://[0:0:0:0:0:0:0:1]/", "https://[::]/", "https://[fe80::1]/", "https://[fe80::1%25eth0]/",
		"https://[fc00::1]/", "https://[fdff::1]/", "https://[ff02::1]/",
		"https://[::ffff:127.0.0.1]/", "https://[::ffff:7f00:1]/", "https://[::ffff:10.0.0.1]/", "https://[::127.0.0.1]/",
		"https://[64:ff9b::7f00:1]/", "https://[64:ff9b::10.0.0.1]/", "https://[2002:7f00:1::]/", "https://[2002:a00:1::1]/",
		"https://[2001:0:4136:e378:8000:63bf:3fff:fdd2]/", "https://[2001:db8::1]/",
		"https://134744072/", "https://0x8.8.8.8/", "https://010.8.8.8/", "https://8.8.2056/", "https://8.8.8.8.8/",
	}
	allowed := []string{
		"https://example.com/hook", "https://hooks.example.com:8443/services/T0/B0?x=y", "HTTPS://example.com/hook",
		"https://8.8.8.8/hook", "https://[2606:4700:4700::1111]/hook",
		"https://9.255.255.255/", "https://11.0.0.0/", "https://172.15.255.255/", "https://172.32.0.0/", "https://192.167.255.255/",
		"https://192.169.0.0/",
		"https://169.253.255.255/", "https://169.255.0.0/", "https://100.63.255.255/", "https://100.128.0.0/",
		"https://126.255.255.255/", "https://128.0.0.1/",
		"https://localhost.example.com/", "https://127.0.0.1.example.com/", "https://bücher.example/hook",
	}
	for _, setting := range []string{"webhook_url", "slack_webhook_url", "discord_webhook_url"} {
		t.Run(setting, func(t *testing.T) {
			for _, u := range allowed {
				o.set(t, id, Obj{setting: u})
			}
			before := o.set(t, id, Obj{setting: allowed[0]}).WantJSON("settings."+setting, allowed[0])
			for _, u := range refused {
				t.Run(u, func(t *testing.T) {
					o.Do(t, Patch("/waitlists/"+id, Obj{"settings": Obj{setting: u}}).As(o.token).Invalid()).Invalid("settings." + setting)
				})
			}
			for _, v := range []any{5, true, []any{allowed[0]}} {
				o.Do(t, Patch("/waitlists/"+id, Obj{"settings": Obj{setting: v}}).As(o.token).Invalid()).Invalid("settings." + setting)
			}
			after := o.Do(t, Get("/waitlists/"+id).As(o.token))
			if string(before.Body) != string(after.Body) {
				t.Errorf("rejected URLs changed %s to %s", before.Body, after.Body)
			}
			o.set(t, id, Obj{setting: nil}).WantJSON("settings."+setting, "")
		})
	}
}
