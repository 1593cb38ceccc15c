package e2e

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

func testAnalytics(t *testing.T, d *deployment) {
	t.Run("series", func(t *testing.T) { testSeries(t, d) })
	t.Run("ranges", func(t *testing.T) { testRanges(t, d) })
	t.Run("views", func(t *testing.T) { testViews(t, d) })
	t.Run("referrers", func(t *testing.T) { testTopReferrers(t, d) })
	t.Run("origins", func(t *testing.T) { testOrigins(t, d) })
	t.Run("many origins", func(t *testing.T) { testManyOrigins(t, d) })
	t.Run("plan", func(t *testing.T) {
		o := d.owner(t)
		id := o.waitlist(t, nil)
		d.setTier(t, o, "advanced", "active")
		for _, r := range []Request{analyticsOf(id), originsOf(id)} {
			if msg := o.Do(t, r.As(o.token)).WantError(http.StatusForbidden, "TIER_REQUIRED").Str("error"); !strings.Contains(msg, "Pro") {
				t.Errorf("message %q does not name the plan", msg)
			}
		}
	})
}

func analyticsOf(id string) Request { return Get("/waitlists/" + id + "/analytics") }

func originsOf(id string) Request { return Get("/waitlists/" + id + "/analytics/utm") }

func viewOf(id string) Request { return Get("/public/waitlists/" + id + "/config") }

// series is the answer of GET …/analytics.
type series struct {
	ID         string             `json:"waitlist_id"`
	Range      string             `json:"range"`
	Views      map[string]int     `json:"views_by_day"`
	Signups    map[string]int     `json:"signups_by_day"`
	Referred   map[string]int     `json:"referral_signups_by_day"`
	Conversion map[string]float64 `json:"conversion_rate_by_day"`
	Referrers  []struct {
		Email         string `json:"email"`
		FirstName     string `json:"first_name"`
		ReferralCount int    `json:"referral_count"`
	} `json:"top_referrers"`
}

// sum adds the days up, so that a test may run past midnight.
func sum(days map[string]int) int {
	n := 0
	for _, v := range days {
		n += v
	}
	return n
}

// series reads a waitlist's analytics.
func (o *owner) series(t testing.TB, id string) series {
	t.Helper()
	var s series
	o.Do(t, analyticsOf(id).As(o.token)).Want(http.StatusOK).Decode(&s)
	return s
}

// awaitSeries waits until the views, signups and referred signups have these values, and then checks that they stay.
func (o *owner) awaitSeries(t testing.TB, id string, views, signups, referred int) series {
	t.Helper()
	var s series
	defer func() {
		if t.Failed() {
			t.Logf("at last: %d views, %d signups, %d referred", sum(s.Views), sum(s.Signups), sum(s.Referred))
		}
	}()
	is := func() bool {
		s = o.series(t, id)
		return sum(s.Views) == views && sum(s.Signups) == signups && sum(s.Referred) == referred
	}
	Await(t, mailTimeout, fmt.Sprintf("%d views, %d signups, %d referred", views, signups, referred), is)
	if !is() {
		t.Error("the sums changed again")
	}
	return s
}

// testSeries checks what counts and what does not.
func testSeries(t *testing.T, d *deployment) {
	o := d.owner(t)
	id := o.waitlist(t, nil)
	s := o.awaitSeries(t, id, 0, 0, 0)
	if s.ID != id || s.Range != "30d" || len(s.Referrers) != 0 {
		t.Errorf("%+v", s)
	}
	for day, v := range s.Conversion {
		if v != 0 {
			t.Errorf("conversion %v on %s without views", v, day)
		}
	}
	for range 7 {
		o.Do(t, viewOf(id)).Want(http.StatusOK)
	}
	ada, bob, eve := address("ada"), address("bob"), address("eve")
	token := o.join(t, id, ada).Str("referral_token")
	o.join(t, id, bob, Obj{"referred_by_token": token})
	o.join(t, id, eve, Obj{"referred_by_token": token})
	o.join(t, id, address("x"), Obj{"referred_by_token": strings.Repeat("0", 32)})
	// None of these counts as a signup or a view.
	o.Do(t, signup(id, bob, Obj{"referred_by_token": token})).Want(http.StatusOK)
	o.Do(t, signup(id, address("bot"), Obj{"website": "x", "referred_by_token": token})).Want(http.StatusCreated)
	o.Do(t, signup(id, "nobody").Invalid()).Want(http.StatusBadRequest)
	o.Do(t, Get("/public/waitlists/"+id+"/count")).Want(http.StatusOK)
	o.Do(t, NewRequest(http.MethodOptions, "/public/waitlists/"+id+"/config", nil)).Want(http.StatusNoContent)
	s = o.awaitSeries(t, id, 7, 4, 2)
	conversions(t, s)

	t.Run("imported", func(t *testing.T) {
		o.imports(t, id, []any{Obj{"email": address("i")}, Obj{"email": ada}, Obj{"email": address("i")}, Obj{"email": "nobody"}})
		conversions(t, o.awaitSeries(t, id, 7, 6, 2))
	})
	t.Run("removals do not lower the sums", func(t *testing.T) {
		o.remove(t, id, bob)
		d.deleteMyData(t, o.Client, id, eve)
		o.join(t, id, bob)
		o.Do(t, viewOf(id)).Want(http.StatusOK)
		s := o.awaitSeries(t, id, 8, 7, 2)
		if len(s.Referrers) != 1 || s.Referrers[0].Email != ada || s.Referrers[0].ReferralCount != 2 {
			t.Errorf("referrers %+v", s.Referrers)
		}
	})
	t.Run("more signups than views", func(t *testing.T) {
		id := o.waitlist(t, nil)
		o.Do(t, viewOf(id)).Want(http.StatusOK)
		for range 3 {
			o.join(t, id, address("x"))
		}
		s := o.awaitSeries(t, id, 1, 3, 0)
		conversions(t, s)
	})
	t.Run("each waitlist has its own", func(t *testing.T) {
		other := o.waitlist(t, nil)
		o.join(t, other, address("x"))
		o.awaitSeries(t, other, 0, 1, 0)
		o.awaitSeries(t, id, 8, 7, 2)
	})
	t.Run("deleted", func(t *testing.T) {
		gone := o.waitlist(t, nil)
		o.join(t, gone, address("x"))
		o.Do(t, viewOf(gone)).Want(http.StatusOK)
		o.awaitSeries(t, gone, 1, 1, 0)
		o.Do(t, Delete("/waitlists/"+gone).As(o.token)).Want(http.StatusNoContent)
		o.Do(t, analyticsOf(gone).As(o.token)).WantError(http.StatusNotFound, "NOT_FOUND")
		o.Do(t, originsOf(gone).As(o.token)).WantError(http.StatusNotFound, "NOT_FOUND")
	})
}

// conversions requires each day's conversion to be signups divided by views: 0 without views, at most 1, with four decimals.
func conversions(t testing.TB, s series) {
	t.Helper()
	for day, got := range s.Conversion {
		want := 0.0
		if views := s.Views[day]; views > 0 {
			want = min(1, float64(s.Signups[day])/float64(views))
		}
		if got < want-0.00005001 || got > want+0.00005001 {
			t.Errorf("conversion %v on %s, want %v", got, day, want)
		}
		if text := fmt.Sprint(got); len(text) > len("0.1234") {
			t.Errorf("conversion %s on %s has too many decimals", text, day)
		}
	}
}

func testRanges(t *testing.T, d *deployment) {
	o := d.owner(t)
	id := o.waitlist(t, nil)
	o.join(t, id, address("x"))
	for query, want := range map[string]struct {
		name string
		days int
	}{"": {"30d", 30}, "range=": {"30d", 30}, "range=7d": {"7d", 7}, "range=30d": {"30d", 30}, "range=90d": {"90d", 90}} {
		t.Run(query, func(t *testing.T) {
			r := analyticsOf(id)
			r.path += "?" + query
			var s series
			before := time.Now().UTC()
			o.Do(t, r.As(o.token).Invalid()).Want(http.StatusOK).Decode(&s)
			after := time.Now().UTC()
			if s.Range != want.name {
				t.Errorf("range %s, want %s", s.Range, want.name)
			}
			days := func(today time.Time) []string {
				var out []string
				for i := range want.days {
					out = append(out, today.AddDate(0, 0, i+1-want.days).Format(time.DateOnly))
				}
				return out
			}
			for name, got := range map[string][]string{
				"views": keys(s.Views), "signups": keys(s.Signups), "referred": keys(s.Referred), "conversion": keys(s.Conversion),
			} {
				if !slices.Equal(got, days(before)) && !slices.Equal(got, days(after)) {
					t.Errorf("%s covers the days %v, want %v", name, got, days(after))
				}
			}
		})
	}
	for _, bad := range []string{"5d", "7", "7D", "0d", "-7d", "30", "d", "30d ", "90d;", "all", "365d", "\x00", emoji, "7d,30d"} {
		o.Do(t, analyticsOf(id).query("range", bad).As(o.token).Invalid()).Invalid("range")
	}
}

// keys returns the keys of a map, sorted.
func keys[V any](m map[string]V) []string {
	out := make([]string, 0, len(m))
	for k := range m {
		out = append(out, k)
	}
	slices.Sort(out)
	return out
}

// testViews checks that every concurrent view counts once, that views of missing waitlists do not count, and that each
// waitlist has its own count.
func testViews(t *testing.T, d *deployment) {
	o := d.owner(t)
	id, other := o.waitlist(t, nil), o.waitlist(t, Obj{"status": "closed"})
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 50 {
				if r, err := o.Send(t.Context(), viewOf(id)); err != nil || r.Status != http.StatusOK {
					t.Errorf("%v %v", r, err)
				}
			}
		})
	}
	wg.Wait()
	o.Do(t, viewOf(unknownID)).Want(http.StatusNotFound)
	o.Do(t, viewOf("nope")).Want(http.StatusNotFound)
	o.Do(t, viewOf(other)).Want(http.StatusOK)
	o.awaitSeries(t, id, 400, 0, 0)
	o.awaitSeries(t, other, 1, 0, 0)
	// When the owner's access ends, the public side and the counting continue.
	d.setTier(t, o, "basic", "inactive")
	o.Do(t, viewOf(id)).Want(http.StatusOK)
	d.setTier(t, o, "pro", "active")
	o.awaitSeries(t, id, 401, 0, 0)
}

func testTopReferrers(t *testing.T, d *deployment) {
	o := d.owner(t)
	id := o.waitlist(t, Obj{"hide_position": true})
	// Twelve people: number i gets i/2 referrals; of two people with equal counts, the later one gets there first.
	people, tokens := make([]string, 12), make([]string, 12)
	for i := range people {
		people[i] = address(fmt.Sprint("p", i))
		tokens[i] = o.join(t, id, people[i], Obj{"first_name": fmt.Sprint("P", i)}).Str("referral_token")
	}
	referred := 0
	for round := 1; round <= 5; round++ {
		for i := 11; i >= 2*round; i-- {
			o.join(t, id, address("friend"), Obj{"referred_by_token": tokens[i]})
			referred++
		}
	}
	s := o.awaitSeries(t, id, 0, 12+referred, referred)
	want := []int{11, 10, 9, 8, 7, 6, 5, 4, 3, 2}
	if len(s.Referrers) != len(want) {
		t.Fatalf("referrers %+v", s.Referrers)
	}
	for at, i := range want {
		if got := s.Referrers[at]; got.Email != people[i] || got.FirstName != fmt.Sprint("P", i) || got.ReferralCount != i/2 {
			t.Errorf("referrer %d is %+v, want person %d with %d", at+1, got, i, i/2)
		}
	}
	// A removed person is no longer listed.
	d.deleteMyData(t, o.Client, id, people[11])
	o.remove(t, id, people[10])
	if s := o.series(t, id); len(s.Referrers) != 8 || s.Referrers[0].Email != people[9] {
		t.Errorf("referrers %+v", s.Referrers)
	}
}

// origins is the answer of the UTM analytics.
type origins struct {
	ID       string   `json:"waitlist_id"`
	Source   []origin `json:"by_source"`
	Medium   []origin `json:"by_medium"`
	Campaign []origin `json:"by_campaign"`
}

type origin struct {
	Value string `json:"value"`
	Count int    `json:"count"`
}

func (o *owner) origins(t testing.TB, id string) origins {
	t.Helper()
	var out origins
	o.Do(t, originsOf(id).As(o.token)).Want(http.StatusOK).Decode(&out)
	return out
}

func testOrigins(t *testing.T, d *deployment) {
	o := d.owner(t)
	id := o.waitlist(t, nil)
	o.Do(t, originsOf(id).Key(o.key)).Want(http.StatusOK).WantJSON("waitlist_id", id).
		WantJSON("by_source", []any{}).WantJSON("by_medium", []any{}).WantJSON("by_campaign", []any{})
	eve := address("eve")
	for i, utm := range []Obj{
		{"utm_source": "late", "utm_medium": "mail", "utm_term": "t", "utm_content": "c"},
		{"utm_source": "early"},
		{"utm_source": "early", "utm_campaign": "=1+1"},
		{"utm_source": "late", "utm_medium": ""},
		{"utm_source": "often", "utm_medium": "MAIL", "utm_campaign": emoji},
		{"utm_source": "often"},
		{"utm_source": "often", "utm_campaign": emoji},
		{},
	} {
		email := address(fmt.Sprint("p", i))
		if i == 4 {
			email = eve
		}
		o.join(t, id, email, utm)
	}
	o.Do(t, signup(id, eve, Obj{"utm_source": "again"})).Want(http.StatusOK)
	o.imports(t, id, []any{Obj{"email": address("i"), "utm_source": "import"}})
	want := origins{
		ID:       id,
		Source:   []origin{{"often", 3}, {"early", 2}, {"late", 2}},
		Medium:   []origin{{"mail", 1}, {"MAIL", 1}},
		Campaign: []origin{{emoji, 2}, {"=1+1", 1}},
	}
	var got origins
	Await(t, mailTimeout, "the origins", func() bool {
		got = o.origins(t, id)
		n := 0
		for _, s := range got.Source {
			n += s.Count
		}
		return n >= 7
	})
	if canonical(got) != canonical(want) {
		t.Errorf("%s,\nwant %s", canonical(got), canonical(want))
	}
	t.Run("removals do not lower the sums", func(t *testing.T) {
		d.deleteMyData(t, o.Client, id, eve)
		o.join(t, id, address("x"), Obj{"utm_source": "late"})
		want.Source = []origin{{"often", 3}, {"late", 3}, {"early", 2}}
		Await(t, mailTimeout, "the origins", func() bool { return canonical(o.origins(t, id)) == canonical(want) })
	})
}

// testManyOrigins checks that the thousand most frequent values are listed and the rest is summed up.
func testManyOrigins(t *testing.T, d *deployment) {
	o := d.owner(t)
	id := o.waitlist(t, nil)
	const n = 1007
	var wg sync.WaitGroup
	next := make(chan int)
	for range 16 {
		wg.Go(func() {
			for i := range next {
				utm := Obj{"utm_source": fmt.Sprintf("v%04d", i), "utm_medium": "same", "utm_campaign": fmt.Sprint("c", i%3)}
				if r, err := o.Send(t.Context(), signup(id, address("x"), utm)); err != nil || r.Status != http.StatusCreated {
					t.Errorf("%v %v", r, err)
				}
			}
		})
	}
	for i := range n {
		next <- i
	}
	// Repeat the last values, so that they are among the thousand.
	for i := n - 20; i < n; i++ {
		next <- i
	}
	close(next)
	wg.Wait()
	var got origins
	Await(t, mailTimeout, "all signups", func() bool {
		got = o.origins(t, id)
		return len(got.Medium) == 1 && got.Medium[0].Count == n+20
	})
	if len(got.Source) != 1001 || len(got.Campaign) != 3 {
		t.Fatalf("%d sources, %d campaigns", len(got.Source), len(got.Campaign))
	}
	seen := map[string]int{}
	for i, s := range got.Source {
		if _, twice := seen[s.Value]; twice {
			t.Errorf("%s is listed twice", s.Value)
		}
		if seen[s.Value] = s.Count; i > 0 && s.Count > got.Source[i-1].Count {
			t.Errorf("%+v is listed after %+v", s, got.Source[i-1])
		}
	}
	if seen["(other)"] != n-1000 {
		t.Errorf("(other) is %d, want %d", seen["(other)"], n-1000)
	}
	for i := n - 20; i < n; i++ {
		if v := fmt.Sprintf("v%04d", i); seen[v] != 2 {
			t.Errorf("%s is %d, want 2", v, seen[v])
		}
	}
}
