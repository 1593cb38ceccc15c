// Package outage distinguishes the outage of a dependency, which callers wait out, from a
// failure that a retry would repeat.
package outage

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Is reports whether err means that Postgres, Redis, Kafka or a service was unreachable,
// was shutting down or did not answer in time. A canceled context is not an outage.
func Is(err error) bool {
	if err == nil || errors.Is(err, context.Canceled) {
		return false
	}
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, io.ErrUnexpectedEOF) {
		return true
	}
	if _, ok := errors.AsType[*pgconn.ConnectError](err); ok {
		return true
	}
	if e, ok := errors.AsType[*pgconn.PgError](err); ok {
		return unavailable(e.Code)
	}
	// net.Error covers refused, reset and timed out connections.
	if _, ok := errors.AsType[net.Error](err); ok {
		return true
	}
	if s, ok := errors.AsType[interface {
		error
		GRPCStatus() *status.Status
	}](err); ok {
		switch s.GRPCStatus().Code() { // other codes mean that the service answered
		case codes.Unavailable, codes.DeadlineExceeded:
			return true
		}
	}
	// pgx has no error type for a connection that broke during a query.
	return pgconn.SafeToRetry(err) || errors.Is(err, net.ErrClosed) || errors.Is(err, io.EOF)
}

// unavailable reports whether a SQLSTATE means that the server or the connection is gone, or
// that a statement timed out.
func unavailable(sqlState string) bool {
	switch sqlState {
	case "57P01", "57P02", "57P03", // shutdown, crash, starting up
		"53300", // too many connections
		"57014", // statement timeout
		"55P03", // lock timeout
		"25P03", // idle-in-transaction timeout
		"25006": // read only: the primary was demoted
		return true
	}
	return strings.HasPrefix(sqlState, "08")
}
