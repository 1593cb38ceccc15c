package rpc

import (
	"context"
	"errors"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"waitlist.internal/libs/apierr"
	"waitlist.internal/libs/outage"
	errorsv1 "waitlist.internal/proto/gen/waitlist/errors/v1"
)

// outageRetry is the Retry-After while a service is away.
const outageRetry = 2 * time.Second

// grpcCode is the nearest gRPC code, for metrics, retries and people; what
// decides is the detail.
func grpcCode(c apierr.Code) codes.Code {
	switch c {
	case apierr.ValidationError, apierr.InvalidBody, apierr.InvalidToken:
		return codes.InvalidArgument
	case apierr.AuthenticationRequired:
		return codes.Unauthenticated
	case apierr.Forbidden, apierr.TierRequired, apierr.TrialExpired, apierr.EmailNotVerified, apierr.DomainRestricted:
		return codes.PermissionDenied
	case apierr.WaitlistClosed, apierr.PaymentRequired:
		return codes.FailedPrecondition
	case apierr.NotFound:
		return codes.NotFound
	case apierr.Conflict, apierr.Duplicate:
		return codes.AlreadyExists
	case apierr.RateLimited:
		return codes.ResourceExhausted
	case apierr.ExternalServiceError, apierr.InternalError:
		return codes.Internal
	default:
		return codes.Internal
	}
}

// toStatus turns what a method returned into what crosses. The cause stays.
func toStatus(err error) error {
	if err == nil {
		return nil
	}
	if _, ok := errors.AsType[*apierr.Error](err); !ok {
		switch {
		case errors.Is(err, context.Canceled):
			return status.Error(codes.Canceled, "canceled")
		case errors.Is(err, context.DeadlineExceeded):
			return status.Error(codes.DeadlineExceeded, "deadline exceeded")
		}
	}
	e := apierr.From(err)
	code, retry := grpcCode(e.Code), e.RetryAfter
	if e.Code == apierr.InternalError && outage.Is(err) {
		// The caller can tell that waiting helps.
		code = codes.Unavailable
		retry = max(retry, outageRetry)
	}
	detail := &errorsv1.Error{
		Code: string(e.Code), HttpStatus: int32(e.Status),
		Message: e.Message, RetryAfterSeconds: int64((retry + time.Second - 1) / time.Second),
	}
	for _, f := range e.Fields {
		detail.Fields = append(detail.Fields, &errorsv1.FieldError{Field: f.Field, Message: f.Message})
	}
	s, derr := status.New(code, e.Message).WithDetails(detail)
	if derr != nil {
		return status.Error(code, e.Message)
	}
	return s.Err()
}

// fromStatus turns what arrived into the contract's error, with the status as
// its cause where it is a failure of ours.
func fromStatus(err error) error {
	if err == nil {
		return nil
	}
	s, ok := status.FromError(err)
	if !ok {
		return err
	}
	for _, d := range s.Details() {
		m, ok := d.(*errorsv1.Error)
		if !ok {
			continue
		}
		e := &apierr.Error{
			Code: apierr.Code(m.GetCode()), Status: int(m.GetHttpStatus()), Message: m.GetMessage(),
			RetryAfter: time.Duration(m.GetRetryAfterSeconds()) * time.Second,
		}
		for _, f := range m.GetFields() {
			e.Fields = append(e.Fields, apierr.Field{Field: f.GetField(), Message: f.GetMessage()})
		}
		if e.Code == apierr.InternalError {
			e.Err = err
		}
		return e
	}
	e := apierr.New(apierr.InternalError, "Something went wrong on our side.").WithCause(err)
	switch s.Code() { //nolint:exhaustive // the others are failures like any
	case codes.Unavailable, codes.DeadlineExceeded:
		e = e.WithRetryAfter(outageRetry)
	case codes.Canceled:
		// So that errors.Is finds it, as for a call in the process.
		return e.WithCause(errors.Join(context.Canceled, err))
	}
	return e
}
