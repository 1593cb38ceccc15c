package outage_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/redis/go-redis/v9"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"waitlist.internal/libs/apierr"
	"waitlist.internal/libs/outage"
)

func TestIs(t *testing.T) {
	_, refused := pgconn.Connect(t.Context(), "postgres://127.0.0.1:1/x")
	client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", MaxRetries: -1, DialTimeout: time.Second})
	defer client.Close()
	redisAway := client.Ping(t.Context()).Err()
	for name, c := range map[string]struct {
		err  error
		want bool
	}{
		"nil":                {nil, false},
		"plain":              {errors.New("x"), false},
		"Postgres refused":   {refused, true},
		"Redis refused":      {redisAway, true},
		"Redis answers":      {redis.Nil, false},
		"deadline":           {fmt.Errorf("x: %w", context.DeadlineExceeded), true},
		"canceled":           {context.Canceled, false},
		"shutdown":           {&pgconn.PgError{Code: "57P01"}, true},
		"starting":           {fmt.Errorf("x: %w", &pgconn.PgError{Code: "57P03"}), true},
		"connection":         {&pgconn.PgError{Code: "08006"}, true},
		"statement timeout":  {&pgconn.PgError{Code: "57014"}, true},
		"unique":             {&pgconn.PgError{Code: "23505"}, false},
		"bad text":           {&pgconn.PgError{Code: "22021"}, false},
		"cut off":            {fmt.Errorf("x: %w", io.ErrUnexpectedEOF), true},
		"service away":       {status.Error(codes.Unavailable, "x"), true},
		"service late":       {apierr.New(apierr.InternalError, "x").WithCause(status.Error(codes.DeadlineExceeded, "x")), true},
		"service refuses":    {status.Error(codes.PermissionDenied, "x"), false},
		"contract's error":   {apierr.New(apierr.NotFound, "x"), false},
		"internal, by cause": {apierr.From(refused), true},
	} {
		if got := outage.Is(c.err); got != c.want {
			t.Errorf("%s: Is(%v) = %v", name, c.err, got)
		}
	}
}
