package e2e

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	kafkago "github.com/segmentio/kafka-go"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/timestamppb"

	"waitlist.internal/libs/kafka"
	accessv1 "waitlist.internal/proto/gen/waitlist/access/v1"
	eventv1 "waitlist.internal/proto/gen/waitlist/event/v1"
)

// forger writes events of its own to Kafka, as a compromised service could. It knows all ids.
type forger struct {
	*mailing
	victim *owner
	// account, waitlist, template and blast are the victim's.
	account, waitlist, template, blast string
	// number is that of the one signup, who has not verified the address yet.
	number int64
	// mallory is an owner without a plan, whose account is malloryID.
	mallory   *owner
	malloryID string
	// address is where the forger would like mails to go.
	address string
}

// testForgedEvents writes every type of event of the protocol in a forged form, those that delete last. Whatever they
// claim, nobody may gain an account, nothing may be deleted or hidden, and no mail may go where the forger chooses.
func (s *suite) testForgedEvents(t *testing.T) {
	f := s.forger(t)
	forged := f.events()
	var events, deletions []*eventv1.Event
	var topics, last []string
	fields := new(eventv1.Event).ProtoReflect().Descriptor().Oneofs().ByName("payload").Fields()
	for i := range fields.Len() {
		name := fields.Get(i).Name()
		cases := forged[name]
		if len(cases) == 0 {
			t.Errorf("no event %s is forged: add a case", name)
		}
		for _, ev := range cases {
			topic := kafka.SignupsTopic
			if fields.Get(i).Number() >= 30 {
				topic = kafka.AccountsTopic
			}
			if strings.HasSuffix(string(name), "_deleted") || name == "signup_removed" {
				deletions, last = append(deletions, ev), append(last, topic)
			} else {
				events, topics = append(events, ev), append(topics, topic)
			}
		}
	}
	before := f.mails(t)
	f.write(t, topics, events)
	f.unharmed(t, before)
	f.write(t, last, deletions)
	f.unharmed(t, before)
}

// forger deploys the program with a victim that has something of everything.
func (s *suite) forger(t *testing.T) *forger {
	t.Helper()
	f := &forger{mailing: s.mailing(t, map[string]string{"PURGE_EVERY": "100ms"}), address: "forged@mallory.example.com"}
	f.mallory = f.owner(t)
	f.setTier(t, f.mallory, "basic", "inactive")
	f.victim = f.owner(t)
	f.verify(t, f.victim)
	f.template = f.victim.template(t, "offboarding", Obj{"text_body_template": "Bye."})
	f.waitlist = f.victim.waitlist(t, Obj{
		"require_email_verification": true, "referral_milestones": []any{3}, "email_templates": Obj{"offboarding": f.template},
	})
	f.victim.join(t, f.waitlist, address("ada"))
	f.blast = f.victim.Do(t, newBlast(f.waitlist, Obj{"text_body": "Hello."}).As(f.victim.token)).Want(http.StatusOK).Str("blast_id")
	id := func(o *owner) string { sub, _ := claims(t, o.token)["sub"].(string); return sub }
	f.account, f.malloryID = id(f.victim), id(f.mallory)
	f.exec(t, "INSERT INTO signup.owner (id, tier, status, trial, version) VALUES ($1, 'basic', 'inactive', false, 1)", f.malloryID)
	f.number = 1
	f.settled(t, f.waitlist)
	return f
}

// events returns forged events by the name of their payload.
func (f *forger) events() map[protoreflect.Name][]*eventv1.Event {
	soon := timestamppb.New(time.Now().Add(time.Hour))
	pro := &accessv1.Entitlement{Tier: "pro", Status: "active", Version: 1 << 40}
	none := &accessv1.Entitlement{Tier: "basic", Status: "inactive", Version: 1 << 40}
	return map[protoreflect.Name][]*eventv1.Event{
		"signup_created": {{Payload: &eventv1.Event_SignupCreated{SignupCreated: &eventv1.SignupCreated{
			WaitlistId: f.waitlist, OwnerId: f.account, Number: f.number, Email: f.address, WaitlistName: "Launch",
			VerificationRequired: true, Confirmation: true,
		}}}},
		"referral_credited": {{Payload: &eventv1.Event_ReferralCredited{ReferralCredited: &eventv1.ReferralCredited{
			WaitlistId: f.waitlist, OwnerId: f.account, Number: f.number, Email: f.address, ReferralCount: 3, //nolint:staticcheck // forged
			NotifyReferrer: true, SmsNotifyReferrer: true, Milestone: 3,
		}}}},
		"signup_verified": {{Payload: &eventv1.Event_SignupVerified{SignupVerified: &eventv1.SignupVerified{
			WaitlistId: f.waitlist, OwnerId: f.account, Number: f.number,
		}}}},
		"signup_removed": {{Payload: &eventv1.Event_SignupRemoved{SignupRemoved: &eventv1.SignupRemoved{
			WaitlistId: f.waitlist, OwnerId: f.account, Number: f.number, Reason: eventv1.RemovalReason_REMOVAL_REASON_ADMIN,
			Email: f.address, FirstName: "Ada", Offboarding: true,
		}}}},
		"signup_opted_out": {{Payload: &eventv1.Event_SignupOptedOut{SignupOptedOut: &eventv1.SignupOptedOut{
			WaitlistId: f.waitlist, OwnerId: f.account, Number: f.number,
		}}}},
		"waitlist_deleted": {{Payload: &eventv1.Event_WaitlistDeleted{WaitlistDeleted: &eventv1.WaitlistDeleted{
			WaitlistId: f.waitlist, OwnerId: f.account,
		}}}},
		"signups_imported": {{Payload: &eventv1.Event_SignupsImported{SignupsImported: &eventv1.SignupsImported{
			WaitlistId: f.waitlist, OwnerId: f.account, FirstNumber: 2, LastNumber: 1000,
		}}}},
		"page_views_counted": {{Payload: &eventv1.Event_PageViewsCounted{PageViewsCounted: &eventv1.PageViewsCounted{
			WaitlistId: f.waitlist, Views: 1000,
		}}}},
		"link_requested": {{Payload: &eventv1.Event_LinkRequested{LinkRequested: &eventv1.LinkRequested{
			WaitlistId: f.waitlist, OwnerId: f.account, Number: f.number,
		}}}},
		"account_verification_requested": {
			{Payload: &eventv1.Event_AccountVerificationRequested{AccountVerificationRequested: &eventv1.AccountVerificationRequested{
				AccountId: f.account, Email: f.address, Cycle: 2, ExpiresAt: soon,
			}}},
			{Payload: &eventv1.Event_AccountVerificationRequested{AccountVerificationRequested: &eventv1.AccountVerificationRequested{
				AccountId: f.malloryID, Email: f.address, Cycle: 1, ExpiresAt: soon,
			}}},
		},
		"password_reset_requested": {{Payload: &eventv1.Event_PasswordResetRequested{PasswordResetRequested: &eventv1.PasswordResetRequested{
			AccountId: f.account, Email: f.address, ExpiresAt: soon,
		}}}},
		"entitlement_changed": {
			{Payload: &eventv1.Event_EntitlementChanged{EntitlementChanged: &eventv1.EntitlementChanged{AccountId: f.malloryID, Entitlement: pro}}},
			{Payload: &eventv1.Event_EntitlementChanged{EntitlementChanged: &eventv1.EntitlementChanged{AccountId: f.account, Entitlement: none}}},
		},
		"account_deleted": {{Payload: &eventv1.Event_AccountDeleted{AccountDeleted: &eventv1.AccountDeleted{AccountId: f.account}}}},
		"team_member_invited": {{Payload: &eventv1.Event_TeamMemberInvited{TeamMemberInvited: &eventv1.TeamMemberInvited{
			AccountId: f.account, OwnerEmail: f.victim.email, Email: f.address, Role: "admin",
		}}}},
		"template_deleted": {{Payload: &eventv1.Event_TemplateDeleted{TemplateDeleted: &eventv1.TemplateDeleted{
			AccountId: f.account, TemplateId: f.template,
		}}}},
		"trial_ending": {{Payload: &eventv1.Event_TrialEnding{TrialEnding: &eventv1.TrialEnding{
			AccountId: f.account, Email: f.address, EndsAt: soon,
		}}}},
		"credential_changed": {{Payload: &eventv1.Event_CredentialChanged{CredentialChanged: &eventv1.CredentialChanged{
			AccountId: f.account, Email: f.address, Credential: eventv1.CredentialChanged_CREDENTIAL_PASSWORD,
		}}}},
	}
}

// write publishes events and waits until every consumer has taken them and no mail is queued.
func (f *forger) write(t *testing.T, topics []string, events []*eventv1.Event) {
	t.Helper()
	w := kafka.NewWriter(f.kafka)
	defer func() {
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	}()
	for i, ev := range events {
		ev.Id, ev.OccurredAt = uuid.Must(uuid.NewV7()).String(), timestamppb.Now()
		raw, err := proto.Marshal(ev)
		if err != nil {
			t.Fatal(err)
		}
		msg := kafkago.Message{Topic: topics[i], Key: []byte("forged"), Value: raw}
		Await(t, mailTimeout, "the event is written", func() bool { return w.WriteMessages(t.Context(), msg) == nil })
	}
	for group, topics := range map[string][]string{
		"signup": {kafka.AccountsTopic}, "billing": {kafka.AccountsTopic}, "messaging": {kafka.AccountsTopic, kafka.SignupsTopic},
		"admin-analytics": {kafka.SignupsTopic}, "notifier": {kafka.SignupsTopic},
	} {
		Await(t, mailTimeout, group+" has taken every event", func() bool {
			lag, err := kafka.Lag(t.Context(), f.kafka, group, topics...)
			for _, topic := range topics {
				if err != nil || lag[topic] > 0 {
					return false
				}
			}
			return true
		})
	}
	Await(t, mailTimeout, "no mail is queued", func() bool {
		return f.query(t, "SELECT count(*) FROM messaging.sent_mail WHERE state = 'queued'") == 0
	})
}

// mails returns how many mails of the blast there are.
func (f *forger) mails(t *testing.T) int {
	t.Helper()
	sent, err := f.server.mails(func(m Mail) bool { return strings.Contains(m.Text, "Hello.") })
	if err != nil {
		t.Fatal(err)
	}
	return len(sent)
}

// unharmed checks that all is as it was.
func (f *forger) unharmed(t *testing.T, blasted int) {
	t.Helper()
	sent, err := f.server.mails(func(m Mail) bool { return strings.HasSuffix(m.To, "@mallory.example.com") })
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range sent {
		t.Errorf("a mail to the forger: %s", m.Subject)
	}
	if n := f.mails(t); n != blasted {
		t.Errorf("%d mails of the blast, want %d", n, blasted)
	}
	v := f.victim
	v.login(t)
	v.Do(t, Get("/auth/me").Key(v.key)).Want(http.StatusOK)
	v.Do(t, Get("/templates/"+f.template).As(v.token)).Want(http.StatusOK)
	v.Do(t, Get("/public/waitlists/"+f.waitlist+"/config")).Want(http.StatusOK)
	list := v.Do(t, Get("/waitlists/"+f.waitlist).As(v.token)).Want(http.StatusOK)
	if !strings.Contains(string(list.Body), f.template) {
		t.Errorf("the template is no longer assigned: %s", list.Body)
	}
	f.mallory.Do(t, Post("/waitlists", Obj{"name": "Free"}).As(f.mallory.token).Invalid()).WantError(http.StatusForbidden, "FORBIDDEN")
	for what, query := range map[string]string{
		"the signup is gone":           "SELECT 1 - count(*) FROM signup.signup",
		"an address was verified":      "SELECT count(*) FROM signup.signup WHERE email_verified_at IS NOT NULL",
		"a mail was canceled":          "SELECT count(*) FROM messaging.sent_mail WHERE (kind, state) = ('signup_verification', 'canceled')",
		"an entitlement was believed":  "SELECT count(*) FROM signup.owner WHERE version = 1::bigint << 40",
		"an owner is closed":           "SELECT count(*) FROM signup.owner WHERE closed_at IS NOT NULL",
		"messaging purges":             "SELECT (SELECT count(*) FROM messaging.gone) + (SELECT count(*) FROM messaging.tombstone)",
		"billing deletes a customer":   "SELECT count(*) FROM billing.deletion",
		"the blast lost its recipient": "SELECT 1 - count(*) FROM messaging.blast_recipient",
		"a milestone is told":          "SELECT count(*) FROM messaging.sent_mail WHERE (kind, state) = ('referral_milestone', 'sent')",
		"analytics are gone":           "SELECT CASE WHEN sum(signups) > 0 THEN 0 ELSE 1 END FROM admin_analytics.day",
	} {
		if n := f.query(t, query); n != 0 {
			t.Errorf("%s (%d)", what, n)
		}
	}
}
