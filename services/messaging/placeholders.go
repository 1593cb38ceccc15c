package messaging

import (
	"html"
	"strings"
)

// maxRendered bounds a rendered text, in bytes: short placeholders of long
// values, thousands of times, would make a mail that no server takes.
const maxRendered = 8 << 20

// Variables are the values of a template's placeholders by name. One that is
// not there renders as nothing.
type Variables map[string]string

// variable reports whether templates of a type have a variable of that name.
func (t TemplateType) variable(name string) bool {
	switch name {
	case "email", "first_name", "last_name", "position", "referral_count", "referral_link", "waitlist_name", "unsubscribe_url":
		return true
	case "milestone":
		return t == MilestoneTemplate
	}
	return false
}

// piece is a part of a template's subject or body.
type piece struct {
	// source is the part as it was written.
	source string
	// variable is the name within a placeholder; empty: source is literal text.
	variable string
}

// cut takes a text with {{variable}} placeholders apart. problem says what is
// wrong with it, in the words of a validation error; names are not judged.
func cut(text string) (pieces []piece, problem string) {
	for text != "" {
		literal, rest, found := strings.Cut(text, "{{")
		if literal != "" {
			pieces = append(pieces, piece{source: literal})
		}
		if !found {
			break
		}
		inner, after, closed := strings.Cut(rest, "}}")
		name := strings.TrimSpace(inner)
		switch {
		case !closed:
			return nil, "has a placeholder that is not closed"
		case name == "":
			return nil, "has an empty placeholder"
		}
		pieces = append(pieces, piece{source: "{{" + inner + "}}", variable: name})
		text = after
	}
	return pieces, ""
}

// render puts values into a text, each through escape. ok is false where the
// text is none of cut's, or the result is longer than maxRendered.
func render(text string, vars Variables, escape func(string) string) (out string, ok bool) {
	pieces, problem := cut(text)
	if problem != "" {
		return "", false
	}
	var b strings.Builder
	for _, p := range pieces {
		if p.variable == "" {
			b.WriteString(p.source)
		} else {
			b.WriteString(escape(vars[p.variable]))
		}
		if b.Len() > maxRendered {
			return "", false
		}
	}
	return b.String(), true
}

// Render returns the subject and the bodies of t with values; a body that t has
// not is empty. Values are escaped in HTML, and break no line of a subject. ok is
// false where the result would be too long.
func (t Template) Render(vars Variables) (subject, text, htm string, ok bool) {
	asIs := func(s string) string { return s }
	subject, subjectOK := render(t.Subject, vars, asIs)
	text, textOK := render(t.Text, vars, asIs)
	htm, htmlOK := render(t.HTML, vars, html.EscapeString)
	return printable(subject), text, htm, subjectOK && textOK && htmlOK
}
