package queue_test

import (
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"waitlist.internal/libs/access"
	eventv1 "waitlist.internal/proto/gen/waitlist/event/v1"
	"waitlist.internal/services/signup/queue"
	"waitlist.internal/services/signup/waitlist"
)

// counting returns event ids that are easy to check.
func counting() func() string {
	n := 0
	return func() string { n++; return fmt.Sprint("event-", n) }
}

// proList is a waitlist of a Pro account with an offset of 100.
func proList(boost int) *waitlist.Waitlist {
	w := &waitlist.Waitlist{
		ID: "list", OwnerID: "owner", Name: "Launch", Version: 3, Settings: waitlist.DefaultSettings(),
		Owner: access.Entitlement{Tier: access.Pro, Status: access.Active, Version: 7},
	}
	w.Settings.ReferralBoost, w.Settings.PositionOffset = boost, 100
	return w
}

func tokenOf(b byte) queue.Token { return queue.Token{b} }

// newcomer is a join with the token b, referred by the token referrer unless that is 0.
func newcomer(w *waitlist.Waitlist, email string, b, referrer byte) *queue.Join {
	return &queue.Join{
		Waitlist: w, Email: email, Token: tokenOf(b), ReferredBy: tokenOf(referrer), HasReferrer: referrer != 0,
		CreatedAt: time.Date(2026, 1, 2, 3, 4, int(b), 0, time.UTC),
	}
}

// TestDecide covers each fate of a join.
func TestDecide(t *testing.T) {
	t.Parallel()
	const spacing = 1 << 20
	w := proList(2)
	refusal := errors.New("closed")
	for _, tc := range []struct {
		name     string
		joins    []*queue.Join
		refused  []error
		outcomes []queue.Outcome
		keys     []int64
		credits  []queue.Credit
		events   []string
		state    queue.State
	}{
		{
			name: "two newcomers", joins: []*queue.Join{newcomer(w, "a", 1, 0), newcomer(w, "b", 2, 0)},
			outcomes: []queue.Outcome{{Number: 21, Position: 11, Total: 16}, {Number: 22, Position: 12, Total: 17}},
			keys:     []int64{500 + spacing, 500 + 2*spacing}, events: []string{"created 21", "created 22"},
			state: queue.State{Change: 6, Live: 12, Total: 17, Credited: 3, LastNumber: 22},
		},
		{
			name: "on the list", joins: []*queue.Join{newcomer(w, "old", 1, 0)},
			outcomes: []queue.Outcome{{Existing: true, Number: 4}},
			state:    queue.State{Change: 5, Live: 10, Total: 15, Credited: 3, LastNumber: 20},
		},
		{
			name: "committed by an earlier attempt", joins: []*queue.Join{newcomer(w, "old", 9, 0)},
			outcomes: []queue.Outcome{{Number: 4}},
			state:    queue.State{Change: 5, Live: 10, Total: 15, Credited: 3, LastNumber: 20},
		},
		{
			name: "one address twice", joins: []*queue.Join{newcomer(w, "a", 1, 0), newcomer(w, "a", 2, 8)},
			outcomes: []queue.Outcome{{Number: 21, Position: 11, Total: 16}, {Existing: true, Number: 21}},
			keys:     []int64{500 + spacing}, events: []string{"created 21"},
			state: queue.State{Change: 6, Live: 11, Total: 16, Credited: 3, LastNumber: 21},
		},
		{
			name: "refused", joins: []*queue.Join{newcomer(w, "old", 1, 8), newcomer(w, "a", 2, 0)}, refused: []error{refusal, nil},
			outcomes: []queue.Outcome{{Err: refusal}, {Number: 21, Position: 11, Total: 16}},
			keys:     []int64{500 + spacing}, events: []string{"created 21"},
			state: queue.State{Change: 6, Live: 11, Total: 16, Credited: 3, LastNumber: 21},
		},
		{
			name: "referrers",
			joins: []*queue.Join{
				newcomer(w, "a", 1, 8), newcomer(w, "b", 2, 7), newcomer(w, "c", 3, 8), newcomer(w, "d", 4, 99), newcomer(w, "old", 5, 8),
			},
			outcomes: []queue.Outcome{
				{Number: 21, Position: 11, Total: 16},
				{Number: 22, Position: 12, Total: 17},
				{Number: 23, Position: 13, Total: 18},
				{Number: 24, Position: 14, Total: 19},
				{Existing: true, Number: 4},
			},
			keys:    []int64{500 + spacing, 500 + 2*spacing, 500 + 3*spacing, 500 + 4*spacing},
			credits: []queue.Credit{{Number: 2, Count: 1, Places: 2}, {Number: 3, Count: 1, Places: 2}, {Number: 2, Count: 1, Places: 2}},
			events: []string{
				"created 21", "credited 2 to 6 by 21", "created 22", "credited 3 to 1 by 22", "created 23", "credited 2 to 7 by 23", "created 24",
			},
			state: queue.State{Change: 6, Live: 14, Total: 19, Credited: 6, LastNumber: 24},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			l := &queue.Locked{
				State: queue.State{Change: 5, Live: 10, Total: 15, Credited: 3, LastNumber: 20}, LastKey: 500,
				Present: map[string]queue.PresentRow{"old": {Token: tokenOf(9), Number: 4}},
				Referrers: map[queue.Token]queue.ReferrerRow{tokenOf(8): {Number: 2, Count: 5, Email: "two"}, tokenOf(7): {
					Number: 3,
					Email:  "three",
				}},
			}
			before := *l
			before.Present, before.Referrers = maps.Clone(l.Present), maps.Clone(l.Referrers)
			b := l.Decide(tc.joins, tc.refused, counting())
			if !slices.Equal(b.Outcomes, tc.outcomes) {
				t.Errorf("outcomes %+v, want %+v", b.Outcomes, tc.outcomes)
			}
			var keys []int64
			for _, in := range b.Inserts {
				keys = append(keys, in.Key)
			}
			if !slices.Equal(keys, tc.keys) || !slices.Equal(b.Credits, tc.credits) || b.State != tc.state {
				t.Errorf("keys %v, credits %+v, state %+v", keys, b.Credits, b.State)
			}
			if len(b.Inserts) > 0 && !b.CreditedAt.Equal(b.Inserts[0].CreatedAt) {
				t.Errorf("credited at %s", b.CreditedAt)
			}
			var events []string
			for i, ev := range b.Events {
				if ev.GetId() != fmt.Sprint("event-", i+1) {
					t.Errorf("event %d has the id %s", i, ev.GetId())
				}
				if p := ev.GetSignupCreated(); p != nil {
					events = append(events, fmt.Sprint("created ", p.GetNumber()))
				} else {
					p := ev.GetReferralCredited()
					events = append(events, fmt.Sprintf("credited %d to %d by %d", p.GetNumber(), p.GetReferralCount(), p.GetReferredNumber()))
				}
			}
			if !slices.Equal(events, tc.events) {
				t.Errorf("events %v, want %v", events, tc.events)
			}
			if l.State != before.State || l.LastKey != before.LastKey || !maps.Equal(l.Present, before.Present) ||
				!reflect.DeepEqual(l.Referrers, before.Referrers) {
				t.Errorf("Decide changed what was read: %+v", l)
			}
		})
	}
}

// TestDecideEvents compares the whole events of one referred signup.
func TestDecideEvents(t *testing.T) {
	t.Parallel()
	w := proList(1)
	w.Settings.SlackWebhookURL, w.Settings.WebhookURL = "s", "w"
	w.Settings.RequireEmailVerification, w.Settings.NotifyReferrer, w.Settings.SMSNotifyReferrer = true, true, true
	w.Settings.ReferralMilestones = []int{5}
	w.Settings.EmailTemplates = waitlist.EmailTemplates{SignupConfirmation: "c", ReferralMilestone: "m"}
	decide := func(tier access.Tier) (*eventv1.SignupCreated, *eventv1.ReferralCredited) {
		j := newcomer(w, "a", 1, 8)
		list := *w
		list.Owner.Tier = tier
		j.Waitlist = &list
		j.FirstName, j.LastName, j.UTMSource, j.UTMMedium, j.UTMCampaign = "Ada", "L", "x", "y", "z"
		l := &queue.Locked{Referrers: map[queue.Token]queue.ReferrerRow{tokenOf(8): {Number: 2, Count: 4, Email: "two"}}}
		b := l.Decide([]*queue.Join{j}, nil, counting())
		if len(b.Events) != 2 || !b.Events[0].GetOccurredAt().AsTime().Equal(j.CreatedAt) ||
			!b.Events[1].GetOccurredAt().AsTime().Equal(j.CreatedAt) {
			t.Fatalf("events %v", b.Events)
		}
		return b.Events[0].GetSignupCreated(), b.Events[1].GetReferralCredited()
	}
	created, credited := decide(access.Pro)
	if got, want := created.String(), (&eventv1.SignupCreated{
		WaitlistId: "list", OwnerId: "owner", Number: 1, Email: "a", Position: 101,
		UtmSource: "x", UtmMedium: "y", UtmCampaign: "z", Referred: true, VerificationRequired: true,
		WaitlistName: "Launch", Confirmation: true,
		Channels: []eventv1.Channel{eventv1.Channel_CHANNEL_WEBHOOK, eventv1.Channel_CHANNEL_SLACK},
	}).String(); got != want {
		t.Errorf("created %s, want %s", got, want)
	}
	if got, want := credited.String(), (&eventv1.ReferralCredited{
		WaitlistId: "list", OwnerId: "owner", Number: 2, ReferralCount: 5, ReferredNumber: 1,
		Channels: []eventv1.Channel{eventv1.Channel_CHANNEL_WEBHOOK}, NotifyReferrer: true, SmsNotifyReferrer: true, Milestone: 5,
	}).String(); got != want {
		t.Errorf("credited %s, want %s", got, want)
	}
	created, credited = decide(access.Basic)
	if created.GetPosition() != 1 || created.GetEmail() != "" || len(created.GetChannels()) != 0 || created.GetConfirmation() ||
		created.GetVerificationRequired() ||
		len(credited.GetChannels()) != 0 || credited.GetNotifyReferrer() || credited.GetMilestone() != 0 {
		t.Errorf("above the tier: %v, %v", created, credited)
	}
}

// TestOutdated compares both versions.
func TestOutdated(t *testing.T) {
	t.Parallel()
	j := newcomer(proList(1), "a", 1, 0)
	for want, l := range map[bool][]*queue.Locked{
		false: {{SettingsVersion: 3, OwnerVersion: 7}},
		true:  {{SettingsVersion: 4, OwnerVersion: 7}, {SettingsVersion: 3, OwnerVersion: 8}, {SettingsVersion: 2, OwnerVersion: 7}},
	} {
		for _, l := range l {
			if l.Outdated(j) != want {
				t.Errorf("%d, %d: outdated %t", l.SettingsVersion, l.OwnerVersion, !want)
			}
		}
	}
}

// TestDecideProperties draws batches and checks what must hold for every one.
func TestDecideProperties(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		boost := rapid.IntRange(1, 5).Draw(t, "boost")
		w := proList(boost)
		l := &queue.Locked{
			State: queue.State{Change: 5, Live: 10, Total: 15, Credited: 3, LastNumber: 20}, LastKey: rapid.Int64Range(-1<<40, 1<<50).Draw(t,
				"last key"),
			Present: map[string]queue.PresentRow{}, Referrers: map[queue.Token]queue.ReferrerRow{},
		}
		for n := range rapid.IntRange(0, 4).Draw(t, "members") {
			tok := tokenOf(byte(200 + n))
			l.Present[fmt.Sprint("p", n)] = queue.PresentRow{Token: tok, Number: int64(n + 1)}
			l.Referrers[tok] = queue.ReferrerRow{Number: int64(n + 1), Count: int64(n)}
		}
		joins := make([]*queue.Join, rapid.IntRange(0, 30).Draw(t, "joins"))
		refused := make([]error, len(joins))
		for i := range joins {
			email := fmt.Sprint("p", rapid.IntRange(0, 20).Draw(t, "email"))
			joins[i] = newcomer(w, email, byte(i+1), byte(rapid.SampledFrom([]int{0, 200, 201, 203, 250}).Draw(t, "referrer")))
			if rapid.IntRange(0, 9).Draw(t, "refuse") == 0 {
				refused[i] = errors.New("refused")
			}
		}
		b := l.Decide(joins, refused, counting())

		want, key := l.State, l.LastKey
		var credits []int64 // the referrers' numbers, in order
		at := 0
		seen := map[string]int64{}
		for i, j := range joins {
			o := b.Outcomes[i]
			row, present := l.Present[j.Email]
			switch first, again := seen[j.Email]; {
			case refused[i] != nil:
				if !errors.Is(o.Err, refused[i]) {
					t.Fatalf("join %d is not refused: %+v", i, o)
				}
			case present:
				if o != (queue.Outcome{Existing: true, Number: row.Number}) {
					t.Fatalf("join %d of a member: %+v", i, o)
				}
			case again:
				if o != (queue.Outcome{Existing: true, Number: first}) {
					t.Fatalf("join %d of an address that is in the batch twice: %+v", i, o)
				}
			default:
				want.Live, want.Total, want.LastNumber = want.Live+1, want.Total+1, want.LastNumber+1
				seen[j.Email] = want.LastNumber
				if o != (queue.Outcome{Number: want.LastNumber, Position: want.Live, Total: want.Total}) {
					t.Fatalf("join %d: %+v, want %+v", i, o, want)
				}
				in := b.Inserts[at]
				at++
				if in.Join != j || in.Number != o.Number || in.Key <= key || in.ReferrerNumber != l.Referrers[j.ReferredBy].Number {
					t.Fatalf("insert of join %d: %+v after the key %d", i, in, key)
				}
				key = in.Key
				if in.ReferrerNumber != 0 {
					want.Credited++
					credits = append(credits, in.ReferrerNumber)
				}
			}
		}
		if at > 0 {
			want.Change++
		}
		if at != len(b.Inserts) || b.State != want || len(b.Events) != at+len(credits) {
			t.Fatalf("%d inserts, state %+v, %d events, credits %+v", len(b.Inserts), b.State, len(b.Events), b.Credits)
		}
		var given []int64
		for i, c := range b.Credits {
			if c.Count < 1 || c.Places != int64(c.Count)*int64(boost) || (i > 0 && b.Credits[i-1].Number == c.Number) {
				t.Fatalf("credits %+v", b.Credits)
			}
			given = append(given, slices.Repeat([]int64{c.Number}, int(c.Count))...)
		}
		if !slices.Equal(given, credits) {
			t.Fatalf("credits %+v, want %v", b.Credits, credits)
		}
	})
}

// TestDecideImport covers new rows, rows of others, and rows of an earlier attempt.
func TestDecideImport(t *testing.T) {
	t.Parallel()
	const spacing = 1 << 20
	st := queue.State{Change: 5, Live: 10, Total: 15, Credited: 3, LastNumber: 20}
	present := map[string]queue.Token{"theirs": tokenOf(1), "mine": tokenOf(2)}
	row := func(email string, b byte) queue.ImportRow { return queue.ImportRow{Email: email, Token: tokenOf(b)} }
	out := map[string]time.Time{"b": time.Unix(100, 0), "theirs": time.Unix(200, 0)}
	left := row("b", 7)
	left.OptOutAt = out["b"]
	b := queue.DecideImport(st, 500, present, out, []queue.ImportRow{row("a", 5), row("theirs", 6), row("mine", 2), row("b", 7)})
	if !slices.Equal(b.Rows, []queue.ImportRow{row("a", 5), left}) || !slices.Equal(b.Keys, []int64{
		500 + spacing,
		500 + 2*spacing,
	}) ||
		b.Imported != 3 || b.FirstNumber != 21 || b.State != (queue.State{Change: 6, Live: 12, Total: 17, Credited: 3, LastNumber: 22}) {
		t.Errorf("%+v", b)
	}
	if b := queue.DecideImport(st, 500, present, out, []queue.ImportRow{row("theirs", 6), row("mine", 2)}); len(b.Rows) != 0 ||
		b.Imported != 1 || b.State != st {
		t.Errorf("nothing new: %+v", b)
	}
}

// TestDecideRemoval covers both reasons, and the mail that only a Pro owner has.
func TestDecideRemoval(t *testing.T) {
	t.Parallel()
	st := queue.State{Change: 5, Live: 10, Total: 15, Credited: 3, LastNumber: 20}
	out := time.Unix(100, 0)
	gone := queue.Removed{Number: 4, Email: "a", FirstName: "Ada", LastName: "L", OptOutAt: out}
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	w := proList(1)
	w.Settings.EmailTemplates.Offboarding = "bye"
	basic := *w
	basic.Owner.Tier = access.Basic
	for _, tc := range []struct {
		name     string
		list     *waitlist.Waitlist
		why      queue.Removal
		referred bool
		before   int64 // the number whose removal asked for the mail
		state    queue.State
		kept     queue.Departed
		event    *eventv1.SignupRemoved
	}{
		{
			"own request", w, queue.OwnRequest, true, 0,
			queue.State{Change: 6, Live: 9, Total: 14, Credited: 2, LastNumber: 20},
			queue.Departed{OptOutAt: out},
			&eventv1.SignupRemoved{WaitlistId: "list", OwnerId: "owner", Number: 4, Reason: eventv1.RemovalReason_REMOVAL_REASON_OWN_REQUEST},
		},
		{
			"by the owner", w, queue.ByAdmin, false, 0,
			queue.State{Change: 6, Live: 9, Total: 15, Credited: 3, LastNumber: 20},
			queue.Departed{OptOutAt: out, Offboarded: 4},
			&eventv1.SignupRemoved{
				WaitlistId: "list", OwnerId: "owner", Number: 4, Reason: eventv1.RemovalReason_REMOVAL_REASON_ADMIN,
				Email: "a", FirstName: "Ada", LastName: "L", Offboarding: true,
			},
		},
		{
			"by the owner again", w, queue.ByAdmin, false, 2,
			queue.State{Change: 6, Live: 9, Total: 15, Credited: 3, LastNumber: 20},
			queue.Departed{OptOutAt: out, Offboarded: 2},
			&eventv1.SignupRemoved{
				WaitlistId: "list", OwnerId: "owner", Number: 4, Reason: eventv1.RemovalReason_REMOVAL_REASON_ADMIN,
				Email: "a", FirstName: "Ada", LastName: "L",
			},
		},
		{
			"below Pro", &basic, queue.ByAdmin, true, 0,
			queue.State{Change: 6, Live: 9, Total: 15, Credited: 2, LastNumber: 20},
			queue.Departed{OptOutAt: out},
			&eventv1.SignupRemoved{
				WaitlistId: "list", OwnerId: "owner", Number: 4, Reason: eventv1.RemovalReason_REMOVAL_REASON_ADMIN,
				Email: "a", FirstName: "Ada", LastName: "L",
			},
		},
	} {
		gone.Referred, gone.Offboarded = tc.referred, tc.before
		state, kept, ev := queue.DecideRemoval(st, tc.list, gone, tc.why, now)
		if got := ev.GetSignupRemoved(); state != tc.state || kept != tc.kept || got.String() != tc.event.String() ||
			!ev.GetOccurredAt().AsTime().Equal(now) || ev.GetId() == "" {
			t.Errorf("%s: %+v, %+v, %s; want %s", tc.name, state, kept, got, tc.event)
		}
	}
}

// TestMoves compares the moves of a batch with its credits, applied one after the other to
// a queue that is known whole.
func TestMoves(t *testing.T) {
	t.Parallel()
	told, all := 0, 0
	rapid.Check(t, func(t *rapid.T) {
		w := proList(rapid.IntRange(1, 4).Draw(t, "boost"))
		// Signups by their keys. Some stand so near to each other that nobody fits between them.
		gaps := rapid.SliceOfN(rapid.SampledFrom([]int64{1, 2, 3, 50, 1 << 20}), 1, 40).Draw(t, "gaps")
		keys, number := make([]int64, 0, len(gaps)), map[int64]int64{}
		key := rapid.SampledFrom([]int64{-5 << 20, 0}).Draw(t, "first")
		for i, gap := range gaps {
			key += gap
			keys, number[key] = append(keys, key), int64(i+1)
		}
		referrers := rapid.SliceOfN(rapid.IntRange(0, len(keys)-1), 1, 30).Draw(t, "referrers")
		var joins []*queue.Join
		for i, at := range referrers {
			joins = append(joins, newcomer(w, fmt.Sprint(i), byte(100+i), byte(at+1)))
		}
		reach := queue.KeysNeeded(joins)
		l := &queue.Locked{LastKey: key, Referrers: map[queue.Token]queue.ReferrerRow{}, Present: map[string]queue.PresentRow{}}
		for _, at := range referrers {
			n := min(at, reach[tokenOf(byte(at+1))])
			ahead := slices.Clone(keys[at-n : at])
			slices.Reverse(ahead)
			l.Referrers[tokenOf(byte(at+1))] = queue.ReferrerRow{
				Number: int64(at + 1), Key: keys[at], Ahead: ahead, Front: n < reach[tokenOf(byte(at+1))],
			}
		}
		b := l.Decide(joins, nil, counting())
		all++
		if b.Moves == nil {
			if slices.Min(gaps) > int64(len(referrers)+1) {
				t.Fatal("no moves, though there is room everywhere")
			}
			return
		}
		told++
		var want []int64 // numbers
		for _, k := range keys {
			want = append(want, number[k])
		}
		count := map[int64]int32{}
		for _, at := range referrers {
			n := int64(at + 1)
			count[n]++
			from := slices.Index(want, n)
			want = slices.Insert(slices.Delete(want, from, from+1), max(0, from-w.Settings.ReferralBoost), n)
		}
		got := maps.Clone(number)
		for _, m := range b.Moves {
			if number[m.From] != m.Number || m.Count != count[m.Number] {
				t.Fatalf("%+v, want %d referrals", m, count[m.Number])
			}
			delete(got, m.From)
			delete(count, m.Number)
		}
		for _, m := range b.Moves {
			if got[m.To] != 0 {
				t.Fatalf("%+v: the key is taken", m)
			}
			got[m.To] = m.Number
		}
		order := make([]int64, 0, len(got))
		for _, k := range slices.Sorted(maps.Keys(got)) {
			order = append(order, got[k])
		}
		if len(count) > 0 || !slices.Equal(order, want) {
			t.Fatalf("%v, want %v; without a move: %v", order, want, count)
		}
	})
	if told*2 < all {
		t.Errorf("only %d of %d batches told their moves", told, all)
	}
}
