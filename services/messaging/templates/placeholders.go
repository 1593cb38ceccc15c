package templates

import (
	"html"
	"strings"

	"waitlist.internal/libs/mailtext"
)

// maxRendered limits a rendered text, in bytes. Thousands of short placeholders with long values
// would otherwise make a mail that no server accepts.
const maxRendered = 8 << 20

// Variables are the values of a template's placeholders by name. A missing one renders as nothing.
type Variables map[string]string

// variable reports whether templates of a type have a variable called name.
func (t Type) variable(name string) bool {
	switch name {
	case "email", "first_name", "last_name", "position", "referral_count", "referral_link", "waitlist_name", "unsubscribe_url":
		return true
	case "milestone":
		return t == Milestone
	}
	return false
}

// piece is a part of a template's subject or body.
type piece struct {
	// source is the part as the owner wrote it.
	source string
	// variable is the name in a placeholder; it is empty if source is literal text.
	variable string
}

// cut splits a text at its {{variable}} placeholders. problem is the validation message if the
// text is malformed. cut does not check the names of variables.
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
			return nil, "Close every placeholder with }}."
		case name == "":
			return nil, "Write the name of a variable between {{ and }}."
		}
		pieces = append(pieces, piece{source: "{{" + inner + "}}", variable: name})
		text = after
	}
	return pieces, ""
}

// render replaces the placeholders of a text by escaped values. ok is false if the text is
// malformed or the result is longer than maxRendered.
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

// Render returns the subject and the bodies of t with their values; a body that t does not have
// stays empty. Values are escaped in HTML, and cannot break the line of a subject. ok is false if
// the result is too long.
func (t Template) Render(vars Variables) (subject, text, htm string, ok bool) {
	asIs := func(s string) string { return s }
	subject, subjectOK := render(t.Subject, vars, asIs)
	text, textOK := render(t.Text, vars, asIs)
	htm, htmlOK := render(t.HTML, vars, html.EscapeString)
	return mailtext.OneLine(subject), text, htm, subjectOK && textOK && htmlOK
}
