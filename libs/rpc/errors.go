package rpc

import (
	"context"
	"errors"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"waitlist.internal/libs/apierr"
	"waitlist.internal/libs/httpstatus"
	"waitlist.internal/libs/outage"
	errorsv1 "waitlist.internal/proto/gen/waitlist/errors/v1"
)

// outageRetry is the Retry-After while a service is unavailable.
const outageRetry = 2 * time.Second

// grpcCodes are for metrics, retries and people; callers decide by the detail.
var grpcCodes = [...]codes.Code{
	apierr.Internal:        codes.Internal,
	apierr.Upstream:        codes.Internal,
	apierr.Invalid:         codes.InvalidArgument,
	apierr.Unauthenticated: codes.Unauthenticated,
	apierr.Denied:          codes.PermissionDenied,
	apierr.Missing:         codes.NotFound,
	apierr.Conflicting:     codes.AlreadyExists,
	apierr.Throttled:       codes.ResourceExhausted,
	apierr.Abandoned:       codes.Canceled,
}

// toStatus converts the error of a method to a status. It drops the cause, which
// only the server's log shows.
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
	code, retry := grpcCodes[e.Kind], e.RetryAfter
	if e.Code == apierr.InternalError && outage.Is(err) {
		// This tells the caller that waiting helps.
		code = codes.Unavailable
		retry = max(retry, outageRetry)
	}
	detail := &errorsv1.Error{
		Code: string(e.Code), HttpStatus: int32(httpstatus.Of(e.Kind)),
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

// fromStatus converts a status to an error of the REST contract. An INTERNAL_ERROR
// has the status as its cause.
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
		e := apierr.New(apierr.Code(m.GetCode()), m.GetMessage())
		if k, ok := httpstatus.Kind(int(m.GetHttpStatus())); ok {
			e.Kind = k
		}
		e.RetryAfter = time.Duration(m.GetRetryAfterSeconds()) * time.Second
		for _, f := range m.GetFields() {
			e.Fields = append(e.Fields, apierr.Field{Field: f.GetField(), Message: f.GetMessage()})
		}
		if e.Code == apierr.InternalError {
			e.Err = err
		}
		return e
	}
	e := apierr.New(apierr.InternalError, "Something went wrong on our side.").WithCause(err)
	switch s.Code() { // the others need no special treatment
	case codes.Unavailable, codes.DeadlineExceeded:
		e = e.WithRetryAfter(outageRetry)
	case codes.Canceled:
		// So that errors.Is finds context.Canceled, as for a local call.
		return e.WithCause(errors.Join(context.Canceled, err))
	}
	return e
}
