package messaging

import (
	_ "embed" // the texts
	"html"
	"net/url"
	"strings"
	"time"

	"waitlist.internal/libs/mailtext"
	"waitlist.internal/libs/token"
)

// footer is the end of a mail that people can opt out of.
type footer struct {
	Text, HTML string
	// Page is the link in the texts, OneClick the URL for the List-Unsubscribe header.
	Page, OneClick string
}

// The texts of the footer. They do without a template engine for speed: every mail of a blast has
// a footer of its own.
var (
	//go:embed texts/footer.txt
	footerText string
	//go:embed texts/footer.html
	footerHTML string
)

// footer returns the footer of a mail to a signup. Its token never expires and is the same each
// time.
func (c *Composer) footer(waitlistID, waitlistName string, number int64, email string) footer {
	f := c.optOut(waitlistID, number, email)
	name := mailtext.OneLine(waitlistName)
	f.Text = fillIn(footerText, name, f.Page)
	f.HTML = fillIn(footerHTML, html.EscapeString(name), html.EscapeString(f.Page))
	return f
}

// fillIn inserts the link first, because the name may contain braces and the link cannot.
func fillIn(text, name, link string) string {
	return strings.Replace(strings.Replace(text, "{{.Link}}", link, 1), "{{.Waitlist}}", name, 1)
}

// optOut returns a footer with links only.
func (c *Composer) optOut(waitlistID string, number int64, email string) footer {
	tok := c.signups.Mint(token.Unsubscribe, token.SignupSubject(waitlistID, number), time.Time{})
	who := param("email", email) + "&" + param("token", tok)
	return footer{
		Page:     c.formURL + "/unsubscribe?" + param("waitlist", waitlistID) + "&" + who,
		OneClick: c.apiURL + "/public/waitlists/" + url.PathEscape(waitlistID) + "/unsubscribe?" + who,
	}
}

// under appends the footer to the bodies that m has.
func (f footer) under(m Mail) Mail {
	if m.Text != "" {
		m.Text += f.Text
	}
	if m.HTML != "" {
		m.HTML += f.HTML
	}
	m.Unsubscribe = f.OneClick
	return m
}
