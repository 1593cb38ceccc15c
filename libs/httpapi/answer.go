package httpapi

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/gin-gonic/gin"

	"waitlist.internal/libs/apierr"
	"waitlist.internal/libs/httpstatus"
	"waitlist.internal/libs/outage"
	"waitlist.internal/libs/telemetry"
)

const (
	// outageRetry is the Retry-After while a dependency is away.
	outageRetry = 2 * time.Second
	// bodyTimeout is how long a client may take to send its body.
	bodyTimeout = 60 * time.Second
	// drainLimit is how much of an oversized body is read away, so that a client
	// that is still sending gets to see the answer.
	drainLimit = 4 << 20
)

var jsonType = []string{"application/json; charset=utf-8"}

// HandlerFunc is a handler that returns what went wrong instead of writing it.
type HandlerFunc func(*gin.Context) error

// H makes f a gin handler: its error becomes the contract's body.
func H(f HandlerFunc) gin.HandlerFunc {
	return func(c *gin.Context) {
		if err := f(c); err != nil {
			Fail(c, err)
		}
	}
}

// Fail answers with err and ends the chain; for middleware. A cause is logged
// here, once. When the answer has begun already the connection is cut.
func Fail(c *gin.Context, err error) {
	c.Abort()
	e := apierr.From(err)
	if e.Code == apierr.InternalError && e.RetryAfter == 0 && outage.Is(err) {
		e = e.WithRetryAfter(outageRetry)
	}
	ctx, r := c.Request.Context(), requestOf(c)
	if e.Err != nil || e.Kind.Failure() {
		level := slog.LevelError
		switch {
		case errors.Is(ctx.Err(), context.Canceled):
			// The client has gone, and what was cut short is its own request.
			level = slog.LevelInfo
		case !e.Kind.Failure():
			level = slog.LevelWarn
		}
		log := slog.Default()
		if r != nil {
			log = r.log
		}
		log.LogAttrs(ctx, level, "request failed", slog.String("code", string(e.Code)),
			slog.Int("status", httpstatus.Of(e.Kind)), slog.String("route", c.FullPath()), telemetry.Err(err))
	}
	if !c.Writer.Written() {
		write(c, e)
	} else if r != nil {
		r.aborted = true
	}
}

// errorBody is the contract's.
type errorBody struct {
	Error     string         `json:"error"`
	ErrorCode apierr.Code    `json:"error_code"`
	RequestID string         `json:"request_id"`
	Errors    []apierr.Field `json:"errors,omitempty"`
}

func write(c *gin.Context, e *apierr.Error) {
	if e.RetryAfter > 0 {
		c.Writer.Header()["Retry-After"] = []string{seconds(e.RetryAfter)}
	}
	JSON(c, httpstatus.Of(e.Kind), errorBody{Error: e.Message, ErrorCode: e.Code, RequestID: RequestID(c), Errors: e.Fields})
}

// seconds rounds up to a whole second.
func seconds(d time.Duration) string {
	return strconv.FormatInt(int64((d+time.Second-1)/time.Second), 10)
}

// JSON answers with v, or with INTERNAL_ERROR where v cannot be marshalled.
func JSON(c *gin.Context, status int, v any) {
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		Fail(c, fmt.Errorf("marshal answer: %w", err))
		return
	}
	RawJSON(c, status, buf.Bytes())
}

// RawJSON answers with JSON that is marshalled already.
func RawJSON(c *gin.Context, status int, doc []byte) {
	h := c.Writer.Header()
	h["Content-Type"] = jsonType
	h["Content-Length"] = []string{strconv.Itoa(len(doc))}
	c.Status(status)
	// A client that has gone is seen by net/http.
	_, _ = c.Writer.Write(doc)
}

// NoContent answers 204.
func NoContent(c *gin.Context) {
	c.Status(http.StatusNoContent)
	c.Writer.WriteHeaderNow()
}

// ReadBody returns the request's body, which may have up to limit bytes,
// inclusive. A longer or broken one is INVALID_BODY. The request's timeout begins
// again, with another context, when that is known.
func ReadBody(c *gin.Context, limit int64) ([]byte, error) {
	tooLong := apierr.New(apierr.InvalidBody, fmt.Sprintf("The request body is longer than %d bytes.", limit))
	if c.Request.Body == nil || c.Request.Body == http.NoBody {
		return nil, nil
	}
	// Only against slow senders; a recorder in a test has no deadline. It stays
	// where the body does not end: the server looks for the rest before it answers.
	ctl := http.NewResponseController(c.Writer)
	_ = ctl.SetReadDeadline(time.Now().Add(bodyTimeout))
	var raw []byte
	var err error
	if n := c.Request.ContentLength; n >= 0 && n <= min(limit, DefaultBodyLimit) {
		raw = make([]byte, n)
		_, err = io.ReadFull(c.Request.Body, raw)
	} else {
		raw, err = io.ReadAll(io.LimitReader(c.Request.Body, limit+1))
	}
	if r := requestOf(c); r != nil {
		r.begin(c) // a slow line is not slow work
	}
	if err != nil {
		return nil, apierr.New(apierr.InvalidBody, "The request body could not be read.").WithCause(err)
	}
	if int64(len(raw)) > limit {
		_, _ = io.CopyN(io.Discard, c.Request.Body, drainLimit)
		return nil, tooLong
	}
	_ = ctl.SetReadDeadline(time.Time{})
	return raw, nil
}

// Query returns a query parameter, the first where there are several; an empty
// one is absent, "". One that is damaged is returned as it was sent: absent
// would be the default, which is not what was asked for.
func Query(c *gin.Context, name string) string {
	for pair := range strings.SplitSeq(c.Request.URL.RawQuery, "&") {
		key, sent, _ := strings.Cut(pair, "=")
		if key, err := url.QueryUnescape(key); err != nil || key != name {
			continue
		}
		if v, err := url.QueryUnescape(sent); err == nil {
			return v
		}
		return sent
	}
	return ""
}

// QueryInt returns an integer query parameter, def where it is absent. Out of
// the inclusive bounds, or no integer, it is VALIDATION_ERROR.
func QueryInt(c *gin.Context, name string, def, lowest, highest int) (int, error) {
	s := Query(c, name)
	if s == "" {
		return def, nil
	}
	n, err := strconv.Atoi(s)
	if err != nil || n < lowest || n > highest {
		return 0, apierr.Validation(apierr.Field{
			Field: name, Message: fmt.Sprintf("This must be an integer from %d to %d.", lowest, highest),
		})
	}
	return n, nil
}

// Header returns a header of at most maxLen printable ASCII characters, ""
// where it is absent. Anything else is VALIDATION_ERROR naming it: such a value
// could not be stored, nor passed on by gRPC.
func Header(c *gin.Context, name string, maxLen int) (string, error) {
	v := c.GetHeader(name)
	ok := len(v) <= maxLen
	for i := 0; ok && i < len(v); i++ {
		ok = v[i] >= ' ' && v[i] <= '~'
	}
	if !ok {
		return "", apierr.Validation(apierr.Field{
			Field: name, Message: fmt.Sprintf("This must have at most %d printable ASCII characters.", maxLen),
		})
	}
	return v, nil
}

// ClientIP returns the client's address, seen through trusted proxies only.
func ClientIP(c *gin.Context) string { return c.ClientIP() }
