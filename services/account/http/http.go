// Package http serves /v1/auth and /v1/team.
package http

import (
	"context"
	"net/http"
	"time"

	"github.com/gin-gonic/gin"
	"google.golang.org/grpc"

	"waitlist.internal/libs/apierr"
	"waitlist.internal/libs/audit"
	"waitlist.internal/libs/authn"
	"waitlist.internal/libs/body"
	"waitlist.internal/libs/httpapi"
	accountv1 "waitlist.internal/proto/gen/waitlist/account/v1"
	"waitlist.internal/services/account"
)

// jwksMaxAge is how long verifiers may cache the key set. A new key is published
// before it signs.
const jwksMaxAge = "public, max-age=300"

type handler struct{ svc *account.Service }

// Routes adds the routes to an engine from package httpapi.
func Routes(e gin.IRouter, svc *account.Service) {
	h := handler{svc}
	auth := e.Group("/v1/auth")
	auth.POST("/register", httpapi.H(h.register))
	auth.POST("/login", httpapi.H(h.login))
	auth.POST("/refresh", httpapi.H(h.refresh))
	auth.POST("/logout", httpapi.H(h.logout))
	auth.POST("/forgot-password", httpapi.H(h.forgotPassword))
	auth.POST("/reset-password", httpapi.H(h.resetPassword))
	auth.POST("/verify-email", authn.Optional(local{svc}), httpapi.H(h.verifyEmail))
	auth.GET("/jwks.json", httpapi.H(h.jwks))

	// None of these requires a subscription: an account without one must be able to
	// see its state, to subscribe and to leave.
	user := auth.Group("", authn.Middleware(local{svc}))
	user.GET("/me", httpapi.H(h.profile))
	user.DELETE("/me", httpapi.H(h.remove))
	user.POST("/regenerate-api-key", httpapi.H(h.regenerateAPIKey))
	user.POST("/resend-verification", httpapi.H(h.resendVerification))
	user.POST("/change-password", httpapi.H(h.changePassword))
	user.GET("/sessions", httpapi.H(h.sessions))
	user.DELETE("/sessions/:session_id", httpapi.H(h.endSession))
	user.GET("/audit", httpapi.H(h.audit))

	team := e.Group("/v1/team", authn.Middleware(local{svc}))
	team.POST("/invite", httpapi.H(h.invite))
	team.GET("", httpapi.H(h.members))
	team.DELETE("/:email", httpapi.H(h.removeMember))
	team.DELETE("/memberships/:owner_email", httpapi.H(h.leave))
	// Without this route, DELETE /v1/team/invite would match /v1/team/:email.
	e.DELETE("/v1/team/invite", httpapi.H(func(*gin.Context) error { return apierr.NotFoundf("There is nothing here.") }))
}

// local implements authn.Authorizer without gRPC.
type local struct{ svc *account.Service }

func (l local) Authorize(ctx context.Context, in *accountv1.AuthorizeRequest, _ ...grpc.CallOption) (*accountv1.AuthorizeResponse, error) {
	actor, err := l.svc.Authorize(ctx, in.GetBearerToken(), in.GetApiKey())
	if err != nil {
		return nil, err
	}
	return &accountv1.AuthorizeResponse{Actor: actor.Proto()}, nil
}

// read parses the request body.
func read(c *gin.Context) (*body.Object, error) {
	raw, err := httpapi.ReadBody(c, httpapi.DefaultBodyLimit)
	if err != nil {
		return nil, err
	}
	return body.Parse(raw)
}

// fields returns the values of required strings.
func fields(c *gin.Context, names ...string) ([]string, error) {
	o, err := read(c)
	if err != nil {
		return nil, err
	}
	values := make([]string, len(names))
	for i, name := range names {
		values[i] = o.RequiredString(name, 0)
	}
	return values, o.Err()
}

// withFields returns the errors of the body, together with the domain's first error
// for each field that has none.
func withFields(o *body.Object, fields []apierr.Field) error {
	for _, f := range fields {
		if !o.Failed(f.Field) {
			o.Fail(f.Field, f.Message)
		}
	}
	return o.Err()
}

func (h handler) register(c *gin.Context) error {
	o, err := read(c)
	if err != nil {
		return err
	}
	email, password := o.RequiredString("email", 0), o.RequiredString("password", 0)
	_, wrong := h.svc.CheckRegistration(email, password)
	if err := withFields(o, wrong); err != nil {
		return err
	}
	r, err := h.svc.Register(c.Request.Context(), email, password)
	if err != nil {
		return err
	}
	httpapi.JSON(c, http.StatusCreated, struct {
		Email  string `json:"email"`
		APIKey string `json:"api_key"`
		Tier   string `json:"subscription_tier"`
		Status string `json:"subscription_status"`
	}{r.Account.Email, r.APIKey, string(r.Account.Entitlement.Tier), string(r.Account.Entitlement.Status)})
	return nil
}

func (h handler) login(c *gin.Context) error {
	in, err := fields(c, "email", "password")
	if err != nil {
		return err
	}
	t, err := h.svc.Login(c.Request.Context(), in[0], in[1], account.Client{IP: httpapi.ClientIP(c), UserAgent: c.Request.UserAgent()})
	if err != nil {
		return err
	}
	writeTokens(c, t)
	return nil
}

func (h handler) refresh(c *gin.Context) error {
	in, err := fields(c, "refresh_token")
	if err != nil {
		return err
	}
	t, err := h.svc.Refresh(c.Request.Context(), in[0])
	if err != nil {
		return err
	}
	writeTokens(c, t)
	return nil
}

func writeTokens(c *gin.Context, t account.Tokens) {
	httpapi.JSON(c, http.StatusOK, struct {
		IDToken      string `json:"id_token"`
		TokenType    string `json:"token_type"`
		ExpiresIn    int64  `json:"expires_in"`
		RefreshToken string `json:"refresh_token"`
	}{t.IDToken, "Bearer", int64(t.ExpiresIn / time.Second), t.RefreshToken})
}

func (h handler) logout(c *gin.Context) error {
	in, err := fields(c, "refresh_token")
	if err != nil {
		return err
	}
	if err := h.svc.Logout(c.Request.Context(), in[0]); err != nil {
		return err
	}
	httpapi.NoContent(c)
	return nil
}

type message struct {
	Message string `json:"message"`
}

func (h handler) forgotPassword(c *gin.Context) error {
	in, err := fields(c, "email")
	if err != nil {
		return err
	}
	if err := h.svc.ForgotPassword(c.Request.Context(), in[0]); err != nil {
		return err
	}
	httpapi.JSON(c, http.StatusAccepted, message{"If this address has an account, we have sent it a mail."})
	return nil
}

func (h handler) resetPassword(c *gin.Context) error {
	o, err := read(c)
	if err != nil {
		return err
	}
	token, password := o.RequiredString("token", 0), o.RequiredString("password", 0)
	if err := withFields(o, h.svc.CheckPassword(password, "")); err != nil {
		return err
	}
	if err := h.svc.ResetPassword(c.Request.Context(), token, password); err != nil {
		return err
	}
	httpapi.NoContent(c)
	return nil
}

func (h handler) verifyEmail(c *gin.Context) error {
	o, err := read(c)
	if err != nil {
		return err
	}
	token := o.RequiredString("token", 0)
	password, _ := o.String("password", account.MaxPassword)
	if err := o.Err(); err != nil {
		return err
	}
	proof := account.Proof{Actor: authn.Actor(c), Password: password, ClientIP: httpapi.ClientIP(c)}
	if err := h.svc.VerifyEmail(c.Request.Context(), token, proof); err != nil {
		return err
	}
	httpapi.JSON(c, http.StatusOK, struct {
		Verified bool `json:"verified"`
		message
	}{true, message{"Your email address is verified."}})
	return nil
}

func (h handler) resendVerification(c *gin.Context) error {
	sent, err := h.svc.ResendVerification(c.Request.Context(), authn.Actor(c))
	if err != nil {
		return err
	}
	m := message{"We have sent you a verification mail."}
	if !sent {
		m.Message = "Your email address is already verified."
	}
	httpapi.JSON(c, http.StatusOK, m)
	return nil
}

func (h handler) regenerateAPIKey(c *gin.Context) error {
	key, err := h.svc.RegenerateAPIKey(c.Request.Context(), authn.Actor(c))
	if err != nil {
		return err
	}
	httpapi.JSON(c, http.StatusOK, struct {
		APIKey string `json:"api_key"`
	}{key})
	return nil
}

func (h handler) changePassword(c *gin.Context) error {
	o, err := read(c)
	if err != nil {
		return err
	}
	current, password := o.RequiredString("current_password", account.MaxPassword), o.RequiredString("password", 0)
	if err := withFields(o, h.svc.CheckPassword(password, "")); err != nil {
		return err
	}
	if err := h.svc.ChangePassword(c.Request.Context(), authn.Actor(c), current, password, httpapi.ClientIP(c)); err != nil {
		return err
	}
	httpapi.NoContent(c)
	return nil
}

type session struct {
	ID         string `json:"id"`
	CreatedAt  string `json:"created_at"`
	LastUsedAt string `json:"last_used_at"`
	UserAgent  string `json:"user_agent"`
}

func (h handler) sessions(c *gin.Context) error {
	sessions, err := h.svc.Sessions(c.Request.Context(), authn.Actor(c))
	if err != nil {
		return err
	}
	out := make([]session, len(sessions))
	for i, s := range sessions {
		out[i] = session{s.ID, timestamp(s.CreatedAt), timestamp(s.LastUsedAt), s.UserAgent}
	}
	httpapi.JSON(c, http.StatusOK, struct {
		Sessions []session `json:"sessions"`
	}{out})
	return nil
}

func (h handler) endSession(c *gin.Context) error {
	if err := h.svc.EndSession(c.Request.Context(), authn.Actor(c), c.Param("session_id")); err != nil {
		return err
	}
	httpapi.NoContent(c)
	return nil
}

// entry is an entry of the audit trail. Missing values are null.
type entry struct {
	At         string       `json:"at"`
	Actor      *string      `json:"actor"`
	Credential *string      `json:"credential"`
	Role       *string      `json:"role"`
	Action     audit.Action `json:"action"`
	Target     *string      `json:"target"`
	RequestID  string       `json:"request_id"`
}

func (h handler) audit(c *gin.Context) error {
	list, next, err := h.svc.AuditTrail(c.Request.Context(), authn.Actor(c),
		httpapi.Query(c, "limit"), httpapi.Query(c, "last_key"), httpapi.Query(c, "action"))
	if err != nil {
		return err
	}
	out := make([]entry, len(list))
	for i, e := range list {
		out[i] = entry{
			At: timestamp(e.At), Actor: optional(e.Actor), Credential: optional(e.Credential), Action: e.Action, Target: optional(e.Target),
			RequestID: e.RequestID,
		}
		if e.Role != 0 {
			out[i].Role = new(e.Role.String())
		}
	}
	httpapi.JSON(c, http.StatusOK, struct {
		Entries []entry `json:"entries"`
		Count   int     `json:"count"`
		LastKey *string `json:"last_key"`
	}{out, len(out), optional(next)})
	return nil
}

// optional returns nil for an empty string.
func optional(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

func (h handler) jwks(c *gin.Context) error {
	c.Header("Cache-Control", jwksMaxAge)
	httpapi.RawJSON(c, http.StatusOK, h.svc.Keys.JWKS())
	return nil
}

// profile is the profile of the API. trial_ends_at and trial_end are the same time
// in two formats. Both remain set after the trial.
type profile struct {
	Email             string  `json:"email"`
	HasAPIKey         bool    `json:"has_api_key"`
	Tier              string  `json:"subscription_tier"`
	Status            string  `json:"subscription_status"`
	TrialEndsAt       *string `json:"trial_ends_at"`
	PaymentCustomerID *string `json:"payment_customer_id"`
	HasUsedTrial      bool    `json:"has_used_trial"`
	TrialEnd          *int64  `json:"trial_end"`
}

func (h handler) profile(c *gin.Context) error {
	a, err := h.svc.Profile(c.Request.Context(), authn.Actor(c))
	if err != nil {
		return err
	}
	p := profile{
		Email: a.Email, HasAPIKey: a.APIKey.Valid(),
		Tier: string(a.Entitlement.Tier), Status: string(a.Entitlement.Status), HasUsedTrial: a.HasUsedTrial,
	}
	if !a.TrialEndsAt.IsZero() {
		p.TrialEndsAt = new(timestamp(a.TrialEndsAt))
		p.TrialEnd = new(a.TrialEndsAt.Unix())
	}
	if a.PaymentCustomerID != "" {
		p.PaymentCustomerID = &a.PaymentCustomerID
	}
	httpapi.JSON(c, http.StatusOK, p)
	return nil
}

// timestamp formats t as the API shows times.
func timestamp(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05.000Z") }

func (h handler) remove(c *gin.Context) error {
	if err := h.svc.Delete(c.Request.Context(), authn.Actor(c)); err != nil {
		return err
	}
	httpapi.NoContent(c)
	return nil
}
