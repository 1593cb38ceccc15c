package http

import (
	"net/http"

	"github.com/gin-gonic/gin"

	"waitlist.internal/libs/authn"
	"waitlist.internal/libs/httpapi"
	"waitlist.internal/services/account"
)

// member is a team member of the API.
type member struct {
	Email     string `json:"email"`
	Role      string `json:"role"`
	InvitedAt string `json:"invited_at"`
}

func newMember(m account.Member) member {
	return member{m.Email, m.Role.String(), timestamp(m.InvitedAt)}
}

func (h handler) invite(c *gin.Context) error {
	raw, err := httpapi.ReadBody(c, httpapi.DefaultBodyLimit)
	if err != nil {
		return err
	}
	m, err := h.svc.Invite(c.Request.Context(), authn.Actor(c), raw)
	if err != nil {
		return err
	}
	httpapi.JSON(c, http.StatusCreated, newMember(m))
	return nil
}

func (h handler) members(c *gin.Context) error {
	members, err := h.svc.Members(c.Request.Context(), authn.Actor(c))
	if err != nil {
		return err
	}
	out := make([]member, 0, len(members))
	for _, m := range members {
		out = append(out, newMember(m))
	}
	httpapi.JSON(c, http.StatusOK, struct {
		Members []member `json:"members"`
	}{out})
	return nil
}

func (h handler) removeMember(c *gin.Context) error {
	if err := h.svc.RemoveMember(c.Request.Context(), authn.Actor(c), c.Param("email")); err != nil {
		return err
	}
	httpapi.NoContent(c)
	return nil
}

func (h handler) leave(c *gin.Context) error {
	if err := h.svc.Leave(c.Request.Context(), authn.Actor(c), c.Param("owner_email")); err != nil {
		return err
	}
	httpapi.NoContent(c)
	return nil
}
