package http

import (
	"encoding/json"
	"net/http"

	"github.com/gin-gonic/gin"

	"waitlist.internal/libs/authn"
	"waitlist.internal/libs/httpapi"
	"waitlist.internal/services/signup/owners"
)

// person is a signup as its owner sees it.
type person struct {
	Email         string          `json:"email"`
	FirstName     string          `json:"first_name"`
	LastName      string          `json:"last_name"`
	Phone         string          `json:"phone"`
	Position      int64           `json:"position"`
	ReferralToken string          `json:"referral_token"`
	ReferralCount int64           `json:"referral_count"`
	ReferredBy    string          `json:"referred_by"`
	UTM           utm             `json:"utm"`
	CustomAnswers json.RawMessage `json:"custom_answers"`
	EmailVerified bool            `json:"email_verified"`
	EmailOptOut   bool            `json:"email_opt_out"`
	EmailOptOutAt *string         `json:"email_opt_out_at"`
	DeviceType    string          `json:"device_type"`
	CreatedAt     string          `json:"created_at"`
	// Flagged is nil while the referral guard is off and has flagged nobody.
	Flagged *string `json:"flagged,omitempty"`
}

type utm struct {
	Source   string `json:"utm_source"`
	Medium   string `json:"utm_medium"`
	Campaign string `json:"utm_campaign"`
	Term     string `json:"utm_term"`
	Content  string `json:"utm_content"`
}

func personOf(row *owners.Row) person {
	p := person{
		Email: row.Email, FirstName: row.FirstName, LastName: row.LastName, Phone: row.Phone, Position: row.Position,
		ReferralToken: row.Token.String(), ReferralCount: row.ReferralCount,
		UTM:           utm{row.UTMSource, row.UTMMedium, row.UTMCampaign, row.UTMTerm, row.UTMContent},
		CustomAnswers: row.Answers, EmailVerified: !row.EmailVerifiedAt.IsZero(), EmailOptOut: !row.EmailOptOutAt.IsZero(),
		DeviceType: row.Device, CreatedAt: formatTime(row.CreatedAt), Flagged: row.Flagged,
	}
	if row.ReferredBy != nil {
		p.ReferredBy = row.ReferredBy.String()
	}
	if len(row.Answers) == 0 {
		p.CustomAnswers = json.RawMessage("{}")
	}
	if p.EmailOptOut {
		p.EmailOptOutAt = new(formatTime(row.EmailOptOutAt))
	}
	return p
}

// page is a part of the queue.
type page struct {
	Signups []person `json:"signups"`
	Count   int      `json:"count"`
	// LastKey is null on the last page.
	LastKey *string `json:"last_key"`
}

func (h ownersHandler) listSignups(c *gin.Context) error {
	rows, next, err := h.Admin.List(c.Request.Context(), authn.Actor(c), c.Param(paramID),
		httpapi.Query(c, "limit"), httpapi.Query(c, "last_key"))
	if err != nil {
		return err
	}
	out := page{Signups: make([]person, len(rows)), Count: len(rows)}
	for i := range rows {
		out.Signups[i] = personOf(&rows[i])
	}
	if next != "" {
		out.LastKey = &next
	}
	httpapi.JSON(c, http.StatusOK, out)
	return nil
}

func (h ownersHandler) removeSignup(c *gin.Context) error {
	if err := h.Admin.Remove(c.Request.Context(), authn.Actor(c), c.Param(paramID), c.Param("email")); err != nil {
		return err
	}
	httpapi.NoContent(c)
	return nil
}

func (h ownersHandler) moveSignup(c *gin.Context) error {
	return httpapi.WithBody(c, func(raw []byte) error {
		email, position, err := h.Admin.Move(c.Request.Context(), authn.Actor(c), c.Param(paramID), c.Param("email"), raw)
		if err != nil {
			return err
		}
		httpapi.JSON(c, http.StatusOK, struct {
			Email    string `json:"email"`
			Position int64  `json:"position"`
		}{email, position})
		return nil
	})
}

func (h ownersHandler) creditSignup(c *gin.Context) error {
	return httpapi.WithBody(c, func(raw []byte) error {
		email, err := h.Admin.Credit(c.Request.Context(), authn.Actor(c), c.Param(paramID), c.Param("email"), raw)
		if err != nil {
			return err
		}
		httpapi.JSON(c, http.StatusOK, struct {
			Email  string `json:"email"`
			Credit bool   `json:"credit"`
		}{email, true})
		return nil
	})
}

func (h ownersHandler) stats(c *gin.Context) error {
	s, err := h.Admin.Stats(c.Request.Context(), authn.Actor(c), c.Param(paramID))
	if err != nil {
		return err
	}
	httpapi.JSON(c, http.StatusOK, struct {
		WaitlistID      string `json:"waitlist_id"`
		TotalSignups    int64  `json:"total_signups"`
		ReferralSignups int64  `json:"referral_signups"`
		CreatedAt       string `json:"created_at"`
	}{s.WaitlistID, s.Total, s.Referrals, formatTime(s.CreatedAt)})
	return nil
}
