// Package waitlist is a client of the waitlist service's REST interface for servers: it
// keeps an API key, which must never reach a browser.
//
//	c, err := waitlist.New("https://api.example.com/v1", waitlist.APIKey(key))
//	…
//	for s, err := range c.Signups(ctx, list) {
//
// A request is sent again, at most Attempts times in all, where that cannot do anything
// twice: always after 429, when the service did nothing. After a lost connection or a 5xx
// nobody knows what it did. Then a second request is sent where the contract says that it
// changes nothing more, as with all reads and removals; a new waitlist and a blast carry an
// Idempotency-Key, so that it does not there either. DeleteMyData, CreateTemplate and Invite
// return the failure. The client waits as long as Retry-After says, else twice as long each
// time, with jitter.
//
// Every refusal is an *Error. All methods may be called from several goroutines.
package waitlist

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	mathrand "math/rand/v2"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

const (
	defaultAttempts = 4
	firstWait       = 200 * time.Millisecond
	maxWait         = 10 * time.Second
	// maxAnswer bounds the body of an answer that is JSON, in bytes. A list of 10,000
	// waitlists has less than 2 MiB.
	maxAnswer = 32 << 20
	userAgent = "waitlist-go/1"
)

// Client calls one installation of the service for one account, or for nobody.
type Client struct {
	base       string
	header     http.Header
	http       *http.Client
	attempts   int
	maxBackOff time.Duration
}

// Option configures New.
type Option func(*Client)

// APIKey authenticates with an account's API key.
func APIKey(key string) Option { return func(c *Client) { c.header.Set("X-Api-Key", key) } }

// Bearer authenticates with an ID token, which lives for an hour.
func Bearer(token string) Option {
	return func(c *Client) { c.header.Set("Authorization", "Bearer "+token) }
}

// Account acts for the owner with this address, in whose team the caller is: new
// waitlists, templates and domains are the owner's.
func Account(email string) Option {
	return func(c *Client) { c.header.Set("X-Account-Email", email) }
}

// HTTPClient sends the requests by a copy of h in place of http.DefaultClient's. h should have no
// Timeout, which would end exports; contexts bound requests. The copy follows no redirect.
func HTTPClient(h *http.Client) Option { return func(c *Client) { c.http = h } }

// Attempts is how often a request is sent at most: 1 or more, by default 4.
func Attempts(n int) Option { return func(c *Client) { c.attempts = max(n, 1) } }

// MaxWait bounds the wait between two attempts, by default 10 s. If the service asks for
// a longer one, its answer is returned as an *Error with RetryAfter.
func MaxWait(d time.Duration) Option { return func(c *Client) { c.maxBackOff = d } }

// New returns a client of the service at base, which ends in the version, as
// https://api.example.com/v1. Without APIKey or Bearer it can do what the public can.
func New(base string, options ...Option) (*Client, error) {
	u, err := url.Parse(base)
	if err != nil || u.Host == "" || u.Scheme != "https" && u.Scheme != "http" {
		return nil, fmt.Errorf("waitlist: %q is not the URL of a service", base)
	}
	c := &Client{
		base: strings.TrimSuffix(base, "/"), header: http.Header{"User-Agent": {userAgent}},
		http: http.DefaultClient, attempts: defaultAttempts, maxBackOff: maxWait,
	}
	for _, o := range options {
		o(c)
	}
	sender := *c.http
	// The service redirects nobody, and net/http would send the API key along to another host.
	sender.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	c.http = &sender
	return c, nil
}

// Code says what is wrong, for programs.
type Code string

// The codes of the service.
const (
	ValidationError        Code = "VALIDATION_ERROR"
	InvalidBody            Code = "INVALID_BODY"
	InvalidToken           Code = "INVALID_TOKEN"
	AuthenticationRequired Code = "AUTHENTICATION_REQUIRED"
	Forbidden              Code = "FORBIDDEN"
	TierRequired           Code = "TIER_REQUIRED"
	TrialExpired           Code = "TRIAL_EXPIRED"
	EmailNotVerified       Code = "EMAIL_NOT_VERIFIED"
	WaitlistClosed         Code = "WAITLIST_CLOSED"
	DomainRestricted       Code = "DOMAIN_RESTRICTED"
	NotFound               Code = "NOT_FOUND"
	Conflict               Code = "CONFLICT"
	Duplicate              Code = "DUPLICATE"
	RateLimited            Code = "RATE_LIMITED"
	PaymentRequired        Code = "PAYMENT_REQUIRED"
	ExternalServiceError   Code = "EXTERNAL_SERVICE_ERROR"
	InternalError          Code = "INTERNAL_ERROR"
)

// FieldError says what is wrong with a field of the request, such as
// settings.webhook_url.
type FieldError struct {
	Field   string `json:"field"`
	Message string `json:"message"`
}

// Error is a refusal.
type Error struct {
	// Status is the HTTP status.
	Status int `json:"-"`
	// Code is empty if something other than the service answered.
	Code    Code   `json:"error_code"`
	Message string `json:"error"`
	// RequestID finds the request in the service's logs.
	RequestID string       `json:"request_id"`
	Fields    []FieldError `json:"errors"`
	// RetryAfter is how long the service asks to wait, or 0.
	RetryAfter time.Duration `json:"-"`
}

// Error implements error.
func (e *Error) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "waitlist: %d %s: %s", e.Status, e.Code, e.Message)
	for _, f := range e.Fields {
		fmt.Fprintf(&b, " %s: %s", f.Field, f.Message)
	}
	if e.RequestID != "" {
		fmt.Fprintf(&b, " (request %s)", e.RequestID)
	}
	return b.String()
}

// Is reports whether err is a refusal with the code.
func Is(err error, code Code) bool {
	var e *Error
	return errors.As(err, &e) && e.Code == code
}

// request is a call of an operation.
type request struct {
	method, path string
	query        url.Values
	body         any
	// again says that, by the contract, a second request changes nothing more than the
	// first. It is about POST and PATCH; by HTTP, other methods are so.
	again bool
	// key says that the operation takes an Idempotency-Key.
	key bool
}

// repeatable reports whether r may be sent again when it may have been carried out. If
// not, it is sent again only if the service answered that it did nothing.
func (r request) repeatable() bool {
	return r.again || r.key || r.method != http.MethodPost && r.method != http.MethodPatch
}

// path joins the parts of a path and escapes them.
func path(parts ...string) string {
	var b strings.Builder
	for _, p := range parts {
		b.WriteString("/" + url.PathEscape(p))
	}
	return b.String()
}

// call sends r and decodes the answer into out, unless that is nil.
func (c *Client) call(ctx context.Context, r request, out any) error {
	res, err := c.send(ctx, r)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if out == nil || res.StatusCode == http.StatusNoContent {
		return nil
	}
	raw, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer))
	if err != nil {
		return fmt.Errorf("waitlist: read the answer: %w", err)
	}
	if err := json.Unmarshal(raw, out); err != nil {
		return fmt.Errorf("waitlist: decode the answer: %w", err)
	}
	return nil
}

// send returns the answer of a request that succeeded. The caller closes its body.
func (c *Client) send(ctx context.Context, r request) (*http.Response, error) {
	var raw []byte
	if r.body != nil {
		var err error
		if raw, err = json.Marshal(r.body); err != nil {
			return nil, fmt.Errorf("waitlist: encode the request: %w", err)
		}
	}
	key := ""
	if r.key {
		key = rand.Text()
	}
	perhapsDone := false // by an attempt whose answer was lost
	for attempt := 1; ; attempt++ {
		res, err := c.try(ctx, r, raw, key)
		if err == nil {
			return res, nil
		}
		var refused *Error
		again := r.repeatable()
		switch {
		case !errors.As(err, &refused) || refused.Status >= http.StatusInternalServerError:
			perhapsDone = true
		case refused.Status == http.StatusNotFound && r.method == http.MethodDelete && perhapsDone:
			return &http.Response{StatusCode: http.StatusNoContent, Body: http.NoBody}, nil
		default:
			again = refused.Status == http.StatusTooManyRequests
		}
		wait := c.backOff(attempt, refused)
		if !again || attempt >= c.attempts || ctx.Err() != nil || wait > c.maxBackOff {
			return nil, err
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return nil, err
		}
	}
}

// backOff returns the wait before the next attempt.
func (c *Client) backOff(attempt int, refused *Error) time.Duration {
	if refused != nil && refused.RetryAfter > 0 {
		return refused.RetryAfter
	}
	wait := min(firstWait<<(attempt-1), c.maxBackOff)
	return wait/2 + mathrand.N(wait/2+1)
}

func (c *Client) try(ctx context.Context, r request, raw []byte, key string) (*http.Response, error) {
	target := c.base + r.path
	if len(r.query) > 0 {
		target += "?" + r.query.Encode()
	}
	var body io.Reader
	if raw != nil {
		body = bytes.NewReader(raw)
	}
	req, err := http.NewRequestWithContext(ctx, r.method, target, body)
	if err != nil {
		return nil, fmt.Errorf("waitlist: %w", err)
	}
	req.Header = c.header.Clone()
	if raw != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if key != "" {
		req.Header.Set("Idempotency-Key", key)
	}
	res, err := c.http.Do(req)
	if err != nil {
		return nil, fmt.Errorf("waitlist: %w", err)
	}
	if res.StatusCode < 300 {
		return res, nil
	}
	defer res.Body.Close()
	e := &Error{Status: res.StatusCode}
	answer, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer))
	if err != nil || json.Unmarshal(answer, e) != nil || e.Code == "" {
		*e = Error{Status: res.StatusCode, Message: http.StatusText(res.StatusCode), RequestID: res.Header.Get("X-Request-Id")}
	}
	if n, err := strconv.Atoi(res.Header.Get("Retry-After")); err == nil && n > 0 {
		e.RetryAfter = time.Duration(n) * time.Second
	}
	return nil, e
}

// do is call with an answer.
func do[T any](ctx context.Context, c *Client, r request) (T, error) {
	var out T
	err := c.call(ctx, r, &out)
	return out, err
}

func get[T any](ctx context.Context, c *Client, path string, query url.Values) (T, error) {
	return do[T](ctx, c, request{method: http.MethodGet, path: path, query: query})
}

func (c *Client) delete(ctx context.Context, path string) error {
	return c.call(ctx, request{method: http.MethodDelete, path: path}, nil)
}
