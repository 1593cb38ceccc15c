package mails

import (
	"strings"

	"golang.org/x/net/html"
	"golang.org/x/net/html/atom"
)

// PlainText returns the text part of a mail that has HTML only: programs that show no HTML
// need one, and filters count its absence against a sender. Links and the descriptions of
// pictures stay. It is "" if the HTML shows no text.
func PlainText(source string) string {
	var out plain
	var link string // the target of the open link
	var from int    // where its text begins
	for z := html.NewTokenizer(strings.NewReader(source)); z.Next() != html.ErrorToken; {
		switch t := z.Token(); t.Type {
		case html.TextToken:
			if out.skipped == 0 {
				out.text(t.Data)
			}
		case html.StartTagToken, html.SelfClosingTagToken:
			out.lines(t.DataAtom)
			switch t.DataAtom {
			case atom.Style, atom.Script, atom.Title, atom.Textarea:
				// The tokenizer takes everything up to the end tag for one text.
				out.skipped = t.DataAtom
			case atom.Br:
				out.br++
			case atom.Li:
				out.text("- ")
			case atom.Td, atom.Th:
				out.blank = true
			case atom.Img:
				out.text(attr(t, "alt"))
			case atom.A:
				link, from = attr(t, "href"), out.b.Len()
			}
		case html.EndTagToken:
			out.lines(t.DataAtom)
			switch t.DataAtom {
			case out.skipped:
				out.skipped = 0
			case atom.A:
				shown := out.b.String()[min(from, out.b.Len()):]
				if address := strings.TrimPrefix(link, "mailto:"); strings.Contains(link, ":") && !strings.Contains(shown, address) {
					out.text(" (" + address + ")")
				}
				link = ""
			}
		}
	}
	return out.b.String()
}

func attr(t html.Token, name string) string {
	for _, a := range t.Attr {
		if a.Key == name {
			return strings.TrimSpace(a.Val)
		}
	}
	return ""
}

// plain is a text that is being written.
type plain struct {
	b strings.Builder
	// skipped is the element whose content is not shown.
	skipped atom.Atom
	// br counts the line ends before the next word, blank says that a blank stands there.
	br    int
	blank bool
}

// text writes the words of s, on one line.
func (p *plain) text(s string) {
	for word := range strings.FieldsSeq(s) {
		i := strings.Index(s, word)
		p.blank = p.blank || i > 0
		s = s[i+len(word):]
		switch {
		case p.b.Len() == 0:
		case p.br > 0:
			p.b.WriteString(strings.Repeat("\n", min(p.br, 2)))
		case p.blank:
			p.b.WriteByte(' ')
		}
		p.br, p.blank = 0, false
		p.b.WriteString(word)
	}
	p.blank = p.blank || s != ""
}

// lines ends the line, or the paragraph, where an element begins or ends.
func (p *plain) lines(element atom.Atom) {
	switch element {
	case atom.P, atom.H1, atom.H2, atom.H3, atom.H4, atom.H5, atom.H6, atom.Table, atom.Ul, atom.Ol, atom.Dl,
		atom.Blockquote, atom.Pre, atom.Hr:
		p.br = max(p.br, 2)
	case atom.Div, atom.Li, atom.Tr, atom.Dt, atom.Dd, atom.Section, atom.Article, atom.Header, atom.Footer, atom.Center, atom.Body:
		p.br = max(p.br, 1)
	}
}
