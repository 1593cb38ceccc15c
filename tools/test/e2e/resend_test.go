package e2e

import (
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/mail"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"waitlist.internal/services/messaging/providers/resendtest"
	"waitlist.internal/services/messaging/providers/twiliotest"
)

// notification returns a notification from Resend about a mail.
func notification(t testing.TB, secret, id, event, bounce string, at time.Time, to ...string) Request {
	t.Helper()
	sent, err := resendtest.Notification("http://127.0.0.1", secret, id, event, bounce, at, to...)
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(sent.Body)
	if err != nil {
		t.Fatal(err)
	}
	r := Post("/domains/notifications/resend", nil).Raw(body)
	for name := range sent.Header {
		r = r.With(name, sent.Header.Get(name))
	}
	return r
}

// resendBox holds the mails that Resend received.
type resendBox struct{ *resendtest.Server }

// Mails implements mailbox.
func (b resendBox) Mails(to string) ([]Mail, error) {
	var out []Mail
	for _, e := range b.Emails() {
		if !slices.Equal(e.To, []string{to}) {
			continue
		}
		from, err := mail.ParseAddress(e.From)
		if err != nil {
			return nil, err
		}
		m := Mail{From: from.Address, To: to, Subject: e.Subject, Text: e.Text, HTML: e.HTML, Header: mail.Header{}}
		for name, value := range e.Headers {
			m.Header[http.CanonicalHeaderKey(name)] = []string{value}
		}
		out = append(out, m)
	}
	return out, nil
}

// testResend tests a deployment that sends mails through Resend and text messages through Twilio.
func (s *suite) testResend(t *testing.T) {
	var away atomic.Bool
	api := &resendtest.Server{APIKey: "re_e2e", Fail: func(*http.Request) *resendtest.Failure {
		if away.Load() {
			return &resendtest.Failure{Status: http.StatusInternalServerError, Name: "application_error"}
		}
		return nil
	}}
	texts := &twiliotest.Server{AccountSID: "AC0123456789abcdef0123456789abcdef", AuthToken: "secret"}
	names := newNameServer(t)
	env := map[string]string{
		"MAIL_PROVIDER": "resend", "MAIL_FROM": "Waitlist <no-reply@waitlist.example>", "RESEND_API_KEY": api.APIKey, "RESEND_URL": serve(t, api),
		"RESEND_WEBHOOK_SECRETS": "whsec_" + strings.Repeat("bmV3", 8) + "," + resendtest.Secret, "DNS_RESOLVER": names.addr,
		"SMS_PROVIDER": "twilio", "TWILIO_ACCOUNT_SID": texts.AccountSID, "TWILIO_AUTH_TOKEN": texts.AuthToken,
		"TWILIO_FROM": "+15005550006", "TWILIO_URL": serve(t, texts), "SMS_COUNTRIES": "DE,US", "SMS_TRIALS": "true",
	}
	d := s.mailing(t, env)
	box := resendBox{api}
	t.Run("blast", func(t *testing.T) { testResendBlast(t, d.deployment, box) })
	t.Run("domains", func(t *testing.T) { testResendDomains(t, d.deployment, box, names, &away) })
	t.Run("notifications", func(t *testing.T) { testResendNotifications(t, d, box) })
	t.Run("text messages", func(t *testing.T) { testTextMessages(t, d, texts) })
}

// serve serves a handler and returns its URL.
func serve(t testing.TB, h http.Handler) string {
	t.Helper()
	server := httptest.NewServer(h)
	t.Cleanup(server.Close)
	return server.URL
}

func testResendBlast(t *testing.T, d *deployment, box resendBox) {
	const people = 230
	o := d.owner(t)
	id := o.waitlist(t, nil)
	rows := make([]any, people)
	for i := range rows {
		rows[i] = Obj{"email": address(fmt.Sprint("p", i))}
	}
	o.Do(t, Post("/waitlists/"+id+"/import", Obj{"signups": rows}).As(o.token)).Want(http.StatusOK)
	o.Do(t, newBlast(id, Obj{"html_body": "<p>Hi"}).As(o.token)).Want(http.StatusOK)
	if got := o.awaitBlast(t, id); got.Recipients != people || got.Failed != 0 {
		t.Errorf("%+v", got)
	}
	batches := map[string]int{}
	for _, e := range box.Emails() {
		if e.Subject == "News" {
			batches[e.Key]++
		}
	}
	if got := slices.Sorted(maps.Values(batches)); !slices.Equal(got, []int{30, 100, 100}) || batches[""] > 0 {
		t.Errorf("requests by Idempotency-Key: %v", batches)
	}
	for _, row := range rows {
		mails := awaitMails(t, box, row.(Obj)["email"].(string), 1)
		if len(mails) != 1 {
			t.Fatalf("%d mails", len(mails))
		}
		unsubscribeLinks(t, mails[0], d, id)
	}
}

func testResendDomains(t *testing.T, d *deployment, box resendBox, names *nameServer, away *atomic.Bool) {
	o := d.owner(t)
	id := o.waitlist(t, nil)
	ada := address("ada")
	o.join(t, id, ada)
	name := domainName()
	fails := func(r Request) {
		t.Helper()
		away.Store(true)
		defer away.Store(false)
		o.Do(t, r.As(o.token)).WantError(http.StatusBadGateway, "EXTERNAL_SERVICE_ERROR")
	}
	fails(newDomain(name))
	if got := o.domains(t); len(got) != 0 {
		t.Errorf("a failed claim left the domains %v", got)
	}
	records := o.claim(t, name)
	for _, r := range records {
		if !strings.HasSuffix(r.Name, name) {
			t.Errorf("a record outside of %s: %+v", name, r)
		}
	}
	o.check(t, name, "pending")
	names.publish(t, records)
	o.check(t, name, "pending") // Resend has not found its own records
	box.SetStatus(name, "verified")
	fails(domainStatus(name))
	o.check(t, name, "verified")
	fails(domainStatus(name))
	if got := o.domains(t); !slices.Equal(got, []string{name + " verified"}) {
		t.Errorf("domains %v", got)
	}
	o.Do(t, newBlast(id, nil).As(o.token)).Want(http.StatusOK).WantJSON("status", "sent")
	if m := awaitMails(t, box, ada, 1)[0]; m.From != "no-reply@"+name {
		t.Errorf("from %s", m.From)
	}
	box.SetStatus(name, "failed")
	o.check(t, name, "pending")
	fails(Delete("/domains/" + name))
	if got := o.domains(t); len(got) != 1 {
		t.Errorf("a failed deletion left the domains %v", got)
	}
	o.Do(t, Delete("/domains/"+name).As(o.token)).Want(http.StatusNoContent)
	if _, there := box.Domains()[name]; there {
		t.Error("the domain still exists at Resend")
	}
}

// testResendNotifications checks that recipients whose mails bounce or who complain get no more marketing.
func testResendNotifications(t *testing.T, d *mailing, box resendBox) {
	o := d.owner(t)
	id := o.waitlist(t, Obj{"notify_referrer": true})
	people := []string{address("bounced"), address("complained"), address("soft"), address("forged"), address("well")}
	refs := map[string]string{}
	for _, p := range people {
		refs[p] = o.join(t, id, p).Str("referral_token")
	}
	now := time.Now()
	taken := notification(t, resendtest.Secret, "n-1", "email.bounced", "Permanent", now, strings.ToUpper(people[0]))
	for range 2 {
		o.Do(t, taken).Want(http.StatusNoContent)
	}
	o.Do(t, notification(t, resendtest.Secret, "n-2", "email.complained", "", now, "Ada <"+people[1]+">")).Want(http.StatusNoContent)
	o.Do(t, notification(t, resendtest.Secret, "n-3", "email.bounced", "Transient", now, people[2])).Want(http.StatusNoContent)
	o.Do(t, notification(t, resendtest.Secret, "n-4", "email.delivered", "", now, people[4])).Want(http.StatusNoContent)
	const other = "whsec_b3RoZXJvdGhlcm90aGVyb3RoZXI="
	good := notification(t, resendtest.Secret, "n-5", "email.bounced", "Permanent", now, people[3])
	for name, bad := range map[string]Request{
		"another secret": notification(t, other, "n-5", "email.bounced", "Permanent", now, people[3]),
		"too old":        notification(t, resendtest.Secret, "n-5", "email.bounced", "Permanent", now.Add(-10*time.Minute), people[3]),
		"of the future":  notification(t, resendtest.Secret, "n-5", "email.bounced", "Permanent", now.Add(10*time.Minute), people[3]),
		"another id":     good.With("Svix-Id", "n-6"),
		"another body":   good.Raw([]byte(strings.Replace(string(good.body), "bounced", "bouncer", 1))),
		"no id":          good.With("Svix-Id", "").Invalid(),
		"no time":        good.With("Svix-Timestamp", "").Invalid(),
		"no signature":   good.With("Svix-Signature", "").Invalid(),
		"empty":          good.Raw(nil).Invalid(),
	} {
		t.Run(name, func(t *testing.T) { o.Do(t, bad).WantError(http.StatusBadRequest, "INVALID_TOKEN") })
	}
	broken := good.Raw([]byte("{"))
	broken = broken.With("Svix-Signature", resendtest.Sign(resendtest.Secret, "n-5", broken.header.Get("Svix-Timestamp"), broken.body))
	o.Do(t, broken.Invalid()).WantError(http.StatusBadRequest, "INVALID_BODY")

	o.Do(t, newBlast(id, nil).As(o.token)).Want(http.StatusOK).WantJSON("recipient_count", 5).WantJSON("failed_count", 2).
		WantJSON("status", "sent")
	for _, p := range people {
		o.join(t, id, address("friend"), Obj{"referred_by_token": refs[p]})
	}
	d.settled(t, id)
	if got := inBoxes(t, box, people...); !slices.Equal(got, []int{0, 0, 2, 2, 2}) {
		t.Errorf("mails %v", got)
	}
}

// testTextMessages checks that referrers with an international phone number get a text message about their referrals, at
// most once an hour.
func testTextMessages(t *testing.T, d *mailing, texts *twiliotest.Server) {
	o := d.owner(t)
	id := o.waitlist(t, Obj{"sms_notify_referrer": true, "phone_field": "optional"})
	last := ""
	for _, p := range []struct{ email, phone string }{
		{address("national"), "030 123456"},
		{address("none"), ""},
		{address("out"), "+4930000001"},
		{address("ada"), "+49 (0)30 123-456"},
		{address("bob"), "+15005550009"},
	} {
		ref := o.join(t, id, p.email, Obj{"phone": p.phone}).Str("referral_token")
		if strings.HasPrefix(p.email, "out") {
			d.optOutByHand(t, o.Client, id, p.email)
		}
		for range 3 {
			o.join(t, id, address("friend"), Obj{"referred_by_token": ref})
		}
		last = ref
	}
	d.settled(t, id)
	var to []string
	for _, m := range texts.Messages() {
		to = append(to, m.To)
		if m.From != "+15005550006" || !strings.Contains(m.Body, "Launch") ||
			(m.To == "+15005550009" && !strings.Contains(m.Body, "/w/"+id+"?ref="+last)) {
			t.Errorf("%+v", m)
		}
	}
	slices.Sort(to)
	if !slices.Equal(to, []string{"+15005550009", "+4930123456"}) {
		t.Errorf("text messages to %v", to)
	}
	if log := d.server.Log(); strings.Contains(log, "30123456") || strings.Contains(log, "5005550009") {
		t.Error("the log contains a phone number")
	}
}
