package e2e

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

func testSignups(t *testing.T, d *deployment) {
	t.Run("answers", func(t *testing.T) { testSignupAnswers(t, d) })
	t.Run("bodies", func(t *testing.T) {
		o := d.owner(t)
		id := o.waitlist(t, nil)
		o.join(t, id, "ada@example.com")
		testBodies(t, o.Client, Post("/public/waitlists/"+id+"/signups", nil), `{"email":"ada@example.com"%s}`, http.StatusOK)
	})
	t.Run("addresses", func(t *testing.T) { testSignupAddresses(t, d) })
	t.Run("fields", func(t *testing.T) { testSignupFields(t, d) })
	t.Run("names and phone", func(t *testing.T) { testFieldModes(t, d) })
	t.Run("answers to questions", func(t *testing.T) { testCustomAnswers(t, d) })
	t.Run("consent", func(t *testing.T) { testConsent(t, d) })
	t.Run("honeypot", func(t *testing.T) { testHoneypot(t, d) })
	t.Run("domains", func(t *testing.T) { testDomainRules(t, d) })
	t.Run("order of checks", func(t *testing.T) { testSignupOrder(t, d) })
	t.Run("referrals", func(t *testing.T) { testReferrals(t, d) })
	t.Run("positions", func(t *testing.T) { testPositions(t, d) })
	t.Run("at once", func(t *testing.T) { testSignupsAtOnce(t, d) })
	t.Run("offset and hiding", func(t *testing.T) { testOffsetAndHiding(t, d) })
	t.Run("counts", func(t *testing.T) { testCounts(t, d) })
	t.Run("leaderboard", func(t *testing.T) { testLeaderboard(t, d) })
	t.Run("config", func(t *testing.T) { testConfig(t, d) })
}

func testSignupAnswers(t *testing.T, d *deployment) {
	o := d.owner(t)
	id := o.waitlist(t, Obj{"redirect_url": "https://example.com/thanks"})
	ada := address("ada")
	first := o.join(t, id, "  "+strings.ToUpper(ada)+"\n", Obj{"first_name": " Ada ", "last_name": "Lovelace", "unknown": 1})
	first.WantJSON("email", ada).WantJSON("first_name", "Ada").WantJSON("last_name", "Lovelace").
		WantJSON("position", 1).WantJSON("total_signups", 1).WantJSON("referral_count", 0).WantJSON("redirect_url", "https://example.com/thanks")
	second := o.join(t, id, address("bob"))
	second.WantJSON("first_name", "").WantJSON("last_name", "").WantJSON("position", 2).WantJSON("total_signups", 2)
	if first.Str("referral_token") == second.Str("referral_token") {
		t.Error("two signups have the same token")
	}
	t.Run("existing address", func(t *testing.T) {
		r := o.Do(t, signup(id, strings.ToUpper(ada), Obj{"first_name": "Other"})).Want(http.StatusOK)
		r.WantJSON("email", ada).WantJSON("first_name", "Ada").WantJSON("last_name", "Lovelace").WantJSON("position", 1).
			WantJSON("total_signups", 2).
			WantJSON("referral_token", first.Str("referral_token")).WantJSON("created_at", first.Str("created_at")).
			WantJSON("redirect_url", "https://example.com/thanks")
		o.Do(t, signup(strings.ToUpper(id), ada, nil)).Want(http.StatusOK).WantJSON("referral_token", first.Str("referral_token"))
	})
	t.Run("status", func(t *testing.T) {
		r := o.status(t, id, ada).Want(http.StatusOK)
		r.WantJSON("email", ada).WantJSON("first_name", "Ada").WantJSON("position", 1).WantJSON("referral_count", 0).WantJSON("total_signups", 2).
			WantJSON("created_at", first.Str("created_at"))
		alias := o.Do(t, Get(statusPath(id, ada)+"/status")).Want(http.StatusOK)
		if string(alias.Body) != string(r.Body) {
			t.Errorf("with /status: %s; without: %s", alias.Body, r.Body)
		}
		o.status(t, id, strings.ToUpper(ada)).Want(http.StatusOK).WantJSON("email", ada)
		o.status(t, strings.ToUpper(id), ada).Want(http.StatusOK).WantJSON("email", ada)
		for _, none := range []string{
			address("nobody"), "nope", "x@y", strings.Repeat("x", 300) + "@example.com", "a b@example.com", "\x00", "status",
		} {
			o.status(t, id, none).WantError(http.StatusNotFound, "NOT_FOUND")
			o.Do(t, Get(statusPath(id, none)+"/status")).WantError(http.StatusNotFound, "NOT_FOUND")
		}
	})
	t.Run("unknown waitlists", func(t *testing.T) {
		for _, none := range []string{
			unknownID, "nope", "%00", strings.Repeat("x", 1000), "%F0%9F%9A%80", "..%2f", "0193d4a2-5c1e-7a41-9b7c-7a2d90f0c1d",
		} {
			o.Do(t, signup(none, ada)).WantError(http.StatusNotFound, "NOT_FOUND")
			for _, path := range []string{
				"/config", "/count", "/leaderboard", "/signups/" + ada, "/signups/" + ada + "/status",
				"/signups/" + ada + "/verify?token=x",
			} {
				o.Do(t, Get("/public/waitlists/"+none+path)).WantError(http.StatusNotFound, "NOT_FOUND")
			}
			for _, path := range []string{"/unsubscribe", "/delete-my-data"} {
				o.Do(t, Post("/public/waitlists/"+none+path, Obj{"email": ada, "token": "x"})).WantError(http.StatusNotFound, "NOT_FOUND")
			}
			o.Do(t, Post("/public/waitlists/"+none+"/link", Obj{"email": ada})).WantError(http.StatusNotFound, "NOT_FOUND")
			o.Do(t, Post("/public/waitlists/"+none+"/signups/"+ada+"/verify", Obj{"token": "x"})).WantError(http.StatusNotFound, "NOT_FOUND")
		}
	})
}

func testSignupAddresses(t *testing.T, d *deployment) {
	o := d.owner(t)
	id := o.waitlist(t, nil)
	n := 0
	for _, good := range []string{
		"a@b.co", "ada+tag@example.com", "o'neil@example.com", "a/b@example.com", "100%@example.com", "a#b@example.com", "who?@example.com",
		"!#$%&'*+/=?^_`{|}~-@example.com", "a.b.c@sub.sub.example.com", "1@2.example", long(254), "status@example.com",
		"a%2fb@example.com", "%@example.com",
	} {
		t.Run(good, func(t *testing.T) {
			n++
			o.join(t, id, good).WantJSON("email", strings.ToLower(good)).WantJSON("position", n)
			o.status(t, id, good).Want(http.StatusOK).WantJSON("position", n)
			o.Do(t, Get(statusPath(id, good)+"/status")).Want(http.StatusOK).WantJSON("position", n)
			o.Do(t, Get(statusPath(id, good)+"/verify?token=x")).WantError(http.StatusBadRequest, "INVALID_TOKEN")
		})
	}
	t.Run("international", func(t *testing.T) {
		o.join(t, id, "ada@Bücher.example").WantJSON("email", "ada@xn--bcher-kva.example")
		o.Do(t, signup(id, "ada@xn--bcher-kva.example")).Want(http.StatusOK)
		o.status(t, id, "ada@bücher.example").Want(http.StatusOK)
		o.status(t, id, "ada@xn--bcher-kva.example").Want(http.StatusOK)
	})
	for _, bad := range badAddresses() {
		t.Run(strconv.Quote(bad), func(t *testing.T) { o.Do(t, signup(id, bad).Invalid()).Invalid("email") })
	}
	for name, body := range map[string]Obj{
		"missing": {}, "null": {"email": nil}, "number": {"email": 5}, "array": {"email": []any{"a@b.co"}},
		"U+0000": {"email": "a\x00@example.com"},
	} {
		t.Run(name, func(t *testing.T) { o.Do(t, Post("/public/waitlists/"+id+"/signups", body).Invalid()).Invalid("email") })
	}
}

func testSignupFields(t *testing.T, d *deployment) {
	o := d.owner(t)
	id := o.waitlist(t, Obj{"phone_field": "optional"})
	type values struct{ good, bad []any }
	text := func(n int) values {
		return values{
			[]any{nil, "", "x", strings.Repeat("x", n), strings.Repeat(emoji, n), "Zoë & <b>'\"", "=1+1"},
			[]any{strings.Repeat("x", n+1), strings.Repeat(emoji, n+1), 5, true, []any{}, Obj{}, "a\x00b"},
		}
	}
	phone := text(32)
	phone.good = append(phone.good, "+49 30 123456", "+4930123456")
	utm := text(255)
	for field, v := range map[string]values{
		"first_name": text(100), "last_name": text(100), "phone": phone,
		"utm_source": utm, "utm_medium": utm, "utm_campaign": utm, "utm_term": utm, "utm_content": utm,
		"timezone": {
			[]any{nil, "", "UTC", "Europe/Berlin", "America/Argentina/Buenos_Aires", "Etc/GMT+5"},
			[]any{
				"Mars/Phobos", "Local", "../etc/passwd", "europe berlin", strings.Repeat("x", 65), 5, false, "UTC\x00", "/UTC", "localtime",
				"posixrules", "posix/UTC", "right/UTC", "./UTC", "Europe//Berlin", "europe/berlin",
			},
		},
		"referred_by_token": {[]any{nil, "", "unknown", strings.Repeat("0", 32), strings.Repeat("x", 2000)}, []any{5, true, []any{}, "a\x00b"}},
		"consent":           {[]any{nil, true, false}, []any{"true", 1, 0, []any{}}},
		"custom_answers":    {[]any{nil, Obj{}}, []any{"x", 5, []any{}, true}},
	} {
		for i, good := range v.good {
			t.Run(fmt.Sprintf("%s good %d", field, i), func(t *testing.T) {
				o.join(t, id, address("good"), Obj{field: good})
			})
		}
		for i, bad := range v.bad {
			t.Run(fmt.Sprintf("%s bad %d", field, i), func(t *testing.T) {
				o.Do(t, signup(id, address("bad"), Obj{field: bad}).Invalid()).Invalid(field)
			})
		}
	}
	t.Run("lone surrogate", func(t *testing.T) {
		r := signup(id, address("x")).Raw([]byte(`{"email":"` + address("lone") + `","first_name":"a\ud800b"}`))
		o.Do(t, r.With("Content-Type", "application/json")).Want(http.StatusCreated).WantJSON("first_name", "a\ufffdb")
	})
	t.Run("duplicate key", func(t *testing.T) {
		email := address("last")
		r := signup(id, email).Raw([]byte(`{"email":5,"first_name":"no","email":"` + email + `","first_name":"yes"}`))
		o.Do(t, r.With("Content-Type", "application/json")).Want(http.StatusCreated).WantJSON("email", email).WantJSON("first_name", "yes")
	})
	t.Run("everything at once", func(t *testing.T) {
		o.set(t, id, Obj{"name_field": "required", "phone_field": "required", "require_consent": true, "custom_questions": []any{
			Obj{"id": "team_size", "label": "Team?", "type": "text", "required": true},
		}})
		o.Do(t, Post("/public/waitlists/"+id+"/signups",
			Obj{"email": "nope", "last_name": 5, "timezone": "x", "utm_term": 1, "custom_answers": Obj{"nope": "x"}}).Invalid()).
			Invalid("email", "first_name", "last_name", "phone", "timezone", "utm_term", "consent", "custom_answers.team_size",
				"custom_answers.nope")
	})
}

func testFieldModes(t *testing.T, d *deployment) {
	o := d.owner(t)
	id := o.waitlist(t, nil)
	mode := func(name, phone string) { o.set(t, id, Obj{"name_field": name, "phone_field": phone}) }
	mode("required", "required")
	for name, blank := range map[string]any{"missing": nil, "empty": "", "blank": " \t"} {
		t.Run("required and "+name, func(t *testing.T) {
			body := Obj{}
			if blank != nil {
				body = Obj{"first_name": blank, "last_name": blank, "phone": blank}
			}
			o.Do(t, signup(id, address("x"), body)).Invalid("first_name", "last_name", "phone")
		})
	}
	o.Do(t, signup(id, address("x"), Obj{"first_name": "A", "phone": "1"})).Invalid("last_name")
	o.join(t, id, address("x"), Obj{"first_name": "A", "last_name": "B", "phone": "+49301234"}).WantJSON("first_name", "A").
		WantJSON("last_name", "B")
	mode("optional", "optional")
	o.join(t, id, address("x"), Obj{"last_name": " B "}).WantJSON("first_name", "").WantJSON("last_name", "B")
	mode("hidden", "hidden")
	hidden := address("hidden")
	o.join(t, id, hidden, Obj{"first_name": "A", "last_name": "B", "phone": "1"}).WantJSON("first_name", "").WantJSON("last_name", "")
	mode("optional", "optional")
	o.status(t, id, hidden).WantJSON("first_name", "").WantJSON("last_name", "")
}

func testCustomAnswers(t *testing.T, d *deployment) {
	o := d.owner(t)
	texts := repeated(10, func(i int) any { return Obj{"id": fmt.Sprint("t", i), "label": fmt.Sprint("T", i), "type": "text"} })
	wide := o.waitlist(t, Obj{"custom_questions": texts})
	answers := func(of, with string, n int) Obj {
		out := Obj{}
		for i := range 10 {
			out[fmt.Sprint(of, i)] = strings.Repeat(with, n)
		}
		return out
	}
	o.join(t, wide, address("x"), Obj{"custom_answers": answers("t", "x", 1000)})
	o.join(t, wide, address("x"), Obj{"custom_answers": Obj{"t0": strings.Repeat(emoji, 1000)}})
	o.Do(t, signup(wide, address("x"), Obj{"custom_answers": Obj{"t0": strings.Repeat("x", 1001)}}).Invalid()).Invalid("custom_answers.t0")
	o.Do(t, signup(wide, address("x"), Obj{"custom_answers": answers("t", emoji, 1000)})).Invalid("custom_answers")

	id := o.waitlist(t, Obj{"custom_questions": []any{
		Obj{"id": "why", "label": "Why?", "type": "text", "required": true},
		Obj{"id": "size", "label": "Size?", "type": "dropdown", "required": true, "options": []any{"1-10", "11+"}},
		Obj{"id": "terms", "label": "OK?", "type": "checkbox", "required": true},
		Obj{"id": "more", "label": "More?", "type": "text"},
		Obj{"id": "pick", "label": "Pick?", "type": "dropdown", "options": []any{"a", "b"}},
		Obj{"id": "news", "label": "News?", "type": "checkbox"},
	}})
	all := func(changes Obj) Obj {
		out := Obj{"why": "because", "size": "11+", "terms": true}
		for k, v := range changes {
			if v == absent {
				delete(out, k)
			} else {
				out[k] = v
			}
		}
		return Obj{"custom_answers": out}
	}
	for name, changes := range map[string]Obj{
		"only required": {}, "all": {"more": "x", "pick": "a", "news": true}, "null optional": {"more": nil, "pick": nil, "news": nil},
		"checkbox false": {"news": false}, "empty text": {"more": ""},
	} {
		t.Run(name, func(t *testing.T) { o.join(t, id, address("x"), all(changes)) })
	}
	for name, tc := range map[string]struct {
		changes Obj
		field   string
	}{
		"text missing":       {Obj{"why": absent}, "why"},
		"text null":          {Obj{"why": nil}, "why"},
		"text empty":         {Obj{"why": ""}, "why"},
		"text blank":         {Obj{"why": "  "}, "why"},
		"text number":        {Obj{"why": 5}, "why"},
		"text boolean":       {Obj{"why": true}, "why"},
		"text U+0000":        {Obj{"why": "\x00"}, "why"},
		"dropdown missing":   {Obj{"size": absent}, "size"},
		"dropdown null":      {Obj{"size": nil}, "size"},
		"dropdown other":     {Obj{"size": "12"}, "size"},
		"dropdown case":      {Obj{"pick": "A"}, "pick"},
		"dropdown array":     {Obj{"size": []any{"11+"}}, "size"},
		"checkbox missing":   {Obj{"terms": absent}, "terms"},
		"checkbox false":     {Obj{"terms": false}, "terms"},
		"checkbox string":    {Obj{"terms": "true"}, "terms"},
		"checkbox number":    {Obj{"news": 1}, "news"},
		"unknown":            {Obj{"nope": "x"}, "nope"},
		"unknown null":       {Obj{"nope2": 5}, "nope2"},
		"id in another case": {Obj{"More": "x"}, "More"},
	} {
		t.Run(name, func(t *testing.T) {
			o.Do(t, signup(id, address("x"), all(tc.changes)).Invalid()).Invalid("custom_answers." + tc.field)
		})
	}
	t.Run("none at all", func(t *testing.T) {
		o.Do(t, signup(id, address("x"))).Invalid("custom_answers.why", "custom_answers.size", "custom_answers.terms")
		o.Do(t, signup(id, address("x"), Obj{"custom_answers": nil})).Invalid("custom_answers.why", "custom_answers.size", "custom_answers.terms")
	})
}

func testConsent(t *testing.T, d *deployment) {
	o := d.owner(t)
	id := o.waitlist(t, Obj{"require_consent": true, "consent_text": "I agree"})
	for name, v := range map[string]any{"false": false, "null": nil, "string": "true", "one": 1} {
		t.Run(name, func(t *testing.T) { o.Do(t, signup(id, address("x"), Obj{"consent": v}).Invalid()).Invalid("consent") })
	}
	o.Do(t, signup(id, address("x"))).Invalid("consent")
	o.join(t, id, address("x"), Obj{"consent": true})
	o.set(t, id, Obj{"require_consent": false})
	o.join(t, id, address("x"), Obj{"consent": true})
	o.join(t, id, address("x"))
}

func testHoneypot(t *testing.T, d *deployment) {
	o := d.owner(t)
	id := o.waitlist(t, Obj{"redirect_url": "https://example.com/thanks", "name_field": "required", "position_offset": 100})
	o.join(t, id, address("x"), Obj{"first_name": "A", "last_name": "B"})
	for name, v := range map[string]any{
		"text": "http://spam.example", "blank": " ", "number": 7, "boolean": true, "array": []any{"x"}, "object": Obj{"a": 1},
	} {
		t.Run(name, func(t *testing.T) {
			bot := address("bot")
			r := o.join(t, id, bot, Obj{"website": v, "first_name": "Bot", "last_name": "Net"})
			r.WantJSON("email", bot).WantJSON("first_name", "Bot").WantJSON("position", 102).WantJSON("total_signups", 2).
				WantJSON("referral_count", 0).WantJSON("redirect_url", "https://example.com/thanks")
			o.status(t, id, bot).WantError(http.StatusNotFound, "NOT_FOUND")
		})
	}
	t.Run("before the fields", func(t *testing.T) {
		// Required names are missing; a bot must not learn that.
		o.join(t, id, address("bot"), Obj{"website": "x"})
	})
	t.Run("hidden names", func(t *testing.T) {
		// Nobody's are echoed then, so a bot's must not be either.
		o.set(t, id, Obj{"name_field": "hidden"})
		o.join(t, id, address("bot"), Obj{"website": "x", "first_name": "Bot"}).WantJSON("first_name", "").WantJSON("last_name", "")
		o.set(t, id, Obj{"name_field": "required"})
	})
	t.Run("hidden positions", func(t *testing.T) {
		o.set(t, id, Obj{"hide_position": true})
		o.join(t, id, address("bot"), Obj{"website": "x"}).WantAbsent("position", "total_signups")
		o.set(t, id, Obj{"hide_position": false})
	})
	for name, v := range map[string]any{"empty": "", "null": nil} {
		t.Run(name, func(t *testing.T) {
			person := address("person")
			o.join(t, id, person, Obj{"website": v, "first_name": "A", "last_name": "B"})
			o.status(t, id, person).Want(http.StatusOK)
		})
	}
	o.Do(t, Get("/waitlists/"+id).As(o.token)).WantJSON("signup_count", 3)
}

func testDomainRules(t *testing.T, d *deployment) {
	o := d.owner(t)
	id := o.waitlist(t, Obj{"allowed_email_domains": []any{"acme.com", "gmail.com", "xn--bcher-kva.example"}})
	o.join(t, id, "ada@ACME.com")
	o.join(t, id, "ada@gmail.com")
	o.join(t, id, "ada@bücher.example")
	for _, other := range []string{"ada@example.com", "ada@sub.acme.com", "ada@acme.com.evil.example", "ada@notacme.com"} {
		o.Do(t, signup(id, other)).WantError(http.StatusForbidden, "DOMAIN_RESTRICTED")
	}
	o.set(t, id, Obj{"exclude_personal_emails": true})
	o.Do(t, signup(id, "bob@gmail.com")).WantError(http.StatusBadRequest, "DOMAIN_RESTRICTED")
	o.Do(t, signup(id, "bob@yahoo.com")).WantError(http.StatusForbidden, "DOMAIN_RESTRICTED")
	// Domain rules come before the existing address.
	o.Do(t, signup(id, "ada@gmail.com")).WantError(http.StatusBadRequest, "DOMAIN_RESTRICTED")
	o.set(t, id, Obj{"allowed_email_domains": nil})
	for _, personal := range []string{
		"gmail.com", "yahoo.com", "hotmail.com", "outlook.com", "icloud.com", "aol.com", "gmx.de", "web.de", "proton.me",
		"protonmail.com", "mail.ru", "qq.com", "GMAIL.com", "yahoo.co.uk", "live.com", "googlemail.com",
	} {
		o.Do(t, signup(id, "x@"+personal)).WantError(http.StatusBadRequest, "DOMAIN_RESTRICTED")
	}
	o.join(t, id, "bob@acme.com")
	o.status(t, id, "ada@gmail.com").Want(http.StatusOK)
}

// testSignupOrder: JSON, the waitlist, open, honeypot, fields, domains,
// existing address.
func testSignupOrder(t *testing.T, d *deployment) {
	o := d.owner(t)
	id := o.waitlist(t, nil)
	ada := address("ada")
	o.join(t, id, ada)
	broken := Post("/public/waitlists/"+unknownID+"/signups", nil).Raw([]byte("{")).Invalid()
	o.Do(t, broken).WantError(http.StatusBadRequest, "INVALID_BODY")
	o.Do(t, Post("/public/waitlists/no-id/signups", nil).Raw([]byte("{")).Invalid()).WantError(http.StatusBadRequest, "INVALID_BODY")
	o.Do(t, signup("no-id", "nope").Invalid()).WantError(http.StatusNotFound, "NOT_FOUND")
	o.Do(t, signup(unknownID, "nope").Invalid()).WantError(http.StatusNotFound, "NOT_FOUND")
	o.set(t, id, Obj{"status": "closed", "allowed_email_domains": []any{"acme.com"}, "name_field": "required"})
	o.Do(t, Post("/public/waitlists/"+id+"/signups", nil).Raw([]byte("[]")).Invalid()).WantError(http.StatusBadRequest, "INVALID_BODY")
	for _, r := range []Request{
		signup(id, ada), signup(id, "nope").Invalid(), signup(id, ada, Obj{"website": "x"}), signup(id, address("bob")),
	} {
		o.Do(t, r).WantError(http.StatusForbidden, "WAITLIST_CLOSED")
	}
	o.status(t, id, ada).Want(http.StatusOK)
	o.set(t, id, Obj{"status": "open"})
	o.join(t, id, ada, Obj{"website": "x"})
	o.Do(t, signup(id, ada)).Invalid("first_name", "last_name")
	o.Do(t, signup(id, ada, Obj{"first_name": "A", "last_name": "B"})).WantError(http.StatusForbidden, "DOMAIN_RESTRICTED")
	o.set(t, id, Obj{"allowed_email_domains": nil})
	o.Do(t, signup(id, ada)).Invalid("first_name", "last_name")
	o.Do(t, signup(id, ada, Obj{"first_name": "A", "last_name": "B"})).Want(http.StatusOK).WantJSON("first_name", "")
}

func testReferrals(t *testing.T, d *deployment) {
	o := d.owner(t)
	id, other := o.waitlist(t, nil), o.waitlist(t, nil)
	people := make([]string, 5)
	tokens := make([]string, 5)
	for i := range people {
		people[i] = address(fmt.Sprint("p", i))
		tokens[i] = o.join(t, id, people[i]).Str("referral_token")
	}
	foreign := o.join(t, other, address("x")).Str("referral_token")
	want := func(count int64, order ...string) {
		t.Helper()
		for i, email := range order {
			o.status(t, id, email).WantJSON("position", i+1).WantJSON("total_signups", count)
		}
	}
	for name, token := range map[string]string{
		"unknown": strings.Repeat("0", 32), "foreign": foreign, "none": "", "upper": strings.ToUpper(foreign),
	} {
		people = append(people, address(name))
		o.join(t, id, people[len(people)-1], Obj{"referred_by_token": token}).WantJSON("position", len(people))
	}
	want(9, people...)

	refer := func(i int) {
		t.Helper()
		people = append(people, address("friend"))
		o.join(t, id, people[len(people)-1], Obj{"referred_by_token": tokens[i]}).WantJSON("position", len(people)).
			WantJSON("total_signups", len(people))
	}
	refer(4)
	o.status(t, id, people[4]).WantJSON("referral_count", 1)
	people[3], people[4] = people[4], people[3] // the referral moved number 4 up by one
	tokens[3], tokens[4] = tokens[4], tokens[3]
	want(10, people...)
	o.set(t, id, Obj{"referral_boost": 2})
	refer(4)
	p, tok := people[4], tokens[4]
	copy(people[3:5], people[2:4])
	copy(tokens[3:5], tokens[2:4])
	people[2], tokens[2] = p, tok
	want(11, people...)
	o.set(t, id, Obj{"referral_boost": 100})
	refer(4)
	p = people[4]
	copy(people[1:5], people[0:4])
	people[0] = p
	want(12, people...)
	o.status(t, id, p).WantJSON("referral_count", 2)
	// An existing address gives no credit, and an answer of 200 no referral.
	o.Do(t, signup(id, people[11], Obj{"referred_by_token": tokens[0]})).Want(http.StatusOK)
	want(12, people...)
	o.Do(t, signup(id, p)).Want(http.StatusOK).WantJSON("referral_count", 2).WantJSON("position", 1)
}

// testPositions holds a random course of signups, credits and removals
// against a slice.
func testPositions(t *testing.T, d *deployment) {
	o := d.owner(t)
	const boost = 3
	id := o.waitlist(t, Obj{"referral_boost": boost})
	seed := uint64(random(1 << 62))
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	type person struct{ email, token string }
	var queue []person
	total, referrals := 0, map[string]int{}
	for step := range 120 {
		if len(queue) > 3 && rng.IntN(6) == 0 {
			i := rng.IntN(len(queue))
			p := queue[i]
			optOut := o.Do(t,
				Post("/public/waitlists/"+id+"/unsubscribe", Obj{"email": p.email, "token": d.unsubscribeToken(t, id, p.email)})).Want(http.StatusOK)
			o.Do(t, Post("/public/waitlists/"+id+"/delete-my-data", Obj{"email": p.email, "token": optOut.Str("delete_token")})).Want(http.StatusOK)
			queue = slices.Delete(queue, i, i+1)
			total--
		} else {
			body := Obj{}
			if len(queue) > 0 && rng.IntN(3) > 0 {
				i := rng.IntN(len(queue))
				body["referred_by_token"] = queue[i].token
				p := queue[i]
				referrals[p.email]++
				queue = slices.Insert(slices.Delete(queue, i, i+1), max(0, i-boost), p)
			}
			p := person{email: address("p")}
			total++
			p.token = o.join(t, id, p.email, body).WantJSON("position", len(queue)+1).WantJSON("total_signups", total).Str("referral_token")
			queue = append(queue, p)
		}
		if step%10 != 9 {
			continue
		}
		for i, p := range queue {
			o.status(t, id, p.email).WantJSON("position", i+1).WantJSON("total_signups", total).WantJSON("referral_count", referrals[p.email])
		}
	}
}

func testSignupsAtOnce(t *testing.T, d *deployment) {
	o := d.owner(t)
	id := o.waitlist(t, nil)
	var mu sync.Mutex
	positions := map[int64]string{}
	var wg sync.WaitGroup
	for range 200 {
		wg.Go(func() {
			r, err := o.Send(t.Context(), signup(id, address("x")))
			if err != nil || r.Status != http.StatusCreated {
				t.Errorf("%v %v", r, err)
				return
			}
			r.t = t
			mu.Lock()
			defer mu.Unlock()
			positions[r.Int("position")] = r.Str("email")
		})
	}
	wg.Wait()
	for i := int64(1); i <= 200; i++ {
		if positions[i] == "" {
			t.Fatalf("no signup got position %d", i)
		}
		o.status(t, id, positions[i]).WantJSON("position", i).WantJSON("total_signups", 200)
	}
	t.Run("while clients disconnect", func(t *testing.T) {
		id := o.waitlist(t, nil)
		stay, leave := make([]string, 100), make([]string, 100)
		for i := range stay {
			stay[i], leave[i] = address("stay"), address("leave")
			wg.Go(func() {
				if r, err := o.Send(t.Context(), signup(id, stay[i])); err != nil || r.Status != http.StatusCreated {
					t.Errorf("%v %v", r, err)
				}
			})
			wg.Go(func() {
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i)*200*time.Microsecond)
				defer cancel()
				_, _ = o.Send(ctx, signup(id, leave[i]))
			})
		}
		wg.Wait()
		// Whoever left is on the list or not; the places have no gap either way.
		// Some of them may still be on their way, hence the repetition.
		Await(t, time.Minute, "places without a gap", func() bool {
			places, total := map[int64]bool{}, int64(0)
			for _, email := range slices.Concat(leave, stay) {
				r := o.status(t, id, email)
				if r.Status == http.StatusNotFound && slices.Contains(leave, email) {
					continue
				}
				places[r.Want(http.StatusOK).Int("position")] = true
				total = r.Int("total_signups")
			}
			return int64(len(places)) == total && places[1] && places[total]
		})
	})
	t.Run("one address", func(t *testing.T) {
		email, codes := address("same"), map[int]int{}
		tokens := map[string]bool{}
		for range 20 {
			wg.Go(func() {
				r, err := o.Send(t.Context(), signup(id, email))
				if err != nil {
					t.Error(err)
					return
				}
				r.t = t
				mu.Lock()
				defer mu.Unlock()
				codes[r.Status]++
				tokens[r.Str("referral_token")] = true
			})
		}
		wg.Wait()
		if codes[http.StatusCreated] != 1 || codes[http.StatusOK] != 19 || len(tokens) != 1 {
			t.Errorf("statuses %v and %d tokens, want one 201, nineteen 200 and one token", codes, len(tokens))
		}
	})
}

func testOffsetAndHiding(t *testing.T, d *deployment) {
	o := d.owner(t)
	id := o.waitlist(t, Obj{"position_offset": 1000000})
	ada := address("ada")
	o.join(t, id, ada).WantJSON("position", 1000001).WantJSON("total_signups", 1)
	o.Do(t, signup(id, ada)).Want(http.StatusOK).WantJSON("position", 1000001)
	o.status(t, id, ada).WantJSON("position", 1000001).WantJSON("total_signups", 1)
	o.Do(t, Get("/public/waitlists/"+id+"/config")).WantJSON("position_offset", 1000000)
	o.set(t, id, Obj{"hide_position": true})
	o.join(t, id, address("bob")).WantAbsent("position", "total_signups")
	o.Do(t, signup(id, ada)).Want(http.StatusOK).WantAbsent("position", "total_signups")
	o.status(t, id, ada).Want(http.StatusOK).WantAbsent("position", "total_signups")
	o.Do(t, Get(statusPath(id, ada)+"/status")).Want(http.StatusOK).WantAbsent("position", "total_signups")
}

func testCounts(t *testing.T, d *deployment) {
	o := d.owner(t)
	id := o.waitlist(t, nil)
	want := func(n any) {
		t.Helper()
		o.Do(t, Get("/public/waitlists/"+id+"/count")).Want(http.StatusOK).WantJSON("count", n).WantJSON("waitlist_id", id)
		o.Do(t, Get("/public/waitlists/"+id+"/config")).Want(http.StatusOK).WantJSON("signup_count", n)
	}
	want(nil)
	last := ""
	for range 10 {
		last = address("x")
		o.join(t, id, last)
	}
	want(nil)
	o.join(t, id, address("x"))
	want(11)
	o.set(t, id, Obj{"hide_position": true})
	want(nil)
	o.set(t, id, Obj{"hide_position": false})
	want(11)
	optOut := o.Do(t, Post("/public/waitlists/"+id+"/unsubscribe", Obj{"email": last, "token": d.unsubscribeToken(t, id, last)})).
		Want(http.StatusOK)
	want(11)
	o.Do(t, Post("/public/waitlists/"+id+"/delete-my-data", Obj{"email": last, "token": optOut.Str("delete_token")})).Want(http.StatusOK)
	want(nil)
	o.Do(t, Get("/waitlists/"+id).As(o.token)).WantJSON("signup_count", 10)
}

func testLeaderboard(t *testing.T, d *deployment) {
	o := d.owner(t)
	id := o.waitlist(t, nil)
	board := func(query string, counts ...int) {
		t.Helper()
		want := make([]any, len(counts))
		for i, n := range counts {
			want[i] = Obj{"rank": i + 1, "referral_count": n}
		}
		o.Do(t, Get("/public/waitlists/"+id+"/leaderboard"+query).Invalid()).Want(http.StatusOK).WantJSON("waitlist_id", id).
			WantJSON("leaderboard", want)
	}
	board("")
	tokens := make([]string, 12)
	for i := range tokens {
		tokens[i] = o.join(t, id, address("r")).Str("referral_token")
	}
	board("")
	for i, token := range tokens[:11] {
		for range i%3 + 1 {
			o.join(t, id, address("f"), Obj{"referred_by_token": token})
		}
	}
	board("", 3, 3, 3, 2, 2, 2, 2, 1, 1, 1)
	board("?limit=1", 3)
	board("?limit=50", 3, 3, 3, 2, 2, 2, 2, 1, 1, 1, 1)
	board("?limit=", 3, 3, 3, 2, 2, 2, 2, 1, 1, 1)
}

func testConfig(t *testing.T, d *deployment) {
	o := d.owner(t)
	id := o.waitlist(t, nil)
	plain := Obj{
		"waitlist_id": id, "name": "Launch", "headline": "", "subheadline": "", "hero_image_url": "", "name_field": "optional",
		"phone_field":  "hidden",
		"signup_count": nil, "custom_questions": []any{}, "status": "open", "show_social_proof": true, "require_consent": false,
		"consent_text":   "",
		"referral_boost": 1, "position_offset": 0, "hide_branding": false, "hide_position": false, "require_email_verification": false,
	}
	var got Obj
	o.Do(t, Get("/public/waitlists/"+id+"/config")).Want(http.StatusOK).Decode(&got)
	if canonical(got) != canonical(plain) {
		t.Errorf("config %s, want %s", canonical(got), canonical(plain))
	}
	changes := Obj{
		"headline": "Hello", "subheadline": "World", "hero_image_url": "https://example.com/a.png", "name_field": "required",
		"phone_field":      "optional",
		"custom_questions": []any{question("q", nil)}, "status": "closed", "show_social_proof": false, "require_consent": true,
		"consent_text":   "Yes",
		"referral_boost": 9, "position_offset": 5, "hide_branding": true, "hide_position": true, "require_email_verification": true,
		"appearance": Obj{"accent": "#aabbcc", "logo_url": "https://example.com/logo.svg", "button_text": "Go", "locale": "de"},
	}
	o.set(t, id, changes)
	o.set(t, id, Obj{
		"webhook_url": "https://example.com/secret", "allowed_email_domains": []any{"acme.com"},
		"redirect_url": "https://example.com/x",
	})
	maps.Copy(plain, changes)
	// The next request sees it, on every call.
	for range 3 {
		o.Do(t, Get("/public/waitlists/"+id+"/config?x="+url.QueryEscape("y"))).Want(http.StatusOK).Decode(&got)
		if canonical(got) != canonical(plain) {
			t.Errorf("config %s, want %s", canonical(got), canonical(plain))
		}
	}
}
