package messaging_test

import (
	"context"
	"errors"
	stdmail "net/mail"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	"waitlist.internal/libs/apierr"
	"waitlist.internal/libs/audit"
	accessv1 "waitlist.internal/proto/gen/waitlist/access/v1"
	eventv1 "waitlist.internal/proto/gen/waitlist/event/v1"
	"waitlist.internal/services/messaging/domains"
	messagingkafka "waitlist.internal/services/messaging/kafka"
	"waitlist.internal/services/messaging/mails"
	"waitlist.internal/services/messaging/postgres"
	"waitlist.internal/services/messaging/templates"
)

const templateOwner = "0197f0c4-6d0e-7cc1-a2a3-cccccccccccc"

// world holds the facts that decide about mails about signups. Change its fields before a sender starts, or
// under the lock.
type world struct {
	*env
	mu         sync.Mutex
	about      mails.Mailing
	people     map[int64]*mails.Person
	err        error
	asked      int
	suppressed map[string]bool
	from       stdmail.Address
	sms        []mails.SMS
	smsErr     error
	smsHang    chan struct{} // holds text messages up
}

func newWorld(t testing.TB) *world {
	t.Helper()
	w := &world{env: newEnv(t), suppressed: map[string]bool{}, people: map[int64]*mails.Person{
		1: {Email: "ann@example.com", FirstName: "Ann", Phone: "+49 151 12345678", Position: 3, ReferralCount: 5, ReferralToken: "ref"},
	}}
	w.about = mails.Mailing{
		OwnerID: templateOwner, WaitlistName: "Launch", Pro: true, NotifyReferrer: true, SMSNotifyReferrer: true, Milestones: []int64{5, 10},
		Templates: map[templates.Type]string{},
	}
	for _, kind := range []templates.Type{
		templates.Confirmation, templates.Milestone,
		templates.Offboarding,
	} {
		w.about.Templates[kind] = w.template(kind)
	}
	w.world = w
	return w
}

func (w *world) template(kind templates.Type) string {
	w.Helper()
	t := templates.Template{
		ID: uuid.Must(uuid.NewV7()).String(), OwnerID: templateOwner, Type: kind,
		Subject: string(kind) + " for {{first_name}}", Text: "x", CreatedAt: time.Now(),
	}
	if err := postgres.NewTemplates(w.pool, func() {}).InsertTemplate(w.Context(), t, 0, audit.Entry{}); err != nil {
		w.Fatal(err)
	}
	return t.ID
}

// Mailing implements mails.Mailings.
func (w *world) Mailing(_ context.Context, id string, number int64) (mails.Mailing, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.asked++
	if w.err != nil {
		return mails.Mailing{}, w.err
	}
	if id != waitlistID {
		return mails.Mailing{}, apierr.NotFoundf("gone")
	}
	m := w.about
	m.Signup = w.people[number]
	return m, nil
}

// Suppressed implements mails.Suppressions.
func (w *world) Suppressed(context.Context, []string) (map[string]bool, error) {
	return w.suppressed, nil
}

// Sender implements mails.Senders.
func (w *world) Sender(_ context.Context, owner string) (stdmail.Address, *domains.DKIM, error) {
	if owner != templateOwner {
		return stdmail.Address{}, nil, nil
	}
	return w.from, nil, nil
}

// SendSMS implements mails.SMSProvider.
func (w *world) SendSMS(_ context.Context, m mails.SMS) error {
	if w.smsHang != nil {
		<-w.smsHang
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.smsErr != nil {
		return w.smsErr
	}
	w.sms = append(w.sms, m)
	return nil
}

// event handles an event like the consumer.
func (w *world) event(ev *eventv1.Event) error {
	w.Helper()
	if ev.GetId() == "" {
		ev.Id, ev.OccurredAt = uuid.Must(uuid.NewV7()).String(), timestamppb.Now()
	}
	tx, err := w.pool.Begin(w.Context())
	if err != nil {
		w.Fatal(err)
	}
	defer tx.Rollback(context.WithoutCancel(w.Context())) //nolint:errcheck // after a commit it does nothing
	if err := messagingkafka.Handler(w.store)(w.Context(), tx, ev); err != nil {
		return err
	}
	return tx.Commit(w.Context())
}

func (w *world) events(events ...*eventv1.Event) {
	w.Helper()
	for _, ev := range events {
		if err := w.event(ev); err != nil {
			w.Fatal(err)
		}
	}
}

func createdEvent(verify, confirm bool) *eventv1.Event {
	return &eventv1.Event{Payload: &eventv1.Event_SignupCreated{SignupCreated: &eventv1.SignupCreated{
		WaitlistId: waitlistID, OwnerId: templateOwner, Number: 1, Email: "ann@example.com", WaitlistName: "Launch",
		VerificationRequired: verify, Confirmation: confirm,
	}}}
}

func creditedEvent(notify, sms bool, milestone int64) *eventv1.Event {
	return &eventv1.Event{Payload: &eventv1.Event_ReferralCredited{ReferralCredited: &eventv1.ReferralCredited{
		WaitlistId: waitlistID, OwnerId: templateOwner, Number: 1, ReferralCount: 5, NotifyReferrer: notify, SmsNotifyReferrer: sms,
		Milestone: milestone,
	}}}
}

func linkEvent(number int64) *eventv1.Event {
	return &eventv1.Event{Payload: &eventv1.Event_LinkRequested{LinkRequested: &eventv1.LinkRequested{
		WaitlistId: waitlistID, OwnerId: templateOwner, Number: number,
	}}}
}

func removedEvent(reason eventv1.RemovalReason, offboarding bool) *eventv1.Event {
	return &eventv1.Event{Payload: &eventv1.Event_SignupRemoved{SignupRemoved: &eventv1.SignupRemoved{
		WaitlistId: waitlistID, OwnerId: templateOwner, Number: 1, Reason: reason, Email: "ann@example.com", FirstName: "Ann",
		Offboarding: offboarding,
	}}}
}

// queued returns the kinds of the queued mails.
func (w *world) queued() string {
	w.Helper()
	rows, err := w.pool.Query(w.Context(), "SELECT kind FROM sent_mail WHERE state = 'queued' ORDER BY kind")
	if err != nil {
		w.Fatal(err)
	}
	kinds, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		w.Fatal(err)
	}
	return strings.Join(kinds, " ")
}

// ends returns the kinds of the ended mails, with their states and reasons.
func (w *world) ends() string {
	w.Helper()
	rows, err := w.pool.Query(w.Context(), "SELECT concat_ws(' ', kind, state, nullif(error, '')) FROM sent_mail WHERE state <> "+
		"'queued' ORDER BY kind")
	if err != nil {
		w.Fatal(err)
	}
	lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		w.Fatal(err)
	}
	return strings.Join(lines, "; ")
}

func TestWhatEventsAskFor(t *testing.T) {
	t.Parallel()
	const own, admin = eventv1.RemovalReason_REMOVAL_REASON_OWN_REQUEST, eventv1.RemovalReason_REMOVAL_REASON_ADMIN
	verified := &eventv1.Event{Payload: &eventv1.Event_SignupVerified{SignupVerified: &eventv1.SignupVerified{
		WaitlistId: waitlistID,
		Number:     1,
	}}}
	ending := &eventv1.Event{Payload: &eventv1.Event_TrialEnding{TrialEnding: &eventv1.TrialEnding{
		AccountId: templateOwner,
		Email:     "owner@example.com", EndsAt: timestamppb.New(time.Now().Add(time.Hour)),
	}}}
	entitled := func(status string) *eventv1.Event {
		return &eventv1.Event{
			Payload: &eventv1.Event_EntitlementChanged{
				EntitlementChanged: &eventv1.EntitlementChanged{AccountId: templateOwner, Entitlement: &accessv1.Entitlement{Status: status}},
			},
		}
	}
	everything := []*eventv1.Event{createdEvent(true, true), creditedEvent(true, true, 5)}
	const all = "referral_milestone referral_notification signup_confirmation signup_verification sms"
	for name, tc := range map[string]struct {
		events []*eventv1.Event
		want   string
	}{
		"nothing":    {[]*eventv1.Event{createdEvent(false, false), creditedEvent(false, false, 0)}, ""},
		"everything": {everything, all},
		// Whether it is true is asked when they are sent.
		"verified":                  {append(everything, verified), all},
		"deleted by itself":         {append(everything, removedEvent(own, true)), all},
		"removed":                   {append(everything, removedEvent(admin, false)), all},
		"removed, with offboarding": {append(everything, removedEvent(admin, true)), "offboarding " + all},
		"removed for no reason":     {[]*eventv1.Event{removedEvent(0, true)}, ""},
		"trial ends":                {[]*eventv1.Event{ending, entitled("trialing")}, "trial_ending"},
		"subscribed":                {[]*eventv1.Event{ending, entitled("active")}, "trial_ending"},
		"links":                     {[]*eventv1.Event{linkEvent(1), linkEvent(1), linkEvent(2)}, "signup_link signup_link"},
		"link of nobody":            {[]*eventv1.Event{linkEvent(0)}, ""},
		"link of somebody deleted":  {[]*eventv1.Event{linkEvent(1), removedEvent(own, false)}, "signup_link"},
		"one after the other": {
			[]*eventv1.Event{
				creditedEvent(true, true, 0), creditedEvent(true, true, 5), creditedEvent(true, true, 10),
				creditedEvent(true, false, 5),
			},
			"referral_milestone referral_milestone referral_notification sms",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			for _, ev := range tc.events {
				w.events(&eventv1.Event{Payload: ev.GetPayload()})
			}
			if got := w.queued(); got != tc.want {
				t.Errorf("queued %q, want %q", got, tc.want)
			}
			if n := w.count("SELECT count(*) FROM sent_mail WHERE recipient <> '' AND kind NOT IN ('signup_verification', 'offboarding', " +
				"'trial_ending')"); n != 0 {
				t.Errorf("%d addresses are kept without need", n)
			}
		})
	}
}

func TestEventsWithoutAnAddressAreRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, email := range []string{"", "nobody", "a@b.co\r\nBcc: c@d.co", "a@b.co, c@d.co"} {
		created, removed := createdEvent(true, false), removedEvent(eventv1.RemovalReason_REMOVAL_REASON_ADMIN, true)
		created.GetSignupCreated().Email, removed.GetSignupRemoved().Email = email, email
		if w.event(created) == nil || w.event(removed) == nil {
			t.Errorf("%q is taken", email)
		}
	}
	broken := creditedEvent(false, false, 5)
	broken.GetReferralCredited().WaitlistId = "x"
	if w.event(broken) == nil {
		t.Error("a waitlist without an id")
	}
	if n := w.count("SELECT count(*) FROM sent_mail"); n != 0 {
		t.Errorf("%d mails", n)
	}
}

// A referrer gets one notification an hour. Mails that were not sent do not count.
func TestReferrersAreToldOnceAnHour(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	age := func(d string) {
		t.Helper()
		if _, err := w.pool.Exec(t.Context(), "UPDATE sent_mail SET ended_at = ended_at - $1::interval", d); err != nil {
			t.Fatal(err)
		}
	}
	told := func(want int) {
		t.Helper()
		w.events(creditedEvent(true, true, 0), creditedEvent(true, true, 0))
		w.eventually("worked off", func() bool { return w.queued() == "" })
		if n := w.count("SELECT count(*) FROM sent_mail WHERE state = 'sent' AND kind = 'referral_notification'"); n != want {
			t.Errorf("told by mail %d times, want %d", n, want)
		}
		if n := w.count("SELECT count(*) FROM sent_mail WHERE state = 'sent' AND kind = 'sms'"); n != want {
			t.Errorf("told by SMS %d times, want %d", n, want)
		}
	}
	// While a notification is queued, no second one is queued, however long that takes.
	w.events(creditedEvent(true, false, 0), creditedEvent(true, false, 0))
	if _, err := w.pool.Exec(t.Context(), "UPDATE sent_mail SET requested_at = now() - interval '2 hours', due_at = now() - interval "+
		"'2 hours'"); err != nil {
		t.Fatal(err)
	}
	w.events(creditedEvent(true, false, 0))
	if got := w.queued(); got != "referral_notification" {
		t.Fatalf("queued %q", got)
	}
	w.start()
	told(1)
	age("59 minutes")
	told(1)
	age("2 minutes")
	told(2)
	// Other referrers and other waitlists are independent.
	other := creditedEvent(true, true, 0)
	other.GetReferralCredited().Number = 2
	w.people[2] = &mails.Person{Email: "bob@example.com", Phone: "+4915112345678", ReferralToken: "x"}
	w.events(other)
	told(3)
	// Mails that were never sent do not count.
	age("61 minutes")
	w.set(func() { w.about.NotifyReferrer, w.about.SMSNotifyReferrer = false, false })
	told(3)
	w.set(func() { w.about.NotifyReferrer, w.about.SMSNotifyReferrer = true, true })
	told(4)
}

// People get their link whatever the owner pays and whatever they opted out of, but once an hour.
func TestLinksAreMailedOnceAnHour(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.about = mails.Mailing{OwnerID: templateOwner, WaitlistName: "Launch"}
	w.people[1].OptedOut = true
	w.start()
	mailed := func(want int) {
		t.Helper()
		w.events(linkEvent(1), linkEvent(1))
		w.eventually("worked off", func() bool { return w.queued() == "" })
		if n := w.count("SELECT count(*) FROM sent_mail WHERE state = 'sent' AND kind = 'signup_link'"); n != want {
			t.Errorf("mailed %d times, want %d: %s", n, want, w.ends())
		}
	}
	mailed(1)
	for _, step := range []struct {
		age  string
		want int
	}{{"59 minutes", 1}, {"61 minutes", 2}} {
		if _, err := w.pool.Exec(t.Context(), "UPDATE sent_mail SET ended_at = now() - $1::interval", step.age); err != nil {
			t.Fatal(err)
		}
		mailed(step.want)
	}
}

func (w *world) set(change func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	change()
}

// The sender checks a queued mail again before it sends the mail.
func TestMailsAreDecidedUponWhenTheyAreSent(t *testing.T) {
	t.Parallel()
	const all = "offboarding %s; referral_milestone %s; referral_notification %s; signup_confirmation %s; sms %s"
	say := func(of, milestone, notification, confirmation, sms string) string {
		s := all
		for _, v := range []string{of, milestone, notification, confirmation, sms} {
			if v != "sent" {
				v = "canceled " + v
			}
			s = strings.Replace(s, "%s", v, 1)
		}
		return s
	}
	deleteTemplates := func(w *world) {
		if _, err := w.pool.Exec(w.Context(), "DELETE FROM template"); err != nil {
			w.Fatal(err)
		}
	}
	for name, tc := range map[string]struct {
		change func(w *world)
		want   string
	}{
		"as it was": {func(*world) {}, say("sent", "sent", "sent", "sent", "sent")},
		// Confirmation and offboarding are not marketing.
		"opted out": {
			func(w *world) { w.people[1].OptedOut = true },
			say("sent", "the signup opted out", "the signup opted out", "sent", "the signup opted out"),
		},
		"suppressed": {
			func(w *world) { w.suppressed["ann@example.com"] = true },
			say("the address is suppressed", "the address is suppressed", "the address is suppressed", "sent", "sent"),
		},
		"the signup has gone": {
			func(w *world) { delete(w.people, 1) },
			say("sent", "the signup was removed", "the signup was removed", "the signup was removed", "the signup was removed"),
		},
		"no Pro any more": {
			func(w *world) { w.about = mails.Mailing{OwnerID: templateOwner} },
			strings.ReplaceAll(all, "%s", "canceled the owner's plan does not include these mails"),
		},
		"the waitlist has gone": {
			func(w *world) { w.err = apierr.NotFoundf("gone") },
			strings.ReplaceAll(all, "%s", "canceled the waitlist was deleted"),
		},
		"switched off": {
			func(w *world) {
				w.about.NotifyReferrer, w.about.SMSNotifyReferrer, w.about.Milestones = false, false, []int64{10}
			},
			say("sent", "the milestone was removed", "the waitlist does not send these notifications", "sent",
				"the waitlist does not send these notifications"),
		},
		"not reached": { // whoever can write to Kafka can write any milestone
			func(w *world) { w.people[1].ReferralCount = 4 },
			say("sent", "the milestone was not reached", "sent", "sent", "sent"),
		},
		"nothing assigned": {
			func(w *world) { w.about.Templates = nil },
			say("no template is assigned", "no template is assigned", "sent", "no template is assigned", "sent"),
		},
		"templates deleted": {
			deleteTemplates,
			say("the template was deleted", "the template was deleted", "sent", "the template was deleted", "sent"),
		},
		"another's templates": {
			func(w *world) { w.about.OwnerID = accountID },
			say("the template was deleted", "the template was deleted", "sent", "the template was deleted", "sent"),
		},
		"templates of other types": {
			func(w *world) {
				id := w.about.Templates[templates.Confirmation]
				w.about.Templates = map[templates.Type]string{
					templates.Confirmation: w.template(templates.Blast),
					templates.Milestone:    id, templates.Offboarding: "x",
				}
			},
			say("the assigned template does not exist", "the template has another type", "sent", "the template has another type", "sent"),
		},
		"no phone": {
			func(w *world) { w.people[1].Phone = "0151 12345678" },
			say("sent", "sent", "sent", "sent", "the phone number is not in international format"),
		},
		"no SMS at all":  {func(w *world) { w.noSMS = true }, say("sent", "sent", "sent", "sent", "no provider of text messages is configured")},
		"another number": {func(w *world) { w.people[1].Phone = "+1 (415) 555-2671" }, say("sent", "sent", "sent", "sent", "sent")},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.events(createdEvent(false, true), creditedEvent(true, true, 5))
			// The offboarding of another signup, so that it cancels nothing.
			removed := removedEvent(eventv1.RemovalReason_REMOVAL_REASON_ADMIN, true)
			removed.GetSignupRemoved().Number = 9
			w.events(removed)
			tc.change(w)
			w.start()
			w.ended(5)
			if got := w.ends(); got != tc.want {
				t.Errorf("%s\nwant %s", got, tc.want)
			}
			for _, m := range w.sms {
				if m.To != strings.NewReplacer(" ", "", "(", "", ")", "", "-", "").Replace(w.people[1].Phone) {
					t.Errorf("SMS to %s", m.To)
				}
			}
			if n := w.count("SELECT count(*) FROM sent_mail WHERE recipient <> '' OR first_name <> ''"); n != 0 {
				t.Errorf("%d addresses are kept", n)
			}
		})
	}
}

// Mails to signups come from the owner's domain, in the waitlist's name.
func TestSenders(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.from = stdmail.Address{Address: "no-reply@launch.example"}
	w.about.WaitlistName = "A =?utf-8?q?=0D=0A?=\r\nB"
	w.events(createdEvent(true, true), creditedEvent(true, false, 0))
	w.queue(accountMail())
	w.start()
	w.ended(4)
	w.sentOnce(4)
	for _, m := range w.mails {
		want := stdmail.Address{Name: "A = ?utf-8?q?=0D=0A?=  B", Address: "no-reply@launch.example"}
		switch {
		case m.To == "owner@example.com":
			want = stdmail.Address{}
		case strings.HasPrefix(m.Subject, "Confirm"):
			want.Name = "Launch"
		}
		if m.From != want {
			t.Errorf("%s from %v, want %v", m.Subject, m.From, want)
		}
	}
}

// downgraded knows of mails that their owner's plan no longer includes a domain for.
type downgraded struct{}

func (downgraded) Ask(_ context.Context, r mails.Request) (mails.Request, error) {
	r.DefaultSender = true
	return r, nil
}

// After a downgrade the mails that go out all the same come from the default sender.
func TestADowngradedOwnersDomainSendsNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.from = stdmail.Address{Address: "no-reply@launch.example"}
	w.facts, w.about.Pro = downgraded{}, false
	w.events(createdEvent(true, false), linkEvent(1))
	w.start()
	w.ended(2)
	w.sentOnce(2)
	for _, m := range w.mails {
		if m.From != (stdmail.Address{}) {
			t.Errorf("%s from %v", m.Subject, m.From)
		}
	}
}

// During an outage of signup, the mails that need it wait; the others are sent.
func TestSignupThatIsAwayHoldsUpItsMailsAlone(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.err = apierr.New(apierr.InternalError, "away").WithCause(status.Error(codes.Unavailable, "away"))
	for range 40 {
		ev := createdEvent(false, true)
		w.events(ev)
	}
	w.queue(accountMail(), accountMail(), signupMail(7))
	s, _ := w.start()
	w.eventually("the others are sent", func() bool { return w.states()["sent"] == 3 })
	// Concurrent failures count once, so the sender calls signup a few times, not forty.
	s.Wake()
	w.set(func() {
		if w.asked > 20 {
			t.Errorf("asked %d times", w.asked)
		}
		w.err = nil
	})
	w.ended(43)
	w.sentOnce(43)
	if n := w.count("SELECT coalesce(max(deferrals), 0) FROM sent_mail"); n != 0 {
		t.Errorf("%d deferrals", n)
	}
}

// accountAway is an account service that does not answer.
type accountAway struct{}

func (accountAway) Ask(_ context.Context, r mails.Request) (mails.Request, error) {
	if r.WaitlistID == "" {
		return r, status.Error(codes.Unavailable, "away")
	}
	return r, nil
}

// While account is away, mails about signups go out, and the other way round (above).
func TestAccountThatIsAwayHoldsUpItsMailsAlone(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.facts, w.pause = accountAway{}, time.Minute
	w.queue(accountMail())
	s, _ := w.start()
	w.eventually("account was asked", func() bool {
		return w.count("SELECT count(*) FROM sent_mail WHERE due_at > now() + interval '20 s'") == 1
	})
	begin := time.Now()
	w.events(createdEvent(true, true))
	s.Wake()
	w.eventually("the others are sent", func() bool { return w.states()["sent"] == 2 })
	if took := time.Since(begin); took > 20*time.Second {
		t.Errorf("after %v: they waited for account", took)
	}
}

// Neither mails nor text messages wait while the other's provider is away, or is slow.
func TestProvidersAreWaitedForApart(t *testing.T) {
	t.Parallel()
	const many = 8 // more than there are workers
	text := func(w *world) { w.events(creditedEvent(false, true, 0)) }
	mail := func(w *world) { w.queue(accountMail()) }
	for name, tc := range map[string]struct {
		// trouble begins at one provider; queue and others are what it and the other one send.
		trouble       func(w *world, hang chan struct{})
		queue, others func(w *world)
		sent          string
	}{
		"no mail": {func(w *world, _ chan struct{}) { w.reply = away }, mail, text, "sms"},
		"slow mail": {func(w *world, hang chan struct{}) {
			w.reply = func(int, mails.Mail) error { <-hang; return nil }
		}, mail, text, "sms"},
		"no texts":   {func(w *world, _ chan struct{}) { w.smsErr = errors.New("connection refused") }, text, mail, "password_reset"},
		"slow texts": {func(w *world, hang chan struct{}) { w.smsHang = hang }, text, mail, "password_reset"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.pause = time.Minute
			hang := make(chan struct{})
			tc.trouble(w, hang)
			for i := range int64(many) {
				w.people[i+1] = &mails.Person{Email: "ann@example.com", Phone: "+4915112345678", ReferralToken: "ref"}
				tc.queue(w)
				// A referrer gets one text message an hour.
				if _, err := w.pool.Exec(t.Context(), "UPDATE sent_mail SET number = $1 WHERE number = 1", 100+i); err != nil {
					t.Fatal(err)
				}
				w.people[100+i] = w.people[1]
			}
			s, _ := w.start()
			t.Cleanup(func() { close(hang) })
			w.eventually("the provider was tried", func() bool {
				return w.count("SELECT count(*) FROM sent_mail WHERE due_at > now() + interval '5 s'") == many
			})
			begin := time.Now()
			tc.others(w)
			s.Wake()
			w.eventually("the other is sent", func() bool {
				return w.count("SELECT count(*) FROM sent_mail WHERE state = 'sent' AND kind = '"+tc.sent+"'") == 1
			})
			if took := time.Since(begin); took > 20*time.Second {
				t.Errorf("after %v: it waited for the other provider", took)
			}
		})
	}
}

func away(int, mails.Mail) error { return errors.New("connection refused") }

// A failure that is not an outage concerns one mail: it is sent again later, and does not delay the others.
func TestWhatSignupCannotAnswerComesAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.err = errors.New("broken")
	w.events(createdEvent(false, true))
	w.start()
	w.eventually("deferred", func() bool { return w.count("SELECT max(deferrals) FROM sent_mail") > 1 })
	w.set(func() { w.err = nil })
	w.ended(1)
	w.sentOnce(1)
}

func TestSMSProviders(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		err  error
		want string
	}{
		"refused": {&mails.RefusedError{Reason: "21211"}, "failed"},
		"away":    {errors.New("connection refused"), "queued"},
		"later":   {&mails.DeferredError{Reason: "429"}, "queued"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.smsErr = tc.err
			w.events(creditedEvent(false, true, 0))
			w.queue(accountMail())
			_, stop := w.start()
			// It does not delay other mails.
			w.eventually("the mail is sent", func() bool { return w.states()["sent"] == 1 })
			w.eventually("tried", func() bool {
				return w.count("SELECT count(*) FROM sent_mail WHERE kind = 'sms' AND state = "+
					"'"+tc.want+"' AND (state = 'failed' OR due_at > requested_at)") == 1
			})
			stop()
			if tc.want == "failed" {
				return
			}
			w.smsErr = nil
			w.start()
			w.ended(2)
			if len(w.sms) != 1 || w.sms[0].To != "+4915112345678" || !strings.Contains(w.sms[0].Text, "Launch") {
				t.Errorf("%+v", w.sms)
			}
		})
	}
}

func TestATemplateOfHTMLHasATextPart(t *testing.T) {
	t.Parallel()
	r := mails.Request{Kind: mails.ReferralMilestone, Recipient: "a@example.com"}
	m, err := newComposer(t).ComposeTemplate(r, mails.Mailing{},
		templates.Template{Subject: "Hi", HTML: "<p>Hello {{email}}</p>"}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(m.Text, "Hello a@example.com\n\n-- \n") || !strings.HasPrefix(m.HTML, "<p>Hello a@example.com</p>") {
		t.Errorf("%q, %q", m.Text, m.HTML)
	}
}
