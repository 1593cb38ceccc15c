// Package eml writes mails in the Internet message format (RFC 5322, MIME), for the SMTP and maildir
// providers.
package eml

import (
	"encoding/base64"
	"errors"
	"fmt"
	stdmail "net/mail"
	"strings"
	"unicode/utf8"

	"github.com/emersion/go-msgauth/dkim"
	"github.com/wneessen/go-mail"

	"waitlist.internal/libs/mailtext"
	"waitlist.internal/services/messaging/domains"
	"waitlist.internal/services/messaging/mails"
)

// signature is the name of the DKIM header.
const signature = "DKIM-Signature"

// ParseFrom parses a sender, with or without a display name.
func ParseFrom(s string) (stdmail.Address, error) {
	a, err := stdmail.ParseAddress(s)
	if err != nil || !strings.Contains(a.Address, "@") {
		return stdmail.Address{}, fmt.Errorf("%q is not a sender address", s)
	}
	return *a, nil
}

// Build returns m as a text part, an HTML part, or both as alternatives, signed if it has a key. from is
// the sender of mails without one. The same mail always has the same Message-ID and bytes, except for
// its signature and the order of its headers. The error is a *mails.RefusedError.
func Build(m mails.Mail, from stdmail.Address) (*mail.Msg, error) {
	// The id is random and newer than the content, so the body cannot contain the boundary.
	msg := mail.NewMsg(mail.WithNoDefaultUserAgent(), mail.WithBoundary("part-"+m.ID))
	// Bounces go to the default sender, whatever the mail's own sender is.
	msg.EnvelopeFromMailAddress(&from)
	sender := m.From
	if sender == (stdmail.Address{}) {
		sender = from
	}
	sender.Name = mailtext.OneLine(sender.Name)
	msg.FromMailAddress(&sender)
	if err := msg.To(m.To); err != nil {
		// The library's error contains the address, which must not be logged.
		return nil, &mails.RefusedError{Reason: "the recipient is not an address"}
	}
	if subject := mailtext.OneLine(m.Subject); plain(subject) {
		msg.Subject(subject)
	} else {
		msg.SetGenHeaderPreformatted(mail.HeaderSubject, encodedWords(subject))
	}
	// The Message-ID does not depend on the sender, which may change before the mail is sent again.
	msg.SetMessageIDWithValue(m.ID + "@" + from.Address[strings.LastIndexByte(from.Address, '@')+1:])
	msg.SetDateWithValue(m.Date.UTC())
	// RFC 3834: suppress automatic replies.
	msg.SetGenHeader("Auto-Submitted", "auto-generated")
	if m.Unsubscribe != "" {
		if strings.ContainsFunc(m.Unsubscribe, func(r rune) bool { return r <= ' ' || r > '~' || r == '<' || r == '>' }) {
			return nil, &mails.RefusedError{Reason: "the unsubscribe link is not a URL"}
		}
		// The library's one-click function refuses http URLs, which development machines use, and
		// writes the two headers in random order.
		msg.SetListUnsubscribe(m.Unsubscribe)
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
			return nil, &mails.RefusedError{Reason: err.Error()}
		}
	}
	return msg, nil
}

// plain reports whether the library writes a header's text so that readers get it back unchanged, except
// for a trailing blank, which an empty name at its end leaves. The library does not encode words that
// already look encoded, folds at every blank, and does not break words.
func plain(s string) bool {
	const most = 70 // characters per word
	for word := range strings.SplitSeq(strings.TrimSuffix(s, " "), " ") {
		if word == "" || len(word) > most {
			return s == ""
		}
	}
	return !strings.Contains(s, "=?")
}

// encodedWords writes any s as encoded words (RFC 2047), which readers join.
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

// sign adds a signature over everything that mail programs show or act upon. The mail library's own
// signing breaks long lists of headers and thereby the signature.
func sign(msg *mail.Msg, key domains.DKIM) error {
	signer, err := dkim.NewSigner(&dkim.SignOptions{
		Domain: key.Domain, Selector: key.Selector, Signer: key.Key,
		HeaderCanonicalization: dkim.CanonicalizationRelaxed, BodyCanonicalization: dkim.CanonicalizationRelaxed,
		// Naming a header once more than it occurs prevents its addition on the way. RFC 8058
		// requires a signature over the List-Unsubscribe headers.
		HeaderKeys: []string{
			"From", "From", "To", "To", "Subject", "Subject", "Date", "Date", "Message-ID", "MIME-Version", "Content-Type",
			"List-Unsubscribe", "List-Unsubscribe-Post",
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
