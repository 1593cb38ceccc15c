// Package http serves /v1/waitlists.
package http

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/google/uuid"
	"google.golang.org/protobuf/types/known/timestamppb"

	"waitlist.internal/libs/apierr"
	"waitlist.internal/libs/authn"
	"waitlist.internal/libs/httpapi"
	messagingv1 "waitlist.internal/proto/gen/waitlist/messaging/v1"
	signupv1 "waitlist.internal/proto/gen/waitlist/signup/v1"
	adminanalytics "waitlist.internal/services/admin-analytics"
)

// Backends are the services behind the routes.
type Backends struct {
	Accounts  authn.Authorizer
	Waitlists signupv1.WaitlistServiceClient
	Signups   signupv1.AdminServiceClient
	Analytics *adminanalytics.Analytics
	Messaging messagingv1.MessagingServiceClient
}

type handler struct {
	accounts  authn.Authorizer
	waitlists signupv1.WaitlistServiceClient
	signups   signupv1.AdminServiceClient
	analytics *adminanalytics.Analytics
	messaging messagingv1.MessagingServiceClient
	// stall bounds the time a client may take for one piece of a transfer.
	stall time.Duration
	// recheck is the interval at which an export asks whether its caller may still have it.
	recheck time.Duration
}

// Routes adds the routes to an engine of package httpapi. They check credentials
// only; the signup service, or messaging for blasts, validates and authorizes each
// request.
func Routes(e gin.IRouter, b Backends) {
	h := handler{
		accounts: b.Accounts, waitlists: b.Waitlists, signups: b.Signups, analytics: b.Analytics, messaging: b.Messaging,
		stall: stallTimeout, recheck: recheckEvery,
	}
	g := e.Group("/v1/waitlists", authn.Middleware(b.Accounts))
	g.POST("", httpapi.H(h.create))
	g.GET("", httpapi.H(h.list))
	g.GET("/:waitlist_id", httpapi.H(h.get))
	g.PATCH("/:waitlist_id", httpapi.H(h.update))
	g.DELETE("/:waitlist_id", httpapi.H(h.remove))
	g.GET("/:waitlist_id/signups", httpapi.H(h.listSignups))
	g.DELETE("/:waitlist_id/signups/:email", httpapi.H(h.removeSignup))
	g.PATCH("/:waitlist_id/signups/:email", httpapi.H(h.creditSignup))
	g.PATCH("/:waitlist_id/signups/:email/position", httpapi.H(h.moveSignup))
	g.GET("/:waitlist_id/stats", httpapi.H(h.stats))
	h.transferRoutes(e)
	h.analyticsRoutes(g)
	h.blastRoutes(g)
}

// summary is a waitlist in the list and in the response to POST.
type summary struct {
	WaitlistID  string `json:"waitlist_id"`
	Name        string `json:"name"`
	SignupCount int64  `json:"signup_count"`
	CreatedAt   string `json:"created_at"`
	// Role is the caller's role; only the list of a member of a team has it.
	Role string `json:"role,omitempty"`
}

// waitlist is a waitlist in the responses to GET and PATCH.
type waitlist struct {
	WaitlistID  string          `json:"waitlist_id"`
	Name        string          `json:"name"`
	Settings    json.RawMessage `json:"settings"`
	SignupCount int64           `json:"signup_count"`
	CreatedAt   string          `json:"created_at"`
}

func (h handler) create(c *gin.Context) error {
	raw, unread := httpapi.ReadBody(c, httpapi.DefaultBodyLimit)
	res, err := h.waitlists.CreateWaitlist(c.Request.Context(), &signupv1.CreateWaitlistRequest{
		Actor: authn.Actor(c).Proto(), AccountEmail: header(c, "X-Account-Email"), IdempotencyKey: header(c, "Idempotency-Key"), Body: raw,
	})
	if err != nil {
		return bodyError(err, unread)
	}
	if res.GetReplayed() {
		c.Header("Idempotent-Replayed", "true")
	}
	httpapi.JSON(c, http.StatusCreated, summarize(res.GetWaitlist()))
	return nil
}

func (h handler) list(c *gin.Context) error {
	actor := authn.Actor(c)
	res, err := h.waitlists.ListWaitlists(c.Request.Context(), &signupv1.ListWaitlistsRequest{Actor: actor.Proto()})
	if err != nil {
		return err
	}
	out := make([]summary, 0, len(res.GetWaitlists()))
	for _, w := range res.GetWaitlists() {
		entry := summarize(w)
		if len(actor.Grants) > 1 { // the first is the caller's own account
			entry.Role = w.GetRole()
		}
		out = append(out, entry)
	}
	httpapi.JSON(c, http.StatusOK, map[string][]summary{"waitlists": out})
	return nil
}

func (h handler) get(c *gin.Context) error {
	id, err := waitlistID(c)
	if err != nil {
		return err
	}
	res, err := h.waitlists.GetWaitlist(c.Request.Context(), &signupv1.GetWaitlistRequest{Actor: authn.Actor(c).Proto(), WaitlistId: id})
	if err != nil {
		return err
	}
	httpapi.JSON(c, http.StatusOK, detail(res.GetWaitlist()))
	return nil
}

func (h handler) update(c *gin.Context) error {
	id, err := waitlistID(c)
	if err != nil {
		return err
	}
	raw, unread := httpapi.ReadBody(c, httpapi.DefaultBodyLimit)
	res, err := h.waitlists.UpdateWaitlist(c.Request.Context(), &signupv1.UpdateWaitlistRequest{
		Actor: authn.Actor(c).Proto(), WaitlistId: id, Body: raw,
	})
	if err != nil {
		return bodyError(err, unread)
	}
	httpapi.JSON(c, http.StatusOK, detail(res.GetWaitlist()))
	return nil
}

func (h handler) remove(c *gin.Context) error {
	id, err := waitlistID(c)
	if err != nil {
		return err
	}
	if _, err := h.waitlists.DeleteWaitlist(c.Request.Context(), &signupv1.DeleteWaitlistRequest{
		Actor: authn.Actor(c).Proto(), WaitlistId: id,
	}); err != nil {
		return err
	}
	httpapi.NoContent(c)
	return nil
}

// waitlistID returns the waitlist's id in the path, or NOT_FOUND if that is not an id.
func waitlistID(c *gin.Context) (string, error) {
	s := c.Param("waitlist_id")
	id, err := uuid.Parse(s)
	if err != nil || len(s) != len(uuid.Nil.String()) { // Parse takes other forms as well
		return "", apierr.NotFoundf("There is no such waitlist.")
	}
	return id.String(), nil
}

// header returns a header as gRPC can carry it: U+FFFD replaces bytes that are not
// UTF-8. The services accept neither in the headers read here.
func header(c *gin.Context, name string) string {
	return strings.ToValidUTF8(c.GetHeader(name), "\uFFFD")
}

// query returns a query parameter in the same form as header.
func query(c *gin.Context, name string) string {
	return strings.ToValidUTF8(httpapi.Query(c, name), "\uFFFD")
}

// bodyError returns unread, the more exact error, if the body could not be read. An
// unreadable body is forwarded as an empty one, so that the service rejects it after
// the checks that come first. A client that is too slow also cancels the request's
// context, and so the call.
func bodyError(err, unread error) error {
	if unread != nil && (apierr.Is(err, apierr.InvalidBody) || errors.Is(err, context.Canceled)) {
		return unread
	}
	return err
}

func summarize(w *signupv1.Waitlist) summary {
	return summary{
		WaitlistID: w.GetWaitlistId(), Name: w.GetName(), SignupCount: w.GetSignupCount(),
		CreatedAt: timestamp(w.GetCreatedAt()),
	}
}

func detail(w *signupv1.Waitlist) waitlist {
	return waitlist{
		WaitlistID: w.GetWaitlistId(), Name: w.GetName(), Settings: w.GetSettingsJson(), SignupCount: w.GetSignupCount(),
		CreatedAt: timestamp(w.GetCreatedAt()),
	}
}

// timestamp returns the API's format: UTC with milliseconds.
func timestamp(t *timestamppb.Timestamp) string {
	return t.AsTime().Format("2006-01-02T15:04:05.000Z")
}
