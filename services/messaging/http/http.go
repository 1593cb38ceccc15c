// Package http serves /v1/templates and /v1/domains.
package http

import (
	"context"
	"errors"
	"time"

	"github.com/gin-gonic/gin"

	"waitlist.internal/libs/apierr"
	"waitlist.internal/libs/authn"
	"waitlist.internal/libs/httpapi"
	"waitlist.internal/services/messaging"
)

// Backends are the dependencies of the routes.
type Backends struct {
	Accounts  authn.Authorizer
	Templates *messaging.Templates
	Domains   *messaging.Domains
	// Notifications is optional; without it there is no route for them.
	Notifications Notifications
}

type handler struct {
	templates     *messaging.Templates
	domains       *messaging.Domains
	notifications Notifications
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

// withBody calls f with the body of a request. If the body cannot be read, f gets an empty one and
// refuses it at its place in the order of checks; withBody then returns the read error instead.
func withBody(c *gin.Context, f func(raw []byte) error) error {
	raw, unread := httpapi.ReadBody(c, httpapi.DefaultBodyLimit)
	err := f(raw)
	// A client that sends too slowly also cancels the context of its request.
	if unread != nil && (apierr.Is(err, apierr.InvalidBody) || errors.Is(err, context.Canceled)) {
		return unread
	}
	return err
}

// timestamp formats t as the API does: UTC, with milliseconds.
func timestamp(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05.000Z") }
