package messaging

import (
	"fmt"
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

// footer returns the footer of a mail to one signup of a waitlist. Its token is
// good for ever, and the same each time.
func (c *Composer) footer(waitlistID, waitlistName string, number int64, email string) (footer, error) {
	f := c.optOut(waitlistID, number, email)
	v := values{Waitlist: printable(waitlistName), Link: f.Page}
	var text, html strings.Builder
	if err := c.text.ExecuteTemplate(&text, "footer.txt", v); err != nil {
		return footer{}, fmt.Errorf("write footer: %w", err)
	}
	if err := c.html.ExecuteTemplate(&html, "footer.html", v); err != nil {
		return footer{}, fmt.Errorf("write footer: %w", err)
	}
	f.Text, f.HTML = text.String(), html.String()
	return f, nil
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
