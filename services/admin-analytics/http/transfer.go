package http

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/gin-gonic/gin"

	"waitlist.internal/libs/apierr"
	"waitlist.internal/libs/authn"
	"waitlist.internal/libs/httpapi"
	signupv1 "waitlist.internal/proto/gen/waitlist/signup/v1"
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
	// answerTimeout bounds the time until the signup service starts to answer.
	answerTimeout = httpapi.DefaultTimeout
	// piece is how many bytes of a body are forwarded at a time.
	piece = 64 << 10
	// drainTimeout bounds how long the rest of a rejected import is read and
	// discarded, so that a client that is still sending sees the response.
	drainTimeout = 5 * time.Second
)

// transferRoutes adds the routes of export and import.
func (h handler) transferRoutes(e gin.IRouter) {
	e.GET("/v1/waitlists/:waitlist_id/export", authn.WithQueryToken(h.accounts), httpapi.Timeout(transferTimeout), httpapi.H(h.export))
	e.POST("/v1/waitlists/:waitlist_id/import",
		drained, authn.Middleware(h.accounts), httpapi.Timeout(importTimeout), httpapi.H(h.importSignups))
}

// export forwards the signup service's stream. If either side breaks off, the
// response ends without the terminator of its body, so the client notices.
func (h handler) export(c *gin.Context) error {
	id, err := waitlistID(c)
	if err != nil {
		return err
	}
	ctx, begun, end := opening(c.Request.Context())
	defer end()
	stream, err := h.signups.ExportSignups(ctx, &signupv1.ExportSignupsRequest{Actor: authn.Actor(c).Proto(), WaitlistId: id})
	if err != nil {
		return begun(err)
	}
	res, err := stream.Recv()
	if err := begun(err); err != nil {
		return err
	}
	header := c.Writer.Header()
	header.Set("Content-Type", "text/csv; charset=utf-8")
	header.Set("Content-Disposition", `attachment; filename="signups-`+id+`.csv"`)
	c.Status(http.StatusOK)
	if httpapi.IsHead(c) {
		c.Writer.WriteHeaderNow()
		return nil
	}
	out := http.NewResponseController(c.Writer)
	// left is how far the client may still fall behind exportRate. Only the time of
	// writing to it counts.
	left := h.stall
	checked := time.Now()
	for ; err == nil; res, err = stream.Recv() {
		start, piece := time.Now(), res.GetCsv()
		// The deadline ends a download whose client is too slow. A test's recorder has no
		// deadline. The server lifts it after the response.
		_ = out.SetWriteDeadline(start.Add(left))
		if _, err := c.Writer.Write(piece); err != nil {
			return gone(err)
		}
		if err := out.Flush(); err != nil {
			return gone(err)
		}
		left = min(h.stall, left-time.Since(start)+time.Duration(len(piece))*time.Second/exportRate)
		if time.Since(checked) > h.recheck {
			if err := h.stillAllowed(c, id); err != nil {
				return err
			}
			checked = time.Now()
		}
	}
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// stillAllowed returns an error if the caller of an export has lost access to the
// waitlist since it began. An outage does not end the export.
func (h handler) stillAllowed(c *gin.Context, id string) error {
	actor, err := authn.Again(c, h.accounts)
	if err == nil {
		_, err = h.waitlists.GetWaitlist(c.Request.Context(), &signupv1.GetWaitlistRequest{Actor: actor.Proto(), WaitlistId: id})
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

// opening returns the context of a call that may take long. The context ends if the
// call does not begin within answerTimeout. begun ends that limit and returns the
// error with which the call began, or DeadlineExceeded if the limit ended the call.
func opening(parent context.Context) (ctx context.Context, begun func(error) error, end context.CancelFunc) {
	ctx, cancel := context.WithCancel(parent)
	late := time.AfterFunc(answerTimeout, cancel)
	begun = func(err error) error {
		if late.Stop() || parent.Err() != nil {
			return err
		}
		return fmt.Errorf("wait for signup's answer: %w", context.DeadlineExceeded)
	}
	return ctx, begun, func() { late.Stop(); cancel() }
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

// importSignups forwards the body as it arrives. The signup service may reject the
// request before it has read all of it.
func (h handler) importSignups(c *gin.Context) error {
	id, err := waitlistID(c)
	if err != nil {
		return err
	}
	ctx, begun, end := opening(c.Request.Context())
	defer end()
	stream, err := h.signups.ImportSignups(ctx)
	if err == nil {
		err = stream.Send(&signupv1.ImportSignupsRequest{Actor: authn.Actor(c).Proto(), WaitlistId: id})
	}
	if err := begun(err); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	unread := h.passOn(c, func(b []byte) error { return stream.Send(&signupv1.ImportSignupsRequest{Body: b}) })
	res, err := stream.CloseAndRecv()
	if err != nil {
		return bodyError(err, unread)
	}
	out := imported{Imported: res.GetImported(), Skipped: res.GetSkipped(), Errors: []importError{}}
	for _, e := range res.GetErrors() {
		out.Errors = append(out.Errors, importError{Row: e.GetRow(), Email: e.GetEmail(), Error: e.GetError()})
	}
	httpapi.JSON(c, http.StatusOK, out)
	return nil
}

// passOn sends the request's body in pieces, up to the first byte over the limit. It
// stops when send fails, which means that the signup service has answered. An error
// means that the body could not be read. The signup service then gets a byte that is
// not JSON instead of the rest, so that it rejects the request after the checks that
// come first. The read deadline is left in force, because net/http also reads the
// rest of the body before it answers.
func (h handler) passOn(c *gin.Context, send func([]byte) error) error {
	in := http.NewResponseController(c.Writer)
	body := io.LimitReader(c.Request.Body, httpapi.ImportBodyLimit+1)
	buf := make([]byte, piece)
	for {
		_ = in.SetReadDeadline(time.Now().Add(h.stall))
		n, err := body.Read(buf)
		if n > 0 {
			if refused := send(buf[:n]); refused != nil {
				return nil //nolint:nilerr // CloseAndRecv has the reason
			}
		}
		switch {
		case errors.Is(err, io.EOF):
			_ = in.SetReadDeadline(time.Time{})
			return nil
		case err != nil:
			_ = send([]byte{0xff})
			return apierr.New(apierr.InvalidBody, "The request body could not be read.").WithCause(err)
		}
	}
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
