// Package http serves /v1/templates and /v1/domains.
package http

import (
	"time"

	"github.com/gin-gonic/gin"

	"waitlist.internal/libs/authn"
	"waitlist.internal/services/messaging/domains"
	"waitlist.internal/services/messaging/providers/resend"
	"waitlist.internal/services/messaging/templates"
)

// Backends are the dependencies of the routes.
type Backends struct {
	Accounts  authn.Authorizer
	Templates *templates.Service
	Domains   *domains.Service
	// Notifications is optional; without it there is no route for them.
	Notifications *resend.Notifications
}

type handler struct {
	templates     *templates.Service
	domains       *domains.Service
	notifications *resend.Notifications
}

// Routes adds the routes to an engine of package httpapi.
func Routes(e gin.IRouter, b Backends) {
	h := handler{templates: b.Templates, domains: b.Domains, notifications: b.Notifications}
	h.templateRoutes(e.Group("/v1/templates", authn.Middleware(b.Accounts)))
	h.domainRoutes(e, b.Accounts)
}

// accountEmail returns the address of the owner whose account the request is for, or "" for the caller's
// own account.
func accountEmail(c *gin.Context) string { return c.GetHeader("X-Account-Email") }

// timestamp formats t as the API does: UTC, with milliseconds.
func timestamp(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05.000Z") }
