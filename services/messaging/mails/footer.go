package mails

import (
	_ "embed" // the texts
	"html"
	"net/url"
	"strings"
	"time"

	"waitlist.internal/libs/mailtext"
	"waitlist.internal/libs/token"
)

// The texts of the footer. They do without a template engine for speed: every mail of a blast has
// a footer of its own.
var (
	//go:embed texts/footer.txt
	footerText string
	//go:embed texts/footer.html
	footerHTML string
)

// WithFooter returns a mail to a signup with the footer of mails that people can opt out of, below the bodies that it has. Its
// token never expires and is the same each time.
func (c *Composer) WithFooter(m Mail, waitlistID, waitlistName string, number int64) Mail {
	page, oneClick := c.optOut(waitlistID, number, m.To)
	name := mailtext.OneLine(waitlistName)
	if m.Text != "" {
		m.Text += fillIn(footerText, name, page)
	}
	if m.HTML != "" {
		m.HTML += fillIn(footerHTML, html.EscapeString(name), html.EscapeString(page))
	}
	m.Unsubscribe = oneClick
	return m
}

// fillIn inserts the link first, because the name may contain braces and the link cannot.
func fillIn(text, name, link string) string {
	return strings.Replace(strings.Replace(text, "{{.Link}}", link, 1), "{{.Waitlist}}", name, 1)
}

// optOut returns the link in the texts, and the URL for the List-Unsubscribe header.
func (c *Composer) optOut(waitlistID string, number int64, email string) (page, oneClick string) {
	tok := c.signups.Mint(token.Unsubscribe, token.SignupSubject(waitlistID, number), time.Time{})
	who := param("email", email) + "&" + param("token", tok)
	return c.formURL + "/unsubscribe?" + param("waitlist", waitlistID) + "&" + who,
		c.apiURL + "/public/waitlists/" + url.PathEscape(waitlistID) + "/unsubscribe?" + who
}
