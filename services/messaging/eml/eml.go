// Package eml writes mails in their Internet format (RFC 5322, MIME): what the
// SMTP and the folder provider have in common.
package eml

import (
	"encoding/base64"
	"errors"
	"fmt"
	stdmail "net/mail"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/emersion/go-msgauth/dkim"
	"github.com/wneessen/go-mail"

	"waitlist.internal/services/messaging"
)

// signature is the header of a DKIM signature.
const signature = "DKIM-Signature"

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
// Message-ID and bytes, but for its signature and the order of its headers. The error is a
// *messaging.RefusedError.
func Build(m messaging.Mail, from stdmail.Address) (*mail.Msg, error) {
	// The id is random, and younger than whatever the body shows.
	msg := mail.NewMsg(mail.WithNoDefaultUserAgent(), mail.WithBoundary("part-"+m.ID))
	// What cannot be delivered comes back to us, in whose name the mail is.
	msg.EnvelopeFromMailAddress(&from)
	sender := m.From
	if sender == (stdmail.Address{}) {
		sender = from
	}
	sender.Name = OneLine(sender.Name)
	msg.FromMailAddress(&sender)
	if err := msg.To(m.To); err != nil {
		// The library's error repeats the address.
		return nil, &messaging.RefusedError{Reason: "the recipient is no address"}
	}
	if subject := OneLine(m.Subject); plain(subject) {
		msg.Subject(subject)
	} else {
		msg.SetGenHeaderPreformatted(mail.HeaderSubject, encodedWords(subject))
	}
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
		if err := sign(msg, *m.DKIM); err != nil {
			return nil, &messaging.RefusedError{Reason: err.Error()}
		}
	}
	return msg, nil
}

// plain reports whether the library writes a header's text so that readers get
// the same, but for a blank at the end: a name that is missing leaves one. It lets
// words pass that look encoded already, folds at any blank, and does not break words.
func plain(s string) bool {
	const most = 70 // characters of a word
	for word := range strings.SplitSeq(strings.TrimSuffix(s, " "), " ") {
		if word == "" || len(word) > most {
			return s == ""
		}
	}
	return !strings.Contains(s, "=?")
}

// encodedWords writes s as encoded words (RFC 2047), whatever is in it. Readers
// join them.
func encodedWords(s string) string {
	const most = 45 // bytes that fit into one word of 75 characters
	var words []string
	for s != "" {
		n := 0
		for _, r := range s {
			if n+utf8.RuneLen(r) > most {
				break
			}
			n += utf8.RuneLen(r)
		}
		words = append(words, "=?utf-8?b?"+base64.StdEncoding.EncodeToString([]byte(s[:n]))+"?=")
		s = s[n:]
	}
	return strings.Join(words, mail.SingleNewLine+" ")
}

// OneLine puts blanks in place of line breaks and other control characters.
func OneLine(s string) string {
	return strings.Map(func(r rune) rune {
		// U+2028 and U+2029 break lines as well.
		if unicode.IsControl(r) || r == '\u2028' || r == '\u2029' {
			return ' '
		}
		return r
	}, s)
}

// sign adds a signature of all that mail programs show or act upon. The library's
// own breaks long lists of headers, and so its signature.
func sign(msg *mail.Msg, key messaging.DKIM) error {
	signer, err := dkim.NewSigner(&dkim.SignOptions{
		Domain: key.Domain, Selector: key.Selector, Signer: key.Key,
		HeaderCanonicalization: dkim.CanonicalizationRelaxed, BodyCanonicalization: dkim.CanonicalizationRelaxed,
		// Those that are named once more than they are there cannot be added. RFC 8058
		// asks for the List-Unsubscribe headers.
		HeaderKeys: []string{
			"From", "From", "To", "To", "Subject", "Subject", "Date", "Date", "Message-ID", "MIME-Version", "Content-Type", "List-Unsubscribe", "List-Unsubscribe-Post",
		},
	})
	if err != nil {
		return fmt.Errorf("sign the mail: %w", err)
	}
	_, err = msg.WriteTo(signer)
	if err := errors.Join(err, signer.Close()); err != nil {
		return fmt.Errorf("sign the mail: %w", err)
	}
	value := strings.TrimSuffix(strings.TrimPrefix(signer.Signature(), signature+": "), "\r\n")
	msg.SetGenHeaderPreformatted(signature, value)
	return nil
}
