// Package twilio sends text messages through Twilio's REST API.
//
// It does not use Twilio's Go library, which consists of tens of megabytes of generated code and has a
// client without contexts.
package twilio

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"waitlist.internal/services/messaging/mails"
	"waitlist.internal/services/messaging/providers/outbound"
)

const (
	defaultURL = "https://api.twilio.com"
	// maxAnswer limits the part of an answer that is read, in bytes.
	maxAnswer = 64 << 10
	// maxText is the longest message that Twilio accepts, in UTF-16 code units.
	maxText = 1600
)

// aboutMessage are the error codes that concern the recipient's number or the text. Others may concern our
// sender, permissions or account.
var aboutMessage = []int{21211, 21214, 21217, 21602, 21610, 21612, 21614, 21617}

// Config configures a Provider.
type Config struct {
	AccountSID, AuthToken string
	// From is an E.164 number, a short code, a name, or the SID of a messaging service (MG…).
	From string
	// BaseURL optionally replaces the address of Twilio's API.
	BaseURL string
}

// Provider implements mails.SMSProvider.
type Provider struct {
	cfg      Config
	endpoint string
	http     outbound.Client
	number   *regexp.Regexp
}

// New validates cfg. The Provider connects with the first message.
func New(cfg Config) (*Provider, error) {
	if cfg.AccountSID == "" || cfg.AuthToken == "" || cfg.From == "" {
		return nil, errors.New("set TWILIO_ACCOUNT_SID, TWILIO_AUTH_TOKEN and TWILIO_FROM")
	}
	if cfg.BaseURL == "" {
		cfg.BaseURL = defaultURL
	}
	u, err := url.Parse(cfg.BaseURL)
	if err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" {
		return nil, fmt.Errorf("twilio: %q is not an absolute http(s) URL", cfg.BaseURL)
	}
	return &Provider{
		cfg: cfg, http: outbound.NewClient("twilio"), number: regexp.MustCompile(`^\+[1-9][0-9]{6,14}$`),
		endpoint: u.JoinPath("2010-04-01", "Accounts", cfg.AccountSID, "Messages.json").String(),
	}, nil
}

// Close ends idle connections.
func (p *Provider) Close() { p.http.Close() }

// SendSMS implements mails.SMSProvider. Twilio has no idempotency keys, so a message whose answer is
// lost may arrive twice.
func (p *Provider) SendSMS(ctx context.Context, m mails.SMS) error {
	if !p.number.MatchString(m.To) {
		return &mails.RefusedError{Reason: "not an E.164 number"}
	}
	form := url.Values{"To": {m.To}, "Body": {shorten(m.Text)}}
	if strings.HasPrefix(p.cfg.From, "MG") {
		form.Set("MessagingServiceSid", p.cfg.From)
	} else {
		form.Set("From", p.cfg.From)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, p.endpoint, strings.NewReader(form.Encode()))
	if err != nil {
		return fmt.Errorf("twilio: %w", err)
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	req.Header.Set("Accept", "application/json")
	req.SetBasicAuth(p.cfg.AccountSID, p.cfg.AuthToken)
	res, err := p.http.Do(req)
	if err != nil {
		return fmt.Errorf("twilio is unavailable: %w", err)
	}
	answer, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer))
	_ = res.Body.Close()
	if res.StatusCode/100 == 2 {
		return nil
	}
	if err != nil {
		return fmt.Errorf("twilio is unavailable: %w", err)
	}
	var e struct {
		Code int `json:"code"`
	}
	_ = json.Unmarshal(answer, &e) // the code stays 0 if there is none; the message contains the number
	reason := fmt.Sprintf("twilio answered %d, code %d", res.StatusCode, e.Code)
	switch {
	case res.StatusCode == http.StatusUnauthorized, res.StatusCode == http.StatusForbidden, res.StatusCode == http.StatusNotFound,
		res.StatusCode == http.StatusMethodNotAllowed, res.StatusCode == http.StatusRequestTimeout,
		res.StatusCode == http.StatusTooManyRequests, res.StatusCode/100 != 4:
		// All other messages would fail, too.
		return errors.New(reason)
	}
	if slices.Contains(aboutMessage, e.Code) {
		return &mails.RefusedError{Reason: reason}
	}
	return &mails.DoubtfulError{Reason: reason}
}

// shorten truncates s to maxText.
func shorten(s string) string {
	units := 0
	for i, r := range s {
		units++
		if r > 0xffff {
			units++
		}
		if units > maxText {
			return s[:i]
		}
	}
	return s
}
