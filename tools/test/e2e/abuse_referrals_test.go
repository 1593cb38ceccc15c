package e2e

import (
	"fmt"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	"waitlist.internal/libs/token"
)

// testReferralAbuse replays attempts to earn places by invented referrals, on lists with a referral guard.
func (s *suite) testReferralAbuse(t *testing.T) {
	d := s.deploy(t, nil)
	t.Run("signals", func(t *testing.T) { testGuardSignals(t, d) })
	t.Run("modes", func(t *testing.T) { testGuardModes(t, d) })
	t.Run("credit later", func(t *testing.T) { testCreditLater(t, d) })
	t.Run("credit after verification", func(t *testing.T) { testCreditAfterVerification(t, d) })
	t.Run("a crowd of one network at once", func(t *testing.T) { testGuardAtOnce(t, d) })
	t.Run("who may give a credit", func(t *testing.T) { testCreditRefused(t, d) })
}

// refer signs an address up with a referrer, from a network of its own.
func (d *deployment) refer(t *testing.T, id, email, referrer string) *Response {
	t.Helper()
	return d.client(t).join(t, id, email, Obj{"referred_by_token": referrer})
}

// credited returns how many credits a signup has.
func (o *owner) credited(t *testing.T, id, email string) int {
	t.Helper()
	return int(o.status(t, id, email).Want(http.StatusOK).Get("referral_count").(float64)) // the contract
}

// flags returns what the list shows for each flagged address, and requires the export to show the same. A list without the
// guard and without a flag shows none.
func (o *owner) flags(t *testing.T, id string) map[string]string {
	t.Helper()
	out := map[string]string{}
	for _, s := range o.all(t, id, 100) {
		if s.Flagged != "" {
			out[s.Email] = s.Flagged
		}
	}
	header, rows := parse(t, o.Do(t, Get("/waitlists/"+id+"/export").As(o.token)).Want(http.StatusOK).Body)
	guard := o.Do(t, Get("/waitlists/"+id).As(o.token)).Get("settings.referral_guard")
	if shown := header[len(header)-1] == "flagged"; shown != (guard == "flag" || guard == "withhold" || len(out) > 0) {
		t.Errorf("guard %v, columns %q", guard, header)
	} else if !shown {
		return out
	}
	for _, row := range rows {
		if got := row[len(row)-1]; got != out[row[0]] {
			t.Errorf("%s is %q in the export and %q in the list", row[0], got, out[row[0]])
		}
	}
	return out
}

// giveCredit gives the credit for a signup as its owner.
func (o *owner) giveCredit(t *testing.T, id, email string) *Response {
	t.Helper()
	return o.Do(t, Patch(signupPath(id, email), Obj{"credit": true}).As(o.token))
}

func testGuardSignals(t *testing.T, d *deployment) {
	o := d.owner(t)
	for _, tc := range []struct {
		name     string
		referrer string
		// emails come from networks of their own, or all from one.
		emails     []string
		oneNetwork bool
		more       Obj
		want       []string
	}{
		{
			name: "same person", referrer: "ada.lovelace@gmail.com",
			emails: []string{"ada.lovelace+1@gmail.com", "adalovelace@googlemail.com", "a.d.a.lovelace@gmail.com", "bob@gmail.com"},
			want:   []string{"same_person", "same_person", "same_person", ""},
		},
		{
			name: "tags at a domain of one's own", referrer: "ada@example.com", emails: []string{"ada+x@example.com", "a.da@example.com"},
			want: []string{"same_person", ""},
		},
		{
			name: "disposable", referrer: "ada@example.com", emails: []string{"a@mailinator.com", "a@inbox.mailinator.com", "a@gmail.com"},
			want: []string{"disposable_domain", "disposable_domain", ""},
		},
		{
			name: "one network", referrer: "ada@example.com", oneNetwork: true,
			emails: []string{"b@example.com", "c@example.com", "d@example.com", "ada+e@example.com"},
			want:   []string{"", "", "same_network", "same_person,same_network"},
		},
		{
			name: "at once", referrer: "ada@example.com", more: Obj{"elapsed_ms": 300}, oneNetwork: true,
			emails: []string{"b@example.com", "c@example.com"}, want: []string{"", "same_network,too_fast"},
		},
		{
			name: "after a while", referrer: "ada@example.com", more: Obj{"elapsed_ms": 5000}, oneNetwork: true,
			emails: []string{"b@example.com", "c@example.com"}, want: []string{"", ""},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			id := o.waitlist(t, Obj{"referral_guard": "withhold"})
			referrer := o.join(t, id, tc.referrer).Str("referral_token")
			want, credits := map[string]string{}, 0
			one := d.client(t)
			for i, email := range tc.emails {
				more := []Obj{{"referred_by_token": referrer}}
				if tc.more != nil {
					more = append(more, tc.more)
				}
				c := d.client(t)
				if tc.oneNetwork {
					c = one
				}
				c.join(t, id, email, more...).WantJSON("position", i+2).WantJSON("total_signups", i+2)
				if tc.want[i] == "" {
					credits++
				} else {
					want[email] = tc.want[i]
				}
			}
			if got := o.flags(t, id); canonical(got) != canonical(want) {
				t.Errorf("flagged %v, want %v", got, want)
			}
			if got := o.credited(t, id, tc.referrer); got != credits {
				t.Errorf("%d credits, want %d", got, credits)
			}
		})
	}
	t.Run("velocity", func(t *testing.T) {
		id := o.waitlist(t, Obj{"referral_guard": "withhold"})
		referrer := o.join(t, id, "ada@example.com").Str("referral_token")
		for i := range 32 {
			d.refer(t, id, fmt.Sprintf("p%d@example.com", i), referrer)
		}
		want := map[string]string{"p30@example.com": "velocity", "p31@example.com": "velocity"}
		if got := o.flags(t, id); canonical(got) != canonical(want) || o.credited(t, id, "ada@example.com") != 30 {
			t.Errorf("flagged %v, want %v", got, want)
		}
		// Ten minutes later, the next one counts again. Another referrer was never slowed.
		d.exec(t, `UPDATE signup.referral_seen SET created_at = created_at - interval '10 minutes' WHERE waitlist_id = $1`, id)
		d.refer(t, id, "later@example.com", referrer)
		if got := o.flags(t, id); canonical(got) != canonical(want) || o.credited(t, id, "ada@example.com") != 31 {
			t.Errorf("flagged %v, want %v", got, want)
		}
	})
	t.Run("the same person again", func(t *testing.T) {
		id := o.waitlist(t, Obj{"referral_guard": "withhold"})
		referrer := o.join(t, id, "ada@example.com").Str("referral_token")
		want := map[string]string{}
		d.refer(t, id, "eve@example.com", referrer)
		for i := range 3 {
			alias := fmt.Sprintf("eve+%d@example.com", i)
			d.refer(t, id, alias, referrer)
			want[alias] = "same_person"
		}
		// Whoever leaves and comes back is the same person.
		o.remove(t, id, "eve@example.com")
		d.refer(t, id, "eve@example.com", referrer)
		want["eve@example.com"] = "same_person"
		if got := o.flags(t, id); canonical(got) != canonical(want) || o.credited(t, id, "ada@example.com") != 1 {
			t.Errorf("flagged %v, want %v, %d credits", got, want, o.credited(t, id, "ada@example.com"))
		}
		// To another referrer the person is new.
		other := o.join(t, id, "bob@example.com").Str("referral_token")
		d.refer(t, id, "eve+other@example.com", other)
		if got := o.credited(t, id, "bob@example.com"); got != 1 {
			t.Errorf("%d credits of another referrer", got)
		}
	})
	t.Run("thirty days later", func(t *testing.T) {
		id := o.waitlist(t, Obj{"referral_guard": "withhold"})
		referrer := o.join(t, id, "ada@example.com").Str("referral_token")
		c := d.client(t)
		for i := range 2 {
			c.join(t, id, fmt.Sprintf("p%d@example.com", i), Obj{"referred_by_token": referrer})
		}
		d.exec(t, `UPDATE signup.referral_seen SET created_at = created_at - interval '30 days' WHERE waitlist_id = $1`, id)
		c.join(t, id, "later@example.com", Obj{"referred_by_token": referrer})
		if got := o.flags(t, id); len(got) != 0 || o.credited(t, id, "ada@example.com") != 3 {
			t.Errorf("flagged %v", got)
		}
	})
}

func testGuardModes(t *testing.T, d *deployment) {
	o := d.owner(t)
	for mode, want := range map[string]struct {
		flags   map[string]string
		credits int
	}{
		"off":      {map[string]string{}, 1},
		"flag":     {map[string]string{"ada+x@example.com": "same_person"}, 1},
		"withhold": {map[string]string{"ada+x@example.com": "same_person"}, 0},
	} {
		t.Run(mode, func(t *testing.T) {
			id := o.waitlist(t, Obj{"referral_guard": mode})
			o.join(t, id, "first@example.com")
			referrer := o.join(t, id, "ada@example.com").Str("referral_token")
			receipt := d.refer(t, id, "ada+x@example.com", referrer).WantJSON("position", 3).WantJSON("total_signups", 3)
			if got := o.flags(t, id); canonical(got) != canonical(want.flags) {
				t.Errorf("flagged %v, want %v", got, want.flags)
			}
			if got := o.credited(t, id, "ada@example.com"); got != want.credits {
				t.Errorf("%d credits, want %d", got, want.credits)
			}
			o.Do(t, Get("/waitlists/"+id+"/stats").As(o.token)).WantJSON("referral_signups", want.credits)
			if got := o.emails(t, id); slices.Index(got, "ada@example.com") != 1-want.credits {
				t.Errorf("queue %v", got)
			}
			// The public sees no difference.
			again := o.Do(t, signup(id, "ada+x@example.com", Obj{"referred_by_token": referrer})).Want(http.StatusOK)
			if string(again.Body) != string(receipt.Body) {
				t.Errorf("first %s, then %s", receipt.Body, again.Body)
			}
		})
	}
}

func testCreditLater(t *testing.T, d *deployment) {
	o := d.owner(t)
	id := o.waitlist(t, Obj{"referral_guard": "withhold", "referral_boost": 1})
	o.join(t, id, "first@example.com")
	ada := o.join(t, id, "ada@example.com").Str("referral_token")
	d.refer(t, id, "ada+x@example.com", ada)
	// Several times at once: one credit.
	var wg sync.WaitGroup
	for range 6 {
		wg.Go(func() {
			r, err := o.Send(t.Context(), Patch(signupPath(id, "ADA+x@example.com"), Obj{"credit": true}).As(o.token))
			if err != nil || r.Status != http.StatusOK {
				t.Error(r, err)
			}
		})
	}
	wg.Wait()
	o.giveCredit(t, id, "ada+x@example.com").Want(http.StatusOK).WantJSON("email", "ada+x@example.com").WantJSON("credit", true)
	o.status(t, id, "ada@example.com").WantJSON("referral_count", 1).WantJSON("position", 1)
	o.Do(t, Get("/waitlists/"+id+"/stats").As(o.token)).WantJSON("referral_signups", 1)
	// The reason stays.
	if got := o.flags(t, id); got["ada+x@example.com"] != "same_person" {
		t.Errorf("flagged %v", got)
	}
	t.Run("the referrer has left", func(t *testing.T) {
		d.refer(t, id, "ada+y@example.com", ada)
		o.remove(t, id, "ada@example.com")
		o.giveCredit(t, id, "ada+y@example.com").Invalid("credit")
		o.giveCredit(t, id, "ada+x@example.com").Want(http.StatusOK)
	})
	t.Run("removed", func(t *testing.T) {
		o.remove(t, id, "ada+y@example.com")
		o.giveCredit(t, id, "ada+y@example.com").WantError(http.StatusNotFound, "NOT_FOUND")
		// Whoever signs up again begins anew.
		o.join(t, id, "ada+y@example.com")
		if got := o.flags(t, id); got["ada+y@example.com"] != "" {
			t.Errorf("flagged %v", got)
		}
	})
}

func testCreditAfterVerification(t *testing.T, d *deployment) {
	o := d.owner(t)
	id := o.waitlist(t, Obj{"credit_after_verification": true, "referral_guard": "withhold"})
	ada := o.join(t, id, "ada@example.com").Str("referral_token")
	verify := func(email string) *Response {
		t.Helper()
		link := d.links.Mint(token.VerifySignup, token.SignupSubject(id, d.number(t, id, email)), time.Now().Add(time.Hour))
		return o.Do(t, Post(statusPath(id, email)+"/verify", Obj{"token": link}))
	}
	wants := func(want int) {
		t.Helper()
		if got := o.credited(t, id, "ada@example.com"); got != want {
			t.Errorf("%d credits, want %d", got, want)
		}
	}
	// Without verification there is nothing to wait for.
	d.refer(t, id, "bob@example.com", ada)
	wants(1)
	o.set(t, id, Obj{"require_email_verification": true})
	d.refer(t, id, "cyd@example.com", ada).WantJSON("position", 3)
	d.refer(t, id, "ada+dan@example.com", ada)
	d.refer(t, id, "eve@example.com", ada)
	wants(1)
	if got := o.flags(t, id); canonical(got) != canonical(Obj{"ada+dan@example.com": "same_person"}) {
		t.Errorf("flagged %v", got)
	}
	for range 2 {
		verify("cyd@example.com").Want(http.StatusOK)
		wants(2)
	}
	// The verification also gives a credit that the guard withheld.
	verify("ada+dan@example.com").Want(http.StatusOK)
	wants(3)
	// Nobody gets a credit for somebody who leaves before.
	o.remove(t, id, "eve@example.com")
	wants(3)
	// The owner gives it before, and the verification not again.
	d.refer(t, id, "fay@example.com", ada)
	o.giveCredit(t, id, "fay@example.com").Want(http.StatusOK)
	wants(4)
	verify("fay@example.com").Want(http.StatusOK)
	wants(4)
}

// testGuardAtOnce sends many referrals of one network at the same time: two of them earn a credit, in whatever batch.
func testGuardAtOnce(t *testing.T, d *deployment) {
	o := d.owner(t)
	id := o.waitlist(t, Obj{"referral_guard": "withhold"})
	ada := o.join(t, id, "ada@example.com").Str("referral_token")
	var wg sync.WaitGroup
	for i := range 20 {
		wg.Go(func() {
			r, err := o.Send(t.Context(), signup(id, fmt.Sprintf("p%d@example.com", i), Obj{"referred_by_token": ada}))
			if err != nil || r.Status != http.StatusCreated {
				t.Error(r, err)
			}
		})
	}
	wg.Wait()
	if flags := o.flags(t, id); len(flags) != 18 || o.credited(t, id, "ada@example.com") != 2 {
		t.Errorf("%d credits, flagged %v", o.credited(t, id, "ada@example.com"), flags)
	}
}

func testCreditRefused(t *testing.T, d *deployment) {
	o := d.owner(t)
	id := o.waitlist(t, nil)
	ada := o.join(t, id, "ada@example.com").Str("referral_token")
	o.join(t, id, "bob@example.com", Obj{"referred_by_token": ada})
	o.giveCredit(t, id, "bob@example.com").Want(http.StatusOK)
	o.giveCredit(t, id, "ada@example.com").Invalid("credit")
	o.giveCredit(t, id, address("nobody")).WantError(http.StatusNotFound, "NOT_FOUND")
	path := signupPath(id, "bob@example.com")
	for _, body := range []Obj{{}, {"credit": false}, {"credit": nil}, {"credit": "true"}, {"credit": 1}} {
		o.Do(t, Patch(path, body).As(o.token).Invalid()).Invalid("credit")
	}
	testBodies(t, o.Client, Patch(path, nil).As(o.token), `{"credit":true%s}`, http.StatusOK)
	d.setTier(t, o, "basic", "active") // at every tier
	o.giveCredit(t, id, "bob@example.com").Want(http.StatusOK)
	if got := o.credited(t, id, "ada@example.com"); got != 1 {
		t.Errorf("%d credits", got)
	}
}
