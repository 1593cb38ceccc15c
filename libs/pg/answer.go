package pg

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// answerSlack is how much longer than statement_timeout a server may be silent.
const answerSlack = 5 * time.Second

// answering is a connection that breaks when its server takes or sends nothing for bound. A
// proxy that stalls acknowledges all that it gets, so that only this ends the wait of a worker
// whose statements have no deadline.
type answering struct {
	net.Conn
	mu       sync.Mutex
	bound    time.Duration // 0 means none
	lifted   bool
	deadline time.Time // that of a context; zero means none
}

// dial is the DialFunc of connections that break when their server is silent.
func dial(next pgconn.DialFunc) pgconn.DialFunc {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := next(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		return &answering{Conn: c, bound: answerSlack}, nil
	}
}

// unwrap returns the connection below conn, or nil if it is of another kind.
func unwrap(conn *pgconn.PgConn) *answering {
	below := conn.Conn()
	if t, ok := below.(*tls.Conn); ok {
		below = t.NetConn()
	}
	a, _ := below.(*answering)
	return a
}

// expect bounds the silence of conn by timeout, the seconds of its statement_timeout, and answerSlack.
func expect(conn *pgconn.PgConn, timeout string) error {
	seconds, err := strconv.ParseFloat(timeout, 64)
	if err != nil {
		return fmt.Errorf("statement_timeout: %w", err)
	}
	if a := unwrap(conn); a != nil {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.bound = 0
		if seconds > 0 {
			a.bound = time.Duration(seconds*float64(time.Second)) + answerSlack
		}
	}
	return nil
}

// lift ends the bound, or puts it back.
func lift(conn *pgx.Conn, lifted bool) {
	if a := unwrap(conn.PgConn()); a != nil {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.lifted = lifted
	}
}

// NoTimeouts lets the statements of tx take, and its client wait between them, as long as they
// like. Only ctx bounds them then. The server may be silent until the connection is back in
// its pool.
func NoTimeouts(ctx context.Context, tx pgx.Tx) error {
	lift(tx.Conn(), true)
	if _, err := tx.Exec(ctx, "SET LOCAL statement_timeout = 0; SET LOCAL idle_in_transaction_session_timeout = 0"); err != nil {
		return fmt.Errorf("lift timeouts: %w", err)
	}
	return nil
}

// Read implements net.Conn.
func (a *answering) Read(b []byte) (int, error) {
	a.begin(a.SetReadDeadline)
	n, err := a.Conn.Read(b)
	return n, a.ended(err)
}

// Write implements net.Conn.
func (a *answering) Write(b []byte) (int, error) {
	a.begin(a.SetWriteDeadline)
	n, err := a.Conn.Write(b)
	return n, a.ended(err)
}

// SetDeadline implements net.Conn.
func (a *answering) SetDeadline(t time.Time) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.deadline = t
	return a.Conn.SetDeadline(t)
}

func (a *answering) begin(setDeadline func(time.Time) error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.deadline.IsZero() {
		return
	}
	var t time.Time
	if a.bound > 0 && !a.lifted {
		t = time.Now().Add(a.bound)
	}
	_ = setDeadline(t) // fails only on a closed connection, and so will what follows
}

func (a *answering) ended(err error) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.deadline.IsZero() && errors.Is(err, os.ErrDeadlineExceeded) {
		// pgx keeps a connection after a timeout.
		return fmt.Errorf("Postgres was silent for %s", a.bound) //nolint:staticcheck // a name
	}
	return err
}
