package e2e

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// testEdgeAbuse replays attacks on what the tenants share: connections, memory and places.
func (s *suite) testEdgeAbuse(t *testing.T) {
	d := s.deploy(t, nil)
	t.Run("half-open requests", func(t *testing.T) { testHalfOpen(t, d) })
	t.Run("requests that are not HTTP", func(t *testing.T) { testNotHTTP(t, d) })
}

// dial opens a connection to the program for the duration of the test and sends text on it.
func (d *deployment) dial(t testing.TB, text string) net.Conn {
	t.Helper()
	var dialer net.Dialer
	conn, err := dialer.DialContext(t.Context(), "tcp", d.server.Addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	if _, err := io.WriteString(conn, text); err != nil {
		t.Fatal(err)
	}
	return conn
}

// testHalfOpen holds connections by bodies that never come, on routes that answer before they read. Others are served
// meanwhile, and all connections are freed.
func testHalfOpen(t *testing.T, d *deployment) {
	const connections, freed = 3000, 30 * time.Second
	o := d.owner(t)
	id := o.waitlist(t, nil)
	start := time.Now()
	open := make([]net.Conn, connections)
	for i := range open {
		open[i] = d.dial(t, []string{
			"POST /v1/nope HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n",
			"POST /v1/waitlists HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{",
			"GET /v1/public/waitlists/" + id + "/count HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n",
			"POST /v1/public/waitlists/" + id + "/signups HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n",
			"GET /readyz HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n",
		}[i%5])
	}
	opened := time.Since(start)
	var took []time.Duration
	for range 300 {
		asked := time.Now()
		o.Do(t, Get("/public/waitlists/"+id+"/count")).Want(http.StatusOK)
		took = append(took, time.Since(asked))
	}
	slices.Sort(took)
	p99 := took[len(took)*99/100]
	if p99 > time.Second {
		t.Errorf("others waited %s at the 99th percentile", p99)
	}
	var all sync.WaitGroup
	last := make(chan error, connections)
	for _, conn := range open {
		all.Go(func() {
			_ = conn.SetReadDeadline(start.Add(opened + freed))
			_, err := io.Copy(io.Discard, conn)
			last <- err
		})
	}
	all.Wait()
	held := 0
	for range open {
		if <-last != nil {
			held++
		}
	}
	t.Logf("%d connections opened within %s and freed after %s; p99 of others %s", connections, opened, time.Since(start), p99)
	if held > 0 {
		t.Errorf("%d of %d connections are still open after %s", held, connections, freed)
	}
}

// testNotHTTP sends what net/http refuses before any handler sees it.
func testNotHTTP(t *testing.T, d *deployment) {
	for name, tc := range map[string]struct {
		request string
		status  int
	}{
		"no version":       {"GET /v1/auth/me\r\n\r\n", http.StatusBadRequest},
		"no host":          {"GET /v1/auth/me HTTP/1.1\r\n\r\n", http.StatusBadRequest},
		"a path with %zz":  {"GET /v1/%zz HTTP/1.1\r\nHost: x\r\n\r\n", http.StatusBadRequest},
		"an endless line":  {"GET /v1/" + strings.Repeat("x", 100_000) + " HTTP/1.1\r\nHost: x\r\n\r\n", http.StatusRequestHeaderFieldsTooLarge},
		"an endless field": {"GET /v1/auth/me HTTP/1.1\r\nHost: x\r\nX: " + strings.Repeat("x", 100_000) + "\r\n\r\n", http.StatusRequestHeaderFieldsTooLarge},
	} {
		t.Run(name, func(t *testing.T) {
			conn := d.dial(t, tc.request)
			res, err := http.ReadResponse(bufio.NewReader(conn), nil)
			if err != nil {
				t.Fatal(err)
			}
			defer res.Body.Close()
			var body struct {
				Error     string `json:"error"`
				Code      string `json:"error_code"`
				RequestID string `json:"request_id"`
				Errors    []any  `json:"errors"`
			}
			if err := json.NewDecoder(res.Body).Decode(&body); err != nil {
				t.Fatalf("%d: %v", res.StatusCode, err)
			}
			if res.StatusCode != tc.status || body.Code != "VALIDATION_ERROR" || body.Error == "" || len(body.Errors) != 1 ||
				body.RequestID == "" || body.RequestID != res.Header.Get("X-Request-Id") {
				t.Errorf("%s %+v", fmt.Sprint(res.StatusCode, res.Header), body)
			}
		})
	}
}
