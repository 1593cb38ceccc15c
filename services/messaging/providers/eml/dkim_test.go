package eml_test

import (
	"bytes"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/base64"
	stdmail "net/mail"
	"strings"
	"testing"

	"github.com/emersion/go-msgauth/dkim"

	"waitlist.internal/services/messaging/domains"
	"waitlist.internal/services/messaging/mails"
	"waitlist.internal/services/messaging/providers/eml"
)

func TestSignaturesVerify(t *testing.T) {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	public, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		t.Fatal(err)
	}
	verify := func(raw []byte) ([]*dkim.Verification, error) {
		return dkim.VerifyWithOptions(bytes.NewReader(raw), &dkim.VerifyOptions{LookupTXT: func(name string) ([]string, error) {
			if name != "w1._domainkey.customer.example" {
				t.Errorf("looked up %s", name)
			}
			return []string{"v=DKIM1; k=rsa; p=" + base64.StdEncoding.EncodeToString(public)}, nil
		}})
	}
	for name, change := range map[string]func(*mails.Mail){
		"both":        func(*mails.Mail) {},
		"text":        func(m *mails.Mail) { m.HTML = "" },
		"html":        func(m *mails.Mail) { m.Text = "" },
		"unsubscribe": func(m *mails.Mail) { m.Unsubscribe = "https://api.example.com/" + strings.Repeat("x", 400) },
		"strange":     func(m *mails.Mail) { m.Subject, m.Text = strings.Repeat("Ä  ", 200), "\n\n.\n \n\n\r\n" },
		"long":        func(m *mails.Mail) { m.HTML = strings.Repeat("<p>ö</p>\r\n", 50_000) },
	} {
		m := mails.Mail{
			ID: eventID, To: "a@example.org", Subject: "Grüße", Text: "text\n", HTML: "<p>html</p>", Date: now(),
			From: stdmail.Address{Name: "Käse", Address: "no-reply@customer.example"},
			DKIM: &domains.DKIM{Domain: "customer.example", Selector: "w1", Key: key},
		}
		change(&m)
		msg, err := eml.Build(m, stdmail.Address{Address: "no-reply@example.com"})
		if err != nil {
			t.Fatal(name, err)
		}
		var b bytes.Buffer
		if _, err := msg.WriteTo(&b); err != nil {
			t.Fatal(name, err)
		}
		first := b.Bytes()
		got, err := verify(first)
		if err != nil || len(got) != 1 || got[0].Err != nil || got[0].Domain != "customer.example" {
			t.Fatalf("%s: %+v, %v\n%.600s", name, *got[0], err, first)
		}
		for _, signed := range []string{
			"From", "To", "Subject", "Date", "Message-ID", "Content-Type", "List-Unsubscribe",
			"List-Unsubscribe-Post",
		} {
			if !containsFold(got[0].HeaderKeys, signed) {
				t.Errorf("%s: %s is not signed", name, signed)
			}
		}
		// A second Subject or a changed body invalidates the signature.
		for what, forged := range map[string][]byte{
			"header": append([]byte("Subject: other\r\n"), first...),
			"body":   bytes.Replace(first, []byte("\r\n\r\n"), []byte("\r\n\r\nother "), 1),
			"sender": bytes.Replace(first, []byte("From: "), []byte("From: \"x\" <x@y.example>, "), 1),
		} {
			if got, err := verify(forged); err == nil && len(got) == 1 && got[0].Err == nil {
				t.Errorf("%s: another %s verifies", name, what)
			}
		}
	}
}

func containsFold(list []string, s string) bool {
	for _, e := range list {
		if strings.EqualFold(e, s) {
			return true
		}
	}
	return false
}
