package httpapi_test

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"waitlist.internal/libs/httpapi"
)

// serveTCP serves h on a free port and returns its address.
func serveTCP(t *testing.T, h http.Handler, cfg httpapi.ServerConfig) string {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	cfg.Log = slog.New(slog.DiscardHandler)
	s := httpapi.NewServer(h, cfg)
	done := make(chan error)
	go func() { done <- s.Serve(l) }()
	t.Cleanup(func() {
		_ = s.Close()
		if err := <-done; !errors.Is(err, http.ErrServerClosed) {
			t.Error(err)
		}
	})
	return l.Addr().String()
}

// send opens a connection and writes text on it.
func send(t *testing.T, addr, text string) net.Conn {
	t.Helper()
	var dialer net.Dialer
	conn, err := dialer.DialContext(t.Context(), "tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(time.Minute))
	if _, err := io.WriteString(conn, text); err != nil {
		t.Fatal(err)
	}
	return conn
}

func TestServerEndsBodiesThatNeverCome(t *testing.T) {
	t.Parallel()
	g, err := httpapi.NewEngine(httpapi.Config{})
	if err != nil {
		t.Fatal(err)
	}
	g.POST("/v1/read", httpapi.H(func(c *gin.Context) error { _, err := httpapi.ReadBody(c, 100); return err }))
	// A handler that has read its request may take longer than ReadTimeout.
	g.POST("/v1/slow", httpapi.H(func(c *gin.Context) error {
		raw, err := httpapi.ReadBody(c, 100)
		if err != nil {
			return err
		}
		select {
		case <-c.Request.Context().Done():
			return c.Request.Context().Err()
		case <-time.After(400 * time.Millisecond):
			c.String(http.StatusOK, "took %s", raw)
			return nil
		}
	}))
	addr := serveTCP(t, g, httpapi.ServerConfig{ReadTimeout: 200 * time.Millisecond})
	for _, tc := range []struct{ request, status string }{
		{"POST /v1/nope HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n", "404"},
		{"GET /v1/nope HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n", "404"},
		{"POST /v1/read HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n{", "400"},
		{"POST /v1/slow HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{}", "200"},
	} {
		answer, err := io.ReadAll(send(t, addr, tc.request)) // until the server closes the connection
		if err != nil || !strings.HasPrefix(string(answer), "HTTP/1.1 "+tc.status) {
			t.Errorf("%q: %q, %v", tc.request, answer, err)
		}
	}
}

// TestServerEndsAnswersThatNobodyReads pipelines requests and reads no answer.
func TestServerEndsAnswersThatNobodyReads(t *testing.T) {
	t.Parallel()
	g, err := httpapi.NewEngine(httpapi.Config{})
	if err != nil {
		t.Fatal(err)
	}
	deadlines := make(chan time.Time, 2)
	g.GET("/v1/short", func(c *gin.Context) { c.Status(http.StatusNoContent) })
	g.GET("/v1/long", httpapi.Timeout(time.Hour), func(c *gin.Context) { c.Status(http.StatusNoContent) })
	addr := serveTCP(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		g.ServeHTTP(deadlineSpy{w, deadlines}, r)
	}), httpapi.ServerConfig{})
	_, _ = io.ReadAll(send(t, addr, "GET /v1/short HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"))
	if left := time.Until(<-deadlines); left < 10*time.Second || left > 30*time.Second {
		t.Errorf("an answer must be read within %s", left)
	}
	_, _ = io.ReadAll(send(t, addr, "GET /v1/long HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"))
	<-deadlines
	if left := time.Until(<-deadlines); left < time.Hour {
		t.Errorf("a long answer must be read within %s", left)
	}
}

// deadlineSpy reports the write deadlines that a handler sets.
type deadlineSpy struct {
	http.ResponseWriter
	set chan<- time.Time
}

func (s deadlineSpy) SetWriteDeadline(d time.Time) error {
	s.set <- d
	return nil
}

func TestServerBoundsConnections(t *testing.T) {
	t.Parallel()
	reg := prometheus.NewRegistry()
	ok := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })
	addr := serveTCP(t, ok, httpapi.ServerConfig{MaxConns: 2, Registerer: reg})
	const request = "GET / HTTP/1.1\r\nHost: x\r\n\r\n"
	open := func(want int) {
		t.Helper()
		expected := fmt.Sprintf("# HELP http_server_open_connections Open connections of the public interface.\n"+
			"# TYPE http_server_open_connections gauge\nhttp_server_open_connections %d\n", want)
		for {
			err := testutil.GatherAndCompare(reg, strings.NewReader(expected))
			if err == nil {
				return
			}
			select {
			case <-t.Context().Done():
				t.Fatal(err)
			case <-time.After(5 * time.Millisecond):
			}
		}
	}
	first := send(t, addr, request)
	second := send(t, addr, request)
	for _, c := range []net.Conn{first, second} {
		if _, err := c.Read(make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
	}
	third := send(t, addr, "")
	// Earlier than the time for a header.
	_ = third.SetReadDeadline(time.Now().Add(4 * time.Second))
	if n, err := third.Read(make([]byte, 1)); n != 0 || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("a third connection is served: %v", err)
	}
	open(2)
	_ = first.Close()
	open(1)
	if n, err := send(t, addr, request).Read(make([]byte, 1)); n != 1 {
		t.Errorf("no connection is served after another has ended: %v", err)
	}
}
