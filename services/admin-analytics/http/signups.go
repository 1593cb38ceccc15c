package http

import (
	"net/http"

	"github.com/gin-gonic/gin"

	"waitlist.internal/libs/authn"
	"waitlist.internal/libs/httpapi"
	signupv1 "waitlist.internal/proto/gen/waitlist/signup/v1"
)

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
