package eml_test

import (
	"bytes"
	"encoding/base64"
	"errors"
	"html"
	"io"
	"mime"
	"mime/multipart"
	"mime/quotedprintable"
	stdmail "net/mail"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"waitlist.internal/libs/mailtext"
	"waitlist.internal/libs/token"
	"waitlist.internal/services/messaging/mails"
	"waitlist.internal/services/messaging/providers/eml"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	eventID    = "0197f0c4-6d0e-7cc1-a2a3-0123456789ab"
	accountID  = "0197f0c4-6d0e-7cc1-a2a3-aaaaaaaaaaaa"
	waitlistID = "0197f0c4-6d0e-7cc1-a2a3-bbbbbbbbbbbb"
)

func now() time.Time { return time.Date(2026, 3, 14, 15, 9, 26, 0, time.UTC) }

func ring(t *testing.T) *token.Ring {
	t.Helper()
	r, err := token.ParseRing("k1:" + base64.StdEncoding.EncodeToString([]byte(strings.Repeat("k", 32))))
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func requests() map[string]mails.Request {
	return map[string]mails.Request{
		"account_verification": {
			EventID: eventID, Kind: mails.AccountVerification, Recipient: "owner@example.com", AccountID: accountID, Generation: 3,
			ExpiresAt: now().Add(24 * time.Hour),
		},
		"password_reset": {
			EventID: eventID, Kind: mails.PasswordReset, Recipient: "owner@example.com", AccountID: accountID, Generation: 7,
			ExpiresAt: now().Add(time.Hour),
		},
		"team_invite": {
			EventID: eventID, Kind: mails.TeamInvite, Recipient: "o'hara+x%y@example.com", AccountID: accountID,
			OwnerEmail: "owner@example.com", Role: "admin",
		},
		"signup_verification": {
			EventID: eventID, Kind: mails.SignupVerification, Recipient: "o'hara+x%y@example.com", WaitlistID: waitlistID,
			WaitlistName: "Käsekuchen & <Friends>", Number: 42,
		},
	}
}

func build(t *testing.T, r mails.Request) []byte {
	t.Helper()
	c, err := mails.NewComposer(ring(t), ring(t), "https://join.example.com/", "https://api.example.com/v1")
	if err != nil {
		t.Fatal(err)
	}
	m, err := c.Compose(r, now())
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

func TestGoldenMails(t *testing.T) {
	update := os.Getenv("UPDATE_GOLDEN") != ""
	for name, r := range requests() {
		t.Run(name, func(t *testing.T) {
			got := bytes.ReplaceAll(build(t, r), []byte("\r\n"), []byte("\n"))
			path := filepath.Join("testdata", name+".eml")
			if update {
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
			if !bytes.Equal(build(t, r), build(t, r)) {
				t.Error("the same mail has different bytes")
			}
		})
	}
}

// parse returns a mail's header and its parts by type.
func parse(t *testing.T, raw []byte) (stdmail.Header, map[string]string) {
	t.Helper()
	m, err := stdmail.ReadMessage(bytes.NewReader(raw))
	if err != nil {
		t.Fatal(err)
	}
	media, params, err := mime.ParseMediaType(m.Header.Get("Content-Type"))
	if err != nil || media != "multipart/alternative" {
		t.Fatalf("content type %q, %v", media, err)
	}
	parts := map[string]string{}
	for r := multipart.NewReader(m.Body, params["boundary"]); ; {
		p, err := r.NextRawPart()
		if errors.Is(err, io.EOF) {
			return m.Header, parts
		}
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(quotedprintable.NewReader(p))
		if err != nil {
			t.Fatal(err)
		}
		media, _, _ := mime.ParseMediaType(p.Header.Get("Content-Type"))
		parts[media] = string(b)
	}
}

func TestTokensInLinksWork(t *testing.T) {
	r := ring(t)
	link := regexp.MustCompile(`https://\S+`)
	for name, req := range requests() {
		_, parts := parse(t, build(t, req))
		links := link.FindAllString(parts["text/plain"], -1)
		for _, l := range links {
			if !strings.Contains(html.UnescapeString(parts["text/html"]), l) {
				t.Errorf("%s: %s is not in the HTML", name, l)
			}
		}
		u, err := url.Parse(links[0])
		if err != nil {
			t.Fatal(err)
		}
		q := u.Query()
		switch req.Kind {
		case mails.AccountVerification, mails.PasswordReset:
			purpose, path := token.VerifyAccount, "/verify-email"
			if req.Kind == mails.PasswordReset {
				purpose, path = token.ResetPassword, "/reset-password"
			}
			id, generation, inner, err := token.ParseAccount(q.Get("token"))
			if err != nil || id != accountID || generation != req.Generation || u.Path != path {
				t.Fatalf("%s: %s %d %v, path %s", name, id, generation, err, u.Path)
			}
			if err := r.Verify(purpose, token.AccountSubject(id, generation), inner, req.ExpiresAt.Add(-time.Second)); err != nil {
				t.Error(name, err)
			}
			if r.Verify(purpose, token.AccountSubject(id, generation), inner, req.ExpiresAt) == nil {
				t.Error(name, "outlives the request")
			}
		case mails.TeamInvite:
			if u.Path != "/login" || q.Get("email") != req.Recipient || len(links) != 1 {
				t.Errorf("%s: %v", name, links)
			}
		case mails.SignupVerification:
			if u.Path != "/verify" || q.Get("waitlist") != waitlistID || q.Get("email") != req.Recipient || len(links) != 1 {
				t.Errorf("%s: %s", name, u)
			}
			if err := r.Verify(token.VerifySignup, token.SignupSubject(waitlistID, 42), q.Get("token"),
				now().Add(mails.SignupTokenTTL-time.Second)); err != nil {
				t.Error(name, err)
			}
		}
	}
}

func TestNamesInjectNothing(t *testing.T) {
	r := requests()["signup_verification"]
	for _, name := range []string{
		"x\r\nBcc: victim@example.com", "x\nBcc: victim@example.com\n\nbody", "x\rBcc: a@b.c", "\u2028\u2029\u0085",
		"=?utf-8?q?=0D=0ABcc:_victim@example.com?=",
		"</title><script>alert(1)</script>", `"><img src=x>`, "--part-" + eventID + "--", "{{.Link}}", strings.Repeat("Ä", 200),
	} {
		r.WaitlistName = name
		header, parts := parse(t, build(t, r))
		if len(header["Bcc"]) > 0 || len(header) != 8 || len(parts) != 2 {
			t.Errorf("%q: header %v, %d parts", name, header, len(parts))
		}
		subject, err := new(mime.WordDecoder).DecodeHeader(header.Get("Subject"))
		if err != nil || strings.ContainsAny(subject, "\r\n") || !strings.HasPrefix(subject, "Confirm your email address for") {
			t.Errorf("%q: subject %q, %v", name, subject, err)
		}
		if strings.Contains(parts["text/html"], "<script") || strings.Contains(parts["text/html"], "<img") {
			t.Errorf("%q: not escaped", name)
		}
	}
}

// Subjects arrive unchanged, except for characters that would break a line.
func TestSubjectsArriveAsTheyAre(t *testing.T) {
	for _, subject := range []string{
		"News", strings.Repeat(" ", 998), " x", strings.Repeat("x", 70) + strings.Repeat(" ", 200) + "y", strings.Repeat("x", 998), "=?",
		"?= =? =", "a =?utf-8?q?=0D=0ABcc:_victim@example.com?= b", strings.Repeat("=?utf-8?b?eA==?= ", 40) + "Ä 😀",
		strings.Repeat("=?😀", 60), "Grüße " + strings.Repeat("ü", 200), "=?utf-8?q?x?=\r\nBcc: victim@example.com",
	} {
		msg, err := eml.Build(mails.Mail{ID: eventID, To: "a@example.org", Subject: subject, Text: "text", Date: now()},
			stdmail.Address{Address: "no-reply@example.com"})
		if err != nil {
			t.Fatal(err)
		}
		var b bytes.Buffer
		if _, err := msg.WriteTo(&b); err != nil {
			t.Fatal(err)
		}
		header, _ := stdparse(t, b.Bytes())
		got, err := new(mime.WordDecoder).DecodeHeader(header.Get("Subject"))
		if want := mailtext.OneLine(subject); err != nil || got != want {
			t.Errorf("%q, %v; want %q", got, err, want)
		}
		if len(header["Bcc"]) > 0 {
			t.Errorf("%q: %v", subject, header)
		}
		for line := range strings.SplitSeq(b.String(), "\r\n") {
			if len(line) > 998 || strings.HasPrefix(line, " =?") && len(line) > 76 {
				t.Errorf("a line of %d characters: %q", len(line), line)
			}
		}
	}
}

func TestInvitationsInjectNothing(t *testing.T) {
	r := requests()["team_invite"]
	for _, tc := range []struct{ role, says string }{{"admin", "read and change them"}, {"viewer", "read them"}, {"<script>", "read them"}} {
		r.Role = tc.role
		_, parts := parse(t, build(t, r))
		for media, text := range parts {
			if !strings.Contains(text, tc.says) || strings.Contains(text, "<script>") {
				t.Errorf("%s: %s says %s", tc.role, media, text)
			}
		}
	}
	// No valid address has these characters, but an event could.
	for _, owner := range []string{
		"x\r\nBcc: victim@example.com", "<script>alert(1)</script>@example.com", `"><img src=x>`, "{{.Link}}",
		"\u2028--part-" + eventID + "--",
	} {
		r.OwnerEmail = owner
		header, parts := parse(t, build(t, r))
		if len(header["Bcc"]) > 0 || len(header) != 8 || len(parts) != 2 {
			t.Errorf("%q: header %v, %d parts", owner, header, len(parts))
		}
		if strings.Contains(parts["text/plain"], "\nBcc") {
			t.Errorf("%q: breaks a line of %s", owner, parts["text/plain"])
		}
		if strings.Contains(parts["text/html"], "<script") || strings.Contains(parts["text/html"], "<img") {
			t.Errorf("%q: not escaped", owner)
		}
	}
}

func TestRecipientsInjectNothing(t *testing.T) {
	for _, to := range []string{"", "a@b.c\r\nBcc: d@e.f", "a@b.c, d@e.f", "no address"} {
		_, err := eml.Build(mails.Mail{ID: eventID, To: to}, stdmail.Address{Address: "no-reply@example.com"})
		if _, ok := errors.AsType[*mails.RefusedError](err); !ok {
			t.Errorf("%q: %v", to, err)
		}
	}
}
