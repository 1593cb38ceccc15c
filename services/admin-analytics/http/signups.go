package http

import (
	"encoding/json"
	"net/http"

	"github.com/gin-gonic/gin"

	"waitlist.internal/libs/authn"
	"waitlist.internal/libs/httpapi"
	signupv1 "waitlist.internal/proto/gen/waitlist/signup/v1"
)

// signup is a signup as its owner sees it.
type signup struct {
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

// page is a part of the queue.
type page struct {
	Signups []signup `json:"signups"`
	Count   int      `json:"count"`
	// LastKey is null on the last page.
	LastKey *string `json:"last_key"`
}

func (h handler) listSignups(c *gin.Context) error {
	id, err := waitlistID(c)
	if err != nil {
		return err
	}
	res, err := h.signups.ListSignups(c.Request.Context(), &signupv1.ListSignupsRequest{
		Actor: authn.Actor(c).Proto(), WaitlistId: id, Limit: query(c, "limit"), LastKey: query(c, "last_key"),
	})
	if err != nil {
		return err
	}
	out := page{Signups: make([]signup, len(res.GetSignups())), Count: len(res.GetSignups())}
	for i, s := range res.GetSignups() {
		out.Signups[i] = signup{
			Email: s.GetEmail(), FirstName: s.GetFirstName(), LastName: s.GetLastName(), Phone: s.GetPhone(), Position: s.GetPosition(),
			ReferralToken: s.GetReferralToken(), ReferralCount: s.GetReferralCount(), ReferredBy: s.GetReferredBy(),
			UTM: utm{
				Source: s.GetUtmSource(), Medium: s.GetUtmMedium(), Campaign: s.GetUtmCampaign(), Term: s.GetUtmTerm(), Content: s.GetUtmContent(),
			},
			CustomAnswers: s.GetCustomAnswersJson(), EmailVerified: s.GetEmailVerified(), EmailOptOut: s.GetEmailOptOut(),
			DeviceType: s.GetDeviceType(), CreatedAt: timestamp(s.GetCreatedAt()), Flagged: s.Flagged,
		}
		if len(s.GetCustomAnswersJson()) == 0 {
			out.Signups[i].CustomAnswers = json.RawMessage("{}")
		}
		if at := s.GetEmailOptOutAt(); at != nil {
			out.Signups[i].EmailOptOutAt = new(timestamp(at))
		}
	}
	if res.GetLastKey() != "" {
		out.LastKey = new(res.GetLastKey())
	}
	httpapi.JSON(c, http.StatusOK, out)
	return nil
}

func (h handler) removeSignup(c *gin.Context) error {
	id, err := waitlistID(c)
	if err != nil {
		return err
	}
	if _, err := h.signups.RemoveSignup(c.Request.Context(), &signupv1.RemoveSignupRequest{
		Actor: authn.Actor(c).Proto(), WaitlistId: id, Email: c.Param("email"),
	}); err != nil {
		return err
	}
	httpapi.NoContent(c)
	return nil
}

// place is a signup after it was moved.
type place struct {
	Email    string `json:"email"`
	Position int64  `json:"position"`
}

func (h handler) moveSignup(c *gin.Context) error {
	id, err := waitlistID(c)
	if err != nil {
		return err
	}
	raw, unread := httpapi.ReadBody(c, httpapi.DefaultBodyLimit)
	res, err := h.signups.MoveSignup(c.Request.Context(), &signupv1.MoveSignupRequest{
		Actor: authn.Actor(c).Proto(), WaitlistId: id, Email: c.Param("email"), Body: raw,
	})
	if err != nil {
		return bodyError(err, unread)
	}
	httpapi.JSON(c, http.StatusOK, place{Email: res.GetEmail(), Position: res.GetPosition()})
	return nil
}

// credit is a signup whose referrer has the credit for it.
type credit struct {
	Email  string `json:"email"`
	Credit bool   `json:"credit"`
}

func (h handler) creditSignup(c *gin.Context) error {
	id, err := waitlistID(c)
	if err != nil {
		return err
	}
	raw, unread := httpapi.ReadBody(c, httpapi.DefaultBodyLimit)
	res, err := h.signups.CreditSignup(c.Request.Context(), &signupv1.CreditSignupRequest{
		Actor: authn.Actor(c).Proto(), WaitlistId: id, Email: c.Param("email"), Body: raw,
	})
	if err != nil {
		return bodyError(err, unread)
	}
	httpapi.JSON(c, http.StatusOK, credit{Email: res.GetEmail(), Credit: true})
	return nil
}

// stats are a waitlist's counters.
type stats struct {
	WaitlistID      string `json:"waitlist_id"`
	TotalSignups    int64  `json:"total_signups"`
	ReferralSignups int64  `json:"referral_signups"`
	CreatedAt       string `json:"created_at"`
}

func (h handler) stats(c *gin.Context) error {
	id, err := waitlistID(c)
	if err != nil {
		return err
	}
	res, err := h.signups.GetStats(c.Request.Context(), &signupv1.GetStatsRequest{Actor: authn.Actor(c).Proto(), WaitlistId: id})
	if err != nil {
		return err
	}
	httpapi.JSON(c, http.StatusOK, stats{
		WaitlistID: res.GetWaitlistId(), TotalSignups: res.GetTotalSignups(), ReferralSignups: res.GetReferralSignups(),
		CreatedAt: timestamp(res.GetCreatedAt()),
	})
	return nil
}
