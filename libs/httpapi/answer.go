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
	// outageRetry is the Retry-After while a dependency is unavailable.
	outageRetry = 2 * time.Second
	// drainLimit bounds how much of an oversized body is read and dropped, so that a
	// client that is still sending sees the answer.
	drainLimit = 4 << 20
)

var jsonType = []string{"application/json; charset=utf-8"}

// HandlerFunc is a handler that returns an error instead of writing it.
type HandlerFunc func(*gin.Context) error

// H turns f into a gin handler that answers with f's error.
func H(f HandlerFunc) gin.HandlerFunc {
	return func(c *gin.Context) {
		if err := f(c); err != nil {
			Fail(c, err)
		}
	}
}

// Fail answers with err and ends the chain of handlers. It is the one place that
// logs the cause. If the answer has begun, the server cuts the connection.
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
			// The client has gone, which canceled its own request.
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

// errorBody is the body of every error in the REST contract.
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

// JSON answers with v, or with INTERNAL_ERROR if v cannot be marshalled.
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

// RawJSON answers with doc, which is JSON.
func RawJSON(c *gin.Context, status int, doc []byte) {
	h := c.Writer.Header()
	h["Content-Type"] = jsonType
	h["Content-Length"] = []string{strconv.Itoa(len(doc))}
	c.Status(status)
	// net/http notices a client that has gone.
	_, _ = c.Writer.Write(doc)
}

// NoContent answers 204.
func NoContent(c *gin.Context) {
	c.Status(http.StatusNoContent)
	c.Writer.WriteHeaderNow()
}

// WithBody calls f with the body of a request. If the body cannot be read, f gets an empty
// one and refuses it at its place in the order of checks; WithBody then returns the error of
// reading instead.
func WithBody(c *gin.Context, f func(raw []byte) error) error {
	raw, unread := ReadBody(c, DefaultBodyLimit)
	err := f(raw)
	// A client that sends too slowly also cancels the context of its request.
	if unread != nil && (apierr.Is(err, apierr.InvalidBody) || errors.Is(err, context.Canceled)) {
		return unread
	}
	return err
}

// slowBody is how long a body may take before ReadBody restarts the request's timeout.
const slowBody = 10 * time.Millisecond

// ReadBody returns the request's body of at most limit bytes. A longer or broken body
// is INVALID_BODY, as is one that takes longer than the server's ReadTimeout. A body
// beyond the process' Capacity is RATE_LIMITED, and its connection ends. After a slow
// body, ReadBody starts the request's timeout anew, which replaces the request's context.
func ReadBody(c *gin.Context, limit int64) (raw []byte, err error) {
	if c.Request.Body == nil || c.Request.Body == http.NoBody {
		return nil, nil
	}
	r := requestOf(c)
	if r != nil && r.placed {
		// Otherwise clients that send nothing more could hold all places.
		r.capacity.release(false)
		r.placed = false
		defer func() {
			if r.placed = r.capacity.acquire(); !r.placed {
				raw, err = nil, tooMany(time.Second)
			}
		}()
	}
	raw, err = readGrowing(r, c.Request.Body, limit)
	if r != nil && time.Since(r.began) > slowBody {
		r.begin(c) // the time that a slow client takes does not count
	}
	if errors.Is(err, errBodies) {
		// Otherwise net/http would wait for the rest before it answers.
		c.Header("Connection", "close")
		_ = http.NewResponseController(c.Writer).SetReadDeadline(time.Now().Add(time.Second))
		return nil, tooMany(time.Second)
	}
	if err != nil {
		return nil, apierr.New(apierr.InvalidBody, "The request body could not be read.").WithCause(err)
	}
	if int64(len(raw)) > limit {
		_, _ = io.CopyN(io.Discard, c.Request.Body, drainLimit)
		return nil, apierr.New(apierr.InvalidBody, fmt.Sprintf("The request body is longer than %d bytes.", limit))
	}
	return raw, nil
}

// errBodies says that the process holds too many bytes of unfinished bodies.
var errBodies = errors.New("httpapi: too many unfinished bodies")

// readGrowing reads up to limit+1 bytes. What it takes for that grows with what arrives, whatever length is announced, and
// counts against the capacity until the body is complete.
func readGrowing(r *request, body io.Reader, limit int64) ([]byte, error) {
	raw, held := make([]byte, 0, min(limit+1, 512)), 0
	if r != nil {
		defer func() { r.capacity.unreserve(held) }()
	}
	for {
		n, err := body.Read(raw[len(raw):cap(raw)])
		raw = raw[:len(raw)+n]
		switch {
		case errors.Is(err, io.EOF) || int64(len(raw)) > limit:
			return raw, nil
		case err != nil:
			return nil, err
		case len(raw) < cap(raw):
			continue
		}
		size := int(min(2*int64(cap(raw)), limit+1))
		if more := size - max(cap(raw), freeBody); r != nil && more > 0 {
			if !r.capacity.reserve(more) {
				return nil, errBodies
			}
			held += more
		}
		raw = append(make([]byte, 0, size), raw...)
	}
}

// Query returns the query parameter of that name, or "" if there is none. A repeated
// parameter becomes one value with commas, which every parameter refuses, since nobody
// can know which one the client meant. A value with broken encoding is returned as
// sent: "" would select the default, which the client did not ask for.
func Query(c *gin.Context, name string) string {
	var values []string
	for pair := range strings.SplitSeq(c.Request.URL.RawQuery, "&") {
		key, sent, _ := strings.Cut(pair, "=")
		if key, err := url.QueryUnescape(key); err != nil || key != name {
			continue
		}
		if v, err := url.QueryUnescape(sent); err == nil {
			sent = v
		}
		values = append(values, sent)
	}
	return strings.Join(values, ",")
}

// QueryInt returns an integer query parameter, or def if it is absent. Anything
// but an integer from lowest to highest is a VALIDATION_ERROR.
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
