// Package resend is the mail provider that uses Resend's API, through its
// library: mails alone and in batches, sending domains, and the notifications of
// bounces and complaints.
//
// Mails are sent with idempotency keys, which Resend honours for 24 hours: what
// is sent again within them goes out once.
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
	"waitlist.internal/services/messaging"
	"waitlist.internal/services/messaging/eml"
	"waitlist.internal/services/messaging/outbound"
)

// maxAnswer bounds what is read of a refusal, in bytes.
const maxAnswer = 64 << 10

// The names of answers that are told apart.
const (
	invalidKey     = "invalid_api_key"
	restrictedKey  = "restricted_api_key"
	otherContent   = "invalid_idempotent_request"
	sameInProgress = "concurrent_idempotent_requests"
)

// Config says which account, and in whose name.
type Config struct {
	APIKey string
	// BaseURL replaces the address of the API; empty: Resend's.
	BaseURL string
	From    stdmail.Address
}

// Provider implements messaging.BatchProvider.
type Provider struct {
	api  *api.Client
	http outbound.Client
	from stdmail.Address
}

// New checks cfg; it connects with the first call.
func New(cfg Config) (*Provider, error) {
	if cfg.APIKey == "" {
		return nil, errors.New("resend: an API key is required")
	}
	p := &Provider{http: outbound.NewClient("resend"), from: cfg.From}
	p.http.Transport = observer{p.http.Transport}
	p.api = api.NewCustomClient(p.http.Client, cfg.APIKey)
	if cfg.BaseURL != "" {
		u, err := url.Parse(strings.TrimRight(cfg.BaseURL, "/") + "/")
		if err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" {
			return nil, fmt.Errorf("resend: %q is no absolute http(s) URL", cfg.BaseURL)
		}
		p.api.BaseURL = u
	}
	return p, nil
}

// Close implements messaging.Provider.
func (p *Provider) Close() error {
	p.http.Close()
	return nil
}

// Send implements messaging.Provider. The mail's id is its idempotency key.
func (p *Provider) Send(ctx context.Context, m messaging.Mail) error {
	req, err := p.request(m)
	if err != nil {
		return err
	}
	_, err = call(ctx, func(ctx context.Context) (*api.SendEmailResponse, error) {
		return p.api.Emails.SendWithOptions(ctx, req, &api.SendEmailOptions{IdempotencyKey: m.ID})
	})
	return taken(err)
}

// SendBatch implements messaging.BatchProvider. Where the batch as a whole is
// refused, each of its mails is sent alone.
func (p *Provider) SendBatch(ctx context.Context, key string, mails []messaging.Mail) []error {
	errs := make([]error, len(mails))
	var reqs []*api.SendEmailRequest
	var index []int // of reqs in mails
	for i, m := range mails {
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
		// Permissive: a mail that is refused does not hold up the others.
		return p.api.Batch.SendWithOptions(ctx, reqs, &api.BatchSendEmailOptions{IdempotencyKey: key, BatchValidation: api.BatchValidationPermissive})
	})
	if _, refused := errors.AsType[*messaging.RefusedError](err); refused {
		for _, i := range index {
			errs[i] = p.Send(ctx, mails[i])
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
			// The message often repeats the address.
			errs[index[e.Index]] = &messaging.RefusedError{Reason: "in a batch"}
		}
	}
	return errs
}

// request returns m as the API takes it. The error is a *messaging.RefusedError.
func (p *Provider) request(m messaging.Mail) (*api.SendEmailRequest, error) {
	to, err := emailaddr.Parse(m.To)
	if err != nil {
		return nil, &messaging.RefusedError{Reason: "the recipient is no address"}
	}
	from := m.From
	if from == (stdmail.Address{}) {
		from = p.from
	}
	// RFC 3834: nobody's out-of-office is to answer.
	headers := map[string]string{"Auto-Submitted": "auto-generated"}
	if m.Unsubscribe != "" {
		headers["List-Unsubscribe"] = "<" + eml.OneLine(m.Unsubscribe) + ">"
		headers["List-Unsubscribe-Post"] = "List-Unsubscribe=One-Click"
	}
	return &api.SendEmailRequest{
		From: sender(from), To: []string{to}, Subject: eml.OneLine(m.Subject), Html: m.HTML, Text: m.Text, Headers: headers,
	}, nil
}

// sender writes an address with its name, which the API takes in plain letters.
func sender(a stdmail.Address) string {
	if a.Name == "" {
		return a.Address
	}
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(eml.OneLine(a.Name)) + `" <` + a.Address + ">"
}

// answer is what an API call came to; the library does not tell.
type answer struct {
	status int // 0: none came
	// name is that of the error, "" where there is none.
	name string
}

type answerKey struct{}

// observer notes the answer of a call in the answer of its context.
type observer struct{ http.RoundTripper }

func (o observer) RoundTrip(r *http.Request) (*http.Response, error) {
	res, err := o.RoundTripper.RoundTrip(r)
	a, ok := r.Context().Value(answerKey{}).(*answer)
	if err != nil || !ok {
		return res, err //nolint:wrapcheck // it stands between a client and its transport
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

// plain reports whether s is the name of an error, and nothing to keep out of a
// log.
func plain(s string) bool {
	return len(s) <= 64 && strings.Trim(s, "abcdefghijklmnopqrstuvwxyz_") == ""
}

// apiError says what the API answered in place of what was asked for.
type apiError struct{ answer }

func (e *apiError) Error() string {
	return strings.TrimSpace(fmt.Sprintf("resend answered %d %s", e.status, e.name))
}

// call makes one call. An error is an *apiError where the API's answer is no
// 2xx, a *messaging.RefusedError or *messaging.DeferredError where it is about what
// was sent, and else what went wrong on the way.
func call[T any](ctx context.Context, f func(context.Context) (T, error)) (T, error) {
	var a answer
	v, err := f(context.WithValue(ctx, answerKey{}, &a))
	switch {
	case err == nil:
		return v, nil
	case a.status == 0 || a.status/100 == 2: // an answer that broke off, or is not understood
		return v, fmt.Errorf("resend is away: %w", err)
	}
	failed := &apiError{a}
	switch {
	case a.name == sameInProgress:
		return v, &messaging.DeferredError{Reason: failed.Error()}
	case a.status == http.StatusUnauthorized, a.name == invalidKey, a.name == restrictedKey,
		a.status == http.StatusNotFound, a.status == http.StatusMethodNotAllowed, a.status == http.StatusConflict,
		a.status == http.StatusTooManyRequests, a.status == http.StatusRequestTimeout, a.status/100 != 4:
		// Nothing else would fare better: the key, the URL, a limit or Resend itself.
		return v, failed
	}
	return v, &messaging.RefusedError{Reason: failed.Error()}
}

// taken is err unless it says that something else was taken under the same key:
// an earlier attempt, whose mail had other tokens or dates.
func taken(err error) error {
	if e, ok := errors.AsType[*apiError](err); ok && e.name == otherContent {
		return nil
	}
	return err
}
