// Package httpstatus maps the kinds of errors to HTTP statuses and back. Only
// the edges use it: package httpapi, and package rpc, whose messages carry the
// status.
package httpstatus

import (
	"net/http"

	"waitlist.internal/libs/apierr"
)

// clientClosedRequest is only logged: the client that stopped reading never sees
// its status.
const clientClosedRequest = 499

var statuses = [...]int{
	apierr.Internal:        http.StatusInternalServerError,
	apierr.Upstream:        http.StatusBadGateway,
	apierr.Invalid:         http.StatusBadRequest,
	apierr.Unauthenticated: http.StatusUnauthorized,
	apierr.Denied:          http.StatusForbidden,
	apierr.Missing:         http.StatusNotFound,
	apierr.Conflicting:     http.StatusConflict,
	apierr.Throttled:       http.StatusTooManyRequests,
	apierr.Abandoned:       clientClosedRequest,
}

// Of returns the status of an answer with an error of kind k.
func Of(k apierr.Kind) int { return statuses[k] }

// Kind returns the kind of the errors that are answered with status; ok is
// false when there is none.
func Kind(status int) (k apierr.Kind, ok bool) {
	for k, s := range statuses {
		if s == status {
			return apierr.Kind(k), true
		}
	}
	return 0, false
}
