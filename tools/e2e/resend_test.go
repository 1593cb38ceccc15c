package e2e

import (
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"waitlist.internal/services/messaging/resendtest"
	"waitlist.internal/services/messaging/twiliotest"
)

// testResend: mails, domains and bounces with Resend as the mail provider, and
// text messages by Twilio.
func (s *suite) testResend(t *testing.T) {
	var away atomic.Bool
	api := &resendtest.Server{APIKey: "re_key", Fail: func(*http.Request) *resendtest.Failure {
		if away.Load() {
			return &resendtest.Failure{Status: http.StatusServiceUnavailable, Name: "application_error"}
		}
		return nil
	}}
	mails := httptest.NewServer(api)
	t.Cleanup(mails.Close)
	phones := &twiliotest.Server{AccountSID: "AC01", AuthToken: "token"}
	texts := httptest.NewServer(phones)
	t.Cleanup(texts.Close)
	names := newNameServer(t)
	d := s.deploy(t, map[string]string{
		"MAIL_PROVIDER": "resend", "MAIL_FROM": "Waitlist <no-reply@waitlist.example>", "RESEND_API_KEY": api.APIKey, "RESEND_URL": mails.URL,
		"RESEND_WEBHOOK_SECRETS": resendtest.Secret, "DNS_RESOLVER": names.addr,
		"SMS_PROVIDER": "twilio", "TWILIO_ACCOUNT_SID": phones.AccountSID, "TWILIO_AUTH_TOKEN": phones.AuthToken, "TWILIO_FROM": "+12025550123", "TWILIO_URL": texts.URL,
	})
	to := func(address string) (got []resendtest.Email) {
		for _, m := range api.Emails() {
			if slices.Contains(m.To, address) {
				got = append(got, m)
			}
		}
		return got
	}

	t.Run("domains and blasts", func(t *testing.T) {
		o := d.owner(t)
		id := o.waitlist(t, nil)
		ada, bob := address("ada"), address("bob")
		o.join(t, id, ada)
		o.join(t, id, bob)
		name := domainName()
		records := o.claim(t, name)
		names.publish(t, records)
		o.check(t, name, "pending")
		api.SetStatus(name, "verified")
		o.check(t, name, "verified")
		o.Do(t, newBlast(id, Obj{"html_body": "<p>Hi"}).As(o.token)).Want(http.StatusOK).WantJSON("status", "sent").WantJSON("recipient_count", 2).WantJSON("failed_count", 0)
		for _, who := range []string{ada, bob} {
			if got := to(who); len(got) != 1 || got[0].From != `"Waitlist" <no-reply@`+name+`>` || got[0].Key == "" || got[0].Headers["List-Unsubscribe-Post"] != "List-Unsubscribe=One-Click" {
				t.Errorf("to %s: %+v", who, got)
			}
		}
		if first, second := to(ada), to(bob); first[0].Key != second[0].Key {
			t.Errorf("not in one batch: %q, %q", first[0].Key, second[0].Key)
		}
		// Somebody's mailbox has gone: Resend says so, and nothing is sent there again.
		d.tell(t, "email.bounced", "Permanent", resendtest.Secret, http.StatusNoContent, bob)
		d.tell(t, "email.bounced", "Transient", resendtest.Secret, http.StatusNoContent, ada)
		d.tell(t, "email.complained", "", "whsec_bm90IG91cnMgYXQgYWxsLCBidXQgbG9uZyBlbm91Z2g=", http.StatusBadRequest, ada)
		o.Do(t, newBlast(id, nil).As(o.token)).Want(http.StatusOK).WantJSON("status", "sent").WantJSON("recipient_count", 2).WantJSON("failed_count", 1)
		if a, b := len(to(ada)), len(to(bob)); a != 2 || b != 1 {
			t.Errorf("%d mails to Ada, %d to Bob", a, b)
		}
		away.Store(true)
		defer away.Store(false)
		o.Do(t, newDomain(domainName()).As(o.token)).WantError(http.StatusBadGateway, "EXTERNAL_SERVICE_ERROR")
		o.Do(t, domainStatus(name).As(o.token)).WantError(http.StatusBadGateway, "EXTERNAL_SERVICE_ERROR")
		o.Do(t, Delete("/domains/"+name).As(o.token)).WantError(http.StatusBadGateway, "EXTERNAL_SERVICE_ERROR")
		if got := o.domains(t); !slices.Equal(got, []string{name + " verified"}) {
			t.Errorf("domains %v", got)
		}
		away.Store(false)
		o.Do(t, Delete("/domains/"+name).As(o.token)).Want(http.StatusNoContent)
		if _, ok := api.Domains()[name]; ok {
			t.Error("Resend still has the domain")
		}
	})

	t.Run("an account that goes", func(t *testing.T) {
		o := d.owner(t)
		name := domainName()
		o.claim(t, name)
		o.Do(t, Delete("/auth/me").As(o.token)).Want(http.StatusNoContent)
		Await(t, 2*mailTimeout, "Resend forgets the domain", func() bool { _, ok := api.Domains()[name]; return !ok })
	})

	t.Run("text messages", func(t *testing.T) {
		o := d.owner(t)
		id := o.waitlist(t, Obj{"sms_notify_referrer": true, "phone_field": "optional"})
		const number = "+4915112345678"
		referral := o.join(t, id, address("ada"), Obj{"phone": number}).Str("referral_token")
		o.join(t, id, address("bob"), Obj{"referred_by_token": referral})
		Await(t, mailTimeout, "a text message", func() bool { return len(phones.Messages()) > 0 })
		if got := phones.Messages()[0]; got.To != number || got.From != "+12025550123" || !strings.Contains(got.Body, "Launch") {
			t.Errorf("%+v", got)
		}
	})
}

// tell sends a notification of the mail provider.
func (d *deployment) tell(t *testing.T, event, bounce, secret string, want int, to ...string) {
	t.Helper()
	r, err := resendtest.Notification(d.server.URL+basePath+"/domains/notifications/resend", secret, address("msg"), event, bounce, time.Now(), to...)
	if err != nil {
		t.Fatal(err)
	}
	res, err := http.DefaultClient.Do(r.WithContext(t.Context()))
	if err != nil {
		t.Fatal(err)
	}
	_ = res.Body.Close()
	if res.StatusCode != want {
		t.Errorf("%s: %d, want %d", event, res.StatusCode, want)
	}
}
