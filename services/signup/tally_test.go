package signup_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"google.golang.org/protobuf/proto"

	"waitlist.internal/libs/access"
	"waitlist.internal/libs/apierr"
	"waitlist.internal/libs/audit"
	"waitlist.internal/libs/views"
	eventv1 "waitlist.internal/proto/gen/waitlist/event/v1"
	"waitlist.internal/services/signup/owners"
	"waitlist.internal/services/signup/queue"
)

// tally is a whole tally.
type tally struct {
	last   int64
	days   map[string]owners.DayTally
	values map[[2]string]owners.ValueTally
}

func (w *world) tally(t *testing.T) tally {
	t.Helper()
	out := tally{days: map[string]owners.DayTally{}, values: map[[2]string]owners.ValueTally{}}
	pieces := 0
	err := w.admin.Tally(t.Context(), w.list.ID, func(p owners.Tally) error {
		if pieces++; pieces == 1 {
			out.last = p.LastNumber
		}
		for _, d := range p.Days {
			day := d.Day.Format(time.DateOnly)
			if _, ok := out.days[day]; ok {
				t.Errorf("day %s comes twice", day)
			}
			d.Day = time.Time{}
			out.days[day] = d
		}
		for _, v := range p.Values {
			key := [2]string{v.Field, v.Value}
			if _, ok := out.values[key]; ok {
				t.Errorf("value %s comes twice", key)
			}
			out.values[key] = v
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// TestTally: a tally counts everybody who ever signed up, by UTC day and by
// origin, whoever has left since and in whichever way. A referral counts with or
// without a credit, as in the event of the signup.
func TestTally(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	w.open(1, `"referral_guard": "withhold"`)
	r := rand.New(rand.NewPCG(1, 2))
	// Around midnights: the day is UTC's.
	begin := time.Date(2026, 2, 27, 23, 59, 59, 999_000_000, time.UTC)
	pick := func(of ...string) string { return of[r.IntN(len(of))] }
	want := tally{days: map[string]owners.DayTally{}, values: map[[2]string]owners.ValueTally{}}
	var numbers []int64
	var token queue.Token
	const people = 300
	for i := range people {
		j := w.newJoin(token, i > 0 && r.IntN(2) == 0)
		j.CreatedAt = begin.Add(time.Duration(i/100) * 24 * time.Hour).Add(time.Duration(r.IntN(3)) * time.Millisecond)
		j.Evidence.Disposable = r.IntN(3) == 0
		j.UTMSource, j.UTMMedium, j.UTMCampaign = pick("", "launch", "Launch", "it's; --"), pick("", "mail"), fmt.Sprint("c", r.IntN(40))
		w.join(t, []*queue.Join{j})
		if i == 0 {
			token = j.Token
		}
		number := int64(i + 1)
		numbers = append(numbers, number)
		want.last = number
		day := j.CreatedAt.UTC().Format(time.DateOnly)
		d := want.days[day]
		d.Signups++
		if j.HasReferrer {
			d.Referrals++
		}
		want.days[day] = d
		for field, value := range map[string]string{"utm_source": j.UTMSource, "utm_medium": j.UTMMedium, "utm_campaign": j.UTMCampaign} {
			if value == "" {
				continue
			}
			v := want.values[[2]string{field, value}]
			want.values[[2]string{field, value}] = owners.ValueTally{Field: field, Value: value, Count: v.Count + 1, LastNumber: number}
		}
	}
	check := func(when string) {
		t.Helper()
		got := w.tally(t)
		if got.last != want.last || !maps.Equal(got.days, want.days) || !maps.Equal(got.values, want.values) {
			t.Errorf("%s:\n got %v\nwant %v", when, got, want)
		}
	}
	check("nobody has left")
	r.Shuffle(len(numbers), func(i, j int) { numbers[i], numbers[j] = numbers[j], numbers[i] })
	for i, n := range numbers[:people/2] {
		why := queue.ByAdmin
		if i%2 == 0 {
			why = queue.OwnRequest
		}
		if err := w.store.Remove(t.Context(), w.list, n, why, audit.Entry{}); err != nil {
			t.Fatal(err)
		}
	}
	check("half of them have left")
	for _, n := range numbers[people/2:] {
		if err := w.store.Remove(t.Context(), w.list, n, queue.OwnRequest, audit.Entry{}); err != nil {
			t.Fatal(err)
		}
	}
	check("all have left")
	// Whoever was not there when asked to leave is not counted twice.
	if err := w.store.Remove(t.Context(), w.list, numbers[0], queue.ByAdmin, audit.Entry{}); !apierr.Is(err, apierr.NotFound) {
		t.Errorf("left twice: %v", err)
	}
	check("one wants to leave twice")
	if err := w.admin.Tally(t.Context(), uuid.NewString(), func(owners.Tally) error { return nil }); !apierr.Is(err, apierr.NotFound) {
		t.Errorf("tally of no waitlist: %v", err)
	}
}

func TestWaitlistIDs(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	const many = 1200 // in three pieces
	if _, err := w.pool.Exec(t.Context(), `
		INSERT INTO waitlist (id, owner_id, name, settings, created_at, deleted_at)
		SELECT gen_random_uuid(), $1, 'x', '{}', now(), CASE WHEN n % 100 = 0 THEN now() END
		    FROM generate_series(1, $2::int) n`, w.list.OwnerID, many); err != nil {
		t.Fatal(err)
	}
	var got []string
	if err := w.admin.WaitlistIDs(t.Context(), func(ids []string) error { got = append(got, ids...); return nil }); err != nil {
		t.Fatal(err)
	}
	if len(got) != many-many/100+1 || !slices.IsSorted(got) || len(slices.Compact(got)) != len(got) || !slices.Contains(got, w.list.ID) {
		t.Errorf("%d ids, sorted %t", len(got), slices.IsSorted(got))
	}
}

// TestAnalyticsOrder checks that faults of a request are reported in the API's
// order, and the top referrers are the leaderboard's.
func TestAnalyticsOrder(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	var referrers []*queue.Join
	for i := range 12 {
		j := w.newJoin(queue.Token{}, false)
		j.FirstName = fmt.Sprint("N", i)
		w.join(t, []*queue.Join{j})
		referrers = append(referrers, j)
	}
	// The last one named most often, the others once, the second before the first.
	for _, i := range []int{11, 11, 1, 0, 2, 3, 4, 5, 6, 7, 8, 9} {
		w.join(t, []*queue.Join{w.newJoin(referrers[i].Token, true)})
	}
	actor := func(role access.Role, tier access.Tier, status access.Status, trial bool) access.Actor {
		a := access.Actor{AccountID: uuid.NewString(), EmailVerified: true, Grants: []access.Grant{{
			OwnerID: w.list.OwnerID, Role: role, Entitlement: access.Entitlement{Tier: tier, Status: status, Trial: trial, Version: 1},
		}}}
		if role == access.Owner {
			a.AccountID = w.list.OwnerID
		}
		return a
	}
	const bad = "5d"
	for _, tt := range []struct {
		name   string
		actor  access.Actor
		id     string
		within string
		want   apierr.Code
	}{
		{"no waitlist", actor(access.Owner, access.Pro, access.Active, false), uuid.NewString(), bad, apierr.NotFound},
		{"no id", actor(access.Owner, access.Pro, access.Active, false), "x", bad, apierr.NotFound},
		{"stranger", access.Actor{AccountID: uuid.NewString()}, w.list.ID, bad, apierr.Forbidden},
		{"trial is over", actor(access.Owner, access.Pro, access.Inactive, true), w.list.ID, bad, apierr.TrialExpired},
		{"bad parameter below the tier", actor(access.Owner, access.Advanced, access.Active, false), w.list.ID, bad, apierr.ValidationError},
		{"below the tier", actor(access.Owner, access.Advanced, access.Active, false), w.list.ID, "", apierr.TierRequired},
		{"viewer with a bad parameter", actor(access.Viewer, access.Pro, access.Active, false), w.list.ID, bad, apierr.ValidationError},
	} {
		_, err := w.admin.Analytics(t.Context(), tt.actor, tt.id, tt.within)
		if !apierr.Is(err, tt.want) {
			t.Errorf("%s: %v, want %s", tt.name, err, tt.want)
		}
		if e := apierr.From(err); tt.want == apierr.ValidationError &&
			(e.Message != `Check the field "range". Choose 7d, 30d or 90d.` ||
				!slices.Equal(e.Fields, []apierr.Field{{Field: "range", Message: "Choose 7d, 30d or 90d."}})) {
			t.Errorf("%s: %+v", tt.name, e)
		}
	}
	a, err := w.admin.Analytics(t.Context(), actor(access.Viewer, access.Pro, access.Active, false), w.list.ID, "7d")
	if err != nil || a.WaitlistID != w.list.ID || a.Range != "7d" || a.Days != 7 || len(a.TopReferrers) != 10 {
		t.Fatalf("%+v, %v", a, err)
	}
	for i, r := range a.TopReferrers {
		who := []int{11, 1, 0, 2, 3, 4, 5, 6, 7, 8}[i]
		n := int64(1)
		if i == 0 {
			n = 2
		}
		if r != (owners.Referrer{Email: referrers[who].Email, FirstName: fmt.Sprint("N", who), ReferralCount: n}) {
			t.Errorf("place %d: %+v", i+1, r)
		}
	}
}

// TestCountViews: what was counted is in the outbox, one event each, with the
// ids that were given.
func TestCountViews(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	at := time.Date(2026, 3, 1, 23, 59, 59, 999_000_000, time.UTC)
	counts := []views.Count{
		{ID: uuid.NewString(), WaitlistID: w.list.ID, Views: 7, At: at},
		{ID: uuid.NewString(), WaitlistID: uuid.NewString(), Views: 1, At: at},
	}
	if err := w.store.CountViews(t.Context(), counts); err != nil {
		t.Fatal(err)
	}
	for _, c := range counts {
		var topic string
		var payloads [][]byte
		if err := w.pool.QueryRow(t.Context(), `SELECT topic, payloads FROM outbox WHERE key = $1`, c.WaitlistID).Scan(&topic,
			&payloads); err != nil {
			t.Fatal(err)
		}
		var ev eventv1.Event
		if err := proto.Unmarshal(payloads[0], &ev); err != nil {
			t.Fatal(err)
		}
		v := ev.GetPageViewsCounted()
		if topic != "waitlist.signups.v1" || len(payloads) != 1 || ev.GetId() != c.ID || !ev.GetOccurredAt().AsTime().Equal(at) ||
			v.GetWaitlistId() != c.WaitlistID || v.GetViews() != c.Views {
			t.Errorf("%s: %v", topic, &ev)
		}
	}
}
