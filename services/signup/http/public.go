// Package http serves /v1/public and, to owners, /v1/waitlists.
package http

import (
	"bytes"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/gin-gonic/gin"

	"waitlist.internal/libs/apierr"
	"waitlist.internal/libs/body"
	"waitlist.internal/libs/httpapi"
	"waitlist.internal/libs/views"
	"waitlist.internal/services/signup/join"
	"waitlist.internal/services/signup/waitlist"
)

// Default and bound of the leaderboard's limit.
const (
	leaderboardDefault = 10
	leaderboardMax     = 50
)

// timeLayout is how the API writes times.
const timeLayout = "2006-01-02T15:04:05.000Z"

// Routes adds the public routes to an engine. shown counts how often a
// form was shown. If it is nil, views are not counted. pages is the address of the
// pages, without a slash at its end; empty: browsers are not sent there.
func Routes(e *gin.Engine, svc *join.Service, shown *views.Counter, pages string) {
	h := handler{svc, shown, pages}
	e.POST("/v1/public/waitlists/:waitlist_id/signups", httpapi.H(h.join))
	g := e.Group("/v1/public/waitlists/:waitlist_id", knownID)
	g.GET("/signups/:email", httpapi.H(h.status))
	g.GET("/signups/:email/status", httpapi.H(h.status))
	g.POST("/signups/:email/verify", httpapi.H(h.verifyBody))
	g.GET("/signups/:email/verify", httpapi.H(h.verifyQuery))
	g.GET("/config", httpapi.H(h.config))
	g.GET("/count", httpapi.H(h.count))
	g.GET("/leaderboard", httpapi.H(h.leaderboard))
	g.POST("/link", httpapi.H(h.mailLink))
	g.POST("/unsubscribe", httpapi.H(h.unsubscribe))
	g.GET("/unsubscribe", httpapi.H(h.unsubscribePage))
	g.POST("/delete-my-data", httpapi.H(h.deleteMyData))
}

type handler struct {
	svc   *join.Service
	views *views.Counter
	pages string
}

const paramID = "waitlist_id"

// knownID answers NOT_FOUND if the path has no valid waitlist id.
func knownID(c *gin.Context) {
	if !canonicalID(c) {
		httpapi.Fail(c, waitlist.ErrNotFound())
	}
}

// canonicalID replaces the waitlist id in the path by its canonical form. It returns
// false for an invalid id.
func canonicalID(c *gin.Context) bool {
	for i := range c.Params {
		if p := &c.Params[i]; p.Key == paramID {
			id, ok := waitlist.ParseID(p.Value)
			p.Value = id
			return ok
		}
	}
	return false
}

func formatTime(t time.Time) string { return t.UTC().Format(timeLayout) }

// shown returns v, or nil, which JSON omits, if show is false.
func shown(v int64, show bool) *int64 {
	if !show {
		return nil
	}
	return &v
}

type receipt struct {
	Email         string `json:"email"`
	FirstName     string `json:"first_name"`
	LastName      string `json:"last_name"`
	ReferralToken string `json:"referral_token"`
	Position      *int64 `json:"position,omitempty"`
	ReferralCount int64  `json:"referral_count"`
	TotalSignups  *int64 `json:"total_signups,omitempty"`
	CreatedAt     string `json:"created_at"`
	RedirectURL   string `json:"redirect_url,omitempty"`
}

func (h handler) join(c *gin.Context) error {
	raw, err := httpapi.ReadBody(c, httpapi.DefaultBodyLimit)
	if err != nil {
		return err
	}
	if !canonicalID(c) {
		// An invalid body takes precedence over an unknown waitlist.
		if _, err := body.Parse(raw); err != nil {
			return err
		}
		return waitlist.ErrNotFound()
	}
	r, err := h.svc.Join(c.Request.Context(), c.Param(paramID), raw, join.Header{
		UserAgent: c.Request.UserAgent(), ClientIP: httpapi.ClientIP(c),
	})
	if err != nil {
		return err
	}
	status := http.StatusOK
	if r.Created {
		status = http.StatusCreated
	}
	httpapi.JSON(c, status, receipt{
		Email: r.Email, FirstName: r.FirstName, LastName: r.LastName, ReferralToken: r.Token,
		Position: shown(r.Position, r.ShowPosition), ReferralCount: r.ReferralCount,
		TotalSignups: shown(r.Total, r.ShowPosition), CreatedAt: formatTime(r.CreatedAt), RedirectURL: r.RedirectURL,
	})
	return nil
}

type standing struct {
	Email         string `json:"email"`
	FirstName     string `json:"first_name"`
	LastName      string `json:"last_name"`
	Position      *int64 `json:"position,omitempty"`
	ReferralCount int64  `json:"referral_count"`
	TotalSignups  *int64 `json:"total_signups,omitempty"`
	CreatedAt     string `json:"created_at"`
}

func (h handler) status(c *gin.Context) error {
	s, err := h.svc.Status(c.Request.Context(), c.Param(paramID), c.Param("email"))
	if err != nil {
		return err
	}
	httpapi.JSON(c, http.StatusOK, standing{
		Email: s.Email, FirstName: s.FirstName, LastName: s.LastName, Position: shown(s.Position, s.ShowPosition),
		ReferralCount: s.ReferralCount, TotalSignups: shown(s.Total, s.ShowPosition), CreatedAt: formatTime(s.CreatedAt),
	})
	return nil
}

func (h handler) verifyBody(c *gin.Context) error {
	form, err := readForm(c)
	if err != nil {
		return err
	}
	return h.verify(c, form.RequiredString("token", 0), form.Err())
}

func (h handler) verifyQuery(c *gin.Context) error {
	tok := httpapi.Query(c, "token")
	var invalid error
	if tok == "" {
		invalid = apierr.Validation(apierr.Field{Field: "token", Message: "This field is required."})
	}
	return h.verify(c, tok, invalid)
}

func (h handler) verify(c *gin.Context, tok string, invalid error) error {
	if invalid != nil {
		return h.orNoWaitlist(c, invalid)
	}
	verify := h.svc.Verify
	if httpapi.IsHead(c) {
		// Mail scanners and previews send HEAD without their reader's knowledge.
		verify = h.svc.Verifiable
	}
	already, err := verify(c.Request.Context(), c.Param(paramID), c.Param("email"), tok)
	if err != nil {
		return err
	}
	message := "Your email address is verified."
	if already {
		message = "Your email address was already verified."
	}
	httpapi.JSON(c, http.StatusOK, gin.H{"verified": true, "message": message})
	return nil
}

// orNoWaitlist returns invalid, the error about a request's fields, unless there is no
// such waitlist, which takes precedence.
func (h handler) orNoWaitlist(c *gin.Context, invalid error) error {
	if err := h.svc.Exists(c.Request.Context(), c.Param(paramID)); err != nil {
		return err
	}
	return invalid
}

func readForm(c *gin.Context) (*body.Object, error) {
	raw, err := httpapi.ReadBody(c, httpapi.DefaultBodyLimit)
	if err != nil {
		return nil, err
	}
	return body.Parse(raw)
}

func (h handler) config(c *gin.Context) error {
	f, err := h.svc.Form(c.Request.Context(), c.Param(paramID))
	if err != nil {
		return err
	}
	httpapi.JSON(c, http.StatusOK, f.Config())
	if h.views != nil && !httpapi.IsHead(c) {
		h.views.Add(f.Waitlist.ID)
	}
	return nil
}

func (h handler) count(c *gin.Context) error {
	f, err := h.svc.Form(c.Request.Context(), c.Param(paramID))
	if err != nil {
		return err
	}
	httpapi.JSON(c, http.StatusOK, struct {
		WaitlistID string `json:"waitlist_id"`
		Count      *int64 `json:"count"`
	}{f.Waitlist.ID, f.Count})
	return nil
}

func (h handler) leaderboard(c *gin.Context) error {
	limit, err := httpapi.QueryInt(c, "limit", leaderboardDefault, 1, leaderboardMax)
	if err != nil {
		return h.orNoWaitlist(c, err)
	}
	id := c.Param(paramID)
	counts, err := h.svc.Leaderboard(c.Request.Context(), id, limit)
	if err != nil {
		return err
	}
	type entry struct {
		Rank          int   `json:"rank"`
		ReferralCount int64 `json:"referral_count"`
	}
	board := make([]entry, len(counts))
	for i, n := range counts {
		board[i] = entry{i + 1, n}
	}
	httpapi.JSON(c, http.StatusOK, struct {
		WaitlistID  string  `json:"waitlist_id"`
		Leaderboard []entry `json:"leaderboard"`
	}{id, board})
	return nil
}

func (h handler) mailLink(c *gin.Context) error {
	form, err := readForm(c)
	if err != nil {
		return err
	}
	email := form.RequiredString("email", 0)
	if err := form.Err(); err != nil {
		return h.orNoWaitlist(c, err)
	}
	if err := h.svc.MailLink(c.Request.Context(), c.Param(paramID), email, httpapi.ClientIP(c)); err != nil {
		return err
	}
	httpapi.JSON(c, http.StatusAccepted, gin.H{"message": "If this address is on the list, we have sent it its link."})
	return nil
}

func (h handler) unsubscribe(c *gin.Context) error {
	email, tok, err := emailAndToken(c)
	if err != nil {
		if apierr.Is(err, apierr.InvalidBody) {
			return err
		}
		return h.orNoWaitlist(c, err)
	}
	deleteToken, err := h.svc.Unsubscribe(c.Request.Context(), c.Param(paramID), email, tok)
	if err != nil {
		return err
	}
	httpapi.JSON(c, http.StatusOK, gin.H{
		"success": true, "message": "You will get no more marketing email from this waitlist. You keep your place.",
		"delete_token": deleteToken,
	})
	return nil
}

// unsubscribePage sends a person who opened the address of a List-Unsubscribe header in a
// browser to the page with the button. Scanners of mails open it, too, so it changes nothing.
func (h handler) unsubscribePage(c *gin.Context) error {
	c.Header("Vary", "Accept")
	if h.pages == "" || !strings.Contains(c.GetHeader("Accept"), "text/html") {
		return apierr.New(apierr.NotFound, "There is no such path or method.")
	}
	query := url.Values{
		"waitlist": {c.Param(paramID)}, "email": {httpapi.Query(c, "email")}, "token": {httpapi.Query(c, "token")},
	}
	c.Redirect(http.StatusSeeOther, h.pages+"/unsubscribe?"+query.Encode())
	return nil
}

// emailAndToken reads both values from the JSON body, or from the query if the body is
// the form of a one-click unsubscription (RFC 8058) or empty.
func emailAndToken(c *gin.Context) (email, tok string, err error) {
	raw, err := httpapi.ReadBody(c, httpapi.DefaultBodyLimit)
	if err != nil {
		return "", "", err
	}
	noBody := len(bytes.TrimSpace(raw)) == 0 && httpapi.Query(c, "email") != "" && httpapi.Query(c, "token") != ""
	if noBody || oneClick(raw) {
		var missing []apierr.Field
		if email = httpapi.Query(c, "email"); email == "" {
			missing = append(missing, apierr.Field{Field: "email", Message: "This field is required."})
		}
		if tok = httpapi.Query(c, "token"); tok == "" {
			missing = append(missing, apierr.Field{Field: "token", Message: "This field is required."})
		}
		if missing != nil {
			return "", "", apierr.Validation(missing...)
		}
		return email, tok, nil
	}
	form, err := body.Parse(raw)
	if err != nil {
		return "", "", err
	}
	email, tok = form.RequiredString("email", 0), form.RequiredString("token", 0)
	return email, tok, form.Err()
}

// oneClick reports whether raw is the form that RFC 8058 asks mail clients to send, in
// either encoding of HTML forms.
func oneClick(raw []byte) bool {
	text := strings.TrimSpace(string(raw[:min(len(raw), 1024)]))
	if strings.HasPrefix(text, "{") {
		return false
	}
	return strings.Contains(text, "List-Unsubscribe") && strings.Contains(text, "One-Click")
}

func (h handler) deleteMyData(c *gin.Context) error {
	form, err := readForm(c)
	if err != nil {
		return err
	}
	email, tok := form.RequiredString("email", 0), form.RequiredString("token", 0)
	if err := form.Err(); err != nil {
		return h.orNoWaitlist(c, err)
	}
	if err := h.svc.DeleteMyData(c.Request.Context(), c.Param(paramID), email, tok); err != nil {
		return err
	}
	httpapi.JSON(c, http.StatusOK, gin.H{"success": true, "message": "Your data has been deleted."})
	return nil
}
