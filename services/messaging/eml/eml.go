// Package eml writes mails in their Internet format (RFC 5322, MIME): what the
// SMTP and the folder provider have in common.
package eml

import (
	"fmt"
	stdmail "net/mail"
	"strings"

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

// Build returns m from a sender, as a text part with an HTML alternative. The same mail
// has the same Message-ID and bytes. The error is a *messaging.RefusedError.
func Build(m messaging.Mail, from stdmail.Address) (*mail.Msg, error) {
	// The id is random, and younger than whatever the body shows.
	msg := mail.NewMsg(mail.WithNoDefaultUserAgent(), mail.WithBoundary("part-"+m.ID))
	msg.FromMailAddress(&from)
	if err := msg.To(m.To); err != nil {
		// The library's error repeats the address.
		return nil, &messaging.RefusedError{Reason: "the recipient is no address"}
	}
	// The library encodes line breaks, but would let words pass that are encoded
	// already, and that may hold some.
	msg.Subject(strings.ReplaceAll(m.Subject, "=?", "= ?"))
	msg.SetMessageIDWithValue(m.ID + "@" + from.Address[strings.LastIndexByte(from.Address, '@')+1:])
	msg.SetDateWithValue(m.Date.UTC())
	// RFC 3834: nobody's out-of-office is to answer.
	msg.SetGenHeader("Auto-Submitted", "auto-generated")
	msg.SetBodyString(mail.TypeTextPlain, m.Text)
	msg.AddAlternativeString(mail.TypeTextHTML, m.HTML)
	return msg, nil
}
