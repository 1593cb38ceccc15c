// Package eml writes mails in their Internet format (RFC 5322, MIME): what the
// SMTP and the folder provider have in common.
package eml

import (
	"fmt"
	stdmail "net/mail"
	"strings"
	"time"

	"github.com/wneessen/go-mail"

	"waitlist.internal/services/messaging"
)

// ParseFrom reads a sender, with or without a display name.
func ParseFrom(s string) (stdmail.Address, error) {
	a, err := stdmail.ParseAddress(s)
	if err != nil || !strings.Contains(a.Address, "@") {
		return stdmail.Address{}, fmt.Errorf("sender %q is no address", s)
	}
	return *a, nil
}

// Build returns m as a text part, an HTML part, or both as alternatives, signed if
// it has a key. from sends what has no sender of its own. The same mail has the same
// Message-ID and bytes. The error is a *messaging.RefusedError.
func Build(m messaging.Mail, from stdmail.Address) (*mail.Msg, error) {
	// The id is random, and younger than whatever the body shows.
	msg := mail.NewMsg(mail.WithNoDefaultUserAgent(), mail.WithBoundary("part-"+m.ID))
	// What cannot be delivered comes back to us, in whose name the mail is.
	msg.EnvelopeFromMailAddress(&from)
	sender := m.From
	if sender == (stdmail.Address{}) {
		sender = from
	}
	msg.FromMailAddress(&sender)
	if err := msg.To(m.To); err != nil {
		// The library's error repeats the address.
		return nil, &messaging.RefusedError{Reason: "the recipient is no address"}
	}
	// The library encodes line breaks, but would let words pass that are encoded
	// already, and that may hold some.
	msg.Subject(strings.ReplaceAll(m.Subject, "=?", "= ?"))
	// Not by the sender: that may change until the mail is sent again.
	msg.SetMessageIDWithValue(m.ID + "@" + from.Address[strings.LastIndexByte(from.Address, '@')+1:])
	msg.SetDateWithValue(m.Date.UTC())
	// RFC 3834: nobody's out-of-office is to answer.
	msg.SetGenHeader("Auto-Submitted", "auto-generated")
	if m.Unsubscribe != "" {
		if strings.ContainsFunc(m.Unsubscribe, func(r rune) bool { return r <= ' ' || r > '~' || r == '<' || r == '>' }) {
			return nil, &messaging.RefusedError{Reason: "the unsubscribe link is no URL"}
		}
		// The library's own way refuses http, which development machines have.
		msg.SetListUnsubscribe(m.Unsubscribe)
		// Nor is its way here taken: it writes two such headers in any order.
		msg.SetGenHeader(mail.HeaderListUnsubscribePost, "List-Unsubscribe=One-Click")
	}
	switch {
	case m.HTML == "":
		msg.SetBodyString(mail.TypeTextPlain, m.Text)
	case m.Text == "":
		msg.SetBodyString(mail.TypeTextHTML, m.HTML)
	default:
		msg.SetBodyString(mail.TypeTextPlain, m.Text)
		msg.AddAlternativeString(mail.TypeTextHTML, m.HTML)
	}
	if m.DKIM != nil {
		msg.SetDKIM(signer(m))
	}
	return msg, nil
}

// signer signs all that mail programs show or act upon. RFC 8058 asks for the
// List-Unsubscribe headers; the headers that are named once more cannot be added.
func signer(m messaging.Mail) *mail.DKIMSigner {
	s := mail.NewDKIMSigner(m.DKIM.Domain, m.DKIM.Selector, m.DKIM.Key)
	s.NowFunc = func() time.Time { return m.Date }
	s.SignHeaders("From", "To", "Subject", "Date", "Message-ID", "MIME-Version", "Content-Type", "List-Unsubscribe", "List-Unsubscribe-Post")
	s.OversignHeaders("From", "To", "Subject", "Date")
	return s
}
