package messaging

import (
	"embed"
	"fmt"
	htmltemplate "html/template"
	"net/url"
	"strings"
	texttemplate "text/template"
	"time"
	"unicode"

	"waitlist.internal/libs/token"
)

// SignupTokenTTL is how long the link of a signup's verification mail works.
const SignupTokenTTL = 48 * time.Hour

//go:embed texts
var texts embed.FS

// Composer writes the mails: built-in texts with links.
type Composer struct {
	tokens  *token.Ring
	formURL string
	apiURL  string
	text    *texttemplate.Template
	html    *htmltemplate.Template
}

// NewComposer returns a Composer whose links lead to the pages under formURL and
// to the API under apiURL (which ends in /v1).
func NewComposer(tokens *token.Ring, formURL, apiURL string) (*Composer, error) {
	c := &Composer{tokens: tokens}
	var err error
	if c.formURL, err = baseURL(formURL); err != nil {
		return nil, fmt.Errorf("public form URL: %w", err)
	}
	if c.apiURL, err = baseURL(apiURL); err != nil {
		return nil, fmt.Errorf("public API URL: %w", err)
	}
	if c.text, err = texttemplate.ParseFS(texts, "texts/*.txt"); err != nil {
		return nil, fmt.Errorf("mail texts: %w", err)
	}
	if c.html, err = htmltemplate.ParseFS(texts, "texts/*.html"); err != nil {
		return nil, fmt.Errorf("mail texts: %w", err)
	}
	return c, nil
}

// baseURL checks an absolute http(s) URL and cuts its trailing slashes.
func baseURL(s string) (string, error) {
	u, err := url.Parse(s)
	if err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" || u.RawQuery != "" || u.Fragment != "" {
		return "", fmt.Errorf("%q is no absolute http(s) URL", s)
	}
	return strings.TrimRight(s, "/"), nil
}

// values are what the texts show.
type values struct {
	Subject  string
	Waitlist string
	Owner    string
	Admin    bool
	Link     string
	APILink  string
	Until    string
}

// Compose writes the mail that r asks for, with tokens minted at now.
func (c *Composer) Compose(r Request, now time.Time) (Mail, error) {
	v := values{Waitlist: printable(r.WaitlistName), Owner: printable(r.OwnerEmail), Admin: r.Role == "admin"}
	until := r.ExpiresAt
	switch r.Kind {
	case AccountVerification:
		v.Subject = "Confirm your email address"
		v.Link = c.formURL + "/verify-email?" + param("token", c.tokens.MintAccount(token.VerifyAccount, r.AccountID, r.Generation, r.ExpiresAt))
	case PasswordReset:
		v.Subject = "Reset your password"
		v.Link = c.formURL + "/reset-password?" + param("token", c.tokens.MintAccount(token.ResetPassword, r.AccountID, r.Generation, r.ExpiresAt))
	case SignupVerification:
		until = now.Add(SignupTokenTTL)
		tok := c.tokens.Mint(token.VerifySignup, token.SignupSubject(r.WaitlistID, r.Number), until)
		v.Subject = "Confirm your email address for " + v.Waitlist
		v.Link = c.formURL + "/verify?" + param("waitlist", r.WaitlistID) + "&" + param("email", r.Recipient) + "&" + param("token", tok)
		v.APILink = c.apiURL + "/public/waitlists/" + url.PathEscape(r.WaitlistID) + "/signups/" + url.PathEscape(r.Recipient) + "/verify?" + param("token", tok)
	case TeamInvite:
		v.Subject = "Invitation to a team"
		v.Link = c.formURL + "/login?" + param("email", r.Recipient)
	default:
		return Mail{}, fmt.Errorf("no text for mails of kind %q", r.Kind)
	}
	v.Until = until.UTC().Format("2 January 2006, 15:04 UTC")
	var text, html strings.Builder
	if err := c.text.ExecuteTemplate(&text, string(r.Kind)+".txt", v); err != nil {
		return Mail{}, fmt.Errorf("write %s: %w", r.Kind, err)
	}
	if err := c.html.ExecuteTemplate(&html, string(r.Kind)+".html", v); err != nil {
		return Mail{}, fmt.Errorf("write %s: %w", r.Kind, err)
	}
	return Mail{ID: r.EventID, To: r.Recipient, Subject: v.Subject, Text: text.String(), HTML: html.String(), Date: now}, nil
}

// param encodes one parameter of a query.
func param(name, value string) string { return name + "=" + url.QueryEscape(value) }

// printable puts blanks in place of line breaks and other control characters.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		// U+2028 and U+2029 break lines as well.
		if unicode.IsControl(r) || r == '\u2028' || r == '\u2029' {
			return ' '
		}
		return r
	}, s)
}
