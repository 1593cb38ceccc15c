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

// Backends are what is behind the routes.
type Backends struct {
	Accounts  authn.Authorizer
	Templates *messaging.Templates
	Domains   *messaging.Domains
	// Notifications, if set, takes what the mail provider tells.
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

// accountEmail is the address of the owner that a request works for; empty: the
// caller's own account.
func accountEmail(c *gin.Context) string { return c.GetHeader("X-Account-Email") }

// withBody calls f with the request's body. One that could not be read is empty
// there, so that f refuses it when its turn in the order comes; the error then
// says more exactly why.
func withBody(c *gin.Context, f func(raw []byte) error) error {
	raw, unread := httpapi.ReadBody(c, httpapi.DefaultBodyLimit)
	err := f(raw)
	// A client that is too slow also ends the request's context.
	if unread != nil && (apierr.Is(err, apierr.InvalidBody) || errors.Is(err, context.Canceled)) {
		return unread
	}
	return err
}

// timestamp is the contract's form: UTC, milliseconds.
func timestamp(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05.000Z") }
