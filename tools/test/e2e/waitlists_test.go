package e2e

import (
	"net/http"
	"strings"
	"sync"
	"testing"
)

// defaults returns the settings that GET answers for a waitlist without settings.
func defaults() Obj {
	return Obj{
		"headline": "", "subheadline": "", "hero_image_url": "", "name_field": "optional", "phone_field": "hidden",
		"custom_questions": []any{}, "redirect_url": "", "hide_branding": false, "hide_position": false,
		"exclude_personal_emails": false, "allowed_email_domains": []any{}, "webhook_url": "",
		"webhook_events": []any{"signup.created", "referral.credited"}, "slack_webhook_url": "", "discord_webhook_url": "",
		"status": "open", "show_social_proof": true, "require_consent": false, "consent_text": "", "referral_boost": 1,
		"position_offset": 0, "notify_referrer": false, "sms_notify_referrer": false, "require_email_verification": false,
		"referral_milestones": []any{}, "email_templates": Obj{},
	}
}

func testWaitlists(t *testing.T, d *deployment) {
	t.Run("life", func(t *testing.T) { testWaitlistLife(t, d) })
	t.Run("names", func(t *testing.T) { testWaitlistNames(t, d) })
	t.Run("strangers", func(t *testing.T) { testStrangers(t, d) })
	t.Run("order of checks", func(t *testing.T) { testOwnerOrder(t, d) })
	t.Run("idempotency", func(t *testing.T) { testIdempotency(t, d) })
	t.Run("bodies", func(t *testing.T) {
		o := d.owner(t)
		id := o.waitlist(t, nil)
		testBodies(t, o.Client, Post("/waitlists", nil).As(o.token), `{"name":"x"%s}`, http.StatusCreated)
		testBodies(t, o.Client, Patch("/waitlists/"+id, nil).As(o.token), `{"name":"x"%s}`, http.StatusOK)
	})
}

func testWaitlistLife(t *testing.T, d *deployment) {
	o := d.owner(t)
	o.Do(t, Get("/waitlists").As(o.token)).Want(http.StatusOK).WantJSON("waitlists", []any{})
	first := o.Do(t, Post("/waitlists", Obj{"name": "  First ", "settings": Obj{"headline": "Hello"}}).As(o.token)).
		Want(http.StatusCreated).WantJSON("name", "First").WantJSON("signup_count", 0)
	second := o.Do(t, Post("/waitlists", Obj{"name": "Second"}).Key(o.key)).Want(http.StatusCreated)
	id := first.Str("waitlist_id")

	var list struct {
		Waitlists []struct {
			ID        string `json:"waitlist_id"`
			Name      string `json:"name"`
			Count     int    `json:"signup_count"`
			CreatedAt string `json:"created_at"`
			Role      string `json:"role"`
		} `json:"waitlists"`
	}
	o.join(t, id, address("ada"))
	o.Do(t, Get("/waitlists").As(o.token)).Want(http.StatusOK).Decode(&list)
	if len(list.Waitlists) != 2 || list.Waitlists[0].ID != id || list.Waitlists[1].ID != second.Str("waitlist_id") {
		t.Fatalf("list %+v", list)
	}
	if w := list.Waitlists[0]; w.Name != "First" || w.Role != "" || w.Count != 1 || w.CreatedAt != first.Str("created_at") {
		t.Errorf("entry %+v", w)
	}

	want := defaults()
	want["headline"] = "Hello"
	got := o.Do(t, Get("/waitlists/"+id).As(o.token)).Want(http.StatusOK)
	got.WantJSON("settings", want).WantJSON("signup_count", 1).WantJSON("created_at", first.Str("created_at")).WantJSON("waitlist_id", id)

	t.Run("merge", func(t *testing.T) {
		patch := func(body Obj) *Response {
			return o.Do(t, Patch("/waitlists/"+id, body).As(o.token)).Want(http.StatusOK)
		}
		patch(Obj{"settings": Obj{"subheadline": "World", "referral_boost": 3}})
		want["subheadline"], want["referral_boost"] = "World", 3
		patch(Obj{"name": "Renamed"}).WantJSON("settings", want).WantJSON("name", "Renamed")
		patch(Obj{}).WantJSON("settings", want).WantJSON("name", "Renamed")
		patch(Obj{"name": nil, "settings": nil}).WantJSON("settings", want).WantJSON("name", "Renamed")
		patch(Obj{"settings": Obj{}, "unknown": 1}).WantJSON("settings", want)
		want["headline"], want["referral_boost"] = "", 1
		patch(Obj{"settings": Obj{"headline": nil, "referral_boost": nil, "status": nil}}).WantJSON("settings", want)
		o.Do(t, Get("/waitlists/"+id).As(o.token)).Want(http.StatusOK).WantJSON("settings", want).WantJSON("name", "Renamed")
		// An answer can be sent back unchanged.
		patch(Obj{"settings": want}).WantJSON("settings", want)
	})
	t.Run("one bad setting changes nothing", func(t *testing.T) {
		o.Do(t, Patch("/waitlists/"+id,
			Obj{"name": "Other", "settings": Obj{"headline": "Other", "referral_boost": 0, "position_offset": -1}}).As(o.token).Invalid()).
			Invalid("settings.referral_boost", "settings.position_offset")
		o.Do(t, Get("/waitlists/"+id).As(o.token)).Want(http.StatusOK).WantJSON("settings", want).WantJSON("name", "Renamed")
	})
	t.Run("all replaced at once", func(t *testing.T) {
		// Concurrent changes to different settings are all kept.
		var wg sync.WaitGroup
		for name, v := range map[string]any{
			"headline": "a", "subheadline": "b", "referral_boost": 7, "show_social_proof": false, "name_field": "hidden",
			"consent_text": "c",
		} {
			want[name] = v
			wg.Go(func() {
				r, err := o.Send(t.Context(), Patch("/waitlists/"+id, Obj{"settings": Obj{name: v}}).As(o.token))
				if err != nil || r.Status != http.StatusOK {
					t.Errorf("%s: %v %v", name, r, err)
				}
			})
		}
		wg.Wait()
		o.Do(t, Get("/waitlists/"+id).As(o.token)).Want(http.StatusOK).WantJSON("settings", want)
	})
	t.Run("close and open", func(t *testing.T) {
		o.set(t, id, Obj{"status": "closed"})
		o.Do(t, signup(id, address("late"))).WantError(http.StatusForbidden, "WAITLIST_CLOSED")
		o.Do(t, Get("/public/waitlists/"+id+"/config")).Want(http.StatusOK).WantJSON("status", "closed")
		o.set(t, id, Obj{"status": "open"})
		o.join(t, id, address("late"))
	})
	t.Run("delete", func(t *testing.T) {
		o.Do(t, Delete("/waitlists/"+id).As(o.token)).Want(http.StatusNoContent)
		o.Do(t, Delete("/waitlists/"+id).As(o.token)).WantError(http.StatusNotFound, "NOT_FOUND")
		o.Do(t, Get("/waitlists/"+id).As(o.token)).WantError(http.StatusNotFound, "NOT_FOUND")
		o.Do(t, Patch("/waitlists/"+id, Obj{"name": "x"}).As(o.token)).WantError(http.StatusNotFound, "NOT_FOUND")
		o.Do(t, Get("/public/waitlists/"+id+"/config")).WantError(http.StatusNotFound, "NOT_FOUND")
		o.Do(t, signup(id, address("late"))).WantError(http.StatusNotFound, "NOT_FOUND")
		o.Do(t, Get("/waitlists").As(o.token)).Want(http.StatusOK).Decode(&list)
		if len(list.Waitlists) != 1 {
			t.Errorf("list %+v", list)
		}
	})
}

func testWaitlistNames(t *testing.T, d *deployment) {
	o := d.owner(t)
	id := o.waitlist(t, nil)
	for _, tc := range []struct {
		name   string
		value  any
		stored string // "": rejected
	}{
		{"one", "x", "x"},
		{"200", strings.Repeat("x", 200), strings.Repeat("x", 200)},
		{"200 beyond ASCII", strings.Repeat(emoji, 200), strings.Repeat(emoji, 200)},
		{"200 and blanks", " " + strings.Repeat("x", 200) + "\t", strings.Repeat("x", 200)},
		{"201", strings.Repeat("x", 201), ""},
		{"201 beyond ASCII", strings.Repeat(emoji, 201), ""},
		{"empty", "", ""},
		{"blank", " \t\n ", ""},
		{"number", 5, ""},
		{"boolean", true, ""},
		{"array", []any{"x"}, ""},
		{"object", Obj{"x": 1}, ""},
		{"U+0000", "a\x00b", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			post := o.Do(t, Post("/waitlists", Obj{"name": tc.value}).As(o.token).Invalid())
			patch := o.Do(t, Patch("/waitlists/"+id, Obj{"name": tc.value}).As(o.token).Invalid())
			if tc.stored == "" {
				post.Invalid("name")
				patch.Invalid("name")
				return
			}
			post.Want(http.StatusCreated).WantJSON("name", tc.stored)
			patch.Want(http.StatusOK).WantJSON("name", tc.stored)
		})
	}
	t.Run("missing", func(t *testing.T) {
		o.Do(t, Post("/waitlists", Obj{}).As(o.token).Invalid()).Invalid("name")
		o.Do(t, Post("/waitlists", Obj{"name": nil}).As(o.token).Invalid()).Invalid("name")
	})
	t.Run("with bad settings", func(t *testing.T) {
		o.Do(t, Post("/waitlists", Obj{"settings": Obj{"headline": 5, "nope": 1}}).As(o.token).Invalid()).
			Invalid("name", "settings.headline", "settings.nope")
	})
	for name, v := range map[string]any{"string": "x", "array": []any{}, "number": 1, "boolean": true} {
		t.Run("settings as "+name, func(t *testing.T) {
			o.Do(t, Post("/waitlists", Obj{"name": "x", "settings": v}).As(o.token).Invalid()).Invalid("settings")
			o.Do(t, Patch("/waitlists/"+id, Obj{"settings": v}).As(o.token).Invalid()).Invalid("settings")
		})
	}
	t.Run("settings as null", func(t *testing.T) {
		o.Do(t, Post("/waitlists", Obj{"name": "x", "settings": nil}).As(o.token)).Want(http.StatusCreated)
	})
}

func testStrangers(t *testing.T, d *deployment) {
	o, stranger := d.owner(t), d.owner(t)
	id := o.waitlist(t, nil)
	for _, r := range []Request{
		Get("/waitlists/" + id), Patch("/waitlists/"+id, Obj{"name": "mine"}), Delete("/waitlists/" + id),
	} {
		stranger.Do(t, r.As(stranger.token)).WantError(http.StatusForbidden, "FORBIDDEN")
		stranger.Do(t, r.Key(stranger.key)).WantError(http.StatusForbidden, "FORBIDDEN")
	}
	for _, none := range []string{
		unknownID, "nope", "0", "%00", strings.ToUpper(unknownID), strings.Repeat("x", 1000), "%F0%9F%9A%80", "..%2Fauth",
	} {
		for _, r := range []Request{
			Get("/waitlists/" + none), Patch("/waitlists/"+none, Obj{"name": "mine"}), Delete("/waitlists/" + none),
		} {
			o.Do(t, r.As(o.token)).WantError(http.StatusNotFound, "NOT_FOUND")
		}
	}
	t.Run("account header", func(t *testing.T) {
		create := Post("/waitlists", Obj{"name": "x"}).As(stranger.token)
		stranger.Do(t, create.With("X-Account-Email", o.email)).WantError(http.StatusForbidden, "FORBIDDEN")
		stranger.Do(t, create.With("X-Account-Email", address("nobody"))).WantError(http.StatusForbidden, "FORBIDDEN")
		stranger.Do(t, create.With("X-Account-Email", strings.ToUpper(stranger.email))).Want(http.StatusCreated)
		// The header counts only where the document names it.
		stranger.Do(t, Get("/waitlists").As(stranger.token).With("X-Account-Email", o.email)).Want(http.StatusOK)
	})
	o.Do(t, Get("/waitlists/"+id).As(o.token)).Want(http.StatusOK).WantJSON("name", "Launch")
}

// testOwnerOrder checks the order of errors: 401, then the waitlist, then the subscription, then the body, and invalid
// settings before those above the tier.
func testOwnerOrder(t *testing.T, d *deployment) {
	o, stranger := d.owner(t), d.owner(t)
	id := o.waitlist(t, nil)
	broken := Patch("/waitlists/"+id, nil).Raw([]byte("{")).Invalid()
	o.Do(t, broken).WantError(http.StatusUnauthorized, "AUTHENTICATION_REQUIRED")
	o.Do(t, Patch("/waitlists/"+unknownID, nil).Raw([]byte("{")).Invalid()).WantError(http.StatusUnauthorized, "AUTHENTICATION_REQUIRED")
	o.Do(t, Patch("/waitlists/"+unknownID, nil).Raw([]byte("{")).Invalid().As(o.token)).WantError(http.StatusNotFound, "NOT_FOUND")
	stranger.Do(t, broken.As(stranger.token)).WantError(http.StatusForbidden, "FORBIDDEN")
	o.Do(t, broken.As(o.token)).WantError(http.StatusBadRequest, "INVALID_BODY")
	big := Patch("/waitlists/"+unknownID, nil).Raw([]byte(`{"name":"` + strings.Repeat("x", 1<<20) + `"}`)).Invalid()
	o.Do(t, big.As(o.token)).WantError(http.StatusNotFound, "NOT_FOUND")

	d.setTier(t, o, "basic", "active")
	o.Do(t, Patch("/waitlists/"+id, Obj{"settings": Obj{"hide_branding": true, "referral_boost": 0}}).As(o.token).Invalid()).
		Invalid("settings.referral_boost")
	o.Do(t, Patch("/waitlists/"+id, Obj{"settings": Obj{"hide_branding": true, "headline": "x"}}).As(o.token)).
		WantError(http.StatusForbidden, "TIER_REQUIRED")
	o.Do(t, Get("/waitlists/"+id).As(o.token)).WantJSON("settings", defaults())
	o.Do(t, Post("/waitlists", Obj{"name": "x", "settings": Obj{"hide_branding": true}}).As(o.token)).
		WantError(http.StatusForbidden, "TIER_REQUIRED")

	d.setTier(t, o, "pro", "inactive")
	o.Do(t, broken.As(o.token)).WantError(http.StatusForbidden, "FORBIDDEN")
	o.Do(t, Post("/waitlists", nil).Raw([]byte("{")).Invalid().As(o.token)).WantError(http.StatusForbidden, "FORBIDDEN")
	stranger.Do(t, broken.As(stranger.token)).WantError(http.StatusForbidden, "FORBIDDEN")
}

func testIdempotency(t *testing.T, d *deployment) {
	o := d.owner(t)
	create := func(o *owner, key string, body Obj) Request {
		return Post("/waitlists", body).As(o.token).With("Idempotency-Key", key)
	}
	first := o.Do(t, create(o, "k1", Obj{"name": "One"})).Want(http.StatusCreated)
	if h := first.Header.Get("Idempotent-Replayed"); h != "" {
		t.Errorf("Idempotent-Replayed %q on the first answer", h)
	}
	again := o.Do(t, create(o, "k1", Obj{"name": "One"})).Want(http.StatusCreated)
	if again.Header.Get("Idempotent-Replayed") != "true" || string(again.Body) != string(first.Body) {
		t.Errorf("replay %q %s, want %s", again.Header.Get("Idempotent-Replayed"), again.Body, first.Body)
	}
	o.Do(t, create(o, "k1", Obj{"name": "Two"})).WantError(http.StatusConflict, "CONFLICT")
	o.Do(t, create(o, "k2", Obj{"name": "One"})).Want(http.StatusCreated)
	other := d.owner(t)
	fresh := other.Do(t, create(other, "k1", Obj{"name": "One"})).Want(http.StatusCreated)
	if fresh.Header.Get("Idempotent-Replayed") != "" || fresh.Str("waitlist_id") == first.Str("waitlist_id") {
		t.Error("an account got the stored answer of another account's key")
	}
	t.Run("bounds", func(t *testing.T) {
		o.Do(t, create(o, strings.Repeat("k", 255), Obj{"name": "One"})).Want(http.StatusCreated)
		o.Do(t, create(o, strings.Repeat("k", 256), Obj{"name": "One"}).Invalid()).Invalid("Idempotency-Key")
		o.Do(t, create(o, "ключ", Obj{"name": "One"}).Invalid()).Invalid("Idempotency-Key")
		o.Do(t, create(o, "k3", Obj{"name": ""}).Invalid()).Invalid("name")
	})
	t.Run("at once", func(t *testing.T) {
		o := d.owner(t)
		var mu sync.Mutex
		ids := map[string]bool{}
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				r, err := o.Send(t.Context(), create(o, "race", Obj{"name": "One"}))
				if err != nil {
					t.Error(err)
					return
				}
				switch {
				case r.Status == http.StatusCreated:
					mu.Lock()
					defer mu.Unlock()
					ids[string(r.Body)] = true
				case r.Status != http.StatusConflict || r.ErrorCode() != "CONFLICT":
					t.Errorf("%d %s", r.Status, r.Body)
				}
			})
		}
		wg.Wait()
		if len(ids) != 1 {
			t.Errorf("%d different answers, want one", len(ids))
		}
		var list struct {
			Waitlists []Obj `json:"waitlists"`
		}
		o.Do(t, Get("/waitlists").As(o.token)).Want(http.StatusOK).Decode(&list)
		if len(list.Waitlists) != 1 {
			t.Errorf("%d waitlists, want one", len(list.Waitlists))
		}
	})
	t.Run("ends after a day", func(t *testing.T) {
		d.exec(t, "UPDATE signup.idempotency_key SET created_at = created_at - interval '25 hours'")
		r := o.Do(t, create(o, "k1", Obj{"name": "Two"})).Want(http.StatusCreated)
		if r.Header.Get("Idempotent-Replayed") != "" {
			t.Error("the answer was replayed after 25 hours")
		}
	})
}
