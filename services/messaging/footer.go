package messaging

import (
	_ "embed" // the texts
	"html"
	"net/url"
	"strings"
	"time"

	"waitlist.internal/libs/token"
)

// footer is what stands under the body of a mail that people may opt out of.
type footer struct {
	Text, HTML string
	// Page is the link in it, OneClick the URL for the header List-Unsubscribe.
	Page, OneClick string
}

// The texts of the footer. They are filled in without a template engine: a blast
// has a footer for each of its mails.
var (
	//go:embed texts/footer.txt
	footerText string
	//go:embed texts/footer.html
	footerHTML string
)

// footer returns the footer of a mail to one signup of a waitlist. Its token is
// good for ever, and the same each time.
func (c *Composer) footer(waitlistID, waitlistName string, number int64, email string) footer {
	f := c.optOut(waitlistID, number, email)
	name := printable(waitlistName)
	f.Text = fillIn(footerText, name, f.Page)
	f.HTML = fillIn(footerHTML, html.EscapeString(name), html.EscapeString(f.Page))
	return f
}

// fillIn puts the link first: it has no braces, as a name may.
func fillIn(text, name, link string) string {
	return strings.Replace(strings.Replace(text, "{{.Link}}", link, 1), "{{.Waitlist}}", name, 1)
}

// optOut returns a footer with its links alone.
func (c *Composer) optOut(waitlistID string, number int64, email string) footer {
	who := param("email", email) + "&" + param("token", c.tokens.Mint(token.Unsubscribe, token.SignupSubject(waitlistID, number), time.Time{}))
	return footer{
		Page:     c.formURL + "/unsubscribe?" + param("waitlist", waitlistID) + "&" + who,
		OneClick: c.apiURL + "/public/waitlists/" + url.PathEscape(waitlistID) + "/unsubscribe?" + who,
	}
}

// under puts the footer under the bodies that m has.
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
