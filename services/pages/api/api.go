// Package api calls the REST interface for a visitor of the pages: as the visitor's
// browser, from the visitor's address, once. Whether a call is tried again is the
// visitor's decision.
package api

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"waitlist.internal/libs/apierr"
)

// maxAnswer bounds the body of an answer, in bytes. A form with the largest settings has
// 256 KiB.
const maxAnswer = 1 << 20

// timeout bounds one call. It is shorter than a page's own, so that there is time left to
// say what went wrong.
const timeout = 4500 * time.Millisecond

// Visitor is the person for whom a call is made.
type Visitor struct {
	UserAgent, Address, RequestID string
}

// Error is a refusal of the interface, or, with Status 0, the lack of an answer.
type Error struct {
	Status    int
	Code      string         `json:"error_code"`
	Message   string         `json:"error"`
	RequestID string         `json:"request_id"`
	Fields    []apierr.Field `json:"errors"`
	// RetryAfter is 0 where the interface did not name a time.
	RetryAfter time.Duration
	// Cause is why there is no answer.
	Cause error
}

// Error implements error.
func (e *Error) Error() string {
	if e.Cause != nil {
		return "call the API: " + e.Cause.Error()
	}
	return fmt.Sprintf("the API answers %d %s", e.Status, e.Code)
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Cause }

// Client calls one installation.
type Client struct {
	base string
	http *http.Client
}

// New returns a client of the interface at base, which ends in /v1.
func New(base string) *Client {
	transport := http.DefaultTransport.(*http.Transport).Clone() // its documented type
	transport.MaxIdleConnsPerHost = 64
	return &Client{base: base, http: &http.Client{
		Transport: transport, Timeout: timeout,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
}

// Close closes idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// Path joins parts to a path and percent-encodes each.
func Path(parts ...string) string {
	var b bytes.Buffer
	for _, p := range parts {
		b.WriteString("/" + url.PathEscape(p))
	}
	return b.String()
}

// Call sends body, unless it is nil, and reads the answer into out, unless that is nil.
// Every error is an *Error. token is an ID token or "".
func (c *Client) Call(ctx context.Context, v Visitor, method, path, token string, body, out any) error {
	var sent io.Reader = http.NoBody
	if body != nil {
		raw, err := json.Marshal(body)
		if err != nil {
			return &Error{Cause: err}
		}
		sent = bytes.NewReader(raw)
	}
	req, err := http.NewRequestWithContext(ctx, method, c.base+path, sent)
	if err != nil {
		return &Error{Cause: err}
	}
	req.Header = http.Header{
		"Content-Type": {"application/json"}, "User-Agent": {v.UserAgent},
		"X-Forwarded-For": {v.Address}, "X-Request-Id": {v.RequestID},
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	res, err := c.http.Do(req)
	if err != nil {
		// The URL may hold an address or a token, and errors are logged.
		if u, ok := errors.AsType[*url.Error](err); ok {
			err = u.Err
		}
		return &Error{Cause: err}
	}
	defer res.Body.Close()
	raw, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer))
	if err != nil {
		return &Error{Cause: err}
	}
	if res.StatusCode < 200 || res.StatusCode > 299 {
		refusal := &Error{}
		if err := json.Unmarshal(raw, refusal); err != nil || refusal.Code == "" {
			// Not the API: a gateway on the way.
			return &Error{Cause: fmt.Errorf("status %d without an error_code", res.StatusCode)}
		}
		refusal.Status = res.StatusCode
		if s, err := strconv.Atoi(res.Header.Get("Retry-After")); err == nil && s > 0 {
			refusal.RetryAfter = time.Duration(s) * time.Second
		}
		return refusal
	}
	if out == nil {
		return nil
	}
	if err := json.Unmarshal(raw, out); err != nil {
		return &Error{Cause: fmt.Errorf("read the answer: %w", err)}
	}
	return nil
}
