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
	// transferTimeout bounds an export, importTimeout an import, which a client may
	// have to send for a while.
	transferTimeout = time.Hour
	importTimeout   = 5 * time.Minute
	// stallTimeout is how long a client may take for one piece, in either direction.
	stallTimeout = 30 * time.Second
	// answerTimeout bounds what signup takes to begin.
	answerTimeout = httpapi.DefaultTimeout
	// piece is how many bytes of a body are passed on at a time.
	piece = 64 << 10
	// drainTimeout bounds how long the rest of a refused import is read away, so
	// that a client that is still sending gets to see the answer.
	drainTimeout = 5 * time.Second
)

// transferRoutes adds export and import.
func (h handler) transferRoutes(e gin.IRouter, accounts authn.Authorizer) {
	e.GET("/v1/waitlists/:waitlist_id/export", authn.WithQueryToken(accounts), httpapi.Timeout(transferTimeout), httpapi.H(h.export))
	e.POST("/v1/waitlists/:waitlist_id/import", drained, authn.Middleware(accounts), httpapi.Timeout(importTimeout), httpapi.H(h.importSignups))
}

// export hands on what signup sends. A download that breaks off, on either side,
// ends without the end of the body.
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
	for ; err == nil; res, err = stream.Recv() {
		// Only against who stopped reading; a recorder in a test has no deadline. The
		// server lifts it after the answer.
		_ = out.SetWriteDeadline(time.Now().Add(h.stall))
		if _, err := c.Writer.Write(res.GetCsv()); err != nil {
			return gone(err)
		}
		if err := out.Flush(); err != nil {
			return gone(err)
		}
	}
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// gone turns a failure to write the answer into an error that blames the client.
func gone(err error) error {
	return apierr.New(apierr.InternalError, "The client stopped reading.").WithKind(apierr.Abandoned).WithCause(err)
}

// opening gives a call that may take long a context that ends if its beginning
// takes too long. begun says that it has begun, or turns the error with which
// that failed into the one to answer with.
func opening(parent context.Context) (ctx context.Context, begun func(error) error, end context.CancelFunc) {
	ctx, cancel := context.WithCancel(parent)
	late := time.AfterFunc(answerTimeout, cancel)
	begun = func(err error) error {
		if late.Stop() || parent.Err() != nil {
			return err
		}
		return fmt.Errorf("signup has not answered: %w", context.DeadlineExceeded)
	}
	return ctx, begun, func() { late.Stop(); cancel() }
}

// imported is the answer to an import.
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

// importSignups passes the body on as it comes. signup may refuse the request
// before it has read it.
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

// passOn sends the request's body in pieces, up to the first byte over the limit,
// until send fails: signup then has an answer. An error means that the body
// could not be read; signup gets something that is no JSON in place of the rest,
// so that it refuses the request when its turn in the order comes. The deadline
// then stays: the server looks for the rest, too, before it answers.
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

// drained reads away what a client still sends that was refused, be it for its
// credentials, so that it gets to see the answer.
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
