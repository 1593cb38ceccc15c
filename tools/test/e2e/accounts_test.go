package e2e

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"math/big"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

func testAccounts(t *testing.T, d *deployment) {
	t.Run("register", func(t *testing.T) { testRegister(t, d) })
	t.Run("login", func(t *testing.T) { testLogin(t, d) })
	t.Run("sessions", func(t *testing.T) { testSessions(t, d) })
	t.Run("credentials", func(t *testing.T) { testCredentials(t, d) })
	t.Run("verification", func(t *testing.T) { testAccountVerification(t, d) })
	t.Run("reset", func(t *testing.T) { testPasswordReset(t, d) })
	t.Run("brute force", func(t *testing.T) { testBruteForce(t, d) })
	t.Run("deletion", func(t *testing.T) { testAccountDeletion(t, d) })
}

// long returns an address of n characters, n from 202 to 264.
func long(n int) string {
	local := strings.Repeat("a", 52) + strings.ToLower(rand.Text()[:12])
	rest := strings.Repeat("b", 63) + "." + strings.Repeat("c", 63) + ".example"
	return local + "@" + strings.Repeat("d", n-len(local)-len("@.")-len(rest)) + "." + rest
}

func testRegister(t *testing.T, d *deployment) {
	c := d.client(t)
	t.Run("starts a trial", func(t *testing.T) {
		email := address("new")
		c.Do(t, Post("/auth/register", Obj{"email": "  " + strings.ToUpper(email) + " ", "password": "12345678"})).
			Want(http.StatusCreated).WantJSON("email", email).WantJSON("subscription_tier", "pro").WantJSON("subscription_status", "trialing")
	})
	t.Run("existing address", func(t *testing.T) {
		email := address("taken")
		c.Do(t, Post("/auth/register", Obj{"email": email, "password": "12345678"})).Want(http.StatusCreated)
		c.Do(t, Post("/auth/register", Obj{"email": strings.ToUpper(email), "password": "another one"})).
			WantError(http.StatusConflict, "CONFLICT")
	})
	t.Run("the same address at once", func(t *testing.T) {
		email := address("race")
		var mu sync.Mutex
		got := map[int]int{}
		var wg sync.WaitGroup
		for range 6 {
			wg.Go(func() {
				r, err := c.Send(t.Context(), Post("/auth/register", Obj{"email": email, "password": "12345678"}))
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				defer mu.Unlock()
				got[r.Status]++
			})
		}
		wg.Wait()
		if got[http.StatusCreated] != 1 || got[http.StatusConflict] != 5 {
			t.Errorf("statuses %v, want one 201 and five 409", got)
		}
	})
	for _, tc := range []struct {
		name     string
		password string
		ok       bool
	}{
		{"7 bytes", "1234567", false},
		{"8 bytes", "12345678", true},
		{"8 bytes in two characters", emoji + emoji, true},
		{"7 bytes in five characters", "éé123", false},
		{"1024 bytes", strings.Repeat("x", 1024), true},
		{"1025 bytes", strings.Repeat("x", 1025), false},
		{"empty", "", false},
	} {
		t.Run("password of "+tc.name, func(t *testing.T) {
			r := c.Do(t, Post("/auth/register", Obj{"email": address("pw"), "password": tc.password}).Invalid())
			if tc.ok {
				r.Want(http.StatusCreated)
			} else {
				r.Invalid("password")
			}
		})
	}
	for _, bad := range badAddresses() {
		t.Run("address "+strconv.Quote(bad), func(t *testing.T) {
			c.Do(t, Post("/auth/register", Obj{"email": bad, "password": "12345678"}).Invalid()).Invalid("email")
		})
	}
	t.Run("address of 254 characters", func(t *testing.T) {
		email := long(254)
		c.Do(t, Post("/auth/register", Obj{"email": email, "password": "12345678"})).Want(http.StatusCreated).WantJSON("email", email)
	})
	t.Run("international domain", func(t *testing.T) {
		local := strings.TrimSuffix(address("idn"), "@example.com")
		c.Do(t, Post("/auth/register", Obj{"email": local + "@Bücher.example", "password": "12345678"})).
			Want(http.StatusCreated).WantJSON("email", local+"@xn--bcher-kva.example")
	})
	for _, tc := range []struct {
		name   string
		body   any
		fields []string
	}{
		{"nothing", Obj{}, []string{"email", "password"}},
		{"nulls", Obj{"email": nil, "password": nil}, []string{"email", "password"}},
		{"wrong types", Obj{"email": 5, "password": true}, []string{"email", "password"}},
		{"both bad", Obj{"email": "x", "password": "x"}, []string{"email", "password"}},
		{"U+0000", Obj{"email": "a\x00@example.com", "password": "1234567\x00"}, []string{"email", "password"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c.Do(t, Post("/auth/register", tc.body).Invalid()).Invalid(tc.fields...)
		})
	}
}

// badAddresses returns addresses that the contract rejects.
func badAddresses() []string {
	return []string{
		"", " ", "ada", "ada@", "@example.com", "ada@localhost", "ada lovelace@example.com", "ada@exam ple.com",
		"ada@example..com", "ada@.example.com", "ada@example.com.", "ada@-example.com", "ada@example-.com",
		"Ada <ada@example.com>", "<ada@example.com>", "ada@example.com,bob@example.com", "ada@example.com;bob@example.com",
		`"ada lovelace"@example.com`, "ada@[127.0.0.1]", "ada@[IPv6:::1]", ".ada@example.com", "ada.@example.com", "a..da@example.com",
		"ada@@example.com", "ada@bob@example.com", "ada(comment)@example.com", "mailto:ada@example.com", long(255),
	}
}

func testLogin(t *testing.T, d *deployment) {
	o := d.owner(t)
	t.Run("right pair", func(t *testing.T) {
		r := o.Do(t, Post("/auth/login", Obj{"email": " " + strings.ToUpper(o.email), "password": o.password})).Want(http.StatusOK)
		r.WantJSON("token_type", "Bearer").WantJSON("expires_in", 3600)
		cl := claims(t, r.Str("id_token"))
		for _, k := range []string{"iss", "sub", "aud", "exp"} {
			if cl[k] == nil {
				t.Errorf("the ID token has no %s", k)
			}
		}
		if exp, ok := cl["exp"].(float64); !ok || time.Until(time.Unix(int64(exp), 0)).Round(time.Minute) != time.Hour {
			t.Errorf("exp is %v, want one hour from now", cl["exp"])
		}
	})
	t.Run("a wrong pair reveals nothing", func(t *testing.T) {
		known := o.Do(t, Post("/auth/login", Obj{"email": o.email, "password": "wrong password"})).
			WantError(http.StatusUnauthorized, "AUTHENTICATION_REQUIRED")
		unknown := o.Do(t, Post("/auth/login", Obj{"email": address("nobody"), "password": "wrong password"})).
			WantError(http.StatusUnauthorized, "AUTHENTICATION_REQUIRED")
		if a, b := known.Str("error"), unknown.Str("error"); a != b {
			t.Errorf("%q for a known address, %q for an unknown one", a, b)
		}
	})
	for _, tc := range []struct {
		name   string
		body   any
		fields []string
	}{
		{"nothing", Obj{}, []string{"email", "password"}},
		{"nulls", Obj{"email": nil, "password": nil}, []string{"email", "password"}},
		{"wrong types", Obj{"email": []int{1}, "password": 12345678}, []string{"email", "password"}},
	} {
		t.Run(tc.name, func(t *testing.T) { o.Do(t, Post("/auth/login", tc.body).Invalid()).Invalid(tc.fields...) })
	}
	t.Run("signing keys", func(t *testing.T) {
		signature(t, o.Client, o.token)
	})
}

// signature requires that a published key has signed the JWT.
func signature(t *testing.T, c *Client, jwt string) {
	t.Helper()
	var set struct {
		Keys []struct{ Kid, X, Y string } `json:"keys"`
	}
	c.Do(t, Get("/auth/jwks.json")).Want(http.StatusOK).Decode(&set)
	parts := strings.Split(jwt, ".")
	var head struct{ Alg, Kid string }
	raw, _ := base64.RawURLEncoding.DecodeString(parts[0])
	if err := json.Unmarshal(raw, &head); err != nil || head.Alg != "ES256" {
		t.Fatalf("header %s: %v", raw, err)
	}
	for _, k := range set.Keys {
		if k.Kid != head.Kid {
			continue
		}
		x, _ := base64.RawURLEncoding.DecodeString(k.X)
		y, _ := base64.RawURLEncoding.DecodeString(k.Y)
		pub, err := ecdsa.ParseUncompressedPublicKey(elliptic.P256(), append(append([]byte{4}, x...), y...))
		if err != nil {
			t.Fatal(err)
		}
		sum := sha256.Sum256([]byte(parts[0] + "." + parts[1]))
		sig, _ := base64.RawURLEncoding.DecodeString(parts[2])
		if len(sig) != 64 || !ecdsa.Verify(pub, sum[:], new(big.Int).SetBytes(sig[:32]), new(big.Int).SetBytes(sig[32:])) {
			t.Error("the signature does not verify")
		}
		return
	}
	t.Errorf("key %q is not published", head.Kid)
}

func testSessions(t *testing.T, d *deployment) {
	t.Run("refresh rotates", func(t *testing.T) {
		o := d.owner(t)
		first := o.Do(t, Post("/auth/refresh", Obj{"refresh_token": o.refresh})).Want(http.StatusOK)
		o.Do(t, Get("/auth/me").As(first.Str("id_token"))).Want(http.StatusOK)
		second := o.Do(t, Post("/auth/refresh", Obj{"refresh_token": first.Str("refresh_token")})).Want(http.StatusOK)
		other := o.refresh
		o.login(t) // a second family of tokens
		o.Do(t, Post("/auth/refresh", Obj{"refresh_token": other})).WantError(http.StatusUnauthorized, "AUTHENTICATION_REQUIRED")
		// Using a spent token ends its family. The other family continues.
		o.Do(t, Post("/auth/refresh", Obj{"refresh_token": second.Str("refresh_token")})).
			WantError(http.StatusUnauthorized, "AUTHENTICATION_REQUIRED")
		o.Do(t, Get("/auth/me").As(o.token)).Want(http.StatusOK)
		o.Do(t, Post("/auth/refresh", Obj{"refresh_token": o.refresh})).Want(http.StatusOK)
	})
	t.Run("logout", func(t *testing.T) {
		o := d.owner(t)
		o.Do(t, Post("/auth/logout", Obj{"refresh_token": o.refresh})).Want(http.StatusNoContent)
		o.Do(t, Post("/auth/refresh", Obj{"refresh_token": o.refresh})).WantError(http.StatusUnauthorized, "AUTHENTICATION_REQUIRED")
		o.Do(t, Post("/auth/logout", Obj{"refresh_token": o.refresh})).Want(http.StatusNoContent)
		o.Do(t, Post("/auth/logout", Obj{"refresh_token": "unknown"})).Want(http.StatusNoContent)
	})
	c := d.client(t)
	for _, path := range []string{"/auth/refresh", "/auth/logout"} {
		for name, body := range map[string]Obj{"missing": {}, "null": {"refresh_token": nil}, "number": {"refresh_token": 5}} {
			t.Run(path+" "+name, func(t *testing.T) { c.Do(t, Post(path, body).Invalid()).Invalid("refresh_token") })
		}
	}
	t.Run("unknown refresh token", func(t *testing.T) {
		c.Do(t, Post("/auth/refresh", Obj{"refresh_token": "unknown"})).WantError(http.StatusUnauthorized, "AUTHENTICATION_REQUIRED")
		c.Do(t, Post("/auth/refresh", Obj{"refresh_token": strings.Repeat("x", 10000)})).
			WantError(http.StatusUnauthorized, "AUTHENTICATION_REQUIRED")
	})
}

func testCredentials(t *testing.T, d *deployment) {
	o := d.owner(t)
	t.Run("profile", func(t *testing.T) {
		for name, r := range map[string]Request{"token": Get("/auth/me").As(o.token), "key": Get("/auth/me").Key(o.key)} {
			t.Run(name, func(t *testing.T) {
				me := o.Do(t, r).Want(http.StatusOK).WantJSON("email", o.email).WantJSON("has_api_key", true).
					WantJSON("subscription_tier", "pro").WantJSON("subscription_status", "trialing").
					WantJSON("has_used_trial", true).WantJSON("payment_customer_id", nil)
				ends := me.Time("trial_ends_at")
				if got := time.Until(ends).Round(time.Hour); got != 7*24*time.Hour {
					t.Errorf("the trial ends in %s, want 7 days", got)
				}
				if me.Int("trial_end") != ends.Unix() {
					t.Errorf("trial_end is %d but trial_ends_at is %s", me.Int("trial_end"), ends)
				}
			})
		}
	})
	parts := strings.Split(o.token, ".")
	forged := func(header string) string {
		h := base64.RawURLEncoding.EncodeToString([]byte(header))
		mac := hmac.New(sha256.New, []byte("secret"))
		mac.Write([]byte(h + "." + parts[1]))
		return h + "." + parts[1] + "." + base64.RawURLEncoding.EncodeToString(mac.Sum(nil))
	}
	flip := func(s string, i int) string {
		b := []byte(s)
		if b[i] == 'A' {
			b[i] = 'B'
		} else {
			b[i] = 'A'
		}
		return string(b)
	}
	bad := []struct {
		name string
		with func(Request) Request
	}{
		{"nothing", func(r Request) Request { return r }},
		{"an empty bearer", func(r Request) Request { return r.With("Authorization", "Bearer ") }},
		{"another scheme", func(r Request) Request { return r.With("Authorization", "Basic YTpi") }},
		{"the bare token", func(r Request) Request { return r.With("Authorization", o.token) }},
		{"no JWT", func(r Request) Request { return r.As("x") }},
		{"the refresh token", func(r Request) Request { return r.As(o.refresh) }},
		{"the key as bearer", func(r Request) Request { return r.As(o.key) }},
		{"the token as key", func(r Request) Request { return r.Key(o.token) }},
		{"a changed signature", func(r Request) Request { return r.As(flip(o.token, len(o.token)-10)) }},
		{"a changed payload", func(r Request) Request { return r.As(parts[0] + "." + flip(parts[1], 20) + "." + parts[2]) }},
		{"no signature", func(r Request) Request { return r.As(parts[0] + "." + parts[1] + ".") }},
		{"alg none", func(r Request) Request {
			return r.As(base64.RawURLEncoding.EncodeToString([]byte(`{"alg":"none","typ":"JWT"}`)) + "." + parts[1] + ".")
		}},
		{"alg HS256", func(r Request) Request { return r.As(forged(`{"alg":"HS256","typ":"JWT"}`)) }},
		{"an unknown kid", func(r Request) Request { return r.As(forged(`{"alg":"ES256","kid":"nope"}`)) }},
		{"a huge token", func(r Request) Request { return r.As(strings.Repeat("a.", 4000)) }},
		{"a changed key", func(r Request) Request { return r.Key(flip(o.key, len(o.key)-1)) }},
		{"a key with another secret", func(r Request) Request { return r.Key(flip(o.key, 30)) }},
		{"a short key", func(r Request) Request { return r.Key("wl_live_") }},
		{"a bad token beside the key", func(r Request) Request { return r.As("x").Key(o.key) }},
	}
	for _, op := range d.contract.Operations() {
		if len(op.Schemes) == 0 || op.Planned {
			continue
		}
		r := NewRequest(op.Method, fill(op.Path, unknownID, "ada@example.com"), nil).Invalid()
		for _, b := range bad {
			t.Run(op.Method+" "+op.Path+" with "+b.name, func(t *testing.T) {
				o.Do(t, b.with(r)).WantError(http.StatusUnauthorized, "AUTHENTICATION_REQUIRED")
			})
		}
	}
	t.Run("the token decides", func(t *testing.T) {
		o.Do(t, Get("/auth/me").As(o.token).Key("wl_live_bad")).Want(http.StatusOK)
	})
	t.Run("regenerate", func(t *testing.T) {
		o.Do(t, Post("/auth/regenerate-api-key", nil).Key(o.key)).WantError(http.StatusForbidden, "FORBIDDEN")
		o.Do(t, Get("/auth/me").Key(o.key)).Want(http.StatusOK)
		fresh := o.Do(t, Post("/auth/regenerate-api-key", nil).As(o.token)).Want(http.StatusOK).Str("api_key")
		o.Do(t, Get("/auth/me").Key(o.key)).WantError(http.StatusUnauthorized, "AUTHENTICATION_REQUIRED")
		o.Do(t, Get("/auth/me").Key(fresh)).Want(http.StatusOK).WantJSON("email", o.email)
		o.Do(t, Get("/waitlists").Key(fresh)).Want(http.StatusOK)
	})
}

// fill replaces the parameters of a path template.
func fill(path, id, email string) string {
	return strings.NewReplacer(
		"{waitlist_id}", id, "{email}", email, "{owner_email}", email, "{session_id}", id, "{template_id}", id,
		"{domain}", "example.com").Replace(path)
}

func testAccountVerification(t *testing.T, d *deployment) {
	o := d.owner(t)
	link := d.server.AwaitMails(t, o.email, 1)[0].Token()
	if link == "" {
		t.Fatal("the mail has no link with a token")
	}
	verify := func(token any) Request { return Post("/auth/verify-email", Obj{"token": token}).Invalid() }
	t.Run("resend", func(t *testing.T) {
		o.Do(t, Post("/auth/resend-verification", nil).As(o.token)).Want(http.StatusOK)
		d.server.AwaitMails(t, o.email, 2)
		retryAfter(t, o.Do(t, Post("/auth/resend-verification", nil).As(o.token)).WantError(http.StatusTooManyRequests, "RATE_LIMITED"), 60)
		retryAfter(t, o.Do(t, Post("/auth/resend-verification", nil).Key(o.key)).WantError(http.StatusTooManyRequests, "RATE_LIMITED"), 60)
	})
	t.Run("ten in a cycle", func(t *testing.T) {
		p := d.owner(t)
		for i := range 10 {
			p.Do(t, Post("/auth/resend-verification", nil).As(p.token)).Want(http.StatusOK)
			d.exec(t, "UPDATE account.account SET verify_resent_at = verify_resent_at - interval '61 seconds' WHERE email = $1", p.email)
			d.server.AwaitMails(t, p.email, i+2)
		}
		retryAfter(t, p.Do(t, Post("/auth/resend-verification", nil).As(p.token)).WantError(http.StatusTooManyRequests, "RATE_LIMITED"), 24*60*60)
		// A verification cycle ends after a day.
		d.exec(t, "UPDATE account.account SET verify_started_at = verify_started_at - interval '24 hours 1 second' WHERE email = $1", p.email)
		p.Do(t, Post("/auth/resend-verification", nil).As(p.token)).Want(http.StatusOK)
		mails := d.server.AwaitMails(t, p.email, 12)
		p.Do(t, verify(mails[11].Token()).As(p.token)).Want(http.StatusOK)
	})
	t.Run("bad tokens", func(t *testing.T) {
		for name, token := range map[string]string{
			"none of ours": "x", "cut": link[:len(link)-1], "longer": link + "A", "huge": strings.Repeat("x", 5000),
		} {
			t.Run(name, func(t *testing.T) { o.Do(t, verify(token)).WantError(http.StatusBadRequest, "INVALID_TOKEN") })
		}
		o.Do(t, verify("")).Invalid("token")
		o.Do(t, verify(nil)).Invalid("token")
		o.Do(t, verify(5)).Invalid("token")
		o.Do(t, Post("/auth/verify-email", Obj{}).Invalid()).Invalid("token")
	})
	t.Run("cannot reset the password", func(t *testing.T) {
		o.Do(t, Post("/auth/reset-password", Obj{"token": link, "password": "12345678"})).WantError(http.StatusBadRequest, "INVALID_TOKEN")
	})
	t.Run("verify", func(t *testing.T) {
		o.Do(t, verify(link).As(o.token)).Want(http.StatusOK).WantJSON("verified", true)
		o.Do(t, verify(link).As(o.token)).WantError(http.StatusBadRequest, "INVALID_TOKEN")
	})
	t.Run("resend after it", func(t *testing.T) {
		o.Do(t, Post("/auth/resend-verification", nil).As(o.token)).Want(http.StatusOK)
		o.Do(t, Post("/auth/resend-verification", nil).As(o.token)).Want(http.StatusOK)
		// A mail to this account would arrive before this later mail to another account.
		d.server.AwaitMails(t, d.owner(t).email, 1)
		if mails, err := d.server.Mails(o.email); err != nil || len(mails) != 2 {
			t.Errorf("%d mails, %v; want the two from before", len(mails), err)
		}
	})
}

// retryAfter requires the Retry-After header, in whole seconds, with most as its maximum.
func retryAfter(t *testing.T, r *Response, most int) {
	t.Helper()
	s, err := strconv.Atoi(r.Header.Get("Retry-After"))
	if err != nil || s < 1 || s > most {
		t.Errorf("%s → Retry-After %q, want 1 to %d", r.Request, r.Header.Get("Retry-After"), most)
	}
}

func testPasswordReset(t *testing.T, d *deployment) {
	o := d.owner(t)
	d.server.AwaitMails(t, o.email, 1)
	forgot := func(email any) Request { return Post("/auth/forgot-password", Obj{"email": email}).Invalid() }
	nobody := address("nobody")
	known := o.Do(t, forgot(strings.ToUpper(o.email))).Want(http.StatusAccepted)
	unknown := o.Do(t, forgot(nobody)).Want(http.StatusAccepted)
	if string(known.Body) != string(unknown.Body) {
		t.Errorf("%s for a known address, %s for an unknown one", known.Body, unknown.Body)
	}
	token := d.server.AwaitMails(t, o.email, 2)[1].Token()
	if token == "" {
		t.Fatal("the mail has no link with a token")
	}
	if mails, err := d.server.Mails(nobody); err != nil || len(mails) > 0 {
		t.Errorf("%d mails to an unknown address, %v", len(mails), err)
	}
	for _, bad := range []any{"", "x", nil, 5} {
		o.Do(t, forgot(bad)).Invalid("email")
	}
	reset := func(token, password any) Request {
		return Post("/auth/reset-password", Obj{"token": token, "password": password}).Invalid()
	}
	o.Do(t, reset(token, "1234567")).Invalid("password")
	o.Do(t, reset(token, strings.Repeat("x", 1025))).Invalid("password")
	o.Do(t, reset(nil, nil)).Invalid("token", "password")
	o.Do(t, reset(nil, "1234567")).Invalid("token", "password")
	o.Do(t, reset(5, 5)).Invalid("token", "password")
	o.Do(t, reset("x", "new password")).WantError(http.StatusBadRequest, "INVALID_TOKEN")
	o.Do(t, reset(token+"A", "new password")).WantError(http.StatusBadRequest, "INVALID_TOKEN")
	o.Do(t, Post("/auth/verify-email", Obj{"token": token})).WantError(http.StatusBadRequest, "INVALID_TOKEN")

	o.Do(t, reset(token, "new password")).Want(http.StatusNoContent)
	o.Do(t, reset(token, "newer password")).WantError(http.StatusBadRequest, "INVALID_TOKEN")
	o.Do(t, Post("/auth/refresh", Obj{"refresh_token": o.refresh})).WantError(http.StatusUnauthorized, "AUTHENTICATION_REQUIRED")
	o.Do(t, Get("/auth/me").As(o.token)).WantError(http.StatusUnauthorized, "AUTHENTICATION_REQUIRED")
	o.Do(t, Post("/auth/login", Obj{"email": o.email, "password": o.password})).WantError(http.StatusUnauthorized, "AUTHENTICATION_REQUIRED")
	o.password = "new password"
	o.login(t)
	o.Do(t, Get("/auth/me").As(o.token)).Want(http.StatusOK)
}

func testBruteForce(t *testing.T, d *deployment) {
	login := func(email, password string) Request {
		return Post("/auth/login", Obj{"email": email, "password": password})
	}
	t.Run("one account from one address", func(t *testing.T) {
		o, attacker := d.owner(t), d.client(t)
		for range 10 {
			attacker.Do(t, login(o.email, "wrong")).WantError(http.StatusUnauthorized, "AUTHENTICATION_REQUIRED")
		}
		retryAfter(t, attacker.Do(t, login(o.email, "wrong")).WantError(http.StatusTooManyRequests, "RATE_LIMITED"), 900)
		retryAfter(t, attacker.Do(t, login(o.email, o.password)).WantError(http.StatusTooManyRequests, "RATE_LIMITED"), 900)
		other := d.owner(t)
		attacker.Do(t, login(other.email, other.password)).Want(http.StatusOK)
		o.login(t) // a stranger cannot lock the owner out
	})
	t.Run("unknown accounts are locked as well", func(t *testing.T) {
		attacker, nobody := d.client(t), address("nobody")
		for range 10 {
			attacker.Do(t, login(nobody, "wrong")).WantError(http.StatusUnauthorized, "AUTHENTICATION_REQUIRED")
		}
		retryAfter(t, attacker.Do(t, login(nobody, "wrong")).WantError(http.StatusTooManyRequests, "RATE_LIMITED"), 900)
	})
	for _, format := range []string{"203.0.113.%d:51234", "[2001:db8:0:%d::1]:443"} {
		t.Run("addresses with ports, as some gateways write them: "+format, func(t *testing.T) {
			o := d.owner(t)
			from := func(n int, password string) Request {
				return login(o.email, password).With("X-Forwarded-For", fmt.Sprintf(format, n))
			}
			for n := range 10 {
				o.Do(t, from(n, "wrong")).WantError(http.StatusUnauthorized, "AUTHENTICATION_REQUIRED")
			}
			o.Do(t, from(10, o.password)).Want(http.StatusOK)
		})
	}
	t.Run("a client that names itself in other headers", func(t *testing.T) {
		o := d.owner(t)
		as := func(n int) Request {
			name := "198.51.100." + strconv.Itoa(n)
			return login(o.email, "wrong").With("X-Forwarded-For", name+", unknown").With("X-Real-IP", name).With("Forwarded", "for="+name)
		}
		for n := range 10 {
			o.Do(t, as(n)).WantError(http.StatusUnauthorized, "AUTHENTICATION_REQUIRED")
		}
		o.Do(t, as(10)).WantError(http.StatusTooManyRequests, "RATE_LIMITED")
		o.login(t)
	})
	t.Run("a hundred from one address", func(t *testing.T) {
		o, attacker := d.owner(t), d.client(t)
		for i := range 100 {
			attacker.Do(t, login("nobody"+strconv.Itoa(i)+"@example.com", "wrong")).WantError(http.StatusUnauthorized, "AUTHENTICATION_REQUIRED")
		}
		retryAfter(t, attacker.Do(t, login(o.email, o.password)).WantError(http.StatusTooManyRequests, "RATE_LIMITED"), 900)
		o.login(t)
	})
}

func testAccountDeletion(t *testing.T, d *deployment) {
	for name, with := range map[string]func(*owner, Request) Request{
		"with the token": func(o *owner, r Request) Request { return r.As(o.token) },
		"with the key":   func(o *owner, r Request) Request { return r.Key(o.key) },
	} {
		t.Run(name, func(t *testing.T) {
			o := d.owner(t)
			list := o.waitlist(t, nil)
			email := address("ada")
			o.join(t, list, email)
			o.Do(t, with(o, Delete("/auth/me"))).Want(http.StatusNoContent)

			o.Do(t, Get("/auth/me").As(o.token)).WantError(http.StatusUnauthorized, "AUTHENTICATION_REQUIRED")
			o.Do(t, Get("/auth/me").Key(o.key)).WantError(http.StatusUnauthorized, "AUTHENTICATION_REQUIRED")
			o.Do(t, Get("/waitlists/"+list).As(o.token)).WantError(http.StatusUnauthorized, "AUTHENTICATION_REQUIRED")
			o.Do(t, Post("/auth/refresh", Obj{"refresh_token": o.refresh})).WantError(http.StatusUnauthorized, "AUTHENTICATION_REQUIRED")
			o.Do(t, Post("/auth/login", Obj{"email": o.email, "password": o.password})).WantError(http.StatusUnauthorized, "AUTHENTICATION_REQUIRED")
			o.Do(t, Get("/public/waitlists/"+list+"/config")).WantError(http.StatusNotFound, "NOT_FOUND")
			o.status(t, list, email).WantError(http.StatusNotFound, "NOT_FOUND")
			o.Do(t, signup(list, address("bob"))).WantError(http.StatusNotFound, "NOT_FOUND")
			stranger := d.owner(t)
			stranger.Do(t, Get("/waitlists/"+list).As(stranger.token)).WantError(http.StatusNotFound, "NOT_FOUND")

			// The address can register again, without a second trial or any old data.
			r := o.Do(t, Post("/auth/register", Obj{"email": o.email, "password": o.password})).Want(http.StatusCreated)
			r.WantJSON("subscription_status", "inactive")
			o.key = r.Str("api_key")
			o.login(t)
			o.Do(t, Get("/auth/me").As(o.token)).Want(http.StatusOK).WantJSON("has_used_trial", true).WantJSON("subscription_status", "inactive")
			o.Do(t, Post("/waitlists", Obj{"name": "Again"}).As(o.token)).WantError(http.StatusForbidden, "FORBIDDEN")
			o.Do(t, Get("/waitlists").As(o.token)).WantError(http.StatusForbidden, "FORBIDDEN")
			o.Do(t, Get("/public/waitlists/"+list+"/config")).WantError(http.StatusNotFound, "NOT_FOUND")
		})
	}
}
