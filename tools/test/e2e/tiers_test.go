package e2e

import (
	"maps"
	"net/http"
	"strings"
	"testing"
	"time"
)

// gatedSettings returns values other than the defaults, by the lowest tier that may set them.
func gatedSettings() map[string]Obj {
	return map[string]Obj{
		"advanced": {
			"redirect_url": "https://example.com/thanks", "hide_branding": true, "hide_position": true,
			"exclude_personal_emails": true, "allowed_email_domains": []any{"example.com"}, "position_offset": 5,
		},
		"pro": {
			"webhook_url": "https://example.com/hook", "webhook_events": []any{"signup.created"},
			"slack_webhook_url": "https://example.com/slack", "discord_webhook_url": "https://example.com/discord",
			"notify_referrer": true, "sms_notify_referrer": true, "require_email_verification": true, "referral_milestones": []any{1, 5},
		},
	}
}

func testTiers(t *testing.T, d *deployment) {
	t.Run("settings", func(t *testing.T) { testTierSettings(t, d) })
	t.Run("the document names the same tiers", func(t *testing.T) {
		named := map[string]string{}
		for name, s := range d.contract.doc.Components.Schemas["SettingsInput"].Value.Properties {
			if tier, ok := s.Value.Extensions["x-waitlist-tier"].(string); ok {
				named[name] = tier
			}
		}
		want := map[string]string{"email_templates": "pro"}
		for tier, settings := range gatedSettings() {
			for name := range settings {
				want[name] = tier
			}
		}
		if canonical(named) != canonical(want) {
			t.Errorf("%s, want %s", canonical(named), canonical(want))
		}
	})
	t.Run("downgrade", func(t *testing.T) { testDowngrade(t, d) })
	t.Run("team", func(t *testing.T) { testMembers(t, d) })
	t.Run("inactive", func(t *testing.T) {
		o := d.owner(t)
		id := o.waitlist(t, nil)
		d.setTier(t, o, "pro", "inactive")
		for _, r := range gated(id) {
			res := o.Do(t, r.As(o.token)).WantError(http.StatusForbidden, "FORBIDDEN")
			if !strings.Contains(strings.ToLower(res.Str("error")), "subscri") {
				t.Errorf("%s: message %q does not ask to subscribe", r, res.Str("error"))
			}
		}
		o.Do(t, Get("/auth/me").As(o.token)).WantJSON("subscription_status", "inactive").WantJSON("subscription_tier", "pro")
		o.join(t, id, address("x"))
		d.setTier(t, o, "basic", "canceling")
		o.Do(t, Get("/waitlists/"+id).As(o.token)).Want(http.StatusOK)
		o.Do(t, Get("/auth/me").As(o.token)).WantJSON("subscription_status", "canceling").WantJSON("subscription_tier", "basic")
	})
}

// gated returns the requests that require an active subscription.
func gated(id string) []Request {
	return []Request{
		Get("/waitlists"), Post("/waitlists", Obj{"name": "x"}), Get("/waitlists/" + id),
		Patch("/waitlists/"+id, Obj{"name": "x"}), Delete("/waitlists/" + id),
	}
}

func testTierSettings(t *testing.T, d *deployment) {
	for _, tc := range []struct {
		tier    string
		allowed []string
		refused map[string]string // the setting's tier → the plan that the message names
	}{
		{"basic", nil, map[string]string{"advanced": "Advanced", "pro": "Pro"}},
		{"advanced", []string{"advanced"}, map[string]string{"pro": "Pro"}},
		{"pro", []string{"advanced", "pro"}, nil},
	} {
		t.Run(tc.tier, func(t *testing.T) {
			o := d.owner(t)
			id := o.waitlist(t, nil)
			d.setTier(t, o, tc.tier, "active")
			for tier, plan := range tc.refused {
				for name, v := range gatedSettings()[tier] {
					for _, r := range []Request{
						Patch("/waitlists/"+id, Obj{"settings": Obj{name: v}}), Post("/waitlists", Obj{"name": "x", "settings": Obj{name: v}}),
					} {
						res := o.Do(t, r.As(o.token)).WantError(http.StatusForbidden, "TIER_REQUIRED")
						if msg := res.Str("error"); !strings.Contains(msg, plan) || !strings.Contains(msg, name) {
							t.Errorf("%s: message %q does not name %s and %s", r, msg, plan, name)
						}
					}
					o.set(t, id, Obj{name: nil})
					o.set(t, id, Obj{name: defaults()[name]})
				}
			}
			o.set(t, id, defaults())
			for _, tier := range tc.allowed {
				for name, v := range gatedSettings()[tier] {
					o.set(t, id, Obj{name: v}).WantJSON("settings."+name, v)
				}
			}
			o.set(t, id, Obj{"headline": "x", "referral_boost": 7, "require_consent": true, "custom_questions": []any{question("q", nil)}})
		})
	}
}

// testDowngrade checks that settings above the tier stay stored without effect.
func testDowngrade(t *testing.T, d *deployment) {
	o := d.owner(t)
	id := o.waitlist(t, nil)
	stored := defaults()
	for _, settings := range gatedSettings() {
		o.set(t, id, settings)
		maps.Copy(stored, settings)
	}
	ada := address("ada")
	o.join(t, id, ada).WantAbsent("position").WantJSON("redirect_url", "https://example.com/thanks")
	o.Do(t, signup(id, "ada@acme.com")).WantError(http.StatusForbidden, "DOMAIN_RESTRICTED")

	d.setTier(t, o, "advanced", "active")
	o.Do(t, Get("/waitlists/"+id).As(o.token)).Want(http.StatusOK).WantJSON("settings", stored)
	o.Do(t, Get("/public/waitlists/"+id+"/config")).Want(http.StatusOK).WantAbsent("require_email_verification").
		WantJSON("hide_branding", true).WantJSON("hide_position", true).WantJSON("position_offset", 5)
	o.status(t, id, ada).WantAbsent("position")

	d.setTier(t, o, "basic", "active")
	o.Do(t, Get("/waitlists/"+id).As(o.token)).Want(http.StatusOK).WantJSON("settings", stored)
	o.Do(t, Get("/public/waitlists/"+id+"/config")).Want(http.StatusOK).
		WantAbsent("require_email_verification", "hide_branding", "hide_position").
		WantJSON("position_offset", 0)
	o.status(t, id, ada).WantJSON("position", 1).WantJSON("total_signups", 1)
	gmail := o.join(t, id, "ada@gmail.com").WantJSON("position", 2).WantAbsent("redirect_url")
	if gmail.Str("email") != "ada@gmail.com" {
		t.Error("the answer has another address")
	}
	if mails, err := d.server.Mails("ada@gmail.com"); err != nil || len(mails) > 0 {
		t.Errorf("%d verification mails on basic, %v", len(mails), err)
	}
	// Unchanged values are accepted, changed ones are not, and null clears.
	o.set(t, id, stored).WantJSON("settings", stored)
	o.Do(t, Patch("/waitlists/"+id, Obj{"settings": Obj{"headline": "x", "hide_branding": false}}).As(o.token)).
		WantError(http.StatusForbidden, "TIER_REQUIRED")
	o.set(t, id, Obj{"hide_branding": nil, "webhook_url": nil}).WantJSON("settings.hide_branding", false).
		WantJSON("settings.webhook_url", "").WantJSON("settings.headline", "")

	d.setTier(t, o, "pro", "active")
	o.status(t, id, ada).WantAbsent("position")
	o.Do(t, Get("/public/waitlists/"+id+"/config")).Want(http.StatusOK).WantJSON("require_email_verification", true)
}

// testMembers checks what a team member may do on the team's waitlists, and when.
func testMembers(t *testing.T, d *deployment) {
	o, m := d.owner(t), d.owner(t)
	link := d.server.AwaitMails(t, m.email, 1)[0].Token()
	id := o.waitlist(t, Obj{
		"webhook_url":       "https://example.com/secret-webhook",
		"slack_webhook_url": "https://example.com/secret-slack", "discord_webhook_url": "https://example.com/secret-discord",
	})
	own := m.waitlist(t, nil)
	role := func(role string) {
		o.Do(t, removeMember(m.email).As(o.token))
		o.Do(t, invite(m.email, role).As(o.token)).Want(http.StatusCreated)
	}
	create := Post("/waitlists", Obj{"name": "Theirs"}).As(m.token).With("X-Account-Email", strings.ToUpper(o.email))
	all := append(gated(id)[2:], create)
	roles := func() map[string]string {
		var list struct {
			Waitlists []struct {
				ID   string `json:"waitlist_id"`
				Role string `json:"role"`
			} `json:"waitlists"`
		}
		m.Do(t, Get("/waitlists").As(m.token)).Want(http.StatusOK).Decode(&list)
		out := map[string]string{}
		for _, w := range list.Waitlists {
			out[w.ID] = w.Role
		}
		return out
	}
	is := func(what string, want map[string]string) {
		t.Helper()
		if got := roles(); canonical(got) != canonical(want) {
			t.Errorf("%s: list %v, want %v", what, got, want)
		}
	}
	refused := func(code string, requests ...Request) {
		t.Helper()
		for _, r := range requests {
			m.Do(t, r.As(m.token)).WantError(http.StatusForbidden, code)
		}
	}

	refused("FORBIDDEN", all...)
	role("viewer")
	refused("EMAIL_NOT_VERIFIED", all...)
	is("unverified", map[string]string{own: "owner"})
	m.Do(t, Post("/auth/verify-email", Obj{"token": link}).As(m.token)).Want(http.StatusOK)

	is("viewer", map[string]string{own: "owner", id: "viewer"})
	seen := m.Do(t, Get("/waitlists/"+id).As(m.token)).Want(http.StatusOK)
	if strings.Contains(string(seen.Body), "secret") {
		t.Errorf("a viewer sees %s", seen.Body)
	}
	if seen.Str("settings.webhook_url") == "" {
		t.Error("a masked URL is empty")
	}
	m.Do(t, Get("/waitlists/"+id).Key(m.key)).Want(http.StatusOK)
	refused("FORBIDDEN", append(all[1:], Patch("/waitlists/"+id, nil).Raw([]byte("{")).Invalid())...)

	role("admin")
	is("admin", map[string]string{own: "owner", id: "admin"})
	m.Do(t, Get("/waitlists/"+id).As(m.token)).Want(http.StatusOK).WantJSON("settings.webhook_url", "https://example.com/secret-webhook")
	m.Do(t, Patch("/waitlists/"+id, Obj{"name": "Changed"}).As(m.token)).Want(http.StatusOK).WantJSON("name", "Changed")
	theirs := m.Do(t, create).Want(http.StatusCreated).Str("waitlist_id")
	o.Do(t, Get("/waitlists/"+theirs).As(o.token)).Want(http.StatusOK)
	is("two of the owner's", map[string]string{own: "owner", id: "admin", theirs: "admin"})
	m.Do(t, Delete("/waitlists/"+theirs).As(m.token)).Want(http.StatusNoContent)

	// The owner's tier and state count, not the member's.
	d.setTier(t, m, "basic", "inactive")
	m.Do(t, Patch("/waitlists/"+id, Obj{"settings": Obj{"notify_referrer": true}}).As(m.token)).Want(http.StatusOK)
	is("own subscription over", map[string]string{id: "admin"})
	refused("FORBIDDEN", Get("/waitlists/"+own), Post("/waitlists", Obj{"name": "x"}))
	d.setTier(t, o, "advanced", "active")
	refused("TIER_REQUIRED", all...)
	d.setTier(t, o, "pro", "inactive")
	refused("FORBIDDEN", all...)
	d.endTrial(t, o)
	refused("TRIAL_EXPIRED", all...)
	d.setTier(t, o, "pro", "active")
	m.Do(t, Get("/waitlists/"+id).As(m.token)).Want(http.StatusOK)

	o.Do(t, removeMember(m.email).As(o.token)).Want(http.StatusNoContent)
	refused("FORBIDDEN", all...)
	d.setTier(t, m, "pro", "active")
	is("removed", map[string]string{own: ""})
}

// testTrialEnds lets a trial run out.
func (s *suite) testTrialEnds(t *testing.T) {
	d := s.deploy(t, map[string]string{"TRIAL_DURATION": "5s"})
	o := d.owner(t)
	id := o.waitlist(t, Obj{
		"hide_position": true, "position_offset": 50, "redirect_url": "https://example.com/x",
		"require_email_verification": true, "allowed_email_domains": []any{"acme.com"},
	})
	ada := "ada@acme.com"
	o.join(t, id, ada).WantAbsent("position")
	before := o.Do(t, Get("/auth/me").As(o.token)).WantJSON("subscription_status", "trialing")
	Await(t, time.Minute, "the trial ends", func() bool {
		return o.Do(t, Get("/auth/me").As(o.token)).Str("subscription_status") == "inactive"
	})
	o.Do(t, Get("/auth/me").As(o.token)).WantJSON("subscription_tier", "pro").WantJSON("has_used_trial", true).
		WantJSON("trial_ends_at", before.Str("trial_ends_at")).WantJSON("trial_end", before.Int("trial_end"))
	if time.Now().Before(before.Time("trial_ends_at")) {
		t.Error("the trial ended early")
	}
	for _, r := range gated(id) {
		o.Do(t, r.As(o.token)).WantError(http.StatusForbidden, "TRIAL_EXPIRED")
		o.Do(t, r.Key(o.key)).WantError(http.StatusForbidden, "TRIAL_EXPIRED")
	}
	o.Do(t, Get("/waitlists/"+unknownID).As(o.token)).WantError(http.StatusNotFound, "NOT_FOUND")
	stranger := d.owner(t)
	stranger.Do(t, Get("/waitlists/"+id).As(stranger.token)).WantError(http.StatusForbidden, "FORBIDDEN")

	// The public side continues with the basic features.
	o.Do(t, Get("/public/waitlists/"+id+"/config")).Want(http.StatusOK).WantJSON("position_offset", 0).
		WantAbsent("hide_branding", "hide_position", "require_email_verification")
	o.status(t, id, ada).WantJSON("position", 1)
	o.join(t, id, "bob@example.com").WantJSON("position", 2).WantJSON("total_signups", 2).WantAbsent("redirect_url")

	// So does the account.
	o.Do(t, Post("/auth/resend-verification", nil).As(o.token)).Want(http.StatusOK)
	o.Do(t, Post("/auth/regenerate-api-key", nil).As(o.token)).Want(http.StatusOK)
	o.login(t)
	o.Do(t, Delete("/auth/me").As(o.token)).Want(http.StatusNoContent)
}
