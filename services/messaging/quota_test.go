package messaging_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"waitlist.internal/libs/apierr"
	eventv1 "waitlist.internal/proto/gen/waitlist/event/v1"
	"waitlist.internal/services/messaging/blasts"
	"waitlist.internal/services/messaging/mails"
)

// accounts stands in for the account service.
type accounts map[string]mails.Account

// Account implements mails.Accounts.
func (a accounts) Account(_ context.Context, id string) (mails.Account, error) {
	account, ok := a[id]
	if !ok {
		return account, apierr.NotFoundf("There is no such account.")
	}
	return account, nil
}

// reasons returns how many of a world's mails ended in which way.
func (w *world) reasons() string {
	w.Helper()
	var out string
	if err := w.pool.QueryRow(w.Context(), `
		SELECT coalesce(string_agg(s, '; ' ORDER BY s), '') FROM (
			SELECT count(*) || ' ' || kind || ' ' || state || ' ' || error AS s FROM sent_mail GROUP BY kind, state, error) ends`,
	).Scan(&out); err != nil {
		w.Fatal(err)
	}
	return out
}

// What an owner writes goes out within the limits of the owner and of the recipient, whatever kind of mail it is.
func TestLimitsOfMails(t *testing.T) {
	t.Parallel()
	const unverified = "canceled the owner's address is not verified"
	for name, tc := range map[string]struct {
		limits mails.Limits
		owner  mails.Account
		want   string
	}{
		"not verified": {
			mails.Limits{EnforceVerification: true},
			mails.Account{},
			"1 offboarding " + unverified + "; 1 referral_milestone " + unverified + "; 1 referral_notification sent ; " +
				"1 signup_confirmation " + unverified,
		},
		"verified": {
			mails.Limits{EnforceVerification: true},
			mails.Account{Verified: true},
			"1 offboarding sent ; 1 referral_milestone sent ; 1 referral_notification sent ; 1 signup_confirmation sent ",
		},
		"within the limits": {
			mails.Limits{MailsPerOwner: 4, MailsOnTrial: 1, MailsPerRecipient: 3},
			mails.Account{},
			"1 offboarding sent ; 1 referral_milestone sent ; 1 referral_notification sent ; 1 signup_confirmation sent ",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.limits = tc.limits
			w.limits.Accounts = accounts{templateOwner: tc.owner}
			removed := removedEvent(eventv1.RemovalReason_REMOVAL_REASON_ADMIN, true)
			removed.GetSignupRemoved().Number, removed.GetSignupRemoved().Email = 9, "nine@example.com"
			w.events(createdEvent(false, true), creditedEvent(true, false, 5), removed)
			w.start()
			w.ended(4)
			if got := w.reasons(); got != tc.want {
				t.Errorf("%s\nwant %s", got, tc.want)
			}
		})
	}
	const usedUp = "the owner's limit of 3 mails in 24 hours is used up"
	for name, tc := range map[string]struct {
		limits mails.Limits
		owner  mails.Account
		reason string
	}{
		"owner":     {mails.Limits{MailsPerOwner: 3}, mails.Account{Trial: true}, usedUp},
		"trial":     {mails.Limits{MailsPerOwner: 9, MailsOnTrial: 3}, mails.Account{Trial: true}, usedUp},
		"recipient": {mails.Limits{MailsPerRecipient: 3}, mails.Account{}, "the recipient's limit of 3 mails in 24 hours is used up"},
	} {
		t.Run("beyond that of the "+name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.limits = tc.limits
			w.limits.Accounts = accounts{templateOwner: tc.owner}
			// A mail that is tried again counts once.
			w.reply = func(call int, _ mails.Mail) error {
				if call <= 4 {
					return &mails.DeferredError{Reason: "later"}
				}
				return nil
			}
			for range 5 {
				w.events(createdEvent(false, true))
			}
			w.start()
			w.ended(5)
			if got, want := w.reasons(), "2 signup_confirmation canceled "+tc.reason+"; 3 signup_confirmation sent "; !strings.HasPrefix(got, want) {
				t.Errorf("%s\nwant %s", got, want)
			}
		})
	}
	t.Run("the account has gone", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		w.limits = mails.Limits{MailsPerOwner: 3, Accounts: accounts{}}
		w.events(createdEvent(false, true))
		w.start()
		w.ended(1)
		if got := w.reasons(); got != "1 signup_confirmation canceled the owner's account was deleted" {
			t.Error(got)
		}
	})
}

// Text messages go to ordinary numbers of the named countries.
func TestLimitsOfTexts(t *testing.T) {
	t.Parallel()
	const (
		country = "no text messages go to the country of the phone number"
		costly  = "the phone number costs more than an ordinary one"
		trial   = "a trial does not include text messages"
	)
	for name, tc := range map[string]struct {
		limits mails.TextLimits
		trial  bool
		phone  string
		reason string // "" means that the message is sent
	}{
		"named":         {mails.TextLimits{Countries: []string{"AT", "DE"}}, false, "+49 151 12345678", ""},
		"a landline":    {mails.TextLimits{Countries: []string{"DE"}}, false, "+49 30 123456", ""},
		"none named":    {mails.TextLimits{}, false, "+49 151 12345678", country},
		"another":       {mails.TextLimits{Countries: []string{"DE"}}, false, "+44 7911 123456", country},
		"Canada":        {mails.TextLimits{Countries: []string{"US"}}, false, "+1 416 555 2671", country},
		"the US":        {mails.TextLimits{Countries: []string{"US"}}, false, "+1 (415) 555-2671", ""},
		"no country":    {mails.TextLimits{Countries: []string{"DE", ""}}, false, "+999 1234567", "the phone number does not exist"},
		"premium":       {mails.TextLimits{Countries: []string{"DE"}}, false, "+49 900 1123456", costly},
		"shared cost":   {mails.TextLimits{Countries: []string{"DE"}}, false, "+49 180 1123456", costly},
		"trial":         {mails.TextLimits{Countries: []string{"DE"}}, true, "+49 151 12345678", trial},
		"trials may":    {mails.TextLimits{Countries: []string{"DE"}, OnTrial: true}, true, "+49 151 12345678", ""},
		"within limits": {mails.TextLimits{Countries: []string{"DE"}, PerOwner: 1, PerPrefix: 1}, false, "+49 151 12345678", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.people[1].Phone = tc.phone
			w.limits = mails.Limits{Texts: &tc.limits, Accounts: accounts{templateOwner: {Trial: tc.trial}}}
			w.events(creditedEvent(false, true, 0))
			w.start()
			w.ended(1)
			want := "1 sms sent "
			if tc.reason != "" {
				want = "1 sms canceled " + tc.reason
			}
			if got := w.reasons(); got != want || len(w.sms) > 0 != (tc.reason == "") {
				t.Errorf("%s, %d messages; want %s", got, len(w.sms), want)
			}
		})
	}
}

// Mails of a blast that would be too many for their recipients fail. Batches that are tried again count once.
func TestLimitOfRecipientsOfBlasts(t *testing.T) {
	t.Parallel()
	for _, batches := range []bool{false, true} {
		t.Run(fmt.Sprintf("batches %v", batches), func(t *testing.T) {
			t.Parallel()
			c := newCrowd(t)
			c.limits.MailsPerRecipient = 2
			c.suppressed[person(2)] = true
			few, all := c.list(2), c.list(150)
			tries := map[string]int{}
			c.reply = func(_ int, m mails.Mail) error {
				c.mu.Lock()
				defer c.mu.Unlock()
				if tries[m.ID]++; tries[m.ID] == 1 && m.To == person(1) {
					return &mails.DeferredError{Reason: "later"}
				}
				return nil
			}
			var provider mails.Provider = c
			if batches {
				c.reply = nil
				once := &onceProvider{crowd: c, keys: map[string]int{}, lose: func(call int) bool { return call%2 == 1 }}
				provider = once
			}
			c.start(provider)
			for range 2 {
				c.ended(c.create(few), blasts.Sent, 2, 1)
			}
			c.ended(c.create(all), blasts.Sent, 150, 2)
			if got := c.received(); got[person(1)] != 2 || got[person(2)] != 0 || got[person(150)] != 1 {
				t.Errorf("mails %v", got)
			}
		})
	}
}

// The addresses of one mailbox count as one person, within a batch and over all of them.
func TestLimitOfPersonsInABlast(t *testing.T) {
	t.Parallel()
	c := newCrowd(t)
	c.limits.MailsPerRecipient = 50
	c.email = func(n int64) string {
		if n%2 == 0 {
			return person(n)
		}
		return fmt.Sprintf("a.da+%d@gmail.com", n)
	}
	c.start(c)
	c.ended(c.create(c.list(300)), blasts.Sent, 300, 100)
	others, mails := 0, 0
	for to, n := range c.received() {
		if mails += n; !strings.HasPrefix(to, "a.da+") {
			others += n
		}
	}
	if others != 150 || mails-others != 50 {
		t.Errorf("%d mails to one person, %d to 150 others", mails-others, others)
	}
}

// People who come onto the list after the request are beyond what was counted towards the owner's limit.
func TestAPlanHasWhatWasCounted(t *testing.T) {
	t.Parallel()
	c := newCrowd(t)
	list := c.list(3)
	b := c.owners(func(cfg *blasts.Config) { cfg.Limits.MailsPerOwner = 5 })
	out, _, err := b.Create(t.Context(), news(list, ""))
	if err != nil || out.State != blasts.Queued {
		t.Fatalf("%+v, %v", out, err)
	}
	c.mu.Lock()
	for i := range int64(4000) {
		c.people[list][i+4] = true
	}
	c.mu.Unlock()
	c.start(c)
	c.ended(out.ID, blasts.Sent, 3, 0)
	c.once(3)
	if _, _, err := b.Create(t.Context(), news(list, "")); code(err) != apierr.RateLimited {
		t.Errorf("the second blast: %v", err)
	}
}
