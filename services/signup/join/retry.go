package join

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"waitlist.internal/libs/apierr"
	"waitlist.internal/libs/loop"
	"waitlist.internal/libs/telemetry"
)

// Timeout bounds how long a caller waits for its batch or its transaction. Every request is
// answered within five seconds, even while Postgres is down.
const Timeout = 4500 * time.Millisecond

// attempts bounds how often a transaction is tried when its connection breaks or
// Postgres aborts it for a conflict.
const attempts = 3

// Retry returns the result of store, which it calls again where that may help. what and size describe the
// transaction in the log.
func Retry[T any](ctx context.Context, log *slog.Logger, what, waitlistID string, size int, store func() (T, error)) (T, error) {
	backoff := loop.Backoff{Min: 50 * time.Millisecond, Max: 100 * time.Millisecond}
	for attempt := 1; ; attempt++ {
		out, err := store()
		if _, again := errors.AsType[*RetryError](err); !again || attempt == attempts || ctx.Err() != nil {
			return out, err
		}
		log.WarnContext(ctx, "not stored; trying again", slog.String("what", what), slog.String("waitlist_id", waitlistID),
			slog.Int("size", size), slog.Int("attempt", attempt), telemetry.Err(err))
		if !backoff.Wait(ctx) {
			return out, err
		}
	}
}

// RowError says that Postgres rejected a batch because of the values in one row.
type RowError struct{ Err error }

// Error implements error.
func (e *RowError) Error() string { return "row rejected: " + e.Err.Error() }

// Unwrap returns the cause.
func (e *RowError) Unwrap() error { return e.Err }

// RetryError says that a batch may be tried again: Postgres aborted it for a
// conflict, or the connection broke. A batch whose connection broke may have been
// committed; the next attempt recognizes its rows by their tokens.
type RetryError struct{ Err error }

// Error implements error.
func (e *RetryError) Error() string { return "try again: " + e.Err.Error() }

// Unwrap returns the cause.
func (e *RetryError) Unwrap() error { return e.Err }

// Unavailable turns a full queue, a stop or a timeout into an error of the API.
func Unavailable(err error) error {
	switch {
	case errors.Is(err, errLaneFull):
		return apierr.New(apierr.RateLimited, "Too many people are signing up right now. Try again in a moment.").
			WithRetryAfter(time.Second)
	case errors.Is(err, errStopping), errors.Is(err, context.DeadlineExceeded):
		return apierr.New(apierr.InternalError, "The service is not available right now. Try again in a moment.").
			WithRetryAfter(time.Second).WithCause(err)
	default:
		return err
	}
}

// errLaneFull says that a waitlist's lane holds all it may, or more than it began in time.
var errLaneFull = errors.New("signup: lane is full")

// errStopping refuses signups after the stop.
var errStopping = errors.New("signup: stopping")
