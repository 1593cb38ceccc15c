// Package httpapi is the HTTP layer that all services share: a gin engine that
// gives every route the behaviour of the REST contract.
//
//	request id → span → request timeout → CORS → capacity → global limit
//	  → OPTIONS? 204 → route → H writes the error
//	  → metrics, access log
//
// One middleware does all of this in one pass: at thousands of requests a second,
// this work is most of the cost of a request outside the database.
//
// Routes match the percent-encoded path as sent, and parameters are decoded once,
// so that /, %, + and the like work in an email address.
package httpapi

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/netip"
	"net/url"
	"runtime/debug"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/gin-gonic/gin"
	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"waitlist.internal/libs/apierr"
	"waitlist.internal/libs/ratelimit"
	"waitlist.internal/libs/telemetry"
)

const (
	// DefaultTimeout bounds requests of routes without Timeout: callers get an answer
	// within five seconds even if the database is unreachable.
	DefaultTimeout = 4800 * time.Millisecond
	// DefaultBodyLimit is the limit of the REST contract, in bytes, inclusive.
	DefaultBodyLimit = 1 << 20
	// ImportBodyLimit is the limit of an import.
	ImportBodyLimit = 32 << 20

	// readingTimeout bounds how long a client may take to read the answer, counted from
	// the request's timeout. Otherwise, clients that pipeline requests and read nothing
	// would hold their connections for good.
	readingTimeout = 25 * time.Second

	maxRequestID = 128
	unmatched    = "unmatched"
)

// Config configures an engine.
type Config struct {
	// Service names the instrumentation; it may be empty.
	Service string
	// Limiter is the global limit; nil means none.
	Limiter ratelimit.Limiter
	// Capacity bounds what the process works on at a time, not those requests whose body is read; nil means one of its own.
	Capacity *Capacity
	// Long are routes that take long by nature and have bounds of their own: their requests take nothing of Capacity.
	Long []Route
	// Exempt reports whether a request does not count against Limiter and Capacity;
	// nil means that all count. path is percent-encoded as sent, like the routes.
	Exempt func(method, path string) bool
	// AllowedOrigins may read answers outside /v1/public; "*", like an empty list,
	// means every origin.
	AllowedOrigins []string
	// TrustedProxies are the addresses and networks whose X-Forwarded-For is trusted. None,
	// or the only element "none", means that clients connect directly.
	TrustedProxies []string
	// Timeout bounds each request; 0 means DefaultTimeout.
	Timeout time.Duration
	// Log receives the access log and errors; nil means slog's default.
	Log *slog.Logger
	// Registerer takes the metrics; nil means none.
	Registerer prometheus.Registerer
	// Tracers makes the server spans; nil means none.
	Tracers trace.TracerProvider
}

type engine struct {
	cfg     Config
	gin     *gin.Engine
	tracer  trace.Tracer
	origins *origins
	proxies proxies
	metrics *metrics
	long    map[Route]bool
}

// Route is a method and a path with its parameters, as gin knows it.
type Route struct{ Method, Path string }

// NewEngine returns an engine without routes. It returns an error if
// TrustedProxies or AllowedOrigins are not valid.
func NewEngine(cfg Config) (*gin.Engine, error) {
	cfg.Log = cmp.Or(cfg.Log, slog.Default())
	cfg.Timeout = cmp.Or(cfg.Timeout, DefaultTimeout)
	if cfg.Capacity == nil {
		cfg.Capacity = NewCapacity(nil)
	}
	if cfg.Tracers == nil {
		cfg.Tracers = noop.NewTracerProvider()
	}
	gin.SetMode(gin.ReleaseMode)
	g := gin.New()
	// gin would decode + in parameters as a space.
	g.UseEscapedPath, g.UnescapePathValues = true, false
	g.RedirectTrailingSlash = false
	g.ForwardedByClientIP = false // ClientIP reads the header
	trusted, err := newProxies(cfg.TrustedProxies)
	if err != nil {
		return nil, err
	}
	allowed, err := newOrigins(cfg.AllowedOrigins)
	if err != nil {
		return nil, err
	}
	e := &engine{
		cfg: cfg, gin: g,
		tracer:  telemetry.Tracer(cfg.Tracers, "waitlist.internal/libs/httpapi"),
		proxies: trusted,
		origins: allowed,
		metrics: newMetrics(g),
		long:    map[Route]bool{},
	}
	for _, r := range cfg.Long {
		e.long[r] = true
	}
	if cfg.Registerer != nil {
		cfg.Registerer.MustRegister(e.metrics.seconds, e.metrics.active, e.metrics)
	}
	g.Use(e.serve)
	g.NoRoute(e.noRoute)
	return g, nil
}

// request is the state that the middleware keeps for a request.
type request struct {
	id string
	// client is the client's address; the zero Addr means that it has none.
	client netip.Addr
	// base is the context without a timeout; timeout is the current one, 0 for none.
	base    context.Context // begin starts again from it
	timeout time.Duration
	// began is when the timeout began.
	began  time.Time
	cancel context.CancelFunc
	log    *slog.Logger
	// aborted is set when an answer has begun but cannot be completed: the server
	// cuts the connection, so that the client does not take a part for the whole.
	aborted bool
	// head is set for a HEAD request that is answered as GET.
	head bool
	// capacity is the process'; placed says whether the request holds a place in it.
	capacity *Capacity
	placed   bool
}

type requestKey struct{}

func requestOf(c *gin.Context) *request {
	r, _ := c.Request.Context().Value(requestKey{}).(*request)
	return r
}

// IsHead reports whether the client gets only the header of the answer, so that a
// handler need not produce a long body.
func IsHead(c *gin.Context) bool {
	r := requestOf(c)
	return r != nil && r.head
}

// RequestID returns the id of the request, which the answer repeats.
func RequestID(c *gin.Context) string { return telemetry.RequestID(c.Request.Context()) }

// serve is the middleware around every request.
func (e *engine) serve(c *gin.Context) {
	if requestOf(c) != nil {
		// noRoute routes a HEAD request a second time, as GET.
		decodeParams(c)
		return
	}
	start := time.Now()
	e.metrics.active.Inc()
	defer e.metrics.active.Dec()

	in := c.Request
	route := c.FullPath()
	if route == "" {
		route = unmatched
	}
	r := &request{id: requestID(in.Header), client: e.proxies.client(in), log: e.cfg.Log, capacity: e.cfg.Capacity}
	ctx, span := e.startSpan(in, method(in.Method)+" "+route)
	defer span.End()
	r.base = context.WithValue(telemetry.WithRequestID(ctx, r.id), requestKey{}, r)
	r.timeout, r.cancel = e.cfg.Timeout, func() {}
	c.Request = in
	r.begin(c)
	defer func() { r.cancel() }()

	defer func() {
		// After noRoute, this is the route of the GET request.
		if p := c.FullPath(); p != "" {
			route = p
		}
		e.finish(c, span, method(in.Method), route, time.Since(start), r.aborted)
		if r.aborted {
			panic(http.ErrAbortHandler) // net/http's way to cut a connection
		}
	}()
	e.handle(c, r)
}

// handle answers the request.
func (e *engine) handle(c *gin.Context, r *request) {
	defer func() {
		p := recover()
		if p == nil {
			return
		}
		// Otherwise gin would run the handler after the one that panicked.
		c.Abort()
		if p != http.ErrAbortHandler { //nolint:errorlint // net/http compares like this
			e.cfg.Log.LogAttrs(c.Request.Context(), slog.LevelError, "panic in handler",
				telemetry.Panic(p), slog.String("stack", string(debug.Stack())))
			if !c.Writer.Written() {
				write(c, apierr.New(apierr.InternalError, "Something went wrong on our side."))
				return
			}
		}
		r.aborted = true
	}()

	h := c.Writer.Header()
	path := c.Request.URL.Path
	h["X-Request-Id"] = []string{r.id}
	for _, f := range fixed {
		h[f.name] = f.value
	}
	e.origins.set(h, c.Request.Header, path)

	exempt := e.cfg.Exempt != nil && e.cfg.Exempt(c.Request.Method, c.Request.URL.EscapedPath())
	if !exempt && !e.long[Route{c.Request.Method, c.FullPath()}] {
		// This comes before the limiter, since a refusal must cost as little as possible.
		if !r.capacity.acquire() {
			c.Abort()
			write(c, tooMany(time.Second))
			return
		}
		r.placed = true
		defer func() {
			if r.placed {
				// What other bounds refuse at once says nothing about what the process can do.
				r.capacity.release(c.Writer.Status() != http.StatusTooManyRequests)
			}
		}()
	}
	if path == "/v1" || strings.HasPrefix(path, "/v1/") {
		if !exempt && e.cfg.Limiter != nil {
			if ok, retry := e.cfg.Limiter.Allow(c.Request.Context()); !ok {
				c.Abort()
				write(c, tooMany(retry))
				return
			}
		}
		if c.Request.Method == http.MethodOptions {
			c.Abort()
			preflight(h)
			c.Status(http.StatusNoContent)
			c.Writer.WriteHeaderNow()
			return
		}
	}
	decodeParams(c)
	c.Next()
}

// noRoute answers HEAD as GET, and any other request without a route with 404.
func (e *engine) noRoute(c *gin.Context) {
	if c.Request.Method == http.MethodHead {
		// net/http drops the body, since its own request is still HEAD.
		get := *c.Request
		get.Method = http.MethodGet
		c.Request = &get
		requestOf(c).head = true
		c.Status(http.StatusOK)
		e.gin.HandleContext(c)
		return
	}
	write(c, apierr.New(apierr.NotFound, "There is nothing here."))
}

// finish records the metrics, span and log line of an answered request.
func (e *engine) finish(c *gin.Context, span trace.Span, verb, route string, took time.Duration, aborted bool) {
	status := c.Writer.Status()
	e.metrics.record(c.Request.Context(), route, verb, status, took)
	if span.IsRecording() {
		span.SetName(verb + " " + route)
		answered(span, verb, route, status, aborted)
	}
	ctx := c.Request.Context()
	if !e.cfg.Log.Enabled(ctx, slog.LevelInfo) {
		return
	}
	// Made by hand, since a Logger would look up the source line of its caller.
	line := slog.NewRecord(time.Now(), slog.LevelInfo, "request", 0)
	line.AddAttrs(slog.String("method", verb), slog.String("route", route), slog.Int("status", status),
		slog.Float64("ms", float64(took.Microseconds())/1000), slog.Int("bytes", max(c.Writer.Size(), 0)))
	// There is nowhere to report a log that fails.
	_ = e.cfg.Log.Handler().Handle(ctx, line)
}

// Timeout replaces the default timeout of the routes behind it and starts it anew;
// 0 means that only the client ends the request.
func Timeout(d time.Duration) gin.HandlerFunc {
	return func(c *gin.Context) {
		if r := requestOf(c); r != nil {
			r.timeout = d
			r.begin(c)
		}
	}
}

// begin starts the timeout anew, and with it the deadline of the answer.
func (r *request) begin(c *gin.Context) {
	r.cancel()
	ctx := r.base
	r.began = time.Now()
	var written time.Time
	if r.timeout > 0 {
		written = r.began.Add(r.timeout + readingTimeout)
		ctx, r.cancel = context.WithTimeout(ctx, r.timeout)
	} else {
		ctx, r.cancel = context.WithCancel(ctx)
	}
	// A test's recorder has no deadline.
	_ = http.NewResponseController(c.Writer).SetWriteDeadline(written)
	c.Request = c.Request.WithContext(ctx)
}

// decodeParams decodes percent-encoded path parameters. It answers 404 if one is
// not text, since nothing can have such a name.
func decodeParams(c *gin.Context) {
	for i := range c.Params {
		p := &c.Params[i]
		if strings.IndexByte(p.Value, '%') < 0 {
			continue
		}
		v, err := url.PathUnescape(p.Value)
		if err != nil || !utf8.ValidString(v) || strings.IndexByte(v, 0) >= 0 {
			Fail(c, apierr.New(apierr.NotFound, "There is nothing here."))
			return
		}
		p.Value = v
	}
}

// requestID returns the caller's id if it is valid, or else a new one.
func requestID(h http.Header) string {
	if v := h["X-Request-Id"]; len(v) == 1 && validID(v[0]) {
		return v[0]
	}
	id, err := uuid.NewV7()
	if err != nil {
		id = uuid.New()
	}
	return id.String()
}

func validID(s string) bool {
	if s == "" || len(s) > maxRequestID {
		return false
	}
	for i := range len(s) {
		c := s[i]
		if (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && c != '_' && c != '.' && c != '-' {
			return false
		}
	}
	return true
}

// method bounds the values of metric labels and span names.
func method(m string) string {
	switch m {
	case http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch,
		http.MethodDelete, http.MethodOptions:
		return m
	default:
		return "_OTHER"
	}
}

// fixed are the headers of every answer. Answers are data: no browser may render, frame,
// keep or guess the type of one, or tell another site its address. Browsers heed
// Strict-Transport-Security only over TLS, that is, through a gateway that terminates
// it.
var fixed = []struct {
	name  string
	value []string
}{
	{"Cache-Control", []string{"no-store"}},
	{"Content-Security-Policy", []string{"default-src 'none'; frame-ancestors 'none'"}},
	{"Referrer-Policy", []string{"no-referrer"}},
	{"Strict-Transport-Security", []string{"max-age=31536000"}},
	{"X-Content-Type-Options", []string{"nosniff"}},
}

// Shared header values; net/http does not change them.
var (
	star     = []string{"*"}
	byOrigin = []string{"Origin"}
	exposed  = []string{"X-Request-Id, Retry-After, Idempotent-Replayed"}
	methods  = []string{"GET, HEAD, POST, PATCH, DELETE, OPTIONS"}
	headers  = []string{"Authorization, X-API-Key, Content-Type, Idempotency-Key, X-Account-Email, X-Request-Id"}
	maxAge   = []string{"600"}
)

const publicPrefix = "/v1/public"

// origins is the CORS configuration outside the public paths.
type origins struct {
	any     bool
	allowed map[string][]string
	// first is the answer to other origins; their browsers refuse it.
	first []string
}

func newOrigins(list []string) (*origins, error) {
	if len(list) == 0 || slices.Contains(list, "*") {
		return &origins{any: true}, nil
	}
	o := &origins{allowed: make(map[string][]string, len(list)), first: list[:1:1]}
	for _, origin := range list {
		// Browsers compare it byte by byte with the origin that they sent.
		u, err := url.Parse(origin)
		if err != nil || u.Scheme == "" || u.Host == "" || origin != strings.ToLower(u.Scheme+"://"+u.Host) {
			return nil, fmt.Errorf("write the allowed origin %q like https://app.example.com, without a path", origin)
		}
		o.allowed[origin] = []string{origin}
	}
	return o, nil
}

// set writes the CORS headers of an answer under path. It never allows
// credentials, since no service uses cookies.
func (o *origins) set(h, in http.Header, path string) {
	if path == publicPrefix || strings.HasPrefix(path, publicPrefix+"/") {
		h["Access-Control-Allow-Origin"] = star
		h["Access-Control-Expose-Headers"] = exposed
		return
	}
	h["Vary"] = byOrigin
	h["Access-Control-Expose-Headers"] = exposed
	switch v, ok := o.allowed[in.Get("Origin")]; {
	case o.any:
		h["Access-Control-Allow-Origin"] = star
	case ok:
		h["Access-Control-Allow-Origin"] = v
	default:
		h["Access-Control-Allow-Origin"] = o.first
	}
}

func preflight(h http.Header) {
	h["Access-Control-Allow-Methods"] = methods
	h["Access-Control-Allow-Headers"] = headers
	h["Access-Control-Max-Age"] = maxAge
}
