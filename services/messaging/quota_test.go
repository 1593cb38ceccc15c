package messaging_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"waitlist.internal/libs/apierr"
	eventv1 "waitlist.internal/proto/gen/waitlist/event/v1"
	"waitlist.internal/services/messaging"
)

func TestUseWaits(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)
	past := func(pairs ...int64) (out []messaging.PastUse) { // pairs of hours ago and mails
		for i := 0; i < len(pairs); i += 2 {
			out = append(out, messaging.PastUse{At: now.Add(-time.Duration(pairs[i]) * time.Hour), Used: pairs[i+1]})
		}
		return out
	}
	for _, tt := range []struct {
		name string
		n    int64
		past []messaging.PastUse
		wait time.Duration
	}{
		{"the whole quota at once", 100, nil, 0},
		{"exactly the rest", 60, past(20, 30, 1, 10), 0},
		{"the oldest use has to leave", 61, past(20, 30, 1, 10), 4 * time.Hour},
		{"both uses have to leave", 91, past(20, 30, 1, 10), 23 * time.Hour},
		{"more than the quota never fits", 101, past(20, 30), 24 * time.Hour},
		{"more than the quota without uses", 101, nil, 24 * time.Hour},
		{"a wait lasts at least a second", 1, past(24, 100), time.Second},
	} {
		if got := (messaging.Use{N: tt.n, Most: 100}).Wait(tt.past, now); got != tt.wait {
			t.Errorf("%s: got %s, want %s", tt.name, got, tt.wait)
		}
	}
}

// accounts stands in for the account service.
type accounts map[string]messaging.Account

// Account implements messaging.Accounts.
func (a accounts) Account(_ context.Context, id string) (messaging.Account, error) {
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
		limits messaging.Limits
		owner  messaging.Account
		want   string
	}{
		"not verified": {
			messaging.Limits{EnforceVerification: true},
			messaging.Account{},
			"1 offboarding " + unverified + "; 1 referral_milestone " + unverified + "; 1 referral_notification sent ; " +
				"1 signup_confirmation " + unverified,
		},
		"verified": {
			messaging.Limits{EnforceVerification: true},
			messaging.Account{Verified: true},
			"1 offboarding sent ; 1 referral_milestone sent ; 1 referral_notification sent ; 1 signup_confirmation sent ",
		},
		"within the limits": {
			messaging.Limits{MailsPerOwner: 4, MailsOnTrial: 1, MailsPerRecipient: 3},
			messaging.Account{},
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
		limits messaging.Limits
		owner  messaging.Account
		reason string
	}{
		"owner":     {messaging.Limits{MailsPerOwner: 3}, messaging.Account{Trial: true}, usedUp},
		"trial":     {messaging.Limits{MailsPerOwner: 9, MailsOnTrial: 3}, messaging.Account{Trial: true}, usedUp},
		"recipient": {messaging.Limits{MailsPerRecipient: 3}, messaging.Account{}, "the recipient's limit of 3 mails in 24 hours is used up"},
	} {
		t.Run("beyond that of the "+name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.limits = tc.limits
			w.limits.Accounts = accounts{templateOwner: tc.owner}
			// A mail that is tried again counts once.
			w.reply = func(call int, _ messaging.Mail) error {
				if call <= 4 {
					return &messaging.DeferredError{Reason: "later"}
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
		w.limits = messaging.Limits{MailsPerOwner: 3, Accounts: accounts{}}
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
		limits messaging.TextLimits
		trial  bool
		phone  string
		reason string // "" means that the message is sent
	}{
		"named":         {messaging.TextLimits{Countries: []string{"AT", "DE"}}, false, "+49 151 12345678", ""},
		"a landline":    {messaging.TextLimits{Countries: []string{"DE"}}, false, "+49 30 123456", ""},
		"none named":    {messaging.TextLimits{}, false, "+49 151 12345678", country},
		"another":       {messaging.TextLimits{Countries: []string{"DE"}}, false, "+44 7911 123456", country},
		"Canada":        {messaging.TextLimits{Countries: []string{"US"}}, false, "+1 416 555 2671", country},
		"the US":        {messaging.TextLimits{Countries: []string{"US"}}, false, "+1 (415) 555-2671", ""},
		"no country":    {messaging.TextLimits{Countries: []string{"DE", ""}}, false, "+999 1234567", "the phone number does not exist"},
		"premium":       {messaging.TextLimits{Countries: []string{"DE"}}, false, "+49 900 1123456", costly},
		"shared cost":   {messaging.TextLimits{Countries: []string{"DE"}}, false, "+49 180 1123456", costly},
		"trial":         {messaging.TextLimits{Countries: []string{"DE"}}, true, "+49 151 12345678", trial},
		"trials may":    {messaging.TextLimits{Countries: []string{"DE"}, OnTrial: true}, true, "+49 151 12345678", ""},
		"within limits": {messaging.TextLimits{Countries: []string{"DE"}, PerOwner: 1, PerPrefix: 1}, false, "+49 151 12345678", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.people[1].Phone = tc.phone
			w.limits = messaging.Limits{Texts: &tc.limits, Accounts: accounts{templateOwner: {Trial: tc.trial}}}
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
			c.reply = func(_ int, m messaging.Mail) error {
				c.mu.Lock()
				defer c.mu.Unlock()
				if tries[m.ID]++; tries[m.ID] == 1 && m.To == person(1) {
					return &messaging.DeferredError{Reason: "later"}
				}
				return nil
			}
			var provider messaging.Provider = c
			if batches {
				c.reply = nil
				once := &onceProvider{crowd: c, keys: map[string]int{}, lose: func(call int) bool { return call%2 == 1 }}
				provider = once
			}
			c.start(provider)
			for range 2 {
				c.ended(c.create(few), messaging.BlastSent, 2, 1)
			}
			c.ended(c.create(all), messaging.BlastSent, 150, 2)
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
	c.ended(c.create(c.list(300)), messaging.BlastSent, 300, 100)
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
	b := c.owners(func(cfg *messaging.BlastsConfig) { cfg.Limits.MailsPerOwner = 5 })
	out, _, err := b.Create(t.Context(), news(list, ""))
	if err != nil || out.State != messaging.BlastQueued {
		t.Fatalf("%+v, %v", out, err)
	}
	c.mu.Lock()
	for i := range int64(4000) {
		c.people[list][i+4] = true
	}
	c.mu.Unlock()
	c.start(c)
	c.ended(out.ID, messaging.BlastSent, 3, 0)
	c.once(3)
	if _, _, err := b.Create(t.Context(), news(list, "")); code(err) != apierr.RateLimited {
		t.Errorf("the second blast: %v", err)
	}
}
