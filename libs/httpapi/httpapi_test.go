package httpapi_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"waitlist.internal/libs/apierr"
	"waitlist.internal/libs/httpapi"
	"waitlist.internal/libs/ratelimit"
	"waitlist.internal/libs/telemetry"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// logs is a log that tests read.
type logs struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *logs) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *logs) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

type api struct {
	*httptest.Server
	logs *logs
	reg  *prometheus.Registry
}

// newAPI serves a few routes over a real socket.
func newAPI(t *testing.T, change func(*httpapi.Config), routes func(*gin.Engine)) *api {
	t.Helper()
	a := &api{logs: new(logs), reg: prometheus.NewRegistry()}
	cfg := httpapi.Config{
		Service: "test", Registerer: a.reg,
		Log: slog.New(telemetry.NewHandler(a.logs, slog.LevelInfo)),
	}
	if change != nil {
		change(&cfg)
	}
	g, err := httpapi.NewEngine(cfg)
	if err != nil {
		t.Fatal(err)
	}
	g.GET("/v1/public/waitlists/:id/signups/:email", httpapi.H(func(c *gin.Context) error {
		httpapi.JSON(c, http.StatusOK, map[string]string{"id": c.Param("id"), "email": c.Param("email")})
		return nil
	}))
	g.POST("/v1/public/waitlists/:id/signups/:email/verify", httpapi.H(func(c *gin.Context) error {
		httpapi.JSON(c, http.StatusOK, map[string]string{"email": c.Param("email")})
		return nil
	}))
	g.GET("/v1/waitlists", httpapi.H(func(c *gin.Context) error {
		httpapi.JSON(c, http.StatusOK, map[string]any{"waitlists": []string{}})
		return nil
	}))
	if routes != nil {
		routes(g)
	}
	a.Server = httptest.NewServer(g)
	t.Cleanup(a.Close)
	return a
}

// reply is an answer with its body.
type reply struct {
	StatusCode    int
	Header        http.Header
	ContentLength int64
}

func (a *api) do(t *testing.T, method, path string, header ...string) (reply, string) {
	t.Helper()
	return a.send(t, method, path, nil, header...)
}

func (a *api) send(t *testing.T, method, path string, body io.Reader, header ...string) (reply, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, a.URL+path, body)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	res, err := a.Client().Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	raw, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return reply{res.StatusCode, res.Header, res.ContentLength}, string(raw)
}

type errorBody struct {
	Error     string          `json:"error"`
	ErrorCode string          `json:"error_code"`
	RequestID string          `json:"request_id"`
	Errors    json.RawMessage `json:"errors"`
}

// wantError checks a contract error and returns its body.
func wantError(t *testing.T, res reply, body string, status int, code apierr.Code) errorBody {
	t.Helper()
	var e errorBody
	if err := json.Unmarshal([]byte(body), &e); err != nil {
		t.Fatalf("%d %q: %v", res.StatusCode, body, err)
	}
	if res.StatusCode != status || e.ErrorCode != string(code) || e.Error == "" || e.RequestID == "" ||
		e.RequestID != res.Header.Get("X-Request-Id") || !strings.HasPrefix(res.Header.Get("Content-Type"), "application/json") {
		t.Fatalf("%d %v %s, want %d %s", res.StatusCode, res.Header, body, status, code)
	}
	return e
}

func TestUnknownPathsAndMethods(t *testing.T) {
	a := newAPI(t, nil, nil)
	for _, c := range [][2]string{
		{"GET", "/"},
		{"GET", "/v1"},
		{"GET", "/v1/"},
		{"GET", "/v1/nothing"},
		{"POST", "/v1/waitlists"},
		{"PUT", "/v1/waitlists"},
		{"BREW", "/v1/waitlists"},
		{"GET", "/v1/waitlists/"},
		{"GET", "/v1//waitlists"},
		{"GET", "/V1/waitlists"},
		{"GET", "/v1/public/waitlists/1/signups/"},
		{"GET", "/v1/public/waitlists/1/signups/a@b.c/"},
		{"GET", "/v1/public/waitlists/1/signups/a/b"},
		{"GET", "/v1/public/waitlists/1/signups/a@b.c/verify"},
	} {
		res, body := a.do(t, c[0], c[1])
		e := wantError(t, res, body, 404, apierr.NotFound)
		if e.Errors != nil {
			t.Errorf("%v: errors = %s", c, e.Errors)
		}
	}
}

func TestEncodedPaths(t *testing.T) {
	a := newAPI(t, nil, nil)
	for sent, want := range map[string]string{
		"a@b.c":                  "a@b.c",
		"a%40b.c":                "a@b.c",
		"a+b@c.d":                "a+b@c.d",
		"a%2Bb@c.d":              "a+b@c.d",
		"a%2Fb@c.d":              "a/b@c.d",
		"%2F%2f@c.d":             "//@c.d",
		"a%27b@c.d":              "a'b@c.d",
		"a'b@c.d":                "a'b@c.d",
		"a%25b@c.d":              "a%b@c.d",
		"a%252Fb@c.d":            "a%2Fb@c.d",
		"a%23b@c.d":              "a#b@c.d",
		"a%3Fb@c.d":              "a?b@c.d",
		"a%20b@c.d":              "a b@c.d",
		"%C3%A4@c.d":             "ä@c.d",
		"ä@c.d":                  "ä@c.d",
		"a%26b=c@d.e":            "a&b=c@d.e",
		"..%2F..@c.d":            "../..@c.d",
		"%7Ba%7C%7D%60^@c.d":     "{a|}`^@c.d",
		"!$&'*-=^_%60.~%7D@c.de": "!$&'*-=^_`.~}@c.de",
	} {
		res, body := a.do(t, "GET", "/v1/public/waitlists/w1/signups/"+sent)
		var got struct{ ID, Email string }
		if err := json.Unmarshal([]byte(body), &got); err != nil || res.StatusCode != 200 || got.Email != want || got.ID != "w1" {
			t.Errorf("%s: %d %s, want %s", sent, res.StatusCode, body, want)
		}
		if res, body = a.do(t, "POST", "/v1/public/waitlists/w1/signups/"+sent+"/verify"); res.StatusCode != 200 {
			t.Errorf("%s/verify: %d %s", sent, res.StatusCode, body)
		}
	}
}

func TestHeadAnswersAsGet(t *testing.T) {
	a := newAPI(t, func(c *httpapi.Config) { c.Limiter = ratelimit.NewLocal(1, 3) }, nil)
	get, body := a.do(t, "GET", "/v1/public/waitlists/w1/signups/a%2Bb@c.d")
	head, none := a.do(t, "HEAD", "/v1/public/waitlists/w1/signups/a%2Bb@c.d")
	if head.StatusCode != 200 || none != "" || head.ContentLength != int64(len(body)) ||
		head.Header.Get("Content-Type") != get.Header.Get("Content-Type") || head.Header.Get("Access-Control-Allow-Origin") != "*" {
		t.Fatalf("HEAD = %d %v %q", head.StatusCode, head.Header, none)
	}
	if res, _ := a.do(t, "HEAD", "/v1/nothing"); res.StatusCode != 404 {
		t.Fatalf("HEAD of nothing = %d", res.StatusCode)
	}
	// Each HEAD took one token, not two.
	if res, _ := a.do(t, "HEAD", "/v1/nothing"); res.StatusCode != 429 {
		t.Fatalf("the fourth request = %d", res.StatusCode)
	}
}

func TestRequestID(t *testing.T) {
	a := newAPI(t, nil, nil)
	for sent, kept := range map[string]bool{
		"abc-DEF_1.2": true, strings.Repeat("x", 128): true, strings.Repeat("x", 129): false, "a b": false, "ä": false, "a/b": false, "": false,
	} {
		res, body := a.do(t, "GET", "/nothing", "X-Request-Id", sent)
		e := wantError(t, res, body, 404, apierr.NotFound)
		if (e.RequestID == sent) != kept {
			t.Errorf("sent %q, got %q", sent, e.RequestID)
		}
	}
}

func TestFixedHeaders(t *testing.T) {
	a := newAPI(t, nil, func(g *gin.Engine) {
		g.GET("/v1/panic", func(*gin.Context) { panic("x") })
	})
	for _, r := range [][2]string{{"GET", "/v1/waitlists"}, {"GET", "/nothing"}, {"OPTIONS", "/v1/waitlists"}, {"GET", "/v1/panic"}} {
		res, _ := a.do(t, r[0], r[1])
		for name, want := range map[string]string{
			"Cache-Control":             "no-store",
			"Content-Security-Policy":   "default-src 'none'; frame-ancestors 'none'",
			"Referrer-Policy":           "no-referrer",
			"Strict-Transport-Security": "max-age=31536000",
			"X-Content-Type-Options":    "nosniff",
		} {
			if got := res.Header.Get(name); got != want {
				t.Errorf("%s %s: %s is %q", r[0], r[1], name, got)
			}
		}
	}
}

func TestAllowedOriginsAreChecked(t *testing.T) {
	for origin, ok := range map[string]bool{
		"*": true, "https://app.example.com": true, "http://localhost:3000": true, "null": false,
		"app.example.com": false, "https://app.example.com/": false,
		"https://App.example.com": false, "https://app.example.com/x": false, "https://u@app.example.com": false, "https://": false, "": false,
	} {
		if _, err := httpapi.NewEngine(httpapi.Config{AllowedOrigins: []string{"https://x.example", origin}}); (err == nil) != ok {
			t.Errorf("%q: %v", origin, err)
		}
	}
}

func TestCORS(t *testing.T) {
	limited := func(c *httpapi.Config) { c.Limiter = ratelimit.NewLocal(1, 1) }
	origins := func(list ...string) func(*httpapi.Config) {
		return func(c *httpapi.Config) { c.AllowedOrigins = list }
	}
	const public, private = "/v1/public/waitlists/w/signups/a@b.c", "/v1/waitlists"
	for name, c := range map[string]struct {
		change       func(*httpapi.Config)
		method, path string
		origin       string
		want         string
		vary         string
		status       int
	}{
		"public":             {nil, "GET", public, "https://a.example", "*", "", 200},
		"public, configured": {origins("https://x.example"), "GET", public, "https://a.example", "*", "", 200},
		"public 404":         {origins("https://x.example"), "GET", "/v1/public/nothing", "", "*", "", 404},
		"public preflight":   {origins("https://x.example"), "OPTIONS", "/v1/public/nothing/at/all", "", "*", "", 204},
		"private default":    {nil, "GET", private, "https://a.example", "*", "Origin", 200},
		"private configured": {
			origins("https://x.example", "https://y.example"), "GET", private, "https://y.example", "https://y.example", "Origin", 200,
		},
		"private stranger":       {origins("https://x.example"), "GET", private, "https://a.example", "https://x.example", "Origin", 200},
		"private without origin": {origins("https://x.example"), "GET", private, "", "https://x.example", "Origin", 200},
		"private 404":            {origins("https://x.example"), "GET", "/v1/nothing", "https://x.example", "https://x.example", "Origin", 404},
		"private preflight":      {origins("https://x.example"), "OPTIONS", private, "https://x.example", "https://x.example", "Origin", 204},
		"any path's preflight":   {nil, "OPTIONS", "/v1/a/b/c/d", "https://x.example", "*", "Origin", 204},
		"preflight outside":      {nil, "OPTIONS", "/v2", "", "*", "Origin", 404},
		"publicity":              {origins("https://x.example"), "GET", "/v1/publicity", "", "https://x.example", "Origin", 404},
	} {
		t.Run(name, func(t *testing.T) {
			a := newAPI(t, c.change, nil)
			res, body := a.do(t, c.method, c.path, "Origin", c.origin)
			h := res.Header
			if res.StatusCode != c.status || h.Get("Access-Control-Allow-Origin") != c.want || h.Get("Vary") != c.vary ||
				h.Get("Access-Control-Allow-Credentials") != "" || !strings.Contains(h.Get("Access-Control-Expose-Headers"), "Retry-After") {
				t.Fatalf("%d %v", res.StatusCode, h)
			}
			if c.status == 204 {
				for _, want := range []string{"Authorization", "X-API-Key", "Content-Type", "Idempotency-Key", "X-Account-Email", "X-Request-Id"} {
					if !strings.Contains(h.Get("Access-Control-Allow-Headers"), want) {
						t.Errorf("no %s in %v", want, h)
					}
				}
				if body != "" || !strings.Contains(h.Get("Access-Control-Allow-Methods"), "PATCH") {
					t.Errorf("%q %v", body, h)
				}
			}
		})
	}
	t.Run("429", func(t *testing.T) {
		a := newAPI(t, limited, nil)
		a.do(t, "OPTIONS", public)
		res, body := a.do(t, "GET", public)
		wantError(t, res, body, 429, apierr.RateLimited)
		if res.Header.Get("Access-Control-Allow-Origin") != "*" || res.Header.Get("Retry-After") != "1" {
			t.Fatal(res.Header)
		}
	})
}

// floor is how many requests at once an idle process admits.
const floor = 200

// TestCapacity fills an idle process: the burst of the contract is admitted, what is beyond it refused at once.
func TestCapacity(t *testing.T) {
	entered, leave := make(chan struct{}), make(chan struct{})
	slow := func(c *gin.Context) {
		entered <- struct{}{}
		<-leave
		httpapi.NoContent(c)
	}
	a := newAPI(t, func(c *httpapi.Config) {
		c.Exempt = func(method, path string) bool { return method == "POST" && path == "/v1/billing/webhook" }
		c.Long = []httpapi.Route{{Method: "GET", Path: "/v1/waitlists/:id/export"}}
	}, func(g *gin.Engine) {
		g.GET("/v1/slow", slow)
		g.GET("/v1/waitlists/:id/export", slow)
		g.POST("/v1/billing/webhook", httpapi.NoContent)
	})
	var under sync.WaitGroup
	begin := func(path string) {
		under.Go(func() {
			if res, _ := a.do(t, "GET", path); res.StatusCode != 204 {
				t.Errorf("a request that was admitted got %d", res.StatusCode)
			}
		})
		<-entered
	}
	for range 10 {
		begin("/v1/waitlists/x/export") // these take no place
	}
	for range floor {
		begin("/v1/slow")
	}
	// Who is refused takes no place, however often.
	for range 3 {
		res, body := a.do(t, "GET", "/v1/waitlists")
		wantError(t, res, body, 429, apierr.RateLimited)
		if res.Header.Get("Retry-After") != "1" {
			t.Fatal(res.Header)
		}
	}
	if res, _ := a.do(t, "POST", "/v1/billing/webhook"); res.StatusCode != 204 {
		t.Errorf("a request that is exempt got %d", res.StatusCode)
	}
	begin("/v1/waitlists/x/export")
	close(leave)
	under.Wait()
	for range floor + 1 {
		if res, _ := a.do(t, "GET", "/v1/waitlists"); res.StatusCode != 200 {
			t.Fatalf("afterwards a request got %d", res.StatusCode)
		}
	}
}

// half sends the header of a POST that announces a body of n bytes, and sent bytes of it, over a connection of its own.
func (a *api) half(t *testing.T, path string, n, sent int) net.Conn {
	t.Helper()
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", a.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(time.Minute))
	_, err = fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", path, n, strings.Repeat("x", sent))
	if err != nil {
		t.Fatal(err)
	}
	return conn
}

// reading adds a route that reads a body of up to a MiB.
func reading(reads chan<- struct{}) func(*gin.Engine) {
	return func(g *gin.Engine) {
		g.POST("/v1/things", httpapi.H(func(c *gin.Context) error {
			if reads != nil {
				reads <- struct{}{}
			}
			if _, err := httpapi.ReadBody(c, httpapi.DefaultBodyLimit); err != nil {
				return err
			}
			httpapi.NoContent(c)
			return nil
		}))
	}
}

// TestSlowBodiesTakeNoPlace has more clients that send half of a body than there are places. They keep nobody out, and get a place
// when the rest has come.
func TestSlowBodiesTakeNoPlace(t *testing.T) {
	reads := make(chan struct{})
	entered, leave := make(chan struct{}), make(chan struct{})
	a := newAPI(t, nil, func(g *gin.Engine) {
		reading(reads)(g)
		g.GET("/v1/slow", func(c *gin.Context) {
			entered <- struct{}{}
			<-leave
			httpapi.NoContent(c)
		})
	})
	var conns []net.Conn
	for range floor + 2 {
		conns = append(conns, a.half(t, "/v1/things", 2, 1))
		<-reads
	}
	finish := func(conn net.Conn, want int) {
		t.Helper()
		_, _ = conn.Write([]byte("x"))
		res, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Fatal(err)
		}
		_ = res.Body.Close()
		if res.StatusCode != want {
			t.Errorf("a request whose body has come got %d, want %d", res.StatusCode, want)
		}
	}
	finish(conns[0], 204)
	var slow sync.WaitGroup
	for range floor {
		slow.Go(func() { a.do(t, "GET", "/v1/slow") })
		<-entered
	}
	finish(conns[1], 429) // all places are taken
	close(leave)
	slow.Wait()
	for _, conn := range conns[2:] {
		finish(conn, 204)
	}
}

// heap returns the bytes of live objects.
func heap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// TestAnnouncedBodiesTakeNoMemory has clients that announce a MiB and send a byte.
func TestAnnouncedBodiesTakeNoMemory(t *testing.T) {
	const clients = 150
	reads := make(chan struct{})
	a := newAPI(t, nil, reading(reads))
	before := heap()
	for range clients {
		a.half(t, "/v1/things", 1<<20, 1)
		<-reads
	}
	if grown := heap() - before; grown > clients*100<<10 {
		t.Errorf("%d bodies of one byte take %d KiB", clients, grown>>10)
	}
}

// TestUnfinishedBodiesAreBounded has clients that keep back the last bytes of bodies of 64 KiB. What they have sent is bounded,
// the others among them hear so at once, and small bodies are still read.
func TestUnfinishedBodiesAreBounded(t *testing.T) {
	const clients, held = 900, 546 // 60 KiB each
	a := newAPI(t, nil, reading(nil))
	before := heap()
	refused := make(chan *http.Response, clients)
	for range clients {
		conn := a.half(t, "/v1/things", 65_536, 65_000)
		go func() {
			if res, err := http.ReadResponse(bufio.NewReader(conn), nil); err == nil {
				_ = res.Body.Close()
				refused <- res
			}
		}()
	}
	for i := range clients - held {
		select {
		case res := <-refused:
			if res.StatusCode != 429 || res.Header.Get("Retry-After") != "1" || !res.Close {
				t.Fatalf("%d %v", res.StatusCode, res.Header)
			}
		case <-time.After(10 * time.Second):
			t.Fatalf("%d of %d unfinished bodies were refused; all take %d MiB", i, clients, (heap()-before)>>20)
		}
	}
	if grown := heap() - before; grown > 64<<20 {
		t.Errorf("unfinished bodies take %d MiB", grown>>20)
	}
	if res, _ := a.send(t, "POST", "/v1/things", strings.NewReader(strings.Repeat("x", 4<<10))); res.StatusCode != 204 {
		t.Errorf("beside them, a small body got %d", res.StatusCode)
	}
}

func TestLimiterCountsEverythingUnderV1(t *testing.T) {
	a := newAPI(t, func(c *httpapi.Config) {
		c.Limiter = ratelimit.NewLocal(1, 3)
		c.Exempt = func(method, path string) bool { return method == "POST" && path == "/v1/billing/webhook" }
	}, func(g *gin.Engine) { g.POST("/v1/billing/webhook", httpapi.NoContent) })
	for range 5 {
		a.do(t, "GET", "/elsewhere")
		if res, _ := a.do(t, "POST", "/v1/billing/webhook"); res.StatusCode != 204 {
			t.Fatal(res.StatusCode)
		}
	}
	a.do(t, "OPTIONS", "/v1/x")
	a.do(t, "GET", "/v1/unknown")
	a.do(t, "GET", "/v1/waitlists")
	for _, m := range []string{"GET", "OPTIONS"} {
		res, body := a.do(t, m, "/v1/unknown")
		wantError(t, res, body, 429, apierr.RateLimited)
	}
	// No route has a path that is escaped without need.
	res, body := a.do(t, "POST", "/v1/billing/%77ebhook")
	wantError(t, res, body, 429, apierr.RateLimited)
	if res, _ := a.do(t, "POST", "/v1/billing/webhook"); res.StatusCode != 204 {
		t.Fatal(res.StatusCode)
	}
}

func TestErrors(t *testing.T) {
	refused := func(ctx context.Context) error {
		_, err := pgconn.Connect(ctx, "postgres://127.0.0.1:1/x?connect_timeout=1")
		return fmt.Errorf("read waitlist: %w", err)
	}
	for name, tc := range map[string]struct {
		err    func(context.Context) error
		status int
		code   apierr.Code
		retry  string
		logged bool
	}{
		"contract": {func(context.Context) error { return apierr.New(apierr.Forbidden, "no") }, 403, apierr.Forbidden, "", false},
		"wrapped":  {func(context.Context) error { return fmt.Errorf("x: %w", apierr.NotFoundf("no")) }, 404, apierr.NotFound, "", false},
		"validated": {
			func(context.Context) error { return apierr.Validation(apierr.Field{Field: "f", Message: "m"}) },
			400, apierr.ValidationError, "", false,
		},
		"retry 1 ms": {func(context.Context) error {
			return apierr.New(apierr.RateLimited, "no").WithRetryAfter(time.Millisecond)
		}, 429, apierr.RateLimited, "1", false},
		"retry 1.001 s": {func(context.Context) error {
			return apierr.New(apierr.RateLimited, "no").WithRetryAfter(1001 * time.Millisecond)
		}, 429, apierr.RateLimited, "2", false},
		"unmapped": {
			func(context.Context) error { return errors.New("secret reason of x@example.com") },
			500, apierr.InternalError, "", true,
		},
		"Postgres off": {refused, 500, apierr.InternalError, "2", true},
		"timeout":      {func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }, 500, apierr.InternalError, "2", true},
		"panic":        {func(context.Context) error { panic("secret reason") }, 500, apierr.InternalError, "", true},
	} {
		t.Run(name, func(t *testing.T) {
			a := newAPI(t, func(cfg *httpapi.Config) { cfg.Timeout = 100 * time.Millisecond }, func(g *gin.Engine) {
				g.GET("/v1/fails/:email", httpapi.H(func(c *gin.Context) error { return tc.err(c.Request.Context()) }))
			})
			res, body := a.do(t, "GET", "/v1/fails/someone@example.com")
			e := wantError(t, res, body, tc.status, tc.code)
			if got := res.Header.Get("Retry-After"); got != tc.retry {
				t.Errorf("Retry-After = %q, want %q", got, tc.retry)
			}
			if strings.Contains(body, "secret") {
				t.Error("the cause is in the answer")
			}
			a.Close()
			log := a.logs.String()
			if got := strings.Contains(log, "ERROR"); got != tc.logged {
				t.Errorf("logged = %v: %s", got, log)
			}
			if !strings.Contains(log, e.RequestID) || !strings.Contains(log, "/v1/fails/:email") || strings.Contains(log, "@example") {
				t.Errorf("log: %s", log)
			}
		})
	}
}

func TestErrorBodyIsExact(t *testing.T) {
	a := newAPI(t, nil, func(g *gin.Engine) {
		g.GET("/v1/fails", httpapi.H(func(*gin.Context) error {
			return apierr.Validation(apierr.Field{Field: "email", Message: "This <is> required."})
		}))
	})
	_, body := a.do(t, "GET", "/v1/fails", "X-Request-Id", "r1")
	const want = `{"error":"Check the field \"email\". This <is> required.","error_code":"VALIDATION_ERROR","request_id":"r1",` +
		`"errors":[{"field":"email","message":"This <is> required."}]}` + "\n"
	if body != want {
		t.Fatalf("%s", body)
	}
}

// TestPanicInMiddleware checks that a panic in a check ends the request: the
// handler behind the check must not run.
func TestPanicInMiddleware(t *testing.T) {
	a := newAPI(t, nil, func(g *gin.Engine) {
		g.GET("/v1/guarded", func(*gin.Context) { panic("check") }, func(c *gin.Context) { c.String(200, "treasure") })
	})
	res, body := a.do(t, "GET", "/v1/guarded")
	wantError(t, res, body, 500, apierr.InternalError)
	if strings.Contains(body, "treasure") {
		t.Fatal(body)
	}
}

// TestBrokenStream checks that an answer that fails halfway does not look complete.
func TestBrokenStream(t *testing.T) {
	for name, broken := range map[string]func(*gin.Context) error{
		"error": func(*gin.Context) error { return errors.New("lost the cursor") },
		"panic": func(*gin.Context) error { panic("lost the cursor") },
	} {
		t.Run(name, func(t *testing.T) {
			a := newAPI(t, nil, func(g *gin.Engine) {
				g.GET("/v1/stream", httpapi.H(func(c *gin.Context) error {
					c.Status(200)
					_, _ = c.Writer.WriteString("email,name\r\n")
					c.Writer.Flush()
					return broken(c)
				}))
			})
			req, err := http.NewRequestWithContext(t.Context(), "GET", a.URL+"/v1/stream", nil)
			if err != nil {
				t.Fatal(err)
			}
			res, err := a.Client().Do(req)
			if err != nil {
				t.Fatal(err)
			}
			defer res.Body.Close()
			if _, err := io.ReadAll(res.Body); err == nil {
				t.Fatal("a broken stream ended as if it were whole")
			}
		})
	}
}

func TestTimeoutReplacesTheDefault(t *testing.T) {
	left := make(chan time.Duration, 1)
	h := httpapi.H(func(c *gin.Context) error {
		d, ok := c.Request.Context().Deadline()
		if !ok {
			left <- 0
		} else {
			left <- time.Until(d)
		}
		httpapi.NoContent(c)
		return nil
	})
	a := newAPI(t, nil, func(g *gin.Engine) {
		g.GET("/v1/default", h)
		g.GET("/v1/long", httpapi.Timeout(time.Hour), h)
		g.GET("/v1/none", httpapi.Timeout(0), h)
	})
	for path, want := range map[string][2]time.Duration{
		"/v1/default": {time.Second, 5 * time.Second}, "/v1/long": {50 * time.Minute, time.Hour}, "/v1/none": {0, 0},
	} {
		if res, _ := a.do(t, "GET", path); res.StatusCode != 204 {
			t.Fatal(path, res.StatusCode)
		}
		if got := <-left; got < want[0] || got > want[1] {
			t.Errorf("%s: %v left", path, got)
		}
	}
}

// TestSlowBody checks that the time to receive a body does not count towards the
// request's timeout.
func TestSlowBody(t *testing.T) {
	const timeout = 50 * time.Millisecond
	over := make(chan struct{})
	a := newAPI(t, func(cfg *httpapi.Config) { cfg.Timeout = timeout }, func(g *gin.Engine) {
		g.POST("/v1/body", httpapi.H(func(c *gin.Context) error {
			go func(ctx context.Context) {
				<-ctx.Done()
				close(over)
			}(c.Request.Context())
			raw, err := httpapi.ReadBody(c, 100)
			if err != nil {
				return err
			}
			deadline, _ := c.Request.Context().Deadline()
			c.String(200, "%s %v %v", raw, c.Request.Context().Err(), time.Until(deadline) <= timeout)
			return nil
		}))
	})
	r, w := io.Pipe()
	go func() {
		_, _ = io.WriteString(w, "first ")
		<-over
		_, _ = io.WriteString(w, "second")
		_ = w.Close()
	}()
	if res, got := a.send(t, "POST", "/v1/body", r); res.StatusCode != 200 || got != "first second <nil> true" {
		t.Errorf("%d %s", res.StatusCode, got)
	}
}

func TestReadBody(t *testing.T) {
	const limit = 100_000
	a := newAPI(t, nil, func(g *gin.Engine) {
		g.POST("/v1/body", httpapi.H(func(c *gin.Context) error {
			raw, err := httpapi.ReadBody(c, limit)
			if err != nil {
				return err
			}
			c.String(200, "%d", len(raw))
			return nil
		}))
	})
	for _, n := range []int{0, 1, limit - 1, limit} {
		for name, body := range map[string]io.Reader{
			"sized": bytes.NewReader(make([]byte, n)), "chunked": io.MultiReader(bytes.NewReader(make([]byte, n))),
		} {
			if res, got := a.send(t, "POST", "/v1/body", body); res.StatusCode != 200 || got != fmt.Sprint(n) {
				t.Errorf("%s %d: %d %s", name, n, res.StatusCode, got)
			}
		}
	}
	for _, n := range []int{limit + 1, 1 << 20, 3 << 20} {
		for name, body := range map[string]io.Reader{
			"sized": bytes.NewReader(make([]byte, n)), "chunked": io.MultiReader(bytes.NewReader(make([]byte, n))),
		} {
			res, got := a.send(t, "POST", "/v1/body", body)
			if res.StatusCode != 400 || !strings.Contains(got, "INVALID_BODY") {
				t.Errorf("%s %d: %d %s", name, n, res.StatusCode, got)
			}
		}
	}
	// A body that ends early.
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", a.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprint(conn, "POST /v1/body HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nabc")
	if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	raw, _ := io.ReadAll(conn)
	if !bytes.Contains(raw, []byte("INVALID_BODY")) {
		t.Errorf("%s", raw)
	}
}

func TestQueryInt(t *testing.T) {
	a := newAPI(t, nil, func(g *gin.Engine) {
		g.GET("/v1/list", httpapi.H(func(c *gin.Context) error {
			n, err := httpapi.QueryInt(c, "limit", 50, 1, 100)
			if err != nil {
				return err
			}
			c.String(200, "%d", n)
			return nil
		}))
	})
	for q, want := range map[string]string{"": "50", "?limit=": "50", "?limit=1": "1", "?limit=100": "100", "?other=3": "50"} {
		if _, got := a.do(t, "GET", "/v1/list"+q); got != want {
			t.Errorf("%s: %s", q, got)
		}
	}
	for _, q := range []string{
		"0", "101", "-1", "x", "1.5", "1e1", "99999999999999999999", "%00", "%201", "%zz", "5;", "5%", "&limit=5", "5&limit=",
	} {
		res, body := a.do(t, "GET", "/v1/list?limit="+q)
		e := wantError(t, res, body, 400, apierr.ValidationError)
		if !strings.Contains(string(e.Errors), `"field":"limit"`) {
			t.Errorf("%s: %s", q, body)
		}
	}
}

func TestPathsThatAreNoText(t *testing.T) {
	a := newAPI(t, nil, nil)
	for _, sent := range []string{"%00", "a%00@b.c", "%ff@b.c", "%ed%a0%80@b.c"} {
		for _, method := range []string{"GET", "HEAD"} {
			res, body := a.do(t, method, "/v1/public/waitlists/w/signups/"+sent)
			if method == "GET" {
				wantError(t, res, body, 404, apierr.NotFound)
			} else if res.StatusCode != 404 {
				t.Errorf("HEAD %s: %d", sent, res.StatusCode)
			}
		}
	}
}

func TestMetrics(t *testing.T) {
	a := newAPI(t, nil, nil)
	a.do(t, "GET", "/v1/public/waitlists/1/signups/a@b.c")
	a.do(t, "BREW", "/v1/public/waitlists/1/signups/a@b.c")
	a.do(t, "HEAD", "/v1/public/waitlists/1/signups/a@b.c")
	a.Close()
	families, err := a.reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, f := range families {
		for _, m := range f.GetMetric() {
			line := f.GetName()
			for _, l := range m.GetLabel() {
				line += " " + l.GetValue()
			}
			got = append(got, fmt.Sprint(line, " ", m.GetCounter().GetValue()))
		}
	}
	all := strings.Join(got, "\n")
	for _, want := range []string{
		"GET 200 /v1/public/waitlists/:id/signups/:email 1", "HEAD 200 /v1/public/waitlists/:id/signups/:email 1", "_OTHER 404 unmatched 1",
		// There before the first fault, so that rate() sees it.
		"GET 500 /v1/public/waitlists/:id/signups/:email 0",
	} {
		if !strings.Contains(all, "http_server_responses_total "+want) {
			t.Errorf("no %q in %s", want, all)
		}
	}
	if strings.Contains(all, "a@b.c") || strings.Contains(a.logs.String(), "a@b.c") {
		t.Error("an address in the metrics or the log")
	}
}

// BenchmarkEngine measures the cost of everything around a handler.
func BenchmarkEngine(b *testing.B) {
	for name, bare := range map[string]bool{"bare": true, "full": false} {
		b.Run(name, func(b *testing.B) {
			doc := []byte(`{"ok":true}`)
			var g *gin.Engine
			if bare {
				gin.SetMode(gin.ReleaseMode)
				g = gin.New()
			} else {
				tel, err := telemetry.New(b.Context(), telemetry.Options{Service: "bench", Output: io.Discard})
				if err != nil {
					b.Fatal(err)
				}
				defer func() { _ = tel.Close(context.WithoutCancel(b.Context())) }()
				g, err = httpapi.NewEngine(httpapi.Config{
					Log: tel.Log, Registerer: tel.Registerer, Tracers: tel.Tracers, Limiter: ratelimit.NewLocal(1_000_000_000, 1_000_000_000),
				})
				if err != nil {
					b.Fatal(err)
				}
			}
			g.GET("/v1/public/waitlists/:id/config", func(c *gin.Context) { httpapi.RawJSON(c, 200, doc) })
			req := httptest.NewRequestWithContext(b.Context(), "GET", "/v1/public/waitlists/0199c5a5-7d3c-7c11-8c57-94c1f3a7b001/config", nil)
			b.ReportAllocs()
			for b.Loop() {
				g.ServeHTTP(&discard{h: http.Header{}}, req)
			}
		})
	}
}

type discard struct{ h http.Header }

func (d *discard) Header() http.Header         { return d.h }
func (d *discard) Write(p []byte) (int, error) { return len(p), nil }
func (d *discard) WriteHeader(int)             {}
