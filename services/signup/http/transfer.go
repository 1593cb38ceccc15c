package http

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/gin-gonic/gin"

	"waitlist.internal/libs/access"
	"waitlist.internal/libs/apierr"
	"waitlist.internal/libs/authn"
	"waitlist.internal/libs/httpapi"
	"waitlist.internal/services/signup/owners"
	"waitlist.internal/services/signup/waitlist"
)

const (
	// transferTimeout bounds an export, importTimeout an import, upload included.
	transferTimeout = time.Hour
	importTimeout   = 5 * time.Minute
	// stallTimeout bounds the time for one piece, in either direction, and how long the
	// client of an export may lag behind exportRate.
	stallTimeout = 20 * time.Second
	// exportRate is the least rate at which the client of an export reads, in bytes a
	// second. An export holds one of a few places.
	exportRate = 64 << 10
	// recheckEvery is how soon an export ends when its caller loses the account, the
	// credential or the membership, or the waitlist is deleted.
	recheckEvery = 5 * time.Second
	// piece is how many bytes of a body are read at a time.
	piece = 64 << 10
	// drainTimeout bounds how long the rest of a rejected import is read and
	// discarded, so that a client that is still sending sees the response.
	drainTimeout = 5 * time.Second
)

// transfers moves whole waitlists. *owners.Admin does.
type transfers interface {
	Export(ctx context.Context, actor access.Actor, waitlistID string, send func([]byte) error) error
	Import(ctx context.Context, actor access.Actor, waitlistID string, next func() ([]byte, error)) (owners.Imported, error)
	// MayRead returns an error if the actor may not read the waitlist.
	MayRead(ctx context.Context, actor access.Actor, waitlistID string) error
}

type transferHandler struct {
	accounts  authn.Authorizer
	transfers transfers
	// stall bounds the time a client may take for one piece of a transfer.
	stall time.Duration
	// recheck is the interval at which an export asks whether its caller may still have it.
	recheck time.Duration
}

func (h transferHandler) routes(e gin.IRouter) {
	e.GET("/v1/waitlists/:waitlist_id/export", authn.WithQueryToken(h.accounts), httpapi.Timeout(transferTimeout), httpapi.H(h.export))
	e.POST("/v1/waitlists/:waitlist_id/import",
		drained, authn.Middleware(h.accounts), httpapi.Timeout(importTimeout), httpapi.H(h.importSignups))
}

// errHeaderOnly ends an export whose client asked for the header alone.
var errHeaderOnly = errors.New("only the header was asked for")

// export sends the file as it is read. After an error midway the response ends without the
// terminator of its body, so the client notices.
func (h transferHandler) export(c *gin.Context) error {
	id, ok := waitlist.ParseID(c.Param(paramID))
	if !ok {
		return waitlist.ErrNotFound()
	}
	ctx, cancel := context.WithCancelCause(c.Request.Context())
	defer cancel(nil)
	late := time.AfterFunc(httpapi.DefaultTimeout, func() { cancel(context.DeadlineExceeded) })
	defer late.Stop()
	out := http.NewResponseController(c.Writer)
	// left is how far the client may still fall behind exportRate. Only the time of
	// writing to it counts.
	left := h.stall
	begun, checked := false, time.Now()
	err := h.transfers.Export(ctx, authn.Actor(c), id, func(csv []byte) error {
		if !begun {
			if begun = late.Stop(); !begun {
				return context.DeadlineExceeded
			}
			header := c.Writer.Header()
			header.Set("Content-Type", "text/csv; charset=utf-8")
			header.Set("Content-Disposition", `attachment; filename="signups-`+id+`.csv"`)
			c.Status(http.StatusOK)
			if httpapi.IsHead(c) {
				c.Writer.WriteHeaderNow()
				return errHeaderOnly
			}
		}
		start := time.Now()
		// The deadline ends a download whose client is too slow. A test's recorder has no
		// deadline. The server lifts it after the response.
		_ = out.SetWriteDeadline(start.Add(left))
		if _, err := c.Writer.Write(csv); err != nil {
			return gone(err)
		}
		if err := out.Flush(); err != nil {
			return gone(err)
		}
		left = min(h.stall, left-time.Since(start)+time.Duration(len(csv))*time.Second/exportRate)
		if time.Since(checked) <= h.recheck {
			return nil
		}
		checked = time.Now()
		return h.stillAllowed(c, id)
	})
	if cause := context.Cause(ctx); err != nil && errors.Is(cause, context.DeadlineExceeded) {
		return fmt.Errorf("begin the export: %w", cause)
	}
	if errors.Is(err, errHeaderOnly) {
		return nil
	}
	return err
}

// stillAllowed returns an error if the caller of an export has lost access to the
// waitlist since it began. An outage does not end the export.
func (h transferHandler) stillAllowed(c *gin.Context, id string) error {
	actor, err := authn.Again(c, h.accounts)
	if err == nil {
		err = h.transfers.MayRead(c.Request.Context(), actor, id)
	}
	if err == nil || apierr.From(err).Kind.Failure() {
		return nil
	}
	return fmt.Errorf("authorize an export under way: %w", err)
}

// gone turns a failure to write the answer into an error that blames the client.
func gone(err error) error {
	return apierr.New(apierr.InternalError, "The client stopped reading.").WithKind(apierr.Abandoned).WithCause(err)
}

// imported is the response to an import.
type imported struct {
	Imported int64         `json:"imported"`
	Skipped  int64         `json:"skipped"`
	Errors   []importError `json:"errors"`
}

type importError struct {
	Row   int64  `json:"row"`
	Email string `json:"email"`
	Error string `json:"error"`
}

// importSignups reads the body as it arrives, once the caller may import. The read
// deadline is left in force after a failure, because net/http also reads the rest of the
// body before it answers.
func (h transferHandler) importSignups(c *gin.Context) error {
	in := http.NewResponseController(c.Writer)
	buf := make([]byte, piece)
	res, err := h.transfers.Import(c.Request.Context(), authn.Actor(c), c.Param(paramID), func() ([]byte, error) {
		_ = in.SetReadDeadline(time.Now().Add(h.stall))
		n, err := c.Request.Body.Read(buf)
		switch {
		case n > 0:
			return buf[:n], nil
		case errors.Is(err, io.EOF):
			_ = in.SetReadDeadline(time.Time{})
			return nil, io.EOF
		case err != nil:
			return nil, apierr.New(apierr.InvalidBody, "The request body could not be read.").WithCause(err)
		}
		return nil, nil
	})
	if err != nil {
		return err
	}
	out := imported{Imported: res.Imported, Skipped: res.Skipped, Errors: []importError{}}
	for _, e := range res.Errors {
		out.Errors = append(out.Errors, importError{Row: e.Row, Email: e.Email, Error: e.Message})
	}
	httpapi.JSON(c, http.StatusOK, out)
	return nil
}

// drained discards the rest of the body after a rejection, so that a client that is
// still sending sees the response. It covers requests rejected for their
// credentials, too.
func drained(c *gin.Context) {
	c.Next()
	in := http.NewResponseController(c.Writer)
	if in.SetReadDeadline(time.Now().Add(drainTimeout)) != nil {
		return
	}
	if _, err := io.CopyN(io.Discard, c.Request.Body, httpapi.ImportBodyLimit); errors.Is(err, io.EOF) {
		_ = in.SetReadDeadline(time.Time{})
	}
}
