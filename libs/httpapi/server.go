package httpapi

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"

	"waitlist.internal/libs/apierr"
)

const (
	// readTimeout bounds how long a client may take to send a request with its body,
	// unless the handler sets a read deadline of its own. It also ends a body that
	// nobody reads: net/http waits for it before it answers.
	readTimeout       = 25 * time.Second
	readHeaderTimeout = 10 * time.Second
	idleTimeout       = 2 * time.Minute
	maxHeaderBytes    = 32 << 10
)

// ServerConfig configures a server.
type ServerConfig struct {
	// Log receives net/http's own messages, at debug level.
	Log *slog.Logger
	// ReadTimeout bounds how long a client may take to send a request; 0 means 25
	// seconds.
	ReadTimeout time.Duration
	// MaxConns bounds the open connections. Further ones are closed at once, so that
	// a gateway tries another replica. 0 means no bound.
	MaxConns int
	// Registerer takes the number of open connections; nil means none.
	Registerer prometheus.Registerer
}

// Server is an http.Server whose own errors have the body of the REST contract, too.
type Server struct{ *http.Server }

// NewServer returns a server without WriteTimeout, because an export may take long.
// The engine sets the deadline of every answer.
func NewServer(h http.Handler, cfg ServerConfig) *Server {
	open := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "http_server_open_connections", Help: "Open connections of the public interface.",
	})
	if cfg.Registerer != nil {
		cfg.Registerer.MustRegister(open)
	}
	var conns atomic.Int64
	return &Server{&http.Server{
		Handler: h, ReadTimeout: cmp.Or(cfg.ReadTimeout, readTimeout), ReadHeaderTimeout: readHeaderTimeout,
		IdleTimeout: idleTimeout, MaxHeaderBytes: maxHeaderBytes,
		ErrorLog: slog.NewLogLogger(cfg.Log.Handler(), slog.LevelDebug),
		ConnState: func(c net.Conn, state http.ConnState) {
			switch state {
			case http.StateNew:
				open.Inc()
				if n := conns.Add(1); cfg.MaxConns > 0 && n > int64(cfg.MaxConns) {
					_ = c.Close() // net/http then reports StateClosed
				}
			case http.StateClosed, http.StateHijacked:
				open.Dec()
				conns.Add(-1)
			case http.StateActive, http.StateIdle:
			}
		},
	}}
}

// Serve serves the connections that l accepts; see http.Server.
func (s *Server) Serve(l net.Listener) error { return s.Server.Serve(listener{l}) }

// listener wraps TCP connections in conn.
type listener struct{ net.Listener }

func (l listener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if tcp, ok := c.(*net.TCPConn); ok {
		return conn{tcp}, err
	}
	return c, err
}

// conn gives net/http's own answers to requests that it cannot parse, which no
// handler sees, the body of the contract's errors.
type conn struct{ *net.TCPConn }

// refusal is the end of such an answer's header. Other answers have a Date between
// these lines.
const refusal = "\r\nContent-Type: text/plain; charset=utf-8\r\nConnection: close\r\n\r\n"

// Write implements net.Conn. net/http writes a refusal in one call.
func (c conn) Write(b []byte) (int, error) {
	status, rest, ok := bytes.Cut(b[:min(len(b), 512)], []byte("\r\n"))
	if !ok || !bytes.HasPrefix(rest, []byte(refusal[2:])) {
		return c.TCPConn.Write(b)
	}
	if _, err := c.TCPConn.Write(refuse(string(status))); err != nil {
		return 0, err
	}
	return len(b), nil
}

// refuse returns the answer that replaces net/http's refusal with this status line.
func refuse(status string) []byte {
	field := apierr.Field{Field: "request", Message: "This is not valid HTTP."}
	if strings.HasPrefix(status, "HTTP/1.1 431 ") {
		field = apierr.Field{Field: "header", Message: fmt.Sprintf("This must have at most %d bytes.", maxHeaderBytes)}
	}
	e, id := apierr.Validation(field), uuid.NewString()
	// A struct of strings always marshals.
	body, _ := json.Marshal(errorBody{Error: e.Message, ErrorCode: e.Code, RequestID: id, Errors: e.Fields})
	out := fmt.Appendf(nil, "%s\r\nContent-Type: %s\r\nContent-Length: %d\r\nConnection: close\r\nX-Request-Id: %s\r\n",
		status, jsonType[0], len(body), id)
	for _, f := range fixed {
		out = fmt.Appendf(out, "%s: %s\r\n", f.name, f.value[0])
	}
	return append(append(out, "\r\n"...), body...)
}
