// Package providertest is the conformance suite for mail providers.
package providertest

import (
	"context"
	"errors"
	"fmt"
	stdmail "net/mail"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"waitlist.internal/services/messaging/mails"
)

// From is the default sender of providers under test.
var From = stdmail.Address{Name: "Wait\"list", Address: "no-reply@example.com"} // a constant, but for its type

// Received is a received mail, decoded.
type Received struct {
	From    stdmail.Address
	To      []string
	Subject string
	Text    string
	HTML    string
	// Header contains the other headers, by canonical name.
	Header map[string]string
}

// Failure is a simulated failure of a provider's server.
type Failure int

// The failures.
const (
	None Failure = iota
	// Refuse makes the server refuse the mail permanently.
	Refuse
	// Busy makes the server report overload or an internal error.
	Busy
	// Credentials makes the server refuse our credentials.
	Credentials
	// Lost makes the server accept the mail without an answer.
	Lost
)

// Fixture is a provider and its server.
type Fixture struct {
	Provider mails.Provider
	// Received returns the received mails.
	Received func() []Received
	// Fail sets the server's failure from now on. It returns false if the server does not support
	// that failure.
	Fail func(Failure) bool
	// Once is set if a mail that is sent again does not arrive again.
	Once bool
	// Secrets must not occur in any error.
	Secrets []string
}

const recipient = "o'hara+x@example.org"

func mail(id string) mails.Mail {
	return mails.Mail{
		ID: id, To: recipient, Subject: "Grüße & <more>", Text: "text\n.\nmöre\n", HTML: "<p>möre</p>\n",
		Date: time.Now().UTC().Truncate(time.Second),
	}
}

// Run tests the providers that open creates, one per test.
func Run(t *testing.T, open func(t *testing.T) Fixture) {
	t.Helper()
	t.Run("a mail arrives as it is", func(t *testing.T) {
		f := open(t)
		for _, tc := range []struct {
			name   string
			change func(*mails.Mail)
		}{
			{"both", func(*mails.Mail) {}},
			{"text", func(m *mails.Mail) { m.HTML = "" }},
			{"html", func(m *mails.Mail) { m.Text = "" }},
			{"unsubscribe", func(m *mails.Mail) {
				m.Unsubscribe = "https://api.example.com/v1/public/waitlists/x/unsubscribe?email=o%27hara%2Bx%40example.org&token=t"
			}},
			{"sender", func(m *mails.Mail) {
				m.From = stdmail.Address{Name: "Käse, GmbH", Address: "no-reply@kunde.example"}
			}},
		} {
			m := mail(tc.name)
			tc.change(&m)
			if err := f.Provider.Send(t.Context(), m); err != nil {
				t.Fatalf("%s: %v", tc.name, err)
			}
			all := f.Received()
			got := all[len(all)-1]
			from := m.From
			if from.Address == "" {
				from = From
			}
			if got.From != from || !slices.Equal(got.To, []string{recipient}) || got.Subject != m.Subject {
				t.Errorf("%s: from %v to %v: %q", tc.name, got.From, got.To, got.Subject)
			}
			if lines(got.Text) != lines(m.Text) || lines(got.HTML) != lines(m.HTML) {
				t.Errorf("%s: text %q, HTML %q", tc.name, got.Text, got.HTML)
			}
			link, post := "", ""
			if m.Unsubscribe != "" {
				link, post = "<"+m.Unsubscribe+">", "List-Unsubscribe=One-Click"
			}
			if got.Header["List-Unsubscribe"] != link || got.Header["List-Unsubscribe-Post"] != post ||
				got.Header["Auto-Submitted"] != "auto-generated" {
				t.Errorf("%s: headers %v", tc.name, got.Header)
			}
		}
	})

	t.Run("nothing is injected", func(t *testing.T) {
		f := open(t)
		for i, change := range []func(*mails.Mail){
			func(m *mails.Mail) { m.Subject = "x\r\nBcc: victim@example.com" },
			func(m *mails.Mail) { m.Subject = "x\n\nbody" },
			func(m *mails.Mail) {
				m.From = stdmail.Address{Name: "x\r\nBcc: victim@example.com", Address: "a@b.example"}
			},
			func(m *mails.Mail) { m.Unsubscribe = "https://a.example/\r\nBcc: victim@example.com" },
		} {
			m := mail(fmt.Sprint("inject", i))
			change(&m)
			err := f.Provider.Send(t.Context(), m)
			if _, refused := errors.AsType[*mails.RefusedError](err); err != nil && !refused {
				t.Errorf("%d: %v", i, err)
			}
			if err != nil {
				continue
			}
			all := f.Received()
			if got := all[len(all)-1]; got.Header["Bcc"] != "" || strings.ContainsAny(got.Subject, "\r\n") ||
				!slices.Equal(got.To, []string{recipient}) || lines(got.Text) != lines(m.Text) {
				t.Errorf("%d: %+v", i, got)
			}
		}
		before := len(f.Received())
		for _, to := range []string{"", "a@b.example\r\nBcc: d@e.example", "a@b.example, d@e.example", "no address"} {
			m := mail("to")
			m.To = to
			if err := f.Provider.Send(t.Context(), m); !refused(err) {
				t.Errorf("%q: %v", to, err)
			}
		}
		if after := len(f.Received()); after != before {
			t.Errorf("%d mails to nobody", after-before)
		}
	})

	t.Run("many at a time", func(t *testing.T) {
		f := open(t)
		var wg sync.WaitGroup
		for i := range 40 {
			wg.Go(func() {
				m := mail(fmt.Sprint("many", i))
				m.To = fmt.Sprintf("p%d@example.org", i)
				if err := f.Provider.Send(t.Context(), m); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		to := map[string]bool{}
		for _, r := range f.Received() {
			to[r.To[0]] = true
		}
		if n := len(f.Received()); n != 40 || len(to) != 40 {
			t.Errorf("%d mails to %d people", n, len(to))
		}
	})

	t.Run("again", func(t *testing.T) {
		f := open(t)
		m := mail("again")
		for i := range 3 {
			// Tokens and dates change from one attempt to the next.
			m.Text += fmt.Sprint(i)
			if err := f.Provider.Send(t.Context(), m); err != nil {
				t.Fatal(err)
			}
		}
		want := 3
		if f.Once {
			want = 1
		}
		got := f.Received()
		if len(got) != want {
			t.Errorf("arrived %d times, want %d", len(got), want)
		}
		for _, r := range got {
			if r.Header["Message-Id"] != got[0].Header["Message-Id"] {
				t.Errorf("other Message-IDs: %q, %q", r.Header["Message-Id"], got[0].Header["Message-Id"])
			}
		}
	})

	t.Run("failures", func(t *testing.T) {
		f := open(t)
		for failure, about := range map[Failure]string{Refuse: "refused", Busy: "later", Credentials: "away", Lost: "later"} {
			if !f.Fail(failure) {
				continue
			}
			before := len(f.Received())
			err := f.Provider.Send(t.Context(), mail(fmt.Sprint("failure", failure)))
			var got string
			switch {
			case err == nil:
				got = "taken"
			case refused(err):
				got = "refused"
			case deferred(err):
				got = "later"
			default:
				got = "away"
			}
			if got != about && (about != "later" || got != "away") {
				t.Errorf("failure %d: %s (%v), want %s", failure, got, err, about)
			}
			for _, s := range append([]string{recipient}, f.Secrets...) {
				if err != nil && strings.Contains(err.Error(), s) {
					t.Errorf("failure %d: the error has %q", failure, s)
				}
			}
			arrived := len(f.Received()) - before
			if (failure == Lost) != (arrived == 1) {
				t.Errorf("failure %d: %d mails", failure, arrived)
			}
			f.Fail(None)
			if err := f.Provider.Send(t.Context(), mail(fmt.Sprint("failure", failure))); err != nil {
				t.Errorf("after failure %d: %v", failure, err)
			}
			want := 1
			if failure == Lost && !f.Once {
				want = 2
			}
			if arrived = len(f.Received()) - before; arrived != want {
				t.Errorf("after failure %d: %d mails, want %d", failure, arrived, want)
			}
		}
	})

	t.Run("an end that comes", func(t *testing.T) {
		f := open(t)
		if !f.Fail(Busy) {
			return
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := f.Provider.Send(ctx, mail("canceled")); err == nil || refused(err) || deferred(err) {
			t.Errorf("a canceled mail: %v", err)
		}
	})

	t.Run("batches", func(t *testing.T) {
		f := open(t)
		if p, ok := f.Provider.(mails.BatchProvider); ok {
			batches(t, f, p)
		}
	})
}

func batches(t *testing.T, f Fixture, p mails.BatchProvider) {
	t.Helper()
	mails := make([]mails.Mail, mails.MaxBatch)
	for i := range mails {
		mails[i] = mail(fmt.Sprint("batch", i))
		mails[i].To = fmt.Sprintf("p%d@example.org", i)
	}
	mails[7].To = "no address"
	check := func(what string, errs []error, arrived int) {
		t.Helper()
		if len(errs) != len(mails) {
			t.Fatalf("%s: %d errors for %d mails", what, len(errs), len(mails))
		}
		for i, err := range errs {
			if i == 7 && !refused(err) || i != 7 && err != nil {
				t.Errorf("%s: mail %d: %v", what, i, err)
			}
		}
		if n := len(f.Received()); n != arrived {
			t.Errorf("%s: %d mails, want %d", what, n, arrived)
		}
	}
	for _, failure := range []Failure{Busy, Credentials, Lost} {
		if !f.Fail(failure) {
			continue
		}
		before := len(f.Received())
		for i, err := range p.SendBatch(t.Context(), "blast:1", mails) {
			if i == 7 != refused(err) || err == nil || deferred(err) {
				t.Errorf("failure %d: mail %d: %v", failure, i, err)
			}
		}
		want := 0
		if failure == Lost {
			want = len(mails) - 1
		}
		if n := len(f.Received()) - before; n != want {
			t.Errorf("failure %d: %d mails", failure, n)
		}
	}
	f.Fail(None)
	check("first", p.SendBatch(t.Context(), "blast:1", mails), len(mails)-1)
	check("again", p.SendBatch(t.Context(), "blast:1", mails), len(mails)-1)
	// Some have opted out since.
	if errs := p.SendBatch(t.Context(), "blast:1", mails[20:]); errors.Join(errs...) != nil {
		t.Error(errs)
	}
	check("shorter", p.SendBatch(t.Context(), "blast:1", mails), len(mails)-1)
	check("another", p.SendBatch(t.Context(), "blast:2", mails), 2*(len(mails)-1))
	if errs := p.SendBatch(t.Context(), "blast:3", nil); len(errs) != 0 {
		t.Error(errs)
	}
}

func refused(err error) bool {
	_, ok := errors.AsType[*mails.RefusedError](err)
	return ok
}

func deferred(err error) bool {
	_, ok := errors.AsType[*mails.DeferredError](err)
	return ok
}

// lines returns s with uniform line breaks and without trailing ones.
func lines(s string) string { return strings.TrimRight(strings.ReplaceAll(s, "\r\n", "\n"), "\n") }
