package e2e

import (
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"waitlist.internal/services/messaging/resendtest"
)

// testAbuseMail checks that nobody can use the suite to send mails and text messages to people who do not want them.
func (s *suite) testAbuseMail(t *testing.T) {
	m := s.mailing(t, nil)
	t.Run("opt-out", func(t *testing.T) { testOptOutStays(t, m) })
	t.Run("offboarding", func(t *testing.T) { testOffboardedOnce(t, m) })
	t.Run("bounced", func(t *testing.T) { testBouncedOffboarding(t, m) })
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
