package e2e

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

func testAdmin(t *testing.T, d *deployment) {
	t.Run("list", func(t *testing.T) { testList(t, d) })
	t.Run("pages", func(t *testing.T) { testPages(t, d) })
	t.Run("pages under change", func(t *testing.T) { testPagesUnderChange(t, d) })
	t.Run("delete", func(t *testing.T) { testDeleteSignup(t, d) })
	t.Run("move", func(t *testing.T) { testMove(t, d) })
	t.Run("queue", func(t *testing.T) { testOwnersQueue(t, d) })
	t.Run("stats", func(t *testing.T) { testStats(t, d) })
	t.Run("addresses", func(t *testing.T) { testAdminAddresses(t, d) })
	t.Run("account header", func(t *testing.T) {
		// The header counts only where the document names it.
		o, other := d.owner(t), d.owner(t)
		id := o.waitlist(t, nil)
		for _, r := range []Request{
			Get("/waitlists/" + id + "/signups"), Get("/waitlists/" + id + "/stats"), Get("/waitlists/" + id + "/analytics"),
		} {
			o.Do(t, r.As(o.token).With("X-Account-Email", other.email)).Want(http.StatusOK)
			other.Do(t, r.As(other.token).With("X-Account-Email", o.email)).WantError(http.StatusForbidden, "FORBIDDEN")
		}
	})
}

// listed is an entry of the list of signups.
type listed struct {
	Email         string          `json:"email"`
	FirstName     string          `json:"first_name"`
	LastName      string          `json:"last_name"`
	Phone         string          `json:"phone"`
	Position      int             `json:"position"`
	ReferralToken string          `json:"referral_token"`
	ReferralCount int             `json:"referral_count"`
	ReferredBy    string          `json:"referred_by"`
	UTM           Obj             `json:"utm"`
	CustomAnswers json.RawMessage `json:"custom_answers"`
	EmailVerified bool            `json:"email_verified"`
	EmailOptOut   bool            `json:"email_opt_out"`
	EmailOptOutAt string          `json:"email_opt_out_at"`
	DeviceType    string          `json:"device_type"`
	CreatedAt     string          `json:"created_at"`
	Flagged       string          `json:"flagged"`
}

// page is one page of the list.
type page struct {
	Signups []listed `json:"signups"`
	Count   int      `json:"count"`
	LastKey *string  `json:"last_key"`
}

// page reads one page. An empty key reads the first page.
func (o *owner) page(t testing.TB, id string, limit int, key string) page {
	t.Helper()
	r := Get(fmt.Sprintf("/waitlists/%s/signups?limit=%d", id, limit)).As(o.token)
	if key != "" {
		r = r.query("last_key", key)
	}
	var p page
	o.Do(t, r).Want(http.StatusOK).Decode(&p)
	if p.Count != len(p.Signups) || p.Count > limit {
		t.Fatalf("count is %d but there are %d signups, limit %d", p.Count, len(p.Signups), limit)
	}
	if p.LastKey != nil && p.Count < limit {
		t.Errorf("a page of %d with limit %d has a last_key", p.Count, limit)
	}
	return p
}

// all reads the whole list in pages of limit entries.
func (o *owner) all(t testing.TB, id string, limit int) []listed {
	t.Helper()
	var out []listed
	for key := ""; ; {
		p := o.page(t, id, limit, key)
		out = append(out, p.Signups...)
		if p.LastKey == nil {
			return out
		}
		if key = *p.LastKey; key == "" {
			t.Fatal("an empty last_key")
		}
	}
}

// emails returns the listed addresses in order and requires their positions to be 1, 2, 3 and so on.
func (o *owner) emails(t testing.TB, id string) []string {
	t.Helper()
	out := []string{}
	for i, s := range o.all(t, id, 100) {
		if s.Position != i+1 {
			t.Errorf("entry %d of the list has position %d", i+1, s.Position)
		}
		out = append(out, s.Email)
	}
	return out
}

// move moves a signup to a position.
func (o *owner) move(t testing.TB, id, email string, position any) *Response {
	t.Helper()
	return o.Do(t, Patch(signupPath(id, email)+"/position", Obj{"position": position}).As(o.token).Invalid())
}

// remove deletes a signup as its owner.
func (o *owner) remove(t testing.TB, id, email string) {
	t.Helper()
	o.Do(t, Delete(signupPath(id, email)).As(o.token)).Want(http.StatusNoContent)
}

// signupPath returns the owners' path of a signup.
func signupPath(id, email string) string {
	return "/waitlists/" + id + "/signups/" + url.PathEscape(email)
}

// deleteMyData deletes a signup on behalf of the person who signed up.
func (d *deployment) deleteMyData(t testing.TB, c *Client, id, email string) {
	t.Helper()
	optOut := c.Do(t,
		Post("/public/waitlists/"+id+"/unsubscribe", Obj{"email": email, "token": d.unsubscribeToken(t, id, email)})).Want(http.StatusOK)
	c.Do(t, Post("/public/waitlists/"+id+"/delete-my-data", Obj{"email": email, "token": optOut.Str("delete_token")})).Want(http.StatusOK)
}

// testList checks every field of an entry.
func testList(t *testing.T, d *deployment) {
	o := d.owner(t)
	id := o.waitlist(t, Obj{
		"phone_field": "optional", "hide_position": true, "position_offset": 500, "require_email_verification": true,
		"custom_questions": []any{
			Obj{"id": "why", "label": "Why?", "type": "text"},
			Obj{"id": "terms", "label": "Terms?", "type": "checkbox"},
			Obj{"id": "size", "label": "Size?", "type": "dropdown", "options": []any{"S", "L"}},
		},
	})
	var empty page
	o.Do(t, Get("/waitlists/"+id+"/signups").As(o.token)).Want(http.StatusOK).WantJSON("signups", []any{}).WantJSON("count", 0).
		WantJSON("last_key", nil).Decode(&empty)

	ada, bob := address("ada"), address("bob")
	iPhone := "Mozilla/5.0 (iPhone; CPU iPhone OS 17_0 like Mac OS X) AppleWebKit/605.1.15 (KHTML, like Gecko) " +
		"Version/17.0 Mobile/15E148 Safari/604.1"
	first := o.Do(t, signup(id, ada).With("User-Agent", "")).Want(http.StatusCreated)
	second := o.Do(t, signup(id, bob, Obj{
		"first_name": "Bob", "last_name": "Ross & <b>", "phone": "+4930123456", "referred_by_token": first.Str("referral_token"),
		"utm_source": "news", "utm_medium": "mail", "utm_campaign": "launch", "utm_term": "list", "utm_content": "top",
		"custom_answers": Obj{"why": "Because \"so\"\n<&>", "terms": true, "size": "L"},
	}).With("User-Agent", iPhone)).Want(http.StatusCreated)
	o.Do(t, Get(statusPath(id, bob)+"/verify?token="+url.QueryEscape(d.server.AwaitMails(t, bob, 1)[0].Token()))).Want(http.StatusOK)
	o.Do(t, Post("/public/waitlists/"+id+"/unsubscribe", Obj{"email": bob, "token": d.unsubscribeToken(t, id, bob)})).Want(http.StatusOK)

	var list page
	got := o.Do(t, Get("/waitlists/"+id+"/signups").Key(o.key)).Want(http.StatusOK)
	got.Decode(&list)
	if len(list.Signups) != 2 || list.Count != 2 || list.LastKey != nil {
		t.Fatalf("list %s", got.Body)
	}
	if at := list.Signups[1].EmailOptOutAt; at < second.Str("created_at") {
		t.Errorf("email_opt_out_at is %q, created_at %q", at, second.Str("created_at"))
	}
	list.Signups[1].EmailOptOutAt = ""
	for i, want := range []listed{
		{
			Email: ada, Position: 1, ReferralToken: first.Str("referral_token"), ReferralCount: 1, CustomAnswers: json.RawMessage("{}"),
			CreatedAt: first.Str("created_at"),
		},
		{
			Email: bob, FirstName: "Bob", LastName: "Ross & <b>", Phone: "+4930123456", Position: 2, ReferralToken: second.Str("referral_token"),
			ReferredBy: first.Str("referral_token"), CustomAnswers: json.RawMessage(`{"size":"L","terms":true,"why":"Because \"so\"\n<&>"}`),
			EmailVerified: true, EmailOptOut: true, DeviceType: "mobile", CreatedAt: second.Str("created_at"),
			UTM: Obj{"utm_source": "news", "utm_medium": "mail", "utm_campaign": "launch", "utm_term": "list", "utm_content": "top"},
		},
	} {
		s := list.Signups[i]
		// Missing values are empty or absent.
		maps.DeleteFunc(s.UTM, func(_ string, v any) bool { return v == "" })
		if len(s.UTM) == 0 {
			s.UTM = nil
		}
		if canonical(s) != canonical(want) {
			t.Errorf("entry %s,\nwant %s", canonical(s), canonical(want))
		}
	}
}

func testPages(t *testing.T, d *deployment) {
	o := d.owner(t)
	id, other := o.waitlist(t, nil), o.waitlist(t, nil)
	var people []string
	for i := range 101 {
		people = append(people, address(fmt.Sprint("p", i)))
		o.join(t, id, people[i])
	}
	o.join(t, other, address("x"))
	o.join(t, other, address("y"))
	path := "/waitlists/" + id + "/signups"
	for _, limit := range []int{1, 7, 50, 100} {
		t.Run(fmt.Sprint("limit ", limit), func(t *testing.T) {
			var got []string
			for i, s := range o.all(t, id, limit) {
				got = append(got, s.Email)
				if s.Position != i+1 {
					t.Errorf("%s is at position %d, want %d", s.Email, s.Position, i+1)
				}
			}
			if !slices.Equal(got, people) {
				t.Errorf("got %v, want %v", got, people)
			}
		})
	}
	t.Run("default", func(t *testing.T) {
		for _, r := range []Request{Get(path), Get(path + "?limit="), Get(path + "?limit=&last_key=")} {
			o.Do(t, r.As(o.token).Invalid()).Want(http.StatusOK).WantJSON("count", 50)
		}
	})
	t.Run("the last page is full", func(t *testing.T) {
		p := o.page(t, id, 50, *o.page(t, id, 51, "").LastKey)
		if p.Count != 50 || p.LastKey != nil {
			t.Errorf("count %d, last_key %v", p.Count, p.LastKey)
		}
	})
	t.Run("a key can be used again", func(t *testing.T) {
		key := *o.page(t, id, 10, "").LastKey
		for _, limit := range []int{5, 10, 100} {
			if p := o.page(t, id, limit, key); p.Signups[0].Email != people[10] || p.Signups[0].Position != 11 {
				t.Errorf("the page begins with %+v", p.Signups[0])
			}
		}
	})
	for _, bad := range []string{"0", "101", "-1", "x", "1.5", "1e1", "0x10", "99999999999999999999", " ", "1\x00", "10;", emoji, "null"} {
		o.Do(t, Get(path).query("limit", bad).As(o.token).Invalid()).Invalid("limit")
	}
	key := *o.page(t, id, 10, "").LastKey
	bad := map[string]string{
		"of another waitlist": *o.page(t, other, 1, "").LastKey, "not base64": "!" + key, "blank": " ", "an address": people[3], "a number": "50",
		"cut": key[:len(key)-1], "cut by four": key[:len(key)-4], "longer": key + "AAAA", "twice": key + key, "huge": strings.Repeat("A", 5000),
		"zeros": strings.Repeat("A", len(key)), "beyond ASCII": emoji, "U+0000": "\x00", "JSON": `{"a":1}`, "SQL": "' OR 1=1 --",
	}
	for i := 0; i < len(key); i++ {
		b := []byte(key)
		if b[i] = 'A'; key[i] == 'A' {
			b[i] = 'B'
		}
		bad[fmt.Sprint("character ", i)] = string(b)
	}
	for name, v := range bad {
		t.Run("last_key "+name, func(t *testing.T) {
			o.Do(t, Get(path).query("last_key", v).As(o.token).Invalid()).Invalid("last_key")
		})
	}
	t.Run("both bad", func(t *testing.T) {
		o.Do(t, Get(path+"?limit=0&last_key=x").As(o.token).Invalid()).Invalid("last_key", "limit")
	})
}

// testPagesUnderChange reads the list while other people join, leave and move. Everybody who stays in place must be listed
// once and in order.
func testPagesUnderChange(t *testing.T, d *deployment) {
	o := d.owner(t)
	id := o.waitlist(t, nil)
	var still, restless []string
	for i := range 80 {
		email := address(fmt.Sprint("p", i))
		if o.join(t, id, email); i%2 == 0 {
			still = append(still, email)
		} else {
			restless = append(restless, email)
		}
	}
	stop := make(chan struct{})
	var wg sync.WaitGroup
	defer wg.Wait()
	defer close(stop)
	for w := range 3 {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(w), 1))
			// Each writer moves its own people, so that it knows who is still listed.
			var mine []string
			for i := w; i < len(restless); i += 3 {
				mine = append(mine, restless[i])
			}
			for n := 0; ; n++ {
				select {
				case <-stop:
					return
				default:
				}
				i := rng.IntN(len(mine))
				r, want := Patch(signupPath(id, mine[i])+"/position", Obj{"position": 1 + rng.IntN(80)}), http.StatusOK
				switch n % 5 {
				case 3:
					r, want = Delete(signupPath(id, mine[i])), http.StatusNoContent
				case 4:
					mine = append(mine, address("new"))
					r, want = signup(id, mine[len(mine)-1]), http.StatusCreated
				case 0, 1: // always one place, so that its keys run out
					r = Patch(signupPath(id, mine[i])+"/position", Obj{"position": 40})
				}
				if want == http.StatusNoContent {
					if len(mine) < 3 {
						continue
					}
					mine = slices.Delete(mine, i, i+1)
				}
				if res, err := o.Send(t.Context(), r.As(o.token)); err != nil || res.Status != want {
					t.Errorf("%s: %v %v", r, res, err)
					return
				}
			}
		})
	}
	for _, limit := range []int{1, 2, 3, 5, 7, 100} {
		var got []string
		for _, s := range o.all(t, id, limit) {
			if slices.Contains(still, s.Email) {
				got = append(got, s.Email)
			}
		}
		if !slices.Equal(got, still) {
			t.Errorf("limit %d: %d people who did not move are out of order or not listed once:\n%v\nwant %v", limit, len(got), got, still)
		}
	}
}

func testDeleteSignup(t *testing.T, d *deployment) {
	o := d.owner(t)
	id := o.waitlist(t, nil)
	ada, bob, eve := address("ada"), address("bob"), address("eve")
	adas := o.join(t, id, ada).Str("referral_token")
	bobs := o.join(t, id, bob, Obj{"referred_by_token": adas}).Str("referral_token")
	o.join(t, id, eve, Obj{"referred_by_token": bobs})
	unsubscribe := d.unsubscribeToken(t, id, bob)
	if got := o.emails(t, id); !slices.Equal(got, []string{bob, ada, eve}) {
		t.Fatalf("list %v", got)
	}
	o.Do(t, Delete(signupPath(id, strings.ToUpper(bob))).As(o.token)).Want(http.StatusNoContent)
	o.Do(t, Delete(signupPath(id, bob)).As(o.token)).WantError(http.StatusNotFound, "NOT_FOUND")
	o.move(t, id, bob, 1).WantError(http.StatusNotFound, "NOT_FOUND")
	o.status(t, id, bob).WantError(http.StatusNotFound, "NOT_FOUND")
	if got := o.emails(t, id); !slices.Equal(got, []string{ada, eve}) {
		t.Errorf("list %v", got)
	}
	t.Run("the gap closes, the counter stays", func(t *testing.T) {
		o.status(t, id, ada).WantJSON("position", 1).WantJSON("total_signups", 3).WantJSON("referral_count", 1)
		o.status(t, id, eve).WantJSON("position", 2).WantJSON("total_signups", 3)
		o.Do(t, Get("/waitlists/"+id).As(o.token)).WantJSON("signup_count", 3)
		o.Do(t, Get("/waitlists/"+id+"/stats").As(o.token)).WantJSON("total_signups", 3).WantJSON("referral_signups", 1)
	})
	t.Run("its tokens are invalid", func(t *testing.T) {
		o.Do(t, Post("/public/waitlists/"+id+"/unsubscribe", Obj{"email": bob, "token": unsubscribe})).WantError(http.StatusNotFound, "NOT_FOUND")
		o.join(t, id, address("friend"), Obj{"referred_by_token": bobs}).WantJSON("position", 3).WantJSON("total_signups", 4)
		o.Do(t, Get("/waitlists/"+id+"/stats").As(o.token)).WantJSON("total_signups", 4).WantJSON("referral_signups", 1)
	})
	t.Run("joins again as a new signup, last", func(t *testing.T) {
		again := o.join(t, id, bob).WantJSON("position", 4).WantJSON("total_signups", 5).WantJSON("referral_count", 0)
		if again.Str("referral_token") == bobs {
			t.Error("the new signup has the old token")
		}
		o.Do(t, Post("/public/waitlists/"+id+"/unsubscribe", Obj{"email": bob, "token": unsubscribe})).
			WantError(http.StatusForbidden, "INVALID_TOKEN")
	})
	for _, none := range []string{
		address("nobody"), "nope", "x@y", strings.Repeat("x", 300) + "@example.com", "a b@example.com", "\x00", emoji,
	} {
		o.Do(t, Delete(signupPath(id, none)).As(o.token)).WantError(http.StatusNotFound, "NOT_FOUND")
	}
	t.Run("at once", func(t *testing.T) {
		var mu sync.Mutex
		got := map[int]int{}
		var wg sync.WaitGroup
		for range 6 {
			wg.Go(func() {
				r, err := o.Send(t.Context(), Delete(signupPath(id, eve)).As(o.token))
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
		if got[http.StatusNoContent] != 1 || got[http.StatusNotFound] != 5 {
			t.Errorf("statuses %v, want one 204 and five 404", got)
		}
	})
	t.Run("everybody", func(t *testing.T) {
		for _, email := range o.emails(t, id) {
			o.remove(t, id, email)
		}
		o.Do(t, Get("/waitlists/"+id+"/signups").As(o.token)).Want(http.StatusOK).WantJSON("signups", []any{}).WantJSON("last_key", nil)
		o.join(t, id, ada).WantJSON("position", 1).WantJSON("total_signups", 6)
	})
}

func testMove(t *testing.T, d *deployment) {
	o := d.owner(t)
	id := o.waitlist(t, Obj{"position_offset": 100, "hide_position": true})
	var people []string
	for i := range 6 {
		people = append(people, address(fmt.Sprint("p", i)))
		o.join(t, id, people[i])
	}
	for _, tc := range []struct {
		from, to, at int
	}{{5, 1, 1}, {1, 6, 6}, {3, 3, 3}, {2, 4, 4}, {4, 2, 2}, {1, 7, 6}, {1, 1 << 53, 6}, {6, 1, 1}} {
		email := people[tc.from-1]
		people = slices.Insert(slices.Delete(people, tc.from-1, tc.from), tc.at-1, email)
		got := o.move(t, id, strings.ToUpper(email), tc.to).Want(http.StatusOK)
		got.WantJSON("email", email).WantJSON("position", tc.at)
		if got := o.emails(t, id); !slices.Equal(got, people) {
			t.Fatalf("moved from %d to %d: %v, want %v", tc.from, tc.to, got, people)
		}
	}
	path := signupPath(id, people[0]) + "/position"
	for _, bad := range []any{
		0, -1, 1.5, "1", true, []any{1}, Obj{}, int64(1<<53 + 1), json.Number("1e100"), json.Number("-9223372036854775809"), nil,
	} {
		o.move(t, id, people[0], bad).Invalid("position")
	}
	o.Do(t, Patch(path, Obj{}).As(o.token).Invalid()).Invalid("position")
	t.Run("integers in other forms", func(t *testing.T) {
		for _, n := range []string{"2.0", "2e0", "20e-1"} {
			o.move(t, id, people[5], json.Number(n)).Want(http.StatusOK).WantJSON("position", 2)
			o.move(t, id, people[5], 6).Want(http.StatusOK).WantJSON("position", 6)
		}
	})
	t.Run("bodies", func(t *testing.T) {
		testBodies(t, o.Client, Patch(path, nil).As(o.token), `{"position":1%s}`, http.StatusOK)
	})
	if got := o.emails(t, id); !slices.Equal(got, people) {
		t.Errorf("%v, want %v", got, people)
	}
	t.Run("the public sees it", func(t *testing.T) {
		o.set(t, id, Obj{"hide_position": false})
		o.move(t, id, people[4], 1).Want(http.StatusOK).WantJSON("position", 1)
		o.status(t, id, people[4]).WantJSON("position", 101)
		o.status(t, id, people[0]).WantJSON("position", 102)
	})
	t.Run("tier", func(t *testing.T) {
		d.setTier(t, o, "basic", "active")
		msg := o.move(t, id, people[0], 1).WantError(http.StatusForbidden, "TIER_REQUIRED").Str("error")
		if !strings.Contains(msg, "Advanced") {
			t.Errorf("message %q does not name the plan", msg)
		}
		o.move(t, id, people[0], 0).Invalid("position")
		o.move(t, id, address("nobody"), 1).WantError(http.StatusForbidden, "TIER_REQUIRED")
		d.setTier(t, o, "advanced", "active")
		o.move(t, id, people[0], 1).Want(http.StatusOK)
		o.move(t, id, address("nobody"), 1).WantError(http.StatusNotFound, "NOT_FOUND")
	})
}

// testOwnersQueue makes random changes of every kind and compares the queue with a slice.
func testOwnersQueue(t *testing.T, d *deployment) {
	o := d.owner(t)
	const boost = 2
	id := o.waitlist(t, Obj{"referral_boost": boost})
	seed := uint64(random(1 << 62))
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	type person struct{ email, token string }
	var queue []person
	total := 0
	for step := range 150 {
		var i int
		if len(queue) > 0 {
			i = rng.IntN(len(queue))
		}
		switch what := rng.IntN(10); {
		case len(queue) < 5 || what < 3:
			body := Obj{}
			if len(queue) > 0 && what%2 == 0 {
				p := queue[i]
				body["referred_by_token"] = p.token
				queue = slices.Insert(slices.Delete(queue, i, i+1), max(0, i-boost), p)
			}
			p := person{email: address("p")}
			p.token = o.join(t, id, p.email, body).WantJSON("position", len(queue)+1).Str("referral_token")
			queue = append(queue, p)
			total++
		case what < 7:
			p := queue[i]
			to := 1 + rng.IntN(len(queue)+1)
			at := min(to, len(queue))
			queue = slices.Insert(slices.Delete(queue, i, i+1), at-1, p)
			o.move(t, id, p.email, to).Want(http.StatusOK).WantJSON("position", at)
		case what < 8:
			o.remove(t, id, queue[i].email)
			queue = slices.Delete(queue, i, i+1)
		case what < 9:
			d.deleteMyData(t, o.Client, id, queue[i].email)
			queue = slices.Delete(queue, i, i+1)
			total--
		default:
			rows := []any{Obj{"email": address("i")}, Obj{"email": queue[i].email}, Obj{"email": address("i")}}
			o.Do(t, Post("/waitlists/"+id+"/import", Obj{"signups": rows}).As(o.token)).Want(http.StatusOK).WantJSON("imported", 2).
				WantJSON("skipped", 1)
			for _, j := range []int{0, 2} {
				email, _ := rows[j].(Obj)["email"].(string)
				queue = append(queue, person{email: email, token: o.Do(t, signup(id, email)).Want(http.StatusOK).Str("referral_token")})
			}
			total += 2
		}
		if step%10 != 9 {
			continue
		}
		got := o.all(t, id, 1+rng.IntN(100))
		if len(got) != len(queue) {
			t.Fatalf("step %d: %d on the list, want %d", step, len(got), len(queue))
		}
		for i, p := range queue {
			if got[i].Email != p.email || got[i].ReferralToken != p.token || got[i].Position != i+1 {
				t.Fatalf("step %d: position %d has %+v, want %+v", step, i+1, got[i], p)
			}
			o.status(t, id, p.email).WantJSON("position", i+1).WantJSON("total_signups", total)
		}
	}
}

func testStats(t *testing.T, d *deployment) {
	o := d.owner(t)
	id := o.waitlist(t, nil)
	stats := func() *Response {
		t.Helper()
		return o.Do(t, Get("/waitlists/"+id+"/stats").As(o.token)).Want(http.StatusOK)
	}
	created := o.Do(t, Get("/waitlists/"+id).As(o.token)).Str("created_at")
	stats().WantJSON("waitlist_id", id).WantJSON("total_signups", 0).WantJSON("referral_signups", 0).WantJSON("created_at", created)
	ada, bob, eve := address("ada"), address("bob"), address("eve")
	token := o.join(t, id, ada).Str("referral_token")
	o.join(t, id, bob, Obj{"referred_by_token": token})
	o.join(t, id, eve, Obj{"referred_by_token": token})
	o.join(t, id, address("x"), Obj{"referred_by_token": strings.Repeat("0", 32)})
	stats().WantJSON("total_signups", 4).WantJSON("referral_signups", 2)
	o.remove(t, id, bob)
	stats().WantJSON("total_signups", 4).WantJSON("referral_signups", 1)
	o.status(t, id, ada).WantJSON("referral_count", 2)
	d.deleteMyData(t, o.Client, id, eve)
	stats().WantJSON("total_signups", 3).WantJSON("referral_signups", 0)
	// Small counts and hide_position hide positions from the public only.
	o.set(t, id, Obj{"hide_position": true})
	stats().WantJSON("total_signups", 3).WantJSON("created_at", created)
	if at := o.Do(t, Get("/waitlists/"+id+"/stats").Key(o.key)).Want(http.StatusOK).Time("created_at"); time.Since(at) > time.Hour {
		t.Errorf("created_at is %s", at)
	}
}

// testAdminAddresses checks that every valid address works in a path.
func testAdminAddresses(t *testing.T, d *deployment) {
	o := d.owner(t)
	id := o.waitlist(t, nil)
	odd := []string{
		"ada+tag@example.com", "o'neil@example.com", "a/b@example.com", "100%@example.com", "a#b@example.com", "who?@example.com",
		"!#$%&'*+/=?^_`{|}~-@example.com", "a%2fb@example.com", "position@example.com", "signups@example.com", long(254), "ada@bücher.example",
	}
	for _, email := range odd {
		o.join(t, id, email)
	}
	for i, email := range odd {
		t.Run(email, func(t *testing.T) {
			stored := o.status(t, id, email).Want(http.StatusOK).Str("email")
			o.move(t, id, email, 1).Want(http.StatusOK).WantJSON("position", 1).WantJSON("email", stored)
			if first := o.page(t, id, 1, "").Signups[0]; first.Email != stored {
				t.Errorf("the first signup is %s", first.Email)
			}
			o.remove(t, id, email)
			if left := len(o.emails(t, id)); left != len(odd)-i-1 {
				t.Errorf("%d signups are left", left)
			}
		})
	}
}
