package mails

import (
	"embed"
	"errors"
	"fmt"
	htmltemplate "html/template"
	"net/url"
	"strconv"
	"strings"
	texttemplate "text/template"
	"time"

	"waitlist.internal/libs/mailtext"
	"waitlist.internal/libs/token"
	"waitlist.internal/services/messaging/templates"
)

// SignupTokenTTL is how long the link in a signup's verification mail works.
const SignupTokenTTL = 48 * time.Hour

//go:embed texts
var texts embed.FS

// Composer composes mails and text messages from built-in texts and owners' templates.
type Composer struct {
	signups  *token.Ring
	accounts *token.Ring
	formURL  string
	apiURL   string
	text     *texttemplate.Template
	html     *htmltemplate.Template
}

// NewComposer returns a Composer whose links lead to the pages below formURL and the API at apiURL,
// which ends in /v1. The tokens of signups and accounts come from rings of their own.
func NewComposer(signups, accounts *token.Ring, formURL, apiURL string) (*Composer, error) {
	c := &Composer{signups: signups, accounts: accounts}
	var err error
	if c.formURL, err = baseURL(formURL); err != nil {
		return nil, fmt.Errorf("parse public form URL: %w", err)
	}
	if c.apiURL, err = baseURL(apiURL); err != nil {
		return nil, fmt.Errorf("parse public API URL: %w", err)
	}
	if c.text, err = texttemplate.ParseFS(texts, "texts/*.txt"); err != nil {
		return nil, fmt.Errorf("parse mail texts: %w", err)
	}
	if c.html, err = htmltemplate.ParseFS(texts, "texts/*.html"); err != nil {
		return nil, fmt.Errorf("parse mail texts: %w", err)
	}
	return c, nil
}

// baseURL validates an absolute http(s) URL and trims its trailing slashes.
func baseURL(s string) (string, error) {
	u, err := url.Parse(s)
	if err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" || u.RawQuery != "" || u.Fragment != "" {
		return "", fmt.Errorf("%q is not an absolute http(s) URL", s)
	}
	return strings.TrimRight(s, "/"), nil
}

// dateFormat is how mails show times, in UTC.
const dateFormat = "2 January 2006, 15:04 UTC"

// values are the values that the built-in texts show.
type values struct {
	Subject  string
	Waitlist string
	Owner    string
	Admin    bool
	Link     string
	// ForgotLink leads to the page that requests a password reset.
	ForgotLink string
	Until      string
	// At is the time of the event that the mail reports.
	At string
	// For mails to referrers. FirstName may be empty; Position is 0 if positions are hidden.
	FirstName string
	Position  int64
	Referrals int64
}

// Compose composes account mails and signup verifications, with tokens minted at now.
func (c *Composer) Compose(r Request, now time.Time) (Mail, error) {
	v := values{Waitlist: mailtext.OneLine(r.WaitlistName), Owner: mailtext.OneLine(r.OwnerEmail), Admin: r.Role == "admin"}
	until := r.ExpiresAt
	switch r.Kind {
	case AccountVerification:
		v.Subject = "Confirm your email address"
		tok := c.accounts.MintAccount(token.VerifyAccount, r.AccountID, r.Generation, r.ExpiresAt)
		v.Link = c.formURL + "/verify-email?" + param("token", tok)
		v.ForgotLink = c.formURL + "/forgot-password?" + param("email", r.Recipient)
	case PasswordReset:
		v.Subject = "Reset your password"
		tok := c.accounts.MintAccount(token.ResetPassword, r.AccountID, r.Generation, r.ExpiresAt)
		v.Link = c.formURL + "/reset-password?" + param("token", tok)
	case PasswordChanged:
		v.Subject = "Your password was changed"
		v.ForgotLink = c.formURL + "/forgot-password?" + param("email", r.Recipient)
	case PasswordRecovered:
		v.Subject = "Your password was reset"
		v.ForgotLink = c.formURL + "/forgot-password?" + param("email", r.Recipient)
	case APIKeyChanged:
		v.Subject = "Your API key was replaced"
		v.ForgotLink = c.formURL + "/forgot-password?" + param("email", r.Recipient)
	case SignupVerification:
		until = now.Add(SignupTokenTTL)
		tok := c.signups.Mint(token.VerifySignup, token.SignupSubject(r.WaitlistID, r.Number), until)
		v.Subject = "Confirm your email address for " + v.Waitlist
		v.Link = c.formURL + "/verify?" + param("waitlist", r.WaitlistID) + "&" + param("email", r.Recipient) + "&" + param("token", tok)
	case TeamInvite:
		v.Subject = "Invitation to a team"
		v.Link = c.formURL + "/login?" + param("email", r.Recipient)
	case TrialEnding:
		v.Subject = "Your trial is about to end"
		v.Link = c.formURL + "/login?" + param("email", r.Recipient)
	default:
		return Mail{}, fmt.Errorf("no text for mails of kind %q", r.Kind)
	}
	v.Until, v.At = until.UTC().Format(dateFormat), r.RequestedAt.UTC().Format(dateFormat)
	m := Mail{ID: r.EventID, To: r.Recipient, Subject: v.Subject, Date: now}
	err := c.execute(&m, string(r.Kind), v)
	return m, err
}

// ComposeForSignup composes the mail that tells a referrer about a new referral, or a signup about its place and link.
// Only the first has a footer, because recipients asked for the second.
func (c *Composer) ComposeForSignup(r Request, about Mailing, now time.Time) (Mail, error) {
	p := about.Signup
	v := values{
		Waitlist: mailtext.OneLine(about.WaitlistName), FirstName: mailtext.OneLine(p.FirstName),
		Position: p.Position, Referrals: p.ReferralCount, Link: c.referralLink(r.WaitlistID, p),
	}
	v.Subject = "Somebody joined " + v.Waitlist + " through your link"
	if r.Kind == SignupLink {
		v.Subject = "Your place and your link for " + v.Waitlist
	}
	m := Mail{ID: r.EventID, To: r.Recipient, Subject: v.Subject, Date: now}
	if err := c.execute(&m, string(r.Kind), v); err != nil || kinds[r.Kind].asked {
		return m, err
	}
	return c.WithFooter(m, r.WaitlistID, about.WaitlistName, r.Number), nil
}

// ComposeTemplate composes a mail about a signup from an owner's template. Only marketing mails get
// a footer. A confirmation, which the recipient asked for, has no List-Unsubscribe header either.
func (c *Composer) ComposeTemplate(r Request, about Mailing, t templates.Template, now time.Time) (Mail, error) {
	vars := templates.Variables{
		"email": r.Recipient, "first_name": r.FirstName, "last_name": r.LastName, "waitlist_name": about.WaitlistName,
	}
	if p := about.Signup; p != nil {
		vars["first_name"], vars["last_name"] = p.FirstName, p.LastName
		vars["referral_count"] = strconv.FormatInt(p.ReferralCount, 10)
		vars["referral_link"] = c.referralLink(r.WaitlistID, p)
		vars["unsubscribe_url"], _ = c.optOut(r.WaitlistID, r.Number, r.Recipient)
		if p.Position > 0 {
			vars["position"] = strconv.FormatInt(p.Position, 10)
		}
	}
	if r.Milestone > 0 {
		vars["milestone"] = strconv.FormatInt(r.Milestone, 10)
	}
	m := Mail{ID: r.EventID, To: r.Recipient, Date: now}
	var ok bool
	if m.Subject, m.Text, m.HTML, ok = t.Render(vars); !ok {
		return Mail{}, errors.New("the rendered template is too long")
	}
	if m.Text == "" {
		m.Text = PlainText(m.HTML)
	}
	if !kinds[r.Kind].marketing {
		if !kinds[r.Kind].asked {
			_, m.Unsubscribe = c.optOut(r.WaitlistID, r.Number, r.Recipient)
		}
		return m, nil
	}
	return c.WithFooter(m, r.WaitlistID, about.WaitlistName, r.Number), nil
}

// ComposeSMS composes the text message that tells a referrer about a new referral. The referrer's
// phone number must be international.
func (c *Composer) ComposeSMS(r Request, about Mailing) (SMS, error) {
	p := about.Signup
	v := values{Waitlist: mailtext.Short(about.WaitlistName), Referrals: p.ReferralCount, Link: c.referralLink(r.WaitlistID, p)}
	var text strings.Builder
	if err := c.text.ExecuteTemplate(&text, string(ReferralSMS)+".txt", v); err != nil {
		return SMS{}, fmt.Errorf("compose %s: %w", r.Kind, err)
	}
	return SMS{ID: r.EventID, To: e164(p.Phone), Text: strings.TrimSpace(text.String())}, nil
}

// execute fills in both bodies of a mail from the texts called name.
func (c *Composer) execute(m *Mail, name string, v values) error {
	var text, html strings.Builder
	if err := c.text.ExecuteTemplate(&text, name+".txt", v); err != nil {
		return fmt.Errorf("compose %s: %w", name, err)
	}
	if err := c.html.ExecuteTemplate(&html, name+".html", v); err != nil {
		return fmt.Errorf("compose %s: %w", name, err)
	}
	m.Text, m.HTML = text.String(), html.String()
	return nil
}

func (c *Composer) referralLink(waitlistID string, p *Person) string {
	return c.formURL + "/w/" + url.PathEscape(waitlistID) + "?" + param("ref", p.ReferralToken)
}

// param encodes one query parameter.
func param(name, value string) string { return name + "=" + url.QueryEscape(value) }
