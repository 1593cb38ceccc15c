package e2e

import (
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"waitlist.internal/services/messaging/providers/resendtest"
	"waitlist.internal/services/messaging/providers/twiliotest"
)

// testAbuseMail checks that nobody can use the suite to send mails and text messages to people who do not want them.
func (s *suite) testAbuseMail(t *testing.T) {
	m := s.mailing(t, nil)
	t.Run("opt-out", func(t *testing.T) { testOptOutStays(t, m) })
	t.Run("offboarding", func(t *testing.T) { testOffboardedOnce(t, m) })
	t.Run("bounced", func(t *testing.T) { testBouncedOffboarding(t, m) })

	strict := s.mailing(t, map[string]string{
		"ENFORCE_EMAIL_VERIFICATION": "true", "MAIL_DAILY_CAP": "5", "BLAST_DAILY_CAP_TRIAL": "4", "MAIL_DAILY_CAP_RECIPIENT": "3",
	})
	t.Run("unverified", func(t *testing.T) { testUnverifiedOwner(t, strict) })
	t.Run("owner's mails", func(t *testing.T) { testMailsOfOwner(t, strict) })
	t.Run("recipient's mails", func(t *testing.T) { testMailsToRecipient(t, strict) })
	asks := s.mailing(t, map[string]string{"ASK_DAILY_CAP_RECIPIENT": "3"})
	t.Run("verifications and invitations", func(t *testing.T) { testAsksOfRecipient(t, asks) })
	t.Run("notices", func(t *testing.T) { testNotices(t, asks) })
	t.Run("resets", func(t *testing.T) { testResets(t, asks) })
	t.Run("import beside a blast", func(t *testing.T) { testImportBesideBlast(t, strict) })

	texts := &twiliotest.Server{AccountSID: "AC0123456789abcdef0123456789abcdef", AuthToken: "secret"}
	texting := s.mailing(t, map[string]string{
		"SMS_PROVIDER": "twilio", "TWILIO_ACCOUNT_SID": texts.AccountSID, "TWILIO_AUTH_TOKEN": texts.AuthToken,
		"TWILIO_FROM": "+15005550006", "TWILIO_URL": serve(t, texts),
		"SMS_COUNTRIES": "DE,US", "SMS_DAILY_CAP": "3", "SMS_DAILY_CAP_PREFIX": "2",
	})
	t.Run("text messages", func(t *testing.T) { testTextPumping(t, texting, texts) })
}

// importEach imports addresses, all of which are new on the waitlist.
func (o *owner) importEach(t testing.TB, waitlist string, emails ...string) {
	t.Helper()
	rows := make([]any, len(emails))
	for i, email := range emails {
		rows[i] = Obj{"email": email}
	}
	o.imports(t, waitlist, rows).WantJSON("imported", len(emails))
}

// optedOut returns, by address, whether the signups of a short waitlist have opted out.
func (o *owner) optedOut(t testing.TB, waitlist string) map[string]bool {
	t.Helper()
	var page struct {
		Signups []struct {
			Email  string `json:"email"`
			OptOut bool   `json:"email_opt_out"`
		} `json:"signups"`
	}
	o.Do(t, Get("/waitlists/"+waitlist+"/signups").As(o.token)).Want(http.StatusOK).Decode(&page)
	out := map[string]bool{}
	for _, s := range page.Signups {
		out[s.Email] = s.OptOut
	}
	return out
}

// testOptOutStays checks that an opt-out survives removal and deletion, until the person signs up again.
func testOptOutStays(t *testing.T, m *mailing) {
	o := m.owner(t)
	id, other := o.waitlist(t, nil), o.waitlist(t, nil)
	removed, deleted, back, in := address("removed"), address("deleted"), address("back"), address("in")
	for _, p := range []string{removed, deleted, back, in} {
		o.join(t, id, p)
	}
	for _, p := range []string{removed, back} {
		m.optOutByHand(t, o.Client, id, p)
		o.remove(t, id, p)
	}
	m.deleteMyData(t, o.Client, id, deleted)
	o.remove(t, id, in)

	o.join(t, id, back)
	o.importEach(t, id, removed, deleted, in)
	for p, want := range map[string]bool{removed: true, deleted: true, back: false, in: false} {
		if got, ok := o.optedOut(t, id)[p]; !ok || got != want {
			t.Errorf("%s opted out: %v, on the list: %v", p, got, ok)
		}
	}
	o.Do(t, newBlast(id, nil).As(o.token)).Want(http.StatusOK).WantJSON("recipient_count", 2)
	if got := inBoxes(t, m.server, removed, deleted); got[0]+got[1] != 0 {
		t.Errorf("mails to people who opted out: %v", got)
	}
	// Who signed up again has not opted out, also after another removal.
	o.remove(t, id, back)
	o.importEach(t, id, back)
	// Nor has anybody opted out of another waitlist.
	o.importEach(t, other, removed)
	if o.optedOut(t, id)[back] || o.optedOut(t, other)[removed] {
		t.Error("somebody who did not opt out counts as opted out")
	}
}

// testOffboardedOnce checks that each person gets at most one offboarding mail of a waitlist, and can opt out by it.
func testOffboardedOnce(t *testing.T, m *mailing) {
	o := m.owner(t)
	id := o.assigned(t, nil, "offboarding")
	ada, bob := address("ada"), address("bob")
	for range 3 {
		o.importEach(t, id, ada, bob)
		o.remove(t, id, ada)
		o.remove(t, id, bob)
	}
	m.settled(t, id)
	if got := inBoxes(t, m.server, ada, bob); got[0] != 1 || got[1] != 1 {
		t.Fatalf("mails %v, want one each", got)
	}
	header := m.server.AwaitMails(t, ada, 1)[0].Header
	one, err := url.Parse(strings.Trim(header.Get("List-Unsubscribe"), "<>"))
	if err != nil || header.Get("List-Unsubscribe-Post") != "List-Unsubscribe=One-Click" {
		t.Fatalf("List-Unsubscribe %q: %v", header.Get("List-Unsubscribe"), err)
	}
	for range 2 {
		o.Do(t, click(one)).Want(http.StatusOK).WantJSON("success", true)
	}
	forged := *one
	forged.RawQuery = strings.Replace(one.RawQuery, url.QueryEscape(ada), url.QueryEscape(address("nobody")), 1)
	o.Do(t, click(&forged)).WantError(http.StatusNotFound, "NOT_FOUND")
	forged.RawQuery = strings.Replace(one.RawQuery, url.QueryEscape(ada), url.QueryEscape(bob), 1)
	o.Do(t, click(&forged)).WantError(http.StatusForbidden, "INVALID_TOKEN")
	o.importEach(t, id, ada, bob)
	if got := o.optedOut(t, id); !got[ada] || got[bob] {
		t.Errorf("opted out: %v", got)
	}
}

// testBouncedOffboarding checks that an address whose mails bounce gets no mail that it did not ask for.
func testBouncedOffboarding(t *testing.T, m *mailing) {
	o := m.owner(t)
	id := o.assigned(t, nil, "offboarding")
	bounced, well := address("bounced"), address("well")
	o.join(t, id, bounced)
	o.join(t, id, well)
	o.Do(t, notification(t, resendtest.Secret, "n-abuse", "email.bounced", "Permanent", time.Now(), bounced)).Want(http.StatusNoContent)
	o.remove(t, id, bounced)
	o.remove(t, id, well)
	o.Do(t, invite(bounced, "").As(o.token)).Want(http.StatusCreated)
	m.settled(t, id)
	Await(t, mailTimeout, "no invitation is queued", func() bool {
		return m.query(t, "SELECT count(*) FROM messaging.sent_mail WHERE kind = 'team_invite' AND state = 'queued'") == 0
	})
	if got := inBoxes(t, m.server, bounced, well); got[0] != 0 || got[1] != 1 {
		t.Errorf("mails %v", got)
	}
}

// wantCanceled requires that as many mails of a waitlist ended unsent for a reason.
func (m *mailing) wantCanceled(t testing.TB, waitlist, reason string, want int) {
	t.Helper()
	m.settled(t, waitlist)
	if got := m.query(t, "SELECT count(*) FROM messaging.sent_mail WHERE waitlist_id = $1 AND state = 'canceled' AND error = $2",
		waitlist, reason); got != want {
		t.Errorf("%d mails were not sent because %s, want %d", got, reason, want)
	}
}

// testUnverifiedOwner checks that nobody gets mails in the words of an owner whose address is not verified.
func testUnverifiedOwner(t *testing.T, m *mailing) {
	o := m.owner(t)
	id := o.assigned(t, Obj{"notify_referrer": true, "referral_milestones": []any{1}}, "signup_confirmation", "referral_milestone",
		"offboarding")
	ada, friend, imported := address("ada"), address("friend"), address("imported")
	o.join(t, id, friend, Obj{"referred_by_token": o.join(t, id, ada).Str("referral_token")})
	o.importEach(t, id, imported)
	o.remove(t, id, imported)
	m.wantCanceled(t, id, "the owner's address is not verified", 4)
	if got := inBoxes(t, m.server, ada, friend, imported); got[0] != 1 || got[1]+got[2] != 0 {
		t.Errorf("mails %v, want the notification of the referral alone", got)
	}
	m.verify(t, o)
	bob := address("bob")
	o.join(t, id, bob)
	m.server.AwaitMails(t, bob, 1)
}

// testMailsOfOwner checks that all kinds of mails of an owner count towards one limit.
func testMailsOfOwner(t *testing.T, m *mailing) {
	for name, most := range map[string]int{"trial": 4, "active": 5} {
		t.Run(name, func(t *testing.T) {
			o := m.owner(t)
			m.verify(t, o)
			if name == "active" {
				m.setTier(t, o, "pro", "active")
			}
			id := o.assigned(t, nil, "signup_confirmation", "offboarding")
			ada, bob := address("ada"), address("bob")
			o.join(t, id, ada)
			o.join(t, id, bob)
			m.settled(t, id)
			// Two confirmations, and as many mails of a blast.
			o.Do(t, newBlast(id, nil).As(o.token)).Want(http.StatusOK).WantJSON("recipient_count", 2)
			retryAfter(t, o.Do(t, newBlast(id, Obj{"subject": "More"}).As(o.token)).
				WantError(http.StatusTooManyRequests, "RATE_LIMITED"), 24*60*60)
			left := most - 4
			for _, p := range []string{ada, bob, address("carl")} {
				if p != ada && p != bob {
					o.importEach(t, id, p)
				}
				o.remove(t, id, p)
			}
			m.wantCanceled(t, id, fmt.Sprintf("the owner's limit of %d mails in 24 hours is used up", most), 3-left)
			other := m.owner(t)
			m.verify(t, other)
			p := address("p")
			other.join(t, other.assigned(t, nil, "signup_confirmation"), p)
			m.server.AwaitMails(t, p, 1)
		})
	}
}

// testMailsToRecipient checks that all owners together write to an address only so often.
func testMailsToRecipient(t *testing.T, m *mailing) {
	ada := address("ada")
	for i := range 4 {
		o := m.owner(t)
		m.verify(t, o)
		id := o.assigned(t, nil, "signup_confirmation")
		o.join(t, id, ada)
		m.settled(t, id)
		if i == 3 {
			m.wantCanceled(t, id, "the recipient's limit of 3 mails in 24 hours is used up", 1)
			o.join(t, id, address("bob"))
			o.Do(t, newBlast(id, nil).As(o.token)).Want(http.StatusOK).WantJSON("recipient_count", 2).WantJSON("failed_count", 1)
		}
	}
	if got := inBoxes(t, m.server, ada); got[0] != 3 {
		t.Errorf("%d mails", got[0])
	}
}

// testAsksOfRecipient checks that a person gets only so many verifications, links and invitations, whatever way a stranger
// has them sent again and again, and other people theirs.
func testAsksOfRecipient(t *testing.T, m *mailing) {
	o := m.owner(t)
	id := o.waitlist(t, Obj{"require_email_verification": true})
	for name, ask := range map[string]func(email string){
		"accounts": func(email string) {
			a := m.register(t, email)
			m.sent(t)
			a.Do(t, Delete("/auth/me").As(a.token)).Want(http.StatusNoContent)
		},
		"signups": func(email string) {
			o.join(t, id, email)
			m.sent(t)
			o.remove(t, id, email)
		},
		"links": func(email string) {
			list := o.waitlist(t, nil)
			o.join(t, list, email)
			o.Do(t, Post("/public/waitlists/"+list+"/link", Obj{"email": email})).Want(http.StatusAccepted)
		},
		"invitations": func(email string) {
			o.Do(t, invite(email, "viewer").As(o.token)).Want(http.StatusCreated)
			m.sent(t)
			o.Do(t, Delete("/team/"+email).As(o.token)).Want(http.StatusNoContent)
		},
	} {
		t.Run(name, func(t *testing.T) {
			victim, other := address(name), address(name)
			for range 5 {
				ask(victim)
			}
			ask(other)
			m.server.AwaitMails(t, other, 1)
			if got := inBoxes(t, m.server, victim); got[0] != 3 {
				t.Errorf("%d mails, want 3", got[0])
			}
		})
	}
}

// testNotices checks that nobody fills a mailbox with notices, and that each kind of them reaches the owner.
func testNotices(t *testing.T, m *mailing) {
	o := m.owner(t)
	regenerate := func() { o.Do(t, Post("/auth/regenerate-api-key", nil).As(o.token)).Want(http.StatusOK) }
	for range 3 {
		regenerate()
	}
	m.sent(t)
	if got := inBoxes(t, m.server, o.email); got[0] != 1 {
		t.Fatalf("%d mails to an address that nobody verified, want that of the registration", got[0])
	}
	m.verify(t, o)
	for range 15 {
		regenerate()
	}
	o.Do(t, Post("/auth/change-password", Obj{"current_password": o.password, "password": "another good one"}).As(o.token)).
		Want(http.StatusNoContent)
	m.sent(t)
	subjects := map[string]int{}
	for _, mail := range m.server.AwaitMails(t, o.email, 12) {
		subjects[mail.Subject]++
	}
	if subjects["Your API key was replaced"] != 10 || subjects["Your password was changed"] != 1 {
		t.Errorf("mails %v", subjects)
	}
}

// testResets checks that strangers who have resets mailed again and again, to spellings of an address that they registered, by
// registering it anew, or to its owner, neither fill the mailbox nor keep the owner from a link that works.
func testResets(t *testing.T, m *mailing) {
	gmail := func(name string) string { return strings.Replace(address(name), "@example.com", "@gmail.com", 1) }
	forgot := func(email string) {
		t.Helper()
		m.client(t).Do(t, Post("/auth/forgot-password", Obj{"email": email})).Want(http.StatusAccepted)
		Await(t, mailTimeout, "the request is worked on", func() bool {
			return m.query(t, "SELECT count(*) FROM account.reset_request") == 0
		})
		m.sent(t)
	}
	// few requires as many resets as an hour allows, or those of two: the clock may strike meanwhile.
	few := func(to ...string) (tokens []string) {
		t.Helper()
		for _, email := range to {
			mails, err := m.server.Mails(email)
			if err != nil {
				t.Fatal(err)
			}
			for _, mail := range mails {
				if mail.Subject == "Reset your password" {
					tokens = append(tokens, mail.Token())
				}
			}
		}
		if len(tokens) < 5 || len(tokens) > 10 {
			t.Errorf("%d resets, want 5", len(tokens))
		}
		return tokens
	}
	victim, anew := gmail("victim"), gmail("anew")
	var spellings []string
	for i := range 11 {
		spellings = append(spellings, strings.Replace(victim, "@", fmt.Sprintf("+%d@", i), 1))
		m.register(t, spellings[i])
		forgot(spellings[i])
		a := m.register(t, anew)
		forgot(anew)
		a.Do(t, Delete("/auth/me").As(a.token)).Want(http.StatusNoContent)
	}
	few(spellings...)
	few(anew)
	o := m.register(t, victim)
	for range 11 {
		m.exec(t, "UPDATE account.account SET reset_sent_at = NULL WHERE email = $1", victim) // as if it was long ago
		forgot(victim)
	}
	o.Do(t, Post("/auth/reset-password", Obj{"token": few(victim)[0], "password": "another good one"})).Want(http.StatusNoContent)
}

// sent waits until no mail waits to be sent.
func (m *mailing) sent(t testing.TB) {
	t.Helper()
	m.passed(t)
	Await(t, mailTimeout, "no mail is queued", func() bool {
		return m.query(t, "SELECT count(*) FROM messaging.sent_mail WHERE state = 'queued'") == 0
	})
}

// testImportBesideBlast imports people between the moment that counts a blast's recipients and its plan.
func testImportBesideBlast(t *testing.T, m *mailing) {
	o := m.owner(t)
	m.verify(t, o)
	id := o.waitlist(t, nil)
	for range 3 {
		o.join(t, id, address("early"))
	}
	conn, err := pgx.Connect(t.Context(), m.db)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	tx, err := conn.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	// Whoever counted cannot store the blast, and so nobody can plan it.
	if _, err := tx.Exec(t.Context(), "LOCK TABLE messaging.blast IN SHARE ROW EXCLUSIVE MODE"); err != nil {
		t.Fatal(err)
	}
	answer := make(chan *Response)
	go func() {
		r, err := o.Send(t.Context(), newBlast(id, nil).As(o.token))
		if err != nil {
			t.Error(err)
		}
		answer <- r
	}()
	Await(t, mailTimeout, "the blast is counted", func() bool {
		return m.query(t, "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%InsertBlast%' "+
			"AND pid <> pg_backend_pid()") > 0
	})
	rows, _ := strangers(4000)
	o.imports(t, id, rows)
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if r := <-answer; r == nil || r.Status != http.StatusOK {
		t.Fatalf("%+v", r)
	}
	Await(t, mailTimeout, "the blast is sent", func() bool { return o.blasts(t, id)[0].Status == "sent" })
	if n := o.blasts(t, id)[0].Recipients; n != 3 {
		t.Errorf("%d mails, with room for 4 and 3 people when the blast was requested", n)
	}
}

// testTextPumping checks that owners cannot send many text messages to numbers that somebody earns with.
func testTextPumping(t *testing.T, m *mailing, texts *twiliotest.Server) {
	refer := func(o *owner, phones ...string) (waitlist string) {
		t.Helper()
		waitlist = o.waitlist(t, Obj{"sms_notify_referrer": true, "phone_field": "optional"})
		for _, phone := range phones {
			ref := o.join(t, waitlist, address("referrer"), Obj{"phone": phone}).Str("referral_token")
			o.join(t, waitlist, address("friend"), Obj{"referred_by_token": ref})
			m.settled(t, waitlist) // in this order
		}
		return waitlist
	}
	trial := m.owner(t)
	m.wantCanceled(t, refer(trial, "+4915112345670", "+14155552671"), "a trial does not include text messages", 2)

	o := m.owner(t)
	m.setTier(t, o, "pro", "active")
	id := refer(o, "+447911123456", "+499001123456", "+4915112345671", "+4915112345672", "+4915112345673", "+14155552671", "+14155552672")
	m.wantCanceled(t, id, "no text messages go to the country of the phone number", 1)
	m.wantCanceled(t, id, "the phone number costs more than an ordinary one", 1)
	m.wantCanceled(t, id, "the limit of 2 text messages in 24 hours to numbers with this prefix is used up", 1)
	m.wantCanceled(t, id, "the owner's limit of 3 text messages in 24 hours is used up", 1)
	var to []string
	for _, message := range texts.Messages() {
		to = append(to, message.To)
	}
	slices.Sort(to)
	if want := []string{"+14155552671", "+4915112345671", "+4915112345672"}; !slices.Equal(to, want) {
		t.Errorf("text messages to %v, want %v", to, want)
	}
}
