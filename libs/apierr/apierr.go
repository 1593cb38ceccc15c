// Package apierr holds the errors of the REST contract. Domain code returns
// them, gRPC carries them between services (package rpc), and package httpapi
// turns them into HTTP once, at the edge.
package apierr

import (
	"errors"
	"fmt"
	"net/http"
	"time"
)

// Code is one of the contract's stable error codes.
type Code string

// The contract's codes.
const (
	ValidationError        Code = "VALIDATION_ERROR"
	InvalidBody            Code = "INVALID_BODY"
	InvalidToken           Code = "INVALID_TOKEN"
	AuthenticationRequired Code = "AUTHENTICATION_REQUIRED"
	Forbidden              Code = "FORBIDDEN"
	TierRequired           Code = "TIER_REQUIRED"
	TrialExpired           Code = "TRIAL_EXPIRED"
	EmailNotVerified       Code = "EMAIL_NOT_VERIFIED"
	WaitlistClosed         Code = "WAITLIST_CLOSED"
	DomainRestricted       Code = "DOMAIN_RESTRICTED"
	NotFound               Code = "NOT_FOUND"
	Conflict               Code = "CONFLICT"
	Duplicate              Code = "DUPLICATE"
	RateLimited            Code = "RATE_LIMITED"
	PaymentRequired        Code = "PAYMENT_REQUIRED"
	ExternalServiceError   Code = "EXTERNAL_SERVICE_ERROR"
	InternalError          Code = "INTERNAL_ERROR"
)

// status returns the HTTP status that c usually has. DOMAIN_RESTRICTED,
// INVALID_TOKEN and PAYMENT_REQUIRED have a second one; see WithStatus.
func (c Code) status() int {
	switch c {
	case ValidationError, InvalidBody, InvalidToken, PaymentRequired:
		return http.StatusBadRequest
	case AuthenticationRequired:
		return http.StatusUnauthorized
	case Forbidden, TierRequired, TrialExpired, EmailNotVerified, WaitlistClosed, DomainRestricted:
		return http.StatusForbidden
	case NotFound:
		return http.StatusNotFound
	case Conflict, Duplicate:
		return http.StatusConflict
	case RateLimited:
		return http.StatusTooManyRequests
	case ExternalServiceError:
		return http.StatusBadGateway
	case InternalError:
		return http.StatusInternalServerError
	default:
		return http.StatusInternalServerError
	}
}

// Field is one entry of a validation error's errors array.
type Field struct {
	// Field is the path in the request body, for instance custom_answers.size.
	Field string `json:"field"`
	// Message is for people.
	Message string `json:"message"`
}

// Error is an answer of the contract. Message is shown to the caller; Err is
// the cause, which only the log sees.
type Error struct {
	Code       Code
	Status     int
	Message    string
	Fields     []Field
	RetryAfter time.Duration
	Err        error
}

// New returns an error with the usual status of its code.
func New(code Code, message string) *Error {
	return &Error{Code: code, Status: code.status(), Message: message}
}

// Validation returns a VALIDATION_ERROR about the given fields.
func Validation(fields ...Field) *Error {
	e := New(ValidationError, "The request is not valid.")
	if len(fields) > 0 {
		e.Message = fields[0].Message
	}
	e.Fields = fields
	return e
}

// NotFoundf returns a NOT_FOUND whose message is formatted as by fmt.Sprintf.
func NotFoundf(format string, args ...any) *Error {
	return New(NotFound, fmt.Sprintf(format, args...))
}

// WithStatus returns a copy with another HTTP status.
func (e *Error) WithStatus(status int) *Error {
	c := *e
	c.Status = status
	return &c
}

// WithCause returns a copy that wraps err, for the log.
func (e *Error) WithCause(err error) *Error {
	c := *e
	c.Err = err
	return &c
}

// WithRetryAfter returns a copy with a Retry-After; it is rounded up to whole
// seconds when it is written.
func (e *Error) WithRetryAfter(d time.Duration) *Error {
	c := *e
	c.RetryAfter = d
	return &c
}

// Error implements error.
func (e *Error) Error() string {
	if e.Err != nil {
		return fmt.Sprintf("%s: %s: %v", e.Code, e.Message, e.Err)
	}
	return fmt.Sprintf("%s: %s", e.Code, e.Message)
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// From returns the contract's error within err. Whatever holds none is a plain
// INTERNAL_ERROR with err as its cause. From(nil) is nil.
func From(err error) *Error {
	if err == nil {
		return nil
	}
	if e, ok := errors.AsType[*Error](err); ok {
		return e
	}
	return New(InternalError, "Something went wrong on our side.").WithCause(err)
}

// Is reports whether err holds a contract error with the given code.
func Is(err error, code Code) bool {
	e, ok := errors.AsType[*Error](err)
	return ok && e.Code == code
}
