package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math"
	"net/http"
	"slices"
	"sort"
	"strconv"
	"strings"
	"testing"
	"time"
)

// Obj is a JSON object.
type Obj = map[string]any

// Request is a request of a test. Its methods return changed copies.
type Request struct {
	method  string
	path    string
	header  http.Header
	body    []byte
	hasBody bool
	chunked bool
	invalid bool
}

// NewRequest returns a request. path follows the version segment and may have a query; a nil body means no body.
func NewRequest(method, path string, body any) Request {
	r := Request{method: method, path: path, header: http.Header{}}
	if body != nil {
		return r.JSON(body)
	}
	return r
}

// Get returns a GET.
func Get(path string) Request { return NewRequest(http.MethodGet, path, nil) }

// Post returns a POST.
func Post(path string, body any) Request { return NewRequest(http.MethodPost, path, body) }

// Patch returns a PATCH.
func Patch(path string, body any) Request { return NewRequest(http.MethodPatch, path, body) }

// Delete returns a DELETE.
func Delete(path string) Request { return NewRequest(http.MethodDelete, path, nil) }

// JSON encodes body as JSON and sets it.
func (r Request) JSON(body any) Request {
	b, err := json.Marshal(body)
	if err != nil {
		panic(fmt.Sprintf("marshal a test's body: %v", err))
	}
	return r.Raw(b).With("Content-Type", "application/json")
}

// Raw sets the body verbatim.
func (r Request) Raw(body []byte) Request {
	r.body, r.hasBody = body, true
	return r
}

// Chunked sends the body without a Content-Length.
func (r Request) Chunked() Request {
	r.chunked = true
	return r
}

// With sets a header; an empty value removes it.
func (r Request) With(name, value string) Request {
	r.header = r.header.Clone()
	if value == "" {
		r.header.Del(name)
	} else {
		r.header.Set(name, value)
	}
	return r
}

// As authenticates with an ID token.
func (r Request) As(token string) Request { return r.With("Authorization", "Bearer "+token) }

// Key authenticates with an API key.
func (r Request) Key(key string) Request { return r.With("X-Api-Key", key) }

// Invalid allows the request to violate the contract.
func (r Request) Invalid() Request {
	r.invalid = true
	return r
}

// String describes the request in a test's log.
func (r Request) String() string {
	s := r.method + " " + r.path
	if r.hasBody {
		s += " " + clip(r.body)
	}
	return s
}

// Client sends requests to one server and checks every exchange against the contract.
type Client struct {
	// Base is the server's URL without the version segment.
	Base     string
	Contract *Contract
	// Coverage records the outcomes; nil: it records nothing.
	Coverage *Coverage
	// HTTP must not follow redirects.
	HTTP *http.Client
	// Address, if set, is sent in X-Forwarded-For as the client's address. Servers believe it only from a trusted proxy.
	Address string
}

// NewClient returns a client for the server at base.
func NewClient(base string, contract *Contract, coverage *Coverage) *Client {
	return &Client{
		Base: base, Contract: contract, Coverage: coverage,
		HTTP: &http.Client{
			Timeout:       30 * time.Second,
			Transport:     &http.Transport{MaxIdleConnsPerHost: 64, DisableCompression: true},
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
	}
}

// Close closes idle connections.
func (c *Client) Close() { c.HTTP.CloseIdleConnections() }

// Do sends r. It fails the test if there is no answer or the exchange violates the contract.
func (c *Client) Do(t testing.TB, r Request) *Response {
	t.Helper()
	res, err := c.Send(t.Context(), r)
	if err != nil {
		if res == nil {
			t.Fatalf("%s: %v", r, err)
		}
		t.Errorf("%s → %d %s: %v", r, res.Status, clip(res.Body), err)
	}
	res.t = t
	return res
}

// Send sends r. The error says how the exchange violates the contract; without an answer the response is nil.
func (c *Client) Send(ctx context.Context, r Request) (*Response, error) {
	var body io.Reader
	if r.hasBody {
		body = bytes.NewReader(r.body)
		if r.chunked {
			body = io.MultiReader(body)
		}
	}
	req, err := http.NewRequestWithContext(ctx, r.method, c.Base+basePath+r.path, body)
	if err != nil {
		return nil, fmt.Errorf("build the request: %w", err)
	}
	maps.Copy(req.Header, r.header)
	if c.Address != "" && req.Header.Get("X-Forwarded-For") == "" {
		req.Header.Set("X-Forwarded-For", c.Address)
	}
	start := time.Now()
	hres, err := c.HTTP.Do(req)
	if err != nil {
		return nil, fmt.Errorf("send the request: %w", err)
	}
	defer hres.Body.Close()
	got, err := io.ReadAll(hres.Body)
	if err != nil {
		return nil, fmt.Errorf("read the answer: %w", err)
	}
	res := &Response{Request: r, Status: hres.StatusCode, Header: hres.Header, Body: got, Took: time.Since(start)}
	operation, outcome, err := c.Contract.Check(ctx, Exchange{
		Request: req, RequestBody: r.body, Status: res.Status, Header: res.Header, ResponseBody: got, InvalidRequest: r.invalid,
	})
	if c.Coverage != nil && operation != "" && r.method != http.MethodHead {
		c.Coverage.add(operation, outcome)
	}
	return res, err
}

// Response is an answer that conforms to the contract. Its methods fail the test that received it.
type Response struct {
	Request Request
	Status  int
	Header  http.Header
	Body    []byte
	Took    time.Duration

	t testing.TB
}

// ErrorCode returns the answer's error_code, or "".
func (r *Response) ErrorCode() string {
	var b struct {
		ErrorCode string `json:"error_code"`
	}
	if json.Unmarshal(r.Body, &b) != nil {
		return ""
	}
	return b.ErrorCode
}

// Fields returns the fields named by a validation error, sorted.
func (r *Response) Fields() []string {
	var b struct {
		Errors []struct {
			Field string `json:"field"`
		} `json:"errors"`
	}
	if json.Unmarshal(r.Body, &b) != nil {
		return nil
	}
	var out []string
	for _, e := range b.Errors {
		out = append(out, e.Field)
	}
	sort.Strings(out)
	return out
}

// Want requires a status.
func (r *Response) Want(status int) *Response {
	r.t.Helper()
	if r.Status != status {
		r.t.Fatalf("%s → %d %s, want %d", r.Request, r.Status, clip(r.Body), status)
	}
	return r
}

// WantError requires a status, a code and, if any fields are given, exactly these fields.
func (r *Response) WantError(status int, code string, fields ...string) *Response {
	r.t.Helper()
	if r.Status != status || r.ErrorCode() != code {
		r.t.Fatalf("%s → %d %s, want %d %s", r.Request, r.Status, clip(r.Body), status, code)
	}
	if len(fields) > 0 {
		want := slices.Clone(fields)
		sort.Strings(want)
		if got := r.Fields(); !slices.Equal(got, want) {
			r.t.Errorf("%s → fields %v, want %v", r.Request, got, want)
		}
	}
	return r
}

// Invalid requires a VALIDATION_ERROR for exactly these fields.
func (r *Response) Invalid(fields ...string) *Response {
	r.t.Helper()
	return r.WantError(http.StatusBadRequest, "VALIDATION_ERROR", fields...)
}

// lookup follows a dotted path through objects, and through arrays by index.
func (r *Response) lookup(path string) (any, bool) {
	d := json.NewDecoder(bytes.NewReader(r.Body))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil {
		return nil, false
	}
	for part := range strings.SplitSeq(path, ".") {
		switch in := v.(type) {
		case map[string]any:
			found, ok := in[part]
			if !ok {
				return nil, false
			}
			v = found
		case []any:
			i, err := strconv.Atoi(part)
			if err != nil || i < 0 || i >= len(in) {
				return nil, false
			}
			v = in[i]
		default:
			return nil, false
		}
	}
	return v, true
}

// Has reports whether there is a value at path, possibly null.
func (r *Response) Has(path string) bool {
	_, ok := r.lookup(path)
	return ok
}

// Get returns the value at path, numbers as float64, or nil if there is none.
func (r *Response) Get(path string) any {
	v, _ := r.lookup(path)
	return plain(v)
}

// Str returns the string at path.
func (r *Response) Str(path string) string {
	r.t.Helper()
	v, _ := r.lookup(path)
	s, ok := v.(string)
	if !ok {
		r.t.Fatalf("%s → %s: no string at %s", r.Request, clip(r.Body), path)
	}
	return s
}

// Int returns the integer at path.
func (r *Response) Int(path string) int64 {
	r.t.Helper()
	v, _ := r.lookup(path)
	n, ok := v.(json.Number)
	if !ok {
		r.t.Fatalf("%s → %s: no number at %s", r.Request, clip(r.Body), path)
	}
	i, err := n.Int64()
	if err != nil {
		r.t.Fatalf("%s → no integer at %s: %v", r.Request, path, err)
	}
	return i
}

// Time returns the time at path.
func (r *Response) Time(path string) time.Time {
	r.t.Helper()
	ts, err := time.Parse("2006-01-02T15:04:05.000Z", r.Str(path))
	if err != nil {
		r.t.Fatalf("%s → no timestamp at %s: %v", r.Request, path, err)
	}
	return ts
}

// Decode unmarshals the body into v.
func (r *Response) Decode(v any) {
	r.t.Helper()
	if err := json.Unmarshal(r.Body, v); err != nil {
		r.t.Fatalf("%s → %s: %v", r.Request, clip(r.Body), err)
	}
}

// WantJSON requires that the value at path equals want, compared as JSON.
func (r *Response) WantJSON(path string, want any) *Response {
	r.t.Helper()
	got, ok := r.lookup(path)
	g, w := canonical(plain(got)), canonical(want)
	if !ok || g != w {
		r.t.Errorf("%s → %s has the value %s, want %s", r.Request, path, g, w)
	}
	return r
}

// WantAbsent requires that there is no value at any of the paths.
func (r *Response) WantAbsent(paths ...string) *Response {
	r.t.Helper()
	for _, p := range paths {
		if r.Has(p) {
			r.t.Errorf("%s → unexpected value at %s: %s", r.Request, p, clip(r.Body))
		}
	}
	return r
}

func canonical(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		return err.Error()
	}
	var x any
	if json.Unmarshal(b, &x) != nil {
		return string(b)
	}
	if b, err = json.Marshal(x); err != nil {
		return err.Error()
	}
	return string(b)
}

func plain(v any) any {
	switch v := v.(type) {
	case json.Number:
		f, err := v.Float64()
		if err != nil {
			return math.NaN()
		}
		return f
	case map[string]any:
		out := make(map[string]any, len(v))
		for k, e := range v {
			out[k] = plain(e)
		}
		return out
	case []any:
		out := make([]any, len(v))
		for i, e := range v {
			out[i] = plain(e)
		}
		return out
	default:
		return v
	}
}
