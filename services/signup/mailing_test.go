package signup_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"

	"waitlist.internal/libs/apierr"
	"waitlist.internal/libs/audit"
	eventv1 "waitlist.internal/proto/gen/waitlist/event/v1"
	signupv1 "waitlist.internal/proto/gen/waitlist/signup/v1"
	"waitlist.internal/services/signup/grpc"
	"waitlist.internal/services/signup/join"
	"waitlist.internal/services/signup/owners"
	"waitlist.internal/services/signup/queue"
)

const (
	confirmationID = "0193d4a2-5c1e-7a41-8000-00000000000a"
	milestoneID    = "0193d4a2-5c1e-7a41-8000-00000000000b"
	offboardingID  = "0193d4a2-5c1e-7a41-8000-00000000000c"
)

// everyMail are the settings that ask for all mails.
const everyMail = `{"notify_referrer": true, "sms_notify_referrer": true, "referral_milestones": [2, 3, 2], "position_offset": 100, ` +
	`"email_templates":
	{"signup_confirmation": "` + confirmationID + `", "referral_milestone": "` + milestoneID + `", "offboarding": "` + offboardingID + `"}}`

// set stores other settings and another plan, past what is kept in process.
func (w *world) set(t *testing.T, settings, tier, status string) {
	t.Helper()
	w.exec(t, `UPDATE waitlist SET settings = $2, version = version + 1 WHERE id = $1`, w.list.ID, settings)
	w.exec(t, `UPDATE owner SET tier = $2, status = $3, version = version + 1 WHERE id = $1`, w.list.OwnerID, tier, status)
}

// signUp signs somebody up and returns their referral token.
func (w *world) signUp(t *testing.T, email, referredBy string) string {
	t.Helper()
	r, err := w.svc.Join(t.Context(), w.list.ID, fmt.Appendf(nil,
		`{"email": %q, "first_name": "Ada", "last_name": "Byron", "referred_by_token": %q}`, email, referredBy), join.Header{})
	if err != nil || !r.Created {
		t.Fatalf("%+v, %v", r, err)
	}
	return r.Token
}

// TestEventsSayWhichMailsAreWanted: by the settings that count at the moment of
// the event, whatever is kept in process.
func TestEventsSayWhichMailsAreWanted(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	token := w.signUp(t, "ada@example.com", "")
	type wanted struct {
		confirmation, notify, sms bool
		milestone                 int64
		offboarding               bool
	}
	for i, tt := range []struct {
		name, settings, tier, status string
		want                         wanted
	}{
		{"nothing set", `{}`, "pro", "active", wanted{}},
		{"second, all set", everyMail, "pro", "active", wanted{true, true, true, 2, true}},
		{"third, all set", everyMail, "pro", "canceling", wanted{true, true, true, 3, true}},
		{"fourth, no milestone", everyMail, "pro", "active", wanted{true, true, true, 0, true}},
		{"fifth, below Pro", everyMail, "advanced", "active", wanted{}},
		{"sixth, inactive", everyMail, "pro", "inactive", wanted{}},
		{"seventh, no template", `{"referral_milestones": [7], "notify_referrer": true}`, "pro", "active", wanted{notify: true}},
		{
			"eighth, the template alone", `{"referral_milestones": [9], "email_templates": {"referral_milestone": "` + milestoneID + `"}}`, "pro",
			"active",
			wanted{},
		},
		{
			"ninth, with the milestone", `{"referral_milestones": [9], "email_templates": {"referral_milestone": "` + milestoneID + `"}}`, "pro",
			"active",
			wanted{milestone: 9},
		},
	} {
		w.set(t, tt.settings, tt.tier, tt.status)
		email := fmt.Sprintf("p%d@example.com", i)
		w.signUp(t, email, token)
		if err := w.svc.Remove(t.Context(), w.list.ID, email, audit.Entry{}); err != nil {
			t.Fatal(err)
		}
		var got wanted
		for _, ev := range w.events(t) {
			switch p := ev.GetPayload().(type) {
			case *eventv1.Event_SignupCreated:
				got.confirmation = p.SignupCreated.GetConfirmation()
			case *eventv1.Event_ReferralCredited:
				c := p.ReferralCredited
				if c.GetReferralCount() == int64(i+1) {
					got.notify, got.sms, got.milestone = c.GetNotifyReferrer(), c.GetSmsNotifyReferrer(), c.GetMilestone()
				}
			case *eventv1.Event_SignupRemoved:
				got.offboarding = p.SignupRemoved.GetOffboarding()
			}
		}
		if got != tt.want {
			t.Errorf("%s: %+v, want %+v", tt.name, got, tt.want)
		}
	}
}

// TestMilestonesWithinABatch: credits that commit together count one by one.
func TestMilestonesWithinABatch(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	w.set(t, everyMail, "pro", "active")
	var err error
	if w.list, err = w.store.Waitlist(t.Context(), w.list.ID); err != nil {
		t.Fatal(err)
	}
	ada := w.newJoin(queue.Token{}, false)
	w.join(t, []*queue.Join{ada})
	w.join(t, []*queue.Join{w.newJoin(ada.Token, true), w.newJoin(ada.Token, true), w.newJoin(ada.Token, true), w.newJoin(ada.Token, true)})
	var got []int64
	for _, ev := range w.events(t) {
		if c := ev.GetReferralCredited(); c != nil {
			got = append(got, c.GetMilestone())
		}
	}
	if !slices.Equal(got, []int64{0, 2, 3, 0}) {
		t.Errorf("milestones %v", got)
	}
}

// TestRemovalAsksForWhatIsAssignedNow: also where the caller knew other settings.
func TestRemovalAsksForWhatIsAssignedNow(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	w.signUp(t, "ada@example.com", "")
	w.set(t, everyMail, "pro", "active")
	if err := w.store.Remove(t.Context(), w.list, 1, queue.ByAdmin, audit.Entry{}); err != nil {
		t.Fatal(err)
	}
	events := w.events(t)
	if r := events[len(events)-1].GetSignupRemoved(); !r.GetOffboarding() || r.GetEmail() != "ada@example.com" || r.GetFirstName() != "Ada" {
		t.Errorf("%v", r)
	}
}

// TestOwnRequestAsksForNoMail checks that people who delete their data get no mail.
func TestOwnRequestAsksForNoMail(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	w.set(t, everyMail, "pro", "active")
	w.signUp(t, "ada@example.com", "")
	if err := w.store.Remove(t.Context(), w.list, 1, queue.OwnRequest, audit.Entry{}); err != nil {
		t.Fatal(err)
	}
	events := w.events(t)
	if r := events[len(events)-1].GetSignupRemoved(); r == nil || r.GetOffboarding() || r.GetEmail() != "" {
		t.Errorf("%v", r)
	}
}

func TestGetMailing(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	server := grpc.NewSignups(owners.NewMessages(w.svc, w.store, nil, time.Now))
	get := func(number int64) *signupv1.GetMailingResponse {
		t.Helper()
		out, err := server.GetMailing(t.Context(), &signupv1.GetMailingRequest{WaitlistId: w.list.ID, Number: number})
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	w.set(t, everyMail, "pro", "active")
	w.signUp(t, "first@example.com", "")
	token := w.signUp(t, "ada@example.com", "")
	w.signUp(t, "bob@example.com", token)
	w.exec(t, `UPDATE signup SET phone = '+4912345' WHERE waitlist_id = $1 AND number = 2`, w.list.ID)

	m := get(2)
	p := m.GetSignup()
	if m.GetOwnerId() != w.list.OwnerID || m.GetWaitlistName() != "Launch" || !m.GetPro() ||
		m.GetSignupConfirmation() != confirmationID || m.GetReferralMilestone() != milestoneID || m.GetOffboarding() != offboardingID ||
		!m.GetNotifyReferrer() || !m.GetSmsNotifyReferrer() || !slices.Equal(m.GetReferralMilestones(), []int64{2, 3, 2}) {
		t.Errorf("%v", m)
	}
	if p.GetNumber() != 2 || p.GetEmail() != "ada@example.com" || p.GetFirstName() != "Ada" || p.GetLastName() != "Byron" ||
		p.GetPhone() != "+4912345" ||
		p.GetPosition() != 101 || p.GetReferralCount() != 1 || p.GetReferralToken() != token || p.GetEmailVerified() || p.GetEmailOptOut() {
		t.Errorf("%v", p)
	}
	if err := w.store.OptOut(t.Context(), w.list, 2, time.Now()); err != nil {
		t.Fatal(err)
	}
	if _, err := w.store.Verify(t.Context(), w.list, 2, time.Now(), false); err != nil {
		t.Fatal(err)
	}
	if p := get(2).GetSignup(); !p.GetEmailOptOut() || !p.GetEmailVerified() {
		t.Errorf("%v", p)
	}
	w.set(t, `{"hide_position": true, "position_offset": 100}`, "advanced", "active")
	if m := get(2); m.GetPro() || m.GetSignup().GetPosition() != 0 {
		t.Errorf("hidden: %v", m)
	}
	for _, plan := range [][2]string{{"advanced", "active"}, {"pro", "inactive"}} {
		w.set(t, everyMail, plan[0], plan[1])
		if m := get(2); m.GetPro() || m.GetSignupConfirmation() != "" || m.GetReferralMilestone() != "" || m.GetOffboarding() != "" ||
			m.GetNotifyReferrer() || m.GetSmsNotifyReferrer() || len(m.GetReferralMilestones()) != 0 ||
			m.GetSignup().GetEmail() != "ada@example.com" {
			t.Errorf("%v: %v", plan, m)
		}
	}
	w.set(t, everyMail, "pro", "active")
	if m := get(0); m.GetSignup() != nil || m.GetOffboarding() != offboardingID {
		t.Errorf("the waitlist alone: %v", m)
	}
	if err := w.svc.Remove(t.Context(), w.list.ID, "ada@example.com", audit.Entry{}); err != nil {
		t.Fatal(err)
	}
	if m := get(2); m.GetSignup() != nil || m.GetOffboarding() != offboardingID {
		t.Errorf("gone: %v", m)
	}
	w.exec(t, `UPDATE waitlist SET deleted_at = now() WHERE id = $1`, w.list.ID)
	for _, id := range []string{w.list.ID, uuid.NewString(), "x"} {
		if _, err := server.GetMailing(t.Context(), &signupv1.GetMailingRequest{WaitlistId: id, Number: 1}); !apierr.Is(err, apierr.NotFound) {
			t.Errorf("%s: %v", id, err)
		}
	}
}

// TestRecipients: pages of numbers and then their addresses, without those that
// opted out or left, and at the moment of the question.
func TestRecipients(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	server := grpc.NewSignups(owners.NewMessages(w.svc, w.store, nil, time.Now))
	list := func(after int64, limit int32) []int64 {
		t.Helper()
		out, err := server.ListRecipients(t.Context(), &signupv1.ListRecipientsRequest{WaitlistId: w.list.ID, After: after, Limit: limit})
		if err != nil {
			t.Fatal(err)
		}
		return out.GetNumbers()
	}
	get := func(numbers ...int64) (out []string) {
		t.Helper()
		r, err := server.GetRecipients(t.Context(), &signupv1.GetRecipientsRequest{WaitlistId: w.list.ID, Numbers: numbers})
		if err != nil {
			t.Fatal(err)
		}
		if r.GetWaitlistName() != "Launch" {
			t.Errorf("name %q", r.GetWaitlistName())
		}
		for _, p := range r.GetRecipients() {
			out = append(out, fmt.Sprint(p.GetNumber(), p.GetEmail()))
		}
		return out
	}
	if got := list(0, 10_000); len(got) != 0 {
		t.Errorf("an empty list has %v", got)
	}
	if got := get(1, 2); len(got) != 0 {
		t.Errorf("an empty list has %v", got)
	}
	var joins []*queue.Join
	for range 7 {
		joins = append(joins, w.newJoin(queue.Token{}, false))
	}
	w.join(t, joins)
	w.move(t, 6, 1) // the order is that of the numbers, not the queue's
	for _, number := range []int64{2, 5} {
		if err := w.store.OptOut(t.Context(), w.list, number, time.Now()); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.svc.Remove(t.Context(), w.list.ID, "p3@example.com", audit.Entry{}); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		after int64
		limit int32
		want  []int64
	}{
		{0, 10_000, []int64{1, 4, 6, 7}},
		{0, 1, []int64{1}},
		{1, 2, []int64{4, 6}},
		{6, 2, []int64{7}},
		{7, 2, nil},
	} {
		if got := list(tt.after, tt.limit); !slices.Equal(got, tt.want) {
			t.Errorf("%d after %d: %v, want %v", tt.limit, tt.after, got, tt.want)
		}
	}
	if got, want := get(7, 1, 2, 3, 4, 8), []string{"1p1@example.com", "4p4@example.com", "7p7@example.com"}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	if got := get(); len(got) != 0 {
		t.Errorf("%v", got)
	}
	for _, tt := range []struct {
		tier, status string
		validUntil   string
		pro          bool
	}{
		{"pro", "active", "NULL", true},
		{"pro", "trialing", "now() + interval '1 minute'", true},
		{"pro", "trialing", "now() - interval '1 minute'", false},
		{"pro", "inactive", "NULL", false},
		{"advanced", "active", "NULL", false},
	} {
		w.exec(t, `UPDATE owner SET tier = $2, status = $3, valid_until = `+tt.validUntil+` WHERE id = $1`, w.list.OwnerID, tt.tier, tt.status)
		r, err := server.GetRecipients(t.Context(), &signupv1.GetRecipientsRequest{WaitlistId: w.list.ID, Numbers: []int64{1}})
		if err != nil || r.GetPro() != tt.pro || len(r.GetRecipients()) != 1 {
			t.Errorf("%+v: %v, %v", tt, r, err)
		}
	}
	for _, limit := range []int32{-1, 0, 10_001} {
		if _, err := server.ListRecipients(t.Context(), &signupv1.ListRecipientsRequest{WaitlistId: w.list.ID, Limit: limit}); !apierr.Is(err,
			apierr.ValidationError) {
			t.Errorf("limit %d: %v", limit, err)
		}
	}
	if _, err := server.GetRecipients(t.Context(), &signupv1.GetRecipientsRequest{WaitlistId: w.list.ID, Numbers: make([]int64,
		1001)}); !apierr.Is(err, apierr.ValidationError) {
		t.Errorf("too many: %v", err)
	}
	w.exec(t, `UPDATE waitlist SET deleted_at = now() WHERE id = $1`, w.list.ID)
	for _, id := range []string{w.list.ID, uuid.NewString(), "x"} {
		if _, err := server.ListRecipients(t.Context(), &signupv1.ListRecipientsRequest{WaitlistId: id, Limit: 1}); !apierr.Is(err,
			apierr.NotFound) {
			t.Errorf("list of %s: %v", id, err)
		}
		if _, err := server.GetRecipients(t.Context(), &signupv1.GetRecipientsRequest{WaitlistId: id, Numbers: []int64{1}}); !apierr.Is(err,
			apierr.NotFound) {
			t.Errorf("recipients of %s: %v", id, err)
		}
	}
}
