package waitlist_test

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"waitlist.internal/libs/access"
	"waitlist.internal/libs/apierr"
	"waitlist.internal/libs/body"
	"waitlist.internal/libs/seal"
	"waitlist.internal/services/signup/waitlist"
)

const listID = "0193d4a2-5c1e-7a41-8000-000000000001"

func secrets(t testing.TB) *seal.Ring {
	t.Helper()
	ring, err := seal.ParseRing("k1:" + base64.StdEncoding.EncodeToString([]byte(strings.Repeat("k", 32))))
	if err != nil {
		t.Fatal(err)
	}
	return ring
}

// confirmationTemplate is the one template that assignable knows.
const confirmationTemplate = "0193d4a2-5c1e-7a41-8000-00000000000a"

func assignable(a waitlist.Assignment) bool {
	return a == waitlist.Assignment{Mail: "signup_confirmation", TemplateID: confirmationTemplate}
}

// merge applies a settings object to stored settings as a PATCH does.
func merge(t testing.TB, stored, patch string, tier access.Tier) (string, error) {
	t.Helper()
	before, err := waitlist.DecodeSettings([]byte(stored))
	if err != nil {
		t.Fatal(err)
	}
	in, err := body.Parse([]byte(`{"settings":` + patch + `}`))
	if err != nil {
		t.Fatal(err)
	}
	o, ok := in.Object("settings")
	if !ok {
		t.Fatalf("%s is no object", patch)
	}
	merged, gated, err := before.Merge(o, listID, tier, secrets(t), assignable)
	if err != nil {
		t.Fatal(err)
	}
	if err := in.Err(); err != nil {
		return "", err
	}
	return string(merged), gated
}

func fields(err error) []string {
	if err == nil {
		return nil
	}
	var out []string
	for _, f := range apierr.From(err).Fields {
		out = append(out, f.Field)
	}
	return out
}

func TestMergeAccepts(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ name, stored, patch, want string }{
		{"nothing", `{}`, `{}`, `{}`},
		{"nothing keeps what is there", `{"headline":"A"}`, `{}`, `{"headline":"A"}`},
		{"one setting", `{}`, `{"headline":"Hi"}`, `{"headline":"Hi"}`},
		{"others stay", `{"headline":"A","referral_boost":5}`, `{"headline":"B"}`, `{"headline":"B","referral_boost":5}`},
		{"null clears", `{"headline":"A","referral_boost":5}`, `{"headline":null}`, `{"referral_boost":5}`},
		{"a default is not stored", `{"referral_boost":5,"show_social_proof":false}`, `{"referral_boost":1,"show_social_proof":true}`, `{}`},
		{"empty text clears", `{"headline":"A","redirect_url":"https://a.example/"}`, `{"headline":"","redirect_url":""}`, `{}`},
		{"code points count", `{}`, `{"headline":"` + strings.Repeat("ü", 100) + `"}`, `{"headline":"` + strings.Repeat("ü", 100) + `"}`},
		{"integer with a fraction of zero", `{}`, `{"referral_boost":5.0}`, `{"referral_boost":5}`},
		{"bounds", `{}`, `{"referral_boost":100,"position_offset":1000000}`, `{"position_offset":1000000,"referral_boost":100}`},
		{"field modes", `{}`, `{"name_field":"hidden","phone_field":"required"}`, `{"name_field":"hidden","phone_field":"required"}`},
		{"status", `{"status":"closed"}`, `{"status":"open"}`, `{}`},
		{"no events", `{}`, `{"webhook_events":[]}`, `{"webhook_events":[]}`},
		{"one event twice", `{}`, `{"webhook_events":["referral.credited","referral.credited"]}`, `{"webhook_events":["referral.credited"]}`},
		{"no events to unset", `{"webhook_events":[]}`, `{"webhook_events":null}`, `{}`},
		{
			"domains", `{}`, `{"allowed_email_domains":["Example.COM","bücher.example","example.com"]}`,
			`{"allowed_email_domains":["example.com","xn--bcher-kva.example"]}`,
		},
		{
			"arrays are replaced", `{"allowed_email_domains":["a.example"]}`, `{"allowed_email_domains":["b.example"]}`,
			`{"allowed_email_domains":["b.example"]}`,
		},
		{"milestones keep their order", `{}`, `{"referral_milestones":[5,1,10000,5]}`, `{"referral_milestones":[5,1,10000,5]}`},
		{"no milestones", `{"referral_milestones":[5]}`, `{"referral_milestones":[]}`, `{}`},
		{"guard", `{}`, `{"referral_guard":"withhold"}`, `{"referral_guard":"withhold"}`},
		{"guard off", `{}`, `{"referral_guard":"off"}`, `{"referral_guard":"off"}`},
		{"no guard", `{"referral_guard":"flag"}`, `{"referral_guard":null}`, `{}`},
		{"credit at once", `{}`, `{"credit_after_verification":false}`, `{"credit_after_verification":false}`},
		{"no word on credit", `{"credit_after_verification":false}`, `{"credit_after_verification":null}`, `{}`},
		{"credit later", `{}`, `{"credit_after_verification":true}`, `{"credit_after_verification":true}`},
		{
			"look", `{}`, `{"appearance":{"accent":"#AABBCC","logo_url":"https://a.example/l.png","button_text":" Go ","locale":"de"}}`,
			`{"appearance":{"accent":"#aabbcc","logo_url":"https://a.example/l.png","button_text":"Go","locale":"de"}}`,
		},
		{"a look is replaced", `{"appearance":{"locale":"de"}}`, `{"appearance":{"accent":"#aabbcc"}}`, `{"appearance":{"accent":"#aabbcc"}}`},
		{"no look", `{"appearance":{"locale":"de"}}`, `{"appearance":null}`, `{}`},
		{"an empty look", `{"appearance":{"locale":"de"}}`, `{"appearance":{"locale":null,"accent":"","logo_url":""}}`, `{"appearance":{}}`},
		{"no templates", `{}`, `{"email_templates":{}}`, `{}`},
		{"null templates", `{}`, `{"email_templates":{"signup_confirmation":null,"offboarding":""}}`, `{}`},
		{
			"template", `{}`, `{"email_templates":{"signup_confirmation":"` + strings.ToUpper(confirmationTemplate) + `"}}`,
			`{"email_templates":{"signup_confirmation":"` + confirmationTemplate + `"}}`,
		},
		{
			"templates are replaced", `{"email_templates":{"offboarding":"` + listID + `"}}`,
			`{"email_templates":{"signup_confirmation":"` + confirmationTemplate + `"}}`,
			`{"email_templates":{"signup_confirmation":"` + confirmationTemplate + `"}}`,
		},
		{
			"template that is there stays", `{"email_templates":{"offboarding":"` + listID + `"}}`,
			`{"email_templates":{"offboarding":"` + listID + `"}}`, `{"email_templates":{"offboarding":"` + listID + `"}}`,
		},
		{"no templates any more", `{"email_templates":{"offboarding":"` + listID + `"}}`, `{"email_templates":{"offboarding":""}}`, `{}`},
		{
			"hero image over http", `{}`, `{"hero_image_url":"http://img.example/a.png?x=1&y=2"}`,
			`{"hero_image_url":"http://img.example/a.png?x=1\u0026y=2"}`,
		},
		{
			"questions", `{}`,
			`{"custom_questions":[{"id":"a","label":" Why? ","type":"text"},{"id":"B_-9","label":"Size","type":"dropdown","required":true,` +
				`"options":["1","2 "]},{"id":"c","label":"OK","type":"checkbox","options":[]}]}`,
			`{"custom_questions":[{"id":"a","label":"Why?","type":"text","required":false},{"id":"B_-9","label":"Size","type":"dropdown",` +
				`"required":true,"options":["1","2 "]},{"id":"c","label":"OK","type":"checkbox","required":false}]}`,
		},
		{
			"consent text with links", `{}`, `{"consent_text":"[a](https://a.example) [b]( HTTP://b.example \"t\") [c](mailto:c@example.com) ` +
				`[d] (x) e](` + `<https://e.example>)"}`,
			`{"consent_text":"[a](https://a.example) [b]( HTTP://b.example \"t\") [c](mailto:c@example.com) [d] (x) ` +
				`e](\u003chttps://e.example\u003e)"}`,
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got, err := merge(t, tt.stored, tt.patch, access.Pro)
			if err != nil {
				t.Fatalf("%v: %v", err, fields(err))
			}
			if got != tt.want {
				t.Fatalf("stored\n%s, want\n%s", got, tt.want)
			}
		})
	}
}

func TestMergeRefuses(t *testing.T) {
	t.Parallel()
	question := func(q string) string { return `{"custom_questions":[` + q + `]}` }
	many := func(n int, element string) string { return strings.TrimSuffix(strings.Repeat(element+",", n), ",") }
	for _, tt := range []struct{ name, patch, field string }{
		{"unknown key", `{"headlin":"x"}`, "headlin"},
		{"unknown key with null", `{"headlin":null}`, "headlin"},
		{"text of the wrong type", `{"headline":5}`, "headline"},
		{"text too long", `{"headline":"` + strings.Repeat("a", 101) + `"}`, "headline"},
		{"U+0000", `{"subheadline":"a\u0000"}`, "subheadline"},
		{"subheadline too long", `{"subheadline":"` + strings.Repeat("a", 201) + `"}`, "subheadline"},
		{"consent text too long", `{"consent_text":"` + strings.Repeat("a", 501) + `"}`, "consent_text"},
		{"consent link with a script", `{"consent_text":"see [this](javascript:alert(1))"}`, "consent_text"},
		{"consent link with a script behind a good one", `{"consent_text":"[a](https://a.example) [b]( JavaScript:x)"}`, "consent_text"},
		{"consent link with data", `{"consent_text":"[a](<data:text/html,x>)"}`, "consent_text"},
		{"consent link defined below", `{"consent_text":"[a][1]\n\n [1]: javascript:alert(1)"}`, "consent_text"},
		{"consent link in angle brackets", `{"consent_text":"see <JavaScript:alert(1)>"}`, "consent_text"},
		{"consent link defined over two lines", `{"consent_text":"[a][b\nc]\n\n[b\nc]: javascript:alert(1)"}`, "consent_text"},
		{"consent link with a tab", `{"consent_text":"[a](java\tscript:alert(1))"}`, "consent_text"},
		{"consent link over two lines", `{"consent_text":"[a](java\nscript:alert(1))"}`, "consent_text"},
		{"consent link over two lines, escaped", `{"consent_text":"[a](java\\\nscript:alert(1))"}`, "consent_text"},
		{"consent link in a quote", `{"consent_text":"> [a][1]\n>\n> [1]:\n> javascript:alert(1)"}`, "consent_text"},
		{"consent link with an entity", `{"consent_text":"[a](javascript&colon;alert(1))"}`, "consent_text"},
		{"consent picture", `{"consent_text":"![a](//x.example/pixel)"}`, "consent_text"},
		{"consent link without scheme", `{"consent_text":"[a](/privacy)"}`, "consent_text"},
		{"consent link without target", `{"consent_text":"[a]()"}`, "consent_text"},
		{"field mode", `{"name_field":"maybe"}`, "name_field"},
		{"field mode in capitals", `{"phone_field":"Hidden"}`, "phone_field"},
		{"field mode of the wrong type", `{"phone_field":true}`, "phone_field"},
		{"status", `{"status":"paused"}`, "status"},
		{"boolean as text", `{"show_social_proof":"true"}`, "show_social_proof"},
		{"boolean as number", `{"hide_position":1}`, "hide_position"},
		{"boost below", `{"referral_boost":0}`, "referral_boost"},
		{"boost above", `{"referral_boost":101}`, "referral_boost"},
		{"boost as text", `{"referral_boost":"5"}`, "referral_boost"},
		{"boost as fraction", `{"referral_boost":1.5}`, "referral_boost"},
		{"offset below", `{"position_offset":-1}`, "position_offset"},
		{"offset above", `{"position_offset":1000001}`, "position_offset"},
		{"offset far above", `{"position_offset":1e300}`, "position_offset"},
		{"hero image as data", `{"hero_image_url":"data:image/png;base64,x"}`, "hero_image_url"},
		{"hero image with a directive", `{"hero_image_url":"https://a;sandbox/x.png"}`, "hero_image_url"},
		{"logo with a directive", `{"appearance":{"logo_url":"https://a;sandbox/x.png"}}`, "appearance.logo_url"},
		{"hero image as script", `{"hero_image_url":"javascript:x"}`, "hero_image_url"},
		{"hero image too long", `{"hero_image_url":"https://a.example/` + strings.Repeat("a", 1983) + `"}`, "hero_image_url"},
		{"redirect over http", `{"redirect_url":"http://a.example/"}`, "redirect_url"},
		{"redirect too long", `{"redirect_url":"https://a.example/` + strings.Repeat("a", 483) + `"}`, "redirect_url"},
		{"webhook over http", `{"webhook_url":"http://a.example/"}`, "webhook_url"},
		{"webhook to loopback", `{"webhook_url":"https://127.0.0.1/"}`, "webhook_url"},
		{"slack to metadata", `{"slack_webhook_url":"https://169.254.169.254/"}`, "slack_webhook_url"},
		{"discord to localhost", `{"discord_webhook_url":"https://localhost/"}`, "discord_webhook_url"},
		{"events of the wrong type", `{"webhook_events":"signup.created"}`, "webhook_events"},
		{"unknown event", `{"webhook_events":["signup.created","signup.removed"]}`, "webhook_events[1]"},
		{"domain with at", `{"allowed_email_domains":["a.example","@b.example"]}`, "allowed_email_domains[1]"},
		{"domain of one label", `{"allowed_email_domains":["localhost"]}`, "allowed_email_domains[0]"},
		{"domain of the wrong type", `{"allowed_email_domains":[null]}`, "allowed_email_domains[0]"},
		{"101 domains", `{"allowed_email_domains":[` + many(101, `"a.example"`) + `]}`, "allowed_email_domains"},
		{"11 milestones", `{"referral_milestones":[` + many(11, "1") + `]}`, "referral_milestones"},
		{"milestone below", `{"referral_milestones":[1,0]}`, "referral_milestones[1]"},
		{"milestone above", `{"referral_milestones":[10001]}`, "referral_milestones[0]"},
		{"milestone as text", `{"referral_milestones":["5"]}`, "referral_milestones[0]"},
		{"milestones of the wrong type", `{"referral_milestones":{}}`, "referral_milestones"},
		{
			"template that does not exist", `{"email_templates":{"offboarding":"0193d4a2-5c1e-7a41-8000-000000000001"}}`,
			"email_templates.offboarding",
		},
		{"template of another mail", `{"email_templates":{"offboarding":"` + confirmationTemplate + `"}}`, "email_templates.offboarding"},
		{
			"template without an id", `{"email_templates":{"signup_confirmation":"urn:uuid:` + confirmationTemplate + `"}}`,
			"email_templates.signup_confirmation",
		},
		{"template of the wrong type", `{"email_templates":{"signup_confirmation":5}}`, "email_templates.signup_confirmation"},
		{"unknown mail", `{"email_templates":{"blast":null}}`, "email_templates.blast"},
		{"templates of the wrong type", `{"email_templates":[]}`, "email_templates"},
		{"11 questions", question(many(11, `{"id":"a","label":"a","type":"text"}`)), "custom_questions"},
		{"questions of the wrong type", `{"custom_questions":{}}`, "custom_questions"},
		{"question of the wrong type", question(`"a"`), "custom_questions[0]"},
		{"question without id", question(`{"label":"a","type":"text"}`), "custom_questions[0].id"},
		{"question's id with a blank", question(`{"id":"a b","label":"a","type":"text"}`), "custom_questions[0].id"},
		{"question's id too long", question(`{"id":"` + strings.Repeat("a", 65) + `","label":"a","type":"text"}`), "custom_questions[0].id"},
		{"question's id twice", question(`{"id":"a","label":"a","type":"text"},{"id":"a","label":"b","type":"text"}`), "custom_questions[1].id"},
		{"question without label", question(`{"id":"a","type":"text"}`), "custom_questions[0].label"},
		{"question with a blank label", question(`{"id":"a","label":"  ","type":"text"}`), "custom_questions[0].label"},
		{
			"question's label too long", question(`{"id":"a","label":"` + strings.Repeat("a", 201) + `","type":"text"}`),
			"custom_questions[0].label",
		},
		{"question without type", question(`{"id":"a","label":"a"}`), "custom_questions[0].type"},
		{"question of an unknown type", question(`{"id":"a","label":"a","type":"radio"}`), "custom_questions[0].type"},
		{"question's required as text", question(`{"id":"a","label":"a","type":"text","required":"yes"}`), "custom_questions[0].required"},
		{"question with an unknown key", question(`{"id":"a","label":"a","type":"text","requird":true}`), "custom_questions[0].requird"},
		{"dropdown without options", question(`{"id":"a","label":"a","type":"dropdown"}`), "custom_questions[0].options"},
		{"dropdown with no options", question(`{"id":"a","label":"a","type":"dropdown","options":[]}`), "custom_questions[0].options"},
		{
			"dropdown with 51 options", question(`{"id":"a","label":"a","type":"dropdown","options":[` + many(51, `"x"`) + `]}`),
			"custom_questions[0].options",
		},
		{
			"dropdown with an empty option", question(`{"id":"a","label":"a","type":"dropdown","options":["x"," "]}`),
			"custom_questions[0].options[1]",
		},
		{
			"dropdown with an option twice", question(`{"id":"a","label":"a","type":"dropdown","options":["x","y","x"]}`),
			"custom_questions[0].options[2]",
		},
		{
			"dropdown with a long option", question(`{"id":"a","label":"a","type":"dropdown","options":["` + strings.Repeat("a", 201) + `"]}`),
			"custom_questions[0].options[0]",
		},
		{"text with options", question(`{"id":"a","label":"a","type":"text","options":["x"]}`), "custom_questions[0].options"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			// Basic: what is not valid is reported before what the tier lacks.
			_, err := merge(t, `{}`, tt.patch, access.Basic)
			if !apierr.Is(err, apierr.ValidationError) || !slices.Equal(fields(err), []string{"settings." + tt.field}) {
				t.Fatalf("%v: %v, want settings.%s", err, fields(err), tt.field)
			}
		})
	}
}

func TestMergeReportsAllAtOnceAndBounded(t *testing.T) {
	t.Parallel()
	_, err := merge(t, `{}`, `{"headline":5,"referral_boost":0,"nope":1,"redirect_url":"x"}`, access.Basic)
	if want := []string{
		"settings.headline", "settings.redirect_url", "settings.referral_boost",
		"settings.nope",
	}; !slices.Equal(fields(err), want) {
		t.Fatalf("fields %v, want %v", fields(err), want)
	}
	var unknown []string
	for i := range 1000 {
		unknown = append(unknown, fmt.Sprintf(`"%s%d":1`, strings.Repeat("ü", 500), i))
	}
	_, err = merge(t, `{}`, "{"+strings.Join(unknown, ",")+"}", access.Pro)
	if got := fields(err); len(got) > 20 || len(strings.Join(got, "")) > 2000 {
		t.Fatalf("%d fields", len(got))
	}
}

// tiers are the settings above the basic tier, each with a value other than
// its default.
func tiers() map[access.Tier]map[string]string {
	return map[access.Tier]map[string]string{
		access.Advanced: {
			"redirect_url": `"https://a.example/"`, "hide_branding": `true`, "hide_position": `true`, "exclude_personal_emails": `true`,
			"allowed_email_domains": `["a.example"]`, "position_offset": `1`,
		},
		access.Pro: {
			"webhook_url": `"https://a.example/?a=1&b=2"`, "webhook_events": `[]`, "slack_webhook_url": `"https://a.example/s"`,
			"discord_webhook_url": `"https://a.example/d"`, "notify_referrer": `true`, "sms_notify_referrer": `true`,
			"require_email_verification": `true`, "referral_milestones": `[1]`,
			"email_templates": `{"signup_confirmation":"` + confirmationTemplate + `"}`,
		},
	}
}

func TestMergeGates(t *testing.T) {
	t.Parallel()
	plan := map[access.Tier]string{access.Advanced: "Advanced", access.Pro: "Pro"}
	for need, settings := range tiers() {
		for name, value := range settings {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				patch := `{"` + name + `":` + value + `}`
				var stored string
				for _, tier := range []access.Tier{access.Basic, access.Advanced, access.Pro} {
					got, err := merge(t, `{}`, patch, tier)
					switch {
					case tier.AtLeast(need) && err == nil:
						stored = got
					case !tier.AtLeast(need) && apierr.Is(err, apierr.TierRequired):
						if m := apierr.From(err).Message; !strings.Contains(m, name) || !strings.Contains(m, plan[need]) {
							t.Errorf("%s: %q does not name setting and plan", tier, m)
						}
					default:
						t.Errorf("%s: %v", tier, err)
					}
				}
				// After a downgrade: the same value and null pass, another does not.
				if again, err := merge(t, stored, patch, access.Basic); err != nil || again != stored {
					t.Errorf("unchanged: %v, %s, want %s", err, again, stored)
				}
				if cleared, err := merge(t, stored, `{"`+name+`":null}`, access.Basic); err != nil || cleared != `{}` {
					t.Errorf("null: %v, %s", err, cleared)
				}
				if other, err := merge(t, stored, `{"headline":"x"}`, access.Basic); err != nil || !strings.Contains(other, name) {
					t.Errorf("another setting: %v, %s", err, other)
				}
			})
		}
	}
	t.Run("one gated setting refuses all", func(t *testing.T) {
		t.Parallel()
		_, err := merge(t, `{}`, `{"headline":"x","notify_referrer":true}`, access.Advanced)
		if !apierr.Is(err, apierr.TierRequired) {
			t.Fatal(err)
		}
	})
}

// TestGetRoundTrip: whatever GET shows can be sent back at any tier.
func TestGetRoundTrip(t *testing.T) {
	t.Parallel()
	all := map[string]string{}
	for _, settings := range tiers() {
		maps.Copy(all, settings)
	}
	var pairs []string
	for name, value := range all {
		pairs = append(pairs, `"`+name+`":`+value)
	}
	full, err := merge(t, `{}`, `{"headline":"<&>",`+strings.Join(pairs, ",")+`}`, access.Pro)
	if err != nil {
		t.Fatal(err)
	}
	for _, stored := range []string{`{}`, full} {
		s, err := waitlist.DecodeSettings([]byte(stored))
		if err != nil {
			t.Fatal(err)
		}
		shown, err := s.JSONFor(listID, access.Owner, secrets(t))
		if err != nil {
			t.Fatal(err)
		}
		if again, err := merge(t, stored, string(shown), access.Basic); err != nil || again != stored {
			t.Errorf("%v\n%s, want\n%s", err, again, stored)
		}
	}
}

func TestSettingsJSON(t *testing.T) {
	t.Parallel()
	const secret = "https://hooks.example:8443/services/T0/B0/verysecret?k=verysecret"
	stored, err := merge(t, `{}`, `{"webhook_url":"`+secret+`","slack_webhook_url":"https://slack.example?verysecret"}`, access.Pro)
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(stored, "verysecret") || strings.Contains(stored, "hooks.example") {
		t.Fatalf("stored in the clear: %s", stored)
	}
	s, err := waitlist.DecodeSettings([]byte(stored))
	if err != nil {
		t.Fatal(err)
	}
	for role, want := range map[access.Role][]string{
		access.Owner: {secret, "https://slack.example?verysecret"}, access.Admin: {secret, "https://slack.example?verysecret"},
		access.Viewer: {"https://hooks.example:8443/…", "https://slack.example/…"},
	} {
		out, err := s.JSONFor(listID, role, secrets(t))
		if err != nil {
			t.Fatal(err)
		}
		var got waitlist.Settings
		if err := json.Unmarshal(out, &got); err != nil {
			t.Fatal(err)
		}
		if got.WebhookURL != want[0] || got.SlackWebhookURL != want[1] || got.DiscordWebhookURL != "" {
			t.Errorf("%s sees %q, %q, %q", role, got.WebhookURL, got.SlackWebhookURL, got.DiscordWebhookURL)
		}
	}
	t.Run("every setting of the contract is shown, others if stored", func(t *testing.T) {
		t.Parallel()
		const want = `{"headline":"","subheadline":"","hero_image_url":"","name_field":"optional","phone_field":"hidden",` +
			`"custom_questions":[],"redirect_url":"","hide_branding":false,"hide_position":false,"exclude_personal_emails":false,` +
			`"allowed_email_domains":[],"webhook_url":"","webhook_events":["signup.created","referral.credited"],"slack_webhook_url":"",` +
			`"discord_webhook_url":"","status":"open","show_social_proof":true,"require_consent":false,"consent_text":"","referral_boost":1,` +
			`"position_offset":0,"notify_referrer":false,"sms_notify_referrer":false,"require_email_verification":false,` +
			`"referral_milestones":[],"email_templates":{}`
		for stored, more := range map[string]string{
			`{}`: "",
			`{"referral_guard":"off","credit_after_verification":false,"appearance":{}}`: `,"referral_guard":"off",` +
				`"credit_after_verification":false,"appearance":{}`,
		} {
			s, err := waitlist.DecodeSettings([]byte(stored))
			if err != nil {
				t.Fatal(err)
			}
			if out, err := s.JSONFor(listID, access.Owner, secrets(t)); err != nil || string(out) != want+more+"}" {
				t.Errorf("%s: %s, %v, want\n%s}", stored, out, err, want+more)
			}
		}
	})
	t.Run("a sealed URL opens nowhere else", func(t *testing.T) {
		t.Parallel()
		if _, err := s.JSONFor("0193d4a2-5c1e-7a41-8000-000000000002", access.Owner, secrets(t)); !errors.Is(err, seal.ErrCorrupt) {
			t.Fatal(err)
		}
	})
	t.Run("a URL that no key opens can be replaced", func(t *testing.T) {
		t.Parallel()
		got, err := merge(t, `{"webhook_url":"s1.gone.AAAA"}`, `{"webhook_url":"https://new.example/"}`, access.Pro)
		if err != nil || strings.Contains(got, "gone") {
			t.Fatal(got, err)
		}
	})
}

func TestEffective(t *testing.T) {
	t.Parallel()
	var pairs []string
	for _, settings := range tiers() {
		for name, value := range settings {
			if !strings.HasSuffix(name, "webhook_url") {
				pairs = append(pairs, `"`+name+`":`+value)
			}
		}
	}
	stored := `{"webhook_url":"sealed","slack_webhook_url":"sealed","discord_webhook_url":"sealed","headline":"H","referral_boost":7,` +
		`` + strings.Join(pairs, ",") + `}`
	s, err := waitlist.DecodeSettings([]byte(stored))
	if err != nil {
		t.Fatal(err)
	}
	encode := func(s waitlist.Settings) string {
		out, err := s.Stored()
		if err != nil {
			t.Fatal(err)
		}
		return string(out)
	}
	if encode(s.Effective(access.Pro)) != encode(s) {
		t.Error("Pro loses something")
	}
	if got := encode(s.Effective(access.Basic)); got != `{"headline":"H","referral_boost":7}` {
		t.Errorf("Basic has %s", got)
	}
	// Nothing is credited after a verification that nobody asks for.
	s.CreditAfterVerification = new(true)
	if s.Effective(access.Pro).CreditAfterVerification == nil || s.Effective(access.Advanced).CreditAfterVerification != nil {
		t.Error("credits wait for verifications on Advanced, or do not on Pro")
	}
	s.CreditAfterVerification = nil
	advanced := encode(s.Effective(access.Advanced))
	for tier, settings := range tiers() {
		for name := range settings {
			if strings.Contains(advanced, `"`+name+`"`) != (tier == access.Advanced) {
				t.Errorf("Advanced and %s: %s", name, advanced)
			}
		}
	}
	if encode(s) == encode(s.Effective(access.Basic)) {
		t.Error("Effective changed its receiver")
	}
}

// FuzzMerge: whatever is accepted can be stored, shown and sent back at any
// tier without a change.
func FuzzMerge(f *testing.F) {
	for _, s := range []string{
		`{"headline":"\ud800<&>","webhook_url":"https://a.example/?a=1&b"}`, `{"custom_questions":[{"id":"a","label":" l ",` +
			`"type":"dropdown","options":["x","y"]}]}`,
		`{"allowed_email_domains":["Bücher.example"],"referral_milestones":[1e2],"webhook_events":[]}`,
		`{"email_templates":{"offboarding":""},"status":null}`,
		`{"consent_text":"[a](https://a.example), see [1]: or <https://a.example> <b> [b][2]\n[2]: https://b.example","position_offset":5.0}`,
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, patch string) {
		in, err := body.Parse([]byte(`{"settings":` + patch + `}`))
		if err != nil {
			return
		}
		o, ok := in.Object("settings")
		if !ok {
			return
		}
		stored, gated, err := waitlist.DefaultSettings().Merge(o, listID, access.Pro, secrets(t), assignable)
		if err != nil || gated != nil {
			t.Fatalf("%s: %v, %v", patch, gated, err)
		}
		if in.Err() != nil {
			return
		}
		s, err := waitlist.DecodeSettings(stored)
		if err != nil {
			t.Fatalf("%s: %v", stored, err)
		}
		shown, err := s.JSONFor(listID, access.Owner, secrets(t))
		if err != nil {
			t.Fatal(err)
		}
		if again, err := merge(t, string(stored), string(shown), access.Basic); err != nil || again != string(stored) {
			t.Fatalf("%v\n%s, want\n%s", err, again, stored)
		}
	})
}
