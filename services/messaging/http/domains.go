package http

import (
	"net/http"

	"github.com/gin-gonic/gin"

	"waitlist.internal/libs/apierr"
	"waitlist.internal/libs/authn"
	"waitlist.internal/libs/httpapi"
	"waitlist.internal/services/messaging/domains"
)

func (h handler) domainRoutes(e gin.IRouter, accounts authn.Authorizer) {
	g := e.Group("/v1/domains", authn.Middleware(accounts))
	g.POST("/verify", httpapi.H(h.verifyDomain))
	g.GET("", httpapi.H(h.listDomains))
	g.GET("/:domain/status", httpapi.H(h.domainStatus))
	g.DELETE("/:domain", httpapi.H(h.deleteDomain))
	// DELETE is not defined on this path, which would otherwise match /:domain.
	e.DELETE("/v1/domains/verify", httpapi.H(func(*gin.Context) error { return apierr.NotFoundf("There is nothing here.") }))
	if h.notifications != nil {
		e.POST("/v1/domains/notifications/resend", httpapi.H(h.notify))
	}
}

// record is a DNS record in the API's form.
type record struct {
	Type    string `json:"type"`
	Name    string `json:"name"`
	Value   string `json:"value"`
	Purpose string `json:"purpose"`
	TTL     int    `json:"ttl"`
}

func (h handler) verifyDomain(c *gin.Context) error {
	return httpapi.WithBody(c, func(raw []byte) error {
		d, err := h.domains.Verify(c.Request.Context(), authn.Actor(c), accountEmail(c), raw)
		if err != nil {
			return err
		}
		records := make([]record, 0, len(d.Records))
		for _, r := range d.Records {
			records = append(records, record{r.Type, r.Name, r.Value, r.Purpose, r.TTL})
		}
		httpapi.JSON(c, http.StatusOK, struct {
			Domain  string        `json:"domain"`
			Status  domains.State `json:"status"`
			Records []record      `json:"dns_records"`
		}{d.Name, d.State, records})
		return nil
	})
}

func (h handler) listDomains(c *gin.Context) error {
	list, err := h.domains.List(c.Request.Context(), authn.Actor(c), accountEmail(c))
	if err != nil {
		return err
	}
	type domain struct {
		Domain    string        `json:"domain"`
		Status    domains.State `json:"verification_status"`
		CreatedAt string        `json:"created_at"`
	}
	out := make([]domain, 0, len(list))
	for _, d := range list {
		out = append(out, domain{d.Name, d.State, timestamp(d.CreatedAt)})
	}
	httpapi.JSON(c, http.StatusOK, map[string][]domain{"domains": out})
	return nil
}

func (h handler) domainStatus(c *gin.Context) error {
	d, err := h.domains.Status(c.Request.Context(), authn.Actor(c), accountEmail(c), c.Param("domain"))
	if err != nil {
		return err
	}
	httpapi.JSON(c, http.StatusOK, struct {
		Domain string        `json:"domain"`
		Status domains.State `json:"status"`
	}{d.Name, d.State})
	return nil
}

func (h handler) deleteDomain(c *gin.Context) error {
	if err := h.domains.Delete(c.Request.Context(), authn.Actor(c), accountEmail(c), c.Param("domain")); err != nil {
		return err
	}
	httpapi.NoContent(c)
	return nil
}

// notify receives a notification from the mail provider. Its signature is the only authentication.
func (h handler) notify(c *gin.Context) error {
	raw, err := httpapi.ReadBody(c, httpapi.DefaultBodyLimit)
	if err != nil {
		return err
	}
	if err := h.notifications.Take(c.Request.Context(), c.Request.Header, raw); err != nil {
		return err
	}
	httpapi.NoContent(c)
	return nil
}
