// Package apierr holds the errors of the REST contract. Domain code returns
// them, gRPC carries them between services (package rpc), and package httpapi
// turns them into HTTP once, at the edge.
package apierr

import (
	"errors"
	"fmt"
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

// Kind says who has to act on an error. The edges derive the HTTP status and the
// gRPC code from it.
type Kind uint8

// The kinds of errors.
const (
	// Internal: the service failed.
	Internal Kind = iota
	// Upstream: a provider outside the platform failed.
	Upstream
	// Invalid: the caller can correct its input.
	Invalid
	// Unauthenticated: the caller did not prove who it is.
	Unauthenticated
	// Denied: the caller must not do this.
	Denied
	// Missing: there is no such object.
	Missing
	// Conflicting: the state of the object does not allow it.
	Conflicting
	// Throttled: the caller has to wait.
	Throttled
	// Abandoned: the caller stopped reading the answer.
	Abandoned
)

// Failure reports whether the platform or a provider failed, as opposed to the
// caller.
func (k Kind) Failure() bool { return k <= Upstream }

// kind returns the kind that c usually has. DOMAIN_RESTRICTED and INVALID_TOKEN
// have a second one; see WithKind.
func (c Code) kind() Kind {
	switch c {
	case ValidationError, InvalidBody, InvalidToken, PaymentRequired:
		return Invalid
	case AuthenticationRequired:
		return Unauthenticated
	case Forbidden, TierRequired, TrialExpired, EmailNotVerified, WaitlistClosed, DomainRestricted:
		return Denied
	case NotFound:
		return Missing
	case Conflict, Duplicate:
		return Conflicting
	case RateLimited:
		return Throttled
	case ExternalServiceError:
		return Upstream
	case InternalError:
	}
	return Internal
}

// Field is one entry of a validation error's errors array.
type Field struct {
	// Field is the path in the request body, for instance custom_answers.size.
	Field string `json:"field"`
	// Message is a sentence that stands beside the field: "This field is required."
	Message string `json:"message"`
}

// Error is an answer of the contract. Message is shown to the caller; Err is
// the cause, which only the log sees.
type Error struct {
	Code       Code
	Kind       Kind
	Message    string
	Fields     []Field
	RetryAfter time.Duration
	Err        error
}

// New returns an error of the kind that its code usually has.
func New(code Code, message string) *Error {
	return &Error{Code: code, Kind: code.kind(), Message: message}
}

// Validation returns a VALIDATION_ERROR about the given fields. Its message
// shows the first of them.
func Validation(fields ...Field) *Error {
	e := New(ValidationError, "The request is not valid.")
	if len(fields) > 0 {
		e.Message = fmt.Sprintf("Check the field %q. %s", fields[0].Field, fields[0].Message)
	}
	e.Fields = fields
	return e
}

// NotFoundf returns a NOT_FOUND whose message is formatted as by fmt.Sprintf.
func NotFoundf(format string, args ...any) *Error {
	return New(NotFound, fmt.Sprintf(format, args...))
}

// WithKind returns a copy of another kind, for a code that has two.
func (e *Error) WithKind(k Kind) *Error {
	c := *e
	c.Kind = k
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
