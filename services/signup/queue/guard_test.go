package queue_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"waitlist.internal/services/signup/queue"
	"waitlist.internal/services/signup/waitlist"
)

// TestDecideGuard: what each mode makes of the third referral from one network.
func TestDecideGuard(t *testing.T) {
	t.Parallel()
	created := []string{"created 1 true", "created 2 true", "created 3 true"}
	for _, tc := range []struct {
		mode     waitlist.GuardMode
		later    bool // credit_after_verification, with require_email_verification
		flagged  string
		guarded  bool
		credited int64
		events   []string
	}{
		{mode: waitlist.GuardOff, credited: 3, events: []string{"credited 6 by 1", "credited 7 by 2", "credited 8 by 3"}},
		{
			mode: waitlist.GuardFlag, flagged: "same_network", guarded: true, credited: 3,
			events: []string{"credited 6 by 1", "credited 7 by 2", "credited 8 by 3"},
		},
		{
			mode: waitlist.GuardWithhold, flagged: "same_network", guarded: true, credited: 2,
			events: []string{"credited 6 by 1", "credited 7 by 2"},
		},
		{mode: waitlist.GuardOff, later: true},
		{mode: waitlist.GuardFlag, later: true, flagged: "same_network", guarded: true},
	} {
		t.Run(fmt.Sprint(tc.mode, tc.later), func(t *testing.T) {
			t.Parallel()
			w := proList(2)
			w.Settings.ReferralGuard, w.Settings.RequireEmailVerification, w.Settings.CreditAfterVerification = tc.mode, tc.later, &tc.later
			joins := []*queue.Join{newcomer(w, "a", 1, 8), newcomer(w, "b", 2, 8), newcomer(w, "c", 3, 8)}
			for _, j := range joins {
				j.Evidence.Network[0] = 1
			}
			l := &queue.Locked{Referrers: map[queue.Token]queue.ReferrerRow{tokenOf(8): {Number: 9, Count: 5, Email: "nine"}}}
			b := l.Decide(joins, nil, counting())
			var first, second []string
			for _, ev := range b.Events {
				if p := ev.GetSignupCreated(); p != nil {
					first = append(first, fmt.Sprint("created ", p.GetNumber(), " ", p.GetReferred()))
				} else {
					p := ev.GetReferralCredited()
					second = append(second, fmt.Sprint("credited ", p.GetReferralCount(), " by ", p.GetReferredNumber()))
				}
			}
			if !slices.Equal(first, created) || !slices.Equal(second, tc.events) || b.State.Credited != tc.credited {
				t.Errorf("%v, %v, credited %d", first, second, b.State.Credited)
			}
			last := b.Inserts[2]
			if !last.Referred || last.Flagged != tc.flagged || last.Guarded != tc.guarded || (last.ReferrerNumber == 9) != (tc.credited == 3) {
				t.Errorf("%+v", last)
			}
			for i, o := range b.Outcomes {
				if o != (queue.Outcome{Number: int64(i + 1), Position: int64(i + 1), Total: int64(i + 1)}) {
					t.Errorf("outcome %d shows a difference: %+v", i, o)
				}
			}
		})
	}
}

// TestDecideCredit: a later credit is announced as one with the signup is.
func TestDecideCredit(t *testing.T) {
	t.Parallel()
	w := proList(3)
	w.Settings.NotifyReferrer, w.Settings.ReferralMilestones = true, []int{5}
	w.Settings.EmailTemplates.ReferralMilestone = "m"
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	referrer := queue.ReferrerRow{Number: 2, Count: 4}
	st, credit, ev := queue.DecideCredit(queue.State{Change: 5, Live: 10, Total: 15, Credited: 3, LastNumber: 20}, w, referrer, 7, now)
	if st != (queue.State{Change: 6, Live: 10, Total: 15, Credited: 4, LastNumber: 20}) ||
		credit != (queue.Credit{Number: 2, Count: 1, Places: 3}) {
		t.Errorf("%+v, %+v", st, credit)
	}
	p := ev.GetReferralCredited()
	if p.GetNumber() != 2 || p.GetReferralCount() != 5 || p.GetReferredNumber() != 7 || p.GetMilestone() != 5 || !p.GetNotifyReferrer() ||
		len(p.GetChannels()) != 0 || !ev.GetOccurredAt().AsTime().Equal(now) {
		t.Errorf("%v", ev)
	}
}
