// Package mailtext has the rules for the texts of mails that owners write.
package mailtext

import (
	"fmt"
	"strings"
	"unicode"

	"waitlist.internal/libs/body"
)

const (
	// maxSubject is in code points, maxBody in bytes.
	maxSubject = 998
	maxBody    = 512 << 10
)

// Subject reads the subject of a mail from a field of a request's body, like body.Object.String. It reports
// one that is blank, has more than one line or is longer than 998 code points as an error of the field.
func Subject(in *body.Object, field string) (subject string, present bool) {
	subject, present = in.String(field, maxSubject)
	switch {
	case !present:
	case strings.TrimSpace(subject) == "":
		in.Fail(field, "This field is required.")
	case subject != OneLine(subject):
		in.Fail(field, "This must not contain line breaks or other control characters.")
	}
	return subject, present
}

// Body is Subject for the HTML or the text of a mail, which has at most 512 KiB.
func Body(in *body.Object, field string) (text string, present bool) {
	if text, present = in.String(field, 0); len(text) > maxBody {
		in.Fail(field, fmt.Sprintf("This must have at most %d bytes.", maxBody))
	}
	return text, present
}

// OneLine replaces line breaks and other control characters by blanks.
func OneLine(s string) string {
	return strings.Map(func(r rune) rune {
		// U+2028 and U+2029 are line breaks, too.
		if unicode.IsControl(r) || r == '\u2028' || r == '\u2029' {
			return ' '
		}
		return r
	}, s)
}

// Short shortens a name to 40 code points on one line, for display in a message.
func Short(name string) string {
	const most = 40
	if r := []rune(name); len(r) > most {
		name = string(r[:most]) + "…"
	}
	return OneLine(name)
}
