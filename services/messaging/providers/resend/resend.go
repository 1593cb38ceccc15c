// Package resend is the mail provider for Resend's API: single mails and batches, sending domains, and
// notifications of bounces and complaints.
//
// Mails have idempotency keys, which Resend honors for 24 hours: a mail that is sent again within that
// time goes out once.
package resend

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	stdmail "net/mail"
	"net/url"
	"strings"

	api "github.com/resend/resend-go/v3"

	"waitlist.internal/libs/emailaddr"
	"waitlist.internal/libs/mailtext"
	"waitlist.internal/services/messaging/mails"
	"waitlist.internal/services/messaging/providers/outbound"
)

// maxAnswer limits the part of an error answer that is read, in bytes.
const maxAnswer = 64 << 10

// The error names that this package distinguishes.
const (
	invalidKey     = "invalid_api_key"
	restrictedKey  = "restricted_api_key"
	invalidFrom    = "invalid_from_address"
	invalidAccess  = "invalid_access"
	otherContent   = "invalid_idempotent_request"
	sameInProgress = "concurrent_idempotent_requests"
)

// Config configures a Provider.
type Config struct {
	APIKey string
	// BaseURL optionally replaces the address of Resend's API.
	BaseURL string
	From    stdmail.Address
}

// Provider implements mails.BatchProvider.
type Provider struct {
	api  *api.Client
	http outbound.Client
	from stdmail.Address
}

// New validates cfg. The Provider connects with the first call.
func New(cfg Config) (*Provider, error) {
	if cfg.APIKey == "" {
		return nil, errors.New("set RESEND_API_KEY")
	}
	p := &Provider{http: outbound.NewClient("resend"), from: cfg.From}
	p.http.Transport = observer{p.http.Transport}
	p.api = api.NewCustomClient(p.http.Client, cfg.APIKey)
	if cfg.BaseURL != "" {
		u, err := url.Parse(strings.TrimRight(cfg.BaseURL, "/") + "/")
		if err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" {
			return nil, fmt.Errorf("resend: %q is not an absolute http(s) URL", cfg.BaseURL)
		}
		p.api.BaseURL = u
	}
	return p, nil
}

// Close implements mails.Provider.
func (p *Provider) Close() error {
	p.http.Close()
	return nil
}

// Send implements mails.Provider. The mail's id is its idempotency key.
func (p *Provider) Send(ctx context.Context, m mails.Mail) error {
	req, err := p.request(m)
	if err != nil {
		return err
	}
	_, err = call(ctx, func(ctx context.Context) (*api.SendEmailResponse, error) {
		return p.api.Emails.SendWithOptions(ctx, req, &api.SendEmailOptions{IdempotencyKey: m.ID})
	})
	return taken(err)
}

// SendBatch implements mails.BatchProvider. If Resend refuses the batch as a whole, SendBatch sends
// its mails one by one.
func (p *Provider) SendBatch(ctx context.Context, key string, batch []mails.Mail) []error {
	errs := make([]error, len(batch))
	var reqs []*api.SendEmailRequest
	var index []int // positions of reqs in mails
	for i, m := range batch {
		req, err := p.request(m)
		if err != nil {
			errs[i] = err
			continue
		}
		reqs, index = append(reqs, req), append(index, i)
	}
	if len(reqs) == 0 {
		return errs
	}
	res, err := call(ctx, func(ctx context.Context) (*api.BatchEmailResponse, error) {
		// Permissive validation sends the other mails if one is refused.
		return p.api.Batch.SendWithOptions(ctx, reqs, &api.BatchSendEmailOptions{
			IdempotencyKey: key, BatchValidation: api.BatchValidationPermissive,
		})
	})
	if refused(err) {
		for _, i := range index {
			errs[i] = p.Send(ctx, batch[i])
		}
		return errs
	}
	if err := taken(err); err != nil {
		for _, i := range index {
			errs[i] = err
		}
		return errs
	}
	if res == nil {
		return errs
	}
	for _, e := range res.Errors {
		if e.Index >= 0 && e.Index < len(index) {
			// The message often contains the address, which must not be logged.
			errs[index[e.Index]] = &mails.RefusedError{Reason: "in a batch"}
		}
	}
	return errs
}

// request converts m to the API's form. The error is a *mails.RefusedError.
func (p *Provider) request(m mails.Mail) (*api.SendEmailRequest, error) {
	to, err := emailaddr.Parse(m.To)
	if err != nil {
		return nil, &mails.RefusedError{Reason: "the recipient is not an address"}
	}
	from := m.From
	if from == (stdmail.Address{}) {
		from = p.from
	}
	// RFC 3834: suppress automatic replies.
	headers := map[string]string{"Auto-Submitted": "auto-generated"}
	if m.Unsubscribe != "" {
		headers["List-Unsubscribe"] = "<" + mailtext.OneLine(m.Unsubscribe) + ">"
		headers["List-Unsubscribe-Post"] = "List-Unsubscribe=One-Click"
	}
	return &api.SendEmailRequest{
		From: sender(from), To: []string{to}, Subject: mailtext.OneLine(m.Subject), Html: m.HTML, Text: m.Text, Headers: headers,
	}, nil
}

// sender formats an address with its display name, which the API accepts without encoding.
func sender(a stdmail.Address) string {
	if a.Name == "" {
		return a.Address
	}
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(mailtext.OneLine(a.Name)) + `" <` + a.Address + ">"
}

// answer is the status of an API call, which the library does not expose.
type answer struct {
	status int // 0 without an answer
	// name is the name of the error, or "".
	name string
}

type answerKey struct{}

// observer stores the status of a call in the answer of its context.
type observer struct{ http.RoundTripper }

func (o observer) RoundTrip(r *http.Request) (*http.Response, error) {
	res, err := o.RoundTripper.RoundTrip(r)
	a, ok := r.Context().Value(answerKey{}).(*answer)
	if err != nil || !ok {
		return res, err // it stands between a client and its transport
	}
	if res.StatusCode/100 == 2 {
		a.status = res.StatusCode
		return res, nil
	}
	body, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer))
	_ = res.Body.Close()
	if err != nil {
		return nil, fmt.Errorf("read the answer: %w", err)
	}
	a.status = res.StatusCode
	res.Body = io.NopCloser(bytes.NewReader(body))
	var e struct {
		Name string `json:"name"`
	}
	if json.Unmarshal(body, &e) == nil && plain(e.Name) {
		a.name = e.Name
	}
	return res, nil
}

// plain reports whether s is a plain error name, which is safe to log.
func plain(s string) bool {
	return len(s) <= 64 && strings.Trim(s, "abcdefghijklmnopqrstuvwxyz_") == ""
}

// apiError is an error answer of the API.
type apiError struct{ answer }

func (e *apiError) Error() string {
	return strings.TrimSpace(fmt.Sprintf("resend answered %d %s", e.status, e.name))
}

// refused reports whether Resend does not do what a call asks for.
func refused(err error) bool {
	_, ours := errors.AsType[*mails.RefusedError](err)
	_, doubtful := errors.AsType[*mails.DoubtfulError](err)
	return ours || doubtful
}

// call makes one call. The error is a *mails.RefusedError or *mails.DeferredError if it concerns
// the content of the request, a *mails.DoubtfulError if it concerns that or our account, an *apiError
// for other error answers, and otherwise a transport error.
func call[T any](ctx context.Context, f func(context.Context) (T, error)) (T, error) {
	var a answer
	v, err := f(context.WithValue(ctx, answerKey{}, &a))
	switch {
	case err == nil:
		return v, nil
	case a.status == 0 || a.status/100 == 2: // an incomplete or unintelligible answer
		return v, fmt.Errorf("resend is unavailable: %w", err)
	}
	failed := &apiError{a}
	switch {
	case a.name == sameInProgress:
		return v, &mails.DeferredError{Reason: failed.Error()}
	case a.status == http.StatusUnauthorized, a.name == invalidKey, a.name == restrictedKey,
		a.status == http.StatusNotFound, a.status == http.StatusMethodNotAllowed, a.status == http.StatusConflict,
		a.status == http.StatusTooManyRequests, a.status == http.StatusRequestTimeout, a.status/100 != 4:
		// The cause is the key, the URL, a limit or Resend itself: all other calls would fail, too.
		return v, failed
	case a.status == http.StatusForbidden, a.status == http.StatusUnavailableForLegalReasons, a.name == invalidFrom, a.name == invalidAccess:
		// A domain that is not verified, an account that may not send: that of one sender, or ours.
		return v, &mails.DoubtfulError{Reason: failed.Error()}
	}
	return v, &mails.RefusedError{Reason: failed.Error()}
}

// taken returns err, or nil if it means that Resend accepted other content under the same key. That was
// an earlier attempt at the same mail, with other tokens or dates.
func taken(err error) error {
	if e, ok := errors.AsType[*apiError](err); ok && e.name == otherContent {
		return nil
	}
	return err
}
