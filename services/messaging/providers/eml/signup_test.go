package eml_test

import (
	"bytes"
	"fmt"
	"html"
	"io"
	"mime"
	"mime/quotedprintable"
	stdmail "net/mail"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"waitlist.internal/libs/token"
	"waitlist.internal/services/messaging/mails"
	"waitlist.internal/services/messaging/providers/eml"
	"waitlist.internal/services/messaging/templates"
)

// letter is a mail about a signup, with its inputs.
type letter struct {
	request  mails.Request
	about    mails.Mailing
	template templates.Template
}

func letters() map[string]letter {
	const all = "{{email}} {{first_name}} {{last_name}} {{position}} {{referral_count}} {{referral_link}} {{waitlist_name}} " +
		"{{unsubscribe_url}} {{milestone}}"
	request := func(kind mails.Kind) mails.Request {
		return mails.Request{EventID: eventID, Kind: kind, WaitlistID: waitlistID, Number: 42, Recipient: "o'hara+x%y@example.com"}
	}
	about := mails.Mailing{
		OwnerID: accountID, WaitlistName: "Käsekuchen & <Friends>", Pro: true,
		Signup: &mails.Person{
			Email: "o'hara+x%y@example.com", FirstName: "Söhnke <b>", LastName: `O'Hara "&"`, Position: 1017, ReferralCount: 5,
			ReferralToken: "0123456789abcdef0123456789abcdef",
		},
	}
	hidden := about
	hidden.Signup = &mails.Person{Email: about.Signup.Email, ReferralToken: about.Signup.ReferralToken, ReferralCount: 1}
	milestone := request(mails.ReferralMilestone)
	milestone.Milestone = 5
	offboarding := request(mails.Offboarding)
	offboarding.FirstName, offboarding.LastName = about.Signup.FirstName, about.Signup.LastName
	return map[string]letter{
		"referral_notification":        {request: request(mails.ReferralNotification), about: about},
		"referral_notification_hidden": {request: request(mails.ReferralNotification), about: hidden},
		"signup_link":                  {request: request(mails.SignupLink), about: about},
		"referral_milestone": {milestone, about, templates.Template{
			Type: templates.Milestone, Subject: "{{milestone}} friends, {{first_name}}!",
			HTML: "<html><body><p>" + all + "</p>\n<a href=\"{{referral_link}}\">share</a></body></html>", Text: all + "\n",
		}},
		"signup_confirmation": {request(mails.SignupConfirmation), about, templates.Template{
			Type: templates.Confirmation, Subject: "Welcome to {{waitlist_name}}",
			HTML: "<p>" + strings.ReplaceAll(all, " {{milestone}}", "") + "</p>", Text: "Hello {{first_name}}.",
		}},
		"signup_confirmation_text": {request(mails.SignupConfirmation), hidden, templates.Template{
			Type: templates.Confirmation, Subject: "Welcome", Text: "Hello {{first_name}}, number {{position}}.",
		}},
		"offboarding": {offboarding, mails.Mailing{OwnerID: accountID, WaitlistName: about.WaitlistName, Pro: true}, templates.Template{
			Type: templates.Offboarding, Subject: "Goodbye {{first_name}}",
			HTML: "<p>" + strings.ReplaceAll(all, " {{milestone}}", "") + "</p>",
		}},
	}
}

func composer(t *testing.T) *mails.Composer {
	t.Helper()
	c, err := mails.NewComposer(ring(t), ring(t), "https://join.example.com/", "https://api.example.com/v1")
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func (l letter) build(t *testing.T) []byte {
	t.Helper()
	var m mails.Mail
	var err error
	if l.template.Type == "" {
		m, err = composer(t).ComposeForSignup(l.request, l.about, now())
	} else {
		m, err = composer(t).ComposeTemplate(l.request, l.about, l.template, now())
	}
	if err != nil {
		t.Fatal(err)
	}
	from, err := eml.ParseFrom("Waitlist <no-reply@mail.example.com>")
	if err != nil {
		t.Fatal(err)
	}
	msg, err := eml.Build(m, from)
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	if _, err := msg.WriteTo(&b); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// golden compares a mail with a file in testdata, or writes the file if UPDATE_GOLDEN is set.
func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	got = bytes.ReplaceAll(got, []byte("\r\n"), []byte("\n"))
	path := filepath.Join("testdata", name)
	if os.Getenv("UPDATE_GOLDEN") != "" {
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("differs from %s; UPDATE_GOLDEN=1 writes it anew. Got:\n%s", path, got)
	}
}

func TestGoldenSignupMails(t *testing.T) {
	for name, l := range letters() {
		t.Run(name, func(t *testing.T) {
			golden(t, name+".eml", l.build(t))
			if !bytes.Equal(l.build(t), l.build(t)) {
				t.Error("the same mail has different bytes")
			}
		})
	}
}

func TestGoldenTrialEnding(t *testing.T) {
	golden(t, "trial_ending.eml", build(t, mails.Request{
		EventID: eventID, Kind: mails.TrialEnding, Recipient: "o'hara+x%y@example.com", AccountID: accountID,
		ExpiresAt: now().Add(24 * time.Hour),
	}))
}

func TestGoldenSMS(t *testing.T) {
	l := letters()["referral_notification"]
	l.about.Signup.Phone = "+49 (0)151 123-45678"
	l.about.WaitlistName = strings.Repeat("long ", 30) + "\r\n"
	m, err := composer(t).ComposeSMS(l.request, l.about)
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "sms.txt", fmt.Appendf(nil, "%s to %s: %s\n", m.ID, m.To, m.Text))
}

// The links in the footer and in the header opt out this signup and no other.
func TestUnsubscribeLinks(t *testing.T) {
	r := ring(t)
	page := regexp.MustCompile(`https://join\.example\.com/unsubscribe\?[^\s"]+`)
	for name, l := range letters() {
		header, parts := stdparse(t, l.build(t))
		one, post := header.Get("List-Unsubscribe"), header.Get("List-Unsubscribe-Post")
		marketing := name == "referral_milestone" || strings.HasPrefix(name, "referral_notification")
		if !marketing && name != "offboarding" {
			if one != "" || post != "" {
				t.Errorf("%s: has %s, %s", name, one, post)
			}
			continue
		}
		if post != "List-Unsubscribe=One-Click" || !strings.HasPrefix(one,
			"<https://api.example.com/v1/public/waitlists/"+waitlistID+"/unsubscribe?") {
			t.Errorf("%s: %s, %s", name, one, post)
		}
		links := []string{strings.Trim(one, "<>")}
		for media, text := range parts {
			found := page.FindAllString(html.UnescapeString(text), -1)
			if len(found) > 0 != marketing { // the other bodies are all the owner's
				t.Errorf("%s: %d links in %s", name, len(found), media)
			}
			links = append(links, found...)
		}
		for i, link := range links {
			u, err := url.Parse(link)
			if err != nil {
				t.Fatal(err)
			}
			q := u.Query()
			if q.Get("email") != l.request.Recipient || i > 0 && q.Get("waitlist") != waitlistID {
				t.Errorf("%s: %s", name, link)
			}
			if err := r.Verify(token.Unsubscribe, token.SignupSubject(waitlistID, 42), q.Get("token"), now().AddDate(50, 0, 0)); err != nil {
				t.Errorf("%s: %s: %v", name, link, err)
			}
			if r.Verify(token.Unsubscribe, token.SignupSubject(waitlistID, 43), q.Get("token"), now()) == nil {
				t.Errorf("%s: %s is good for somebody else", name, link)
			}
		}
	}
}

// Names that people choose cannot break a header, a line of the footer or a tag.
func TestSignupsInjectNothing(t *testing.T) {
	for name, l := range letters() {
		clean, cleanParts := stdparse(t, l.build(t))
		for _, evil := range []string{
			"x\r\nBcc: victim@example.com", "x\n\nbody", "\u2028\u2029\u0085", "=?utf-8?q?=0D=0ABcc:_victim@example.com?=",
			"</title><script>alert(1)</script>", `"><img src=x>`, "{{email}}", "{{.Link}}",
		} {
			l.about.WaitlistName, l.request.FirstName, l.request.LastName = evil, evil, evil
			if p := l.about.Signup; p != nil {
				mine := *p
				mine.FirstName, mine.LastName = evil, evil
				l.about.Signup = &mine
			}
			header, parts := stdparse(t, l.build(t))
			if len(header) != len(clean) || len(parts) != len(cleanParts) || len(header["Bcc"]) > 0 {
				t.Errorf("%s, %q: header %v, %d parts", name, evil, header, len(parts))
			}
			if h := parts["text/html"]; strings.Contains(h, "<script") || strings.Contains(h, "<img") {
				t.Errorf("%s, %q: not escaped", name, evil)
			}
		}
	}
}

// stdparse is parse, also for mails with one body.
func stdparse(t *testing.T, raw []byte) (stdmail.Header, map[string]string) {
	t.Helper()
	m, err := stdmail.ReadMessage(bytes.NewReader(raw))
	if err != nil {
		t.Fatal(err)
	}
	media, _, err := mime.ParseMediaType(m.Header.Get("Content-Type"))
	if err != nil {
		t.Fatal(err)
	}
	if media == "multipart/alternative" {
		return parse(t, raw)
	}
	b, err := io.ReadAll(quotedprintable.NewReader(m.Body))
	if err != nil {
		t.Fatal(err)
	}
	return m.Header, map[string]string{media: string(b)}
}
