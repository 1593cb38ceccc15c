package http

import (
	"encoding/json"
	"net/http"
	"strings"

	"github.com/gin-gonic/gin"

	"waitlist.internal/libs/authn"
	"waitlist.internal/libs/httpapi"
	analyticsv1 "waitlist.internal/proto/gen/waitlist/analytics/v1"
	messagingv1 "waitlist.internal/proto/gen/waitlist/messaging/v1"
	"waitlist.internal/services/signup/owners"
)

// Backends are what the owners' routes stand on.
type Backends struct {
	Accounts  authn.Authorizer
	Owners    *owners.Owners
	Admin     *owners.Admin
	Analytics analyticsv1.AnalyticsServiceClient
	Messaging messagingv1.MessagingServiceClient
}

type ownersHandler struct{ Backends }

// summary is a waitlist in the list and in the response to POST.
type summary struct {
	WaitlistID  string `json:"waitlist_id"`
	Name        string `json:"name"`
	SignupCount int64  `json:"signup_count"`
	CreatedAt   string `json:"created_at"`
	// Role is the caller's role; only the list of a member of a team has it.
	Role string `json:"role,omitempty"`
}

// waitlistDetail is a waitlist in the responses to GET and PATCH.
type waitlistDetail struct {
	WaitlistID  string          `json:"waitlist_id"`
	Name        string          `json:"name"`
	Settings    json.RawMessage `json:"settings"`
	SignupCount int64           `json:"signup_count"`
	CreatedAt   string          `json:"created_at"`
}

func detail(w owners.OwnedWaitlist) waitlistDetail {
	return waitlistDetail{
		WaitlistID: w.ID, Name: w.Name, Settings: w.SettingsJSON, SignupCount: w.SignupCount, CreatedAt: formatTime(w.CreatedAt),
	}
}

func (h ownersHandler) create(c *gin.Context) error {
	return httpapi.WithBody(c, func(raw []byte) error {
		w, replayed, err := h.Owners.Create(c.Request.Context(), authn.Actor(c), c.GetHeader("X-Account-Email"), raw, idempotencyKey(c))
		if err != nil {
			return err
		}
		if replayed {
			c.Header("Idempotent-Replayed", "true")
		}
		httpapi.JSON(c, http.StatusCreated, summary{
			WaitlistID: w.ID, Name: w.Name, SignupCount: w.SignupCount, CreatedAt: formatTime(w.CreatedAt),
		})
		return nil
	})
}

func (h ownersHandler) list(c *gin.Context) error {
	actor := authn.Actor(c)
	lists, err := h.Owners.List(c.Request.Context(), actor)
	if err != nil {
		return err
	}
	out := make([]summary, len(lists))
	for i, w := range lists {
		out[i] = summary{WaitlistID: w.ID, Name: w.Name, SignupCount: w.SignupCount, CreatedAt: formatTime(w.CreatedAt)}
		if len(actor.Grants) > 1 { // the first is the caller's own account
			out[i].Role = w.Role.String()
		}
	}
	httpapi.JSON(c, http.StatusOK, map[string][]summary{"waitlists": out})
	return nil
}

func (h ownersHandler) get(c *gin.Context) error {
	w, err := h.Owners.Get(c.Request.Context(), authn.Actor(c), c.Param(paramID))
	if err != nil {
		return err
	}
	httpapi.JSON(c, http.StatusOK, detail(w))
	return nil
}

func (h ownersHandler) update(c *gin.Context) error {
	return httpapi.WithBody(c, func(raw []byte) error {
		w, err := h.Owners.Update(c.Request.Context(), authn.Actor(c), c.Param(paramID), raw)
		if err != nil {
			return err
		}
		httpapi.JSON(c, http.StatusOK, detail(w))
		return nil
	})
}

func (h ownersHandler) remove(c *gin.Context) error {
	if err := h.Owners.Delete(c.Request.Context(), authn.Actor(c), c.Param(paramID)); err != nil {
		return err
	}
	httpapi.NoContent(c)
	return nil
}

// idempotencyKey returns the header as text: U+FFFD, which no key may contain, replaces
// bytes that are not UTF-8.
func idempotencyKey(c *gin.Context) string {
	return strings.ToValidUTF8(c.GetHeader("Idempotency-Key"), "\uFFFD")
}
