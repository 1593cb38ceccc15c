// Package stripesim simulates the parts of Stripe that billing uses. It speaks the provider's API at version 2023-10-16:
// stripe-go/v76 works with it unchanged once its backend's URL points here.
//
// The simulator is stateful: customers, subscriptions, invoices and payments follow from each other as they do at the
// provider, periods end, cards are declined, events are signed and delivered. It rejects every call and parameter that it
// does not know, so that a request that works here is one that the provider understands.
//
//	stripesim.go     the server: credentials, routes, one call from start to end
//	idempotency.go   what an Idempotency-Key remembers
//	fault.go         answers that fail before or after the call's effect
//	form.go error.go encoding of requests and errors
//	object.go        the provider's objects
//	store.go         storing, expanding, listing and saving objects
//	customer.go price.go checkout.go subscription.go invoice.go payment.go portal.go
//	proration.go     the cost of a price change, to the second
//	time.go          test clocks, and what happens when time passes
//	event.go         events and their delivery to the webhook
//	history.go       every state that a subscription ever had, for tests
//	page.go          the hosted pages: checkout, portal, invoices
//	control.go       the methods of Server for other processes, under /_sim/
//
// It is simpler than the provider: a subscription has one item; there are no taxes, discounts or coupons; invoices are
// finalized and paid at once; amounts below the provider's minimum charge are charged all the same.
package stripesim

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"
)

const (
	// APIVersion is the API version of objects and events.
	APIVersion = "2023-10-16"
	// maxBody is the maximum size of a request body, in bytes.
	maxBody = 1 << 20
	// maxCalls is the least number of requests that are remembered.
	maxCalls = 10_000
)

// Config configures a simulator. The zero value keeps the state in memory, accepts any secret key, has the default prices
// and delivers no events.
type Config struct {
	// Key is the secret key that requests must carry; empty: any key that starts with sk_.
	Key string
	// PublicURL is the base URL of the hosted pages; empty: the host of the request that made the page.
	PublicURL string
	// Prices are the prices that exist; nil: DefaultPrices.
	Prices []Price
	// ControlKey opens the control interface; empty: nobody.
	ControlKey string
	// WebhookURL receives the events, signed with WebhookSecret; empty: no deliveries.
	WebhookURL, WebhookSecret string
	// WebhookEvents are the event types that the webhook subscribes to; nil: all.
	WebhookEvents []string
	// WebhookTimeout limits one delivery; 0: 10 s.
	WebhookTimeout time.Duration
	// Backoff returns the pause after the nth failed delivery, counted from 1, and whether to try again; nil: 1 s, doubled each
	// time up to an hour, 20 attempts.
	Backoff func(n int) (time.Duration, bool)
	// File stores the state across restarts; empty: the state is in memory only.
	File string
	// Now returns the current time; nil: time.Now.
	Now func() time.Time
	// SignedAt returns the timestamp of event signatures, for receivers that check them against another clock; nil: Now.
	SignedAt func() time.Time
	// ID returns a new identifier with the given prefix; nil: a random one.
	ID func(prefix string) string
	// Retries are the pauses between attempts to collect an unpaid renewal; nil: 3, 5 and 7 days. After the last failed attempt
	// the subscription becomes AfterRetries.
	Retries []time.Duration
	// AfterRetries is canceled or unpaid; empty: canceled.
	AfterRetries string
	// CheckEvery is how often Run looks for what has become due; 0: 1 s.
	CheckEvery time.Duration
}

// Server is the simulator: an http.Handler with state. Run delivers its events and ends its periods; without Run, events
// stay queued and periods end at the next request. All methods are safe for concurrent use.
type Server struct {
	cfg  Config
	mux  *http.ServeMux
	quit chan struct{} // closed when Run ends, which ends hanging calls
	once sync.Once
	post http.Client

	mu      sync.Mutex
	state   state
	dirty   bool
	running map[string]bool // idempotency keys in use
	faults  []*Fault
	calls   []*Call
	hanging int
	hooks   hooks
}

// Call is a request to the API, rejected ones included.
type Call struct {
	Method, Path string
	// Key is the request's Idempotency-Key.
	Key string
	// Status is the status of the answer; 0 while the call runs or if it got no answer.
	Status int
}

// New creates a simulator and loads the state from cfg.File if the file exists.
func New(cfg Config) (*Server, error) {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.SignedAt == nil {
		cfg.SignedAt = cfg.Now
	}
	if cfg.ID == nil {
		cfg.ID = func(prefix string) string { return prefix + rand.Text()[:20] }
	}
	if cfg.Prices == nil {
		cfg.Prices = DefaultPrices()
	}
	if cfg.Retries == nil {
		cfg.Retries = []time.Duration{3 * day, 5 * day, 7 * day}
	}
	if cfg.AfterRetries == "" {
		cfg.AfterRetries = canceled
	}
	if cfg.AfterRetries != canceled && cfg.AfterRetries != unpaid {
		return nil, fmt.Errorf("invalid AfterRetries %q: use canceled or unpaid", cfg.AfterRetries)
	}
	if cfg.CheckEvery == 0 {
		cfg.CheckEvery = time.Second
	}
	if cfg.WebhookTimeout == 0 {
		cfg.WebhookTimeout = 10 * time.Second
	}
	if cfg.Backoff == nil {
		cfg.Backoff = func(n int) (time.Duration, bool) {
			return min(time.Second<<min(n-1, 12), time.Hour), n < 20
		}
	}
	s := &Server{
		cfg: cfg, quit: make(chan struct{}), running: map[string]bool{},
		post: http.Client{
			Timeout:       cfg.WebhookTimeout,
			Transport:     &http.Transport{Proxy: nil, MaxIdleConnsPerHost: deliverers},
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
	}
	s.hooks.wake = make(chan struct{}, 1)
	s.hooks.settled = sync.NewCond(&s.mu)
	s.hooks.url, s.hooks.secret = cfg.WebhookURL, cfg.WebhookSecret
	if err := s.load(); err != nil {
		return nil, err
	}
	if err := s.seedPrices(); err != nil {
		return nil, err
	}
	s.mux = http.NewServeMux()
	for _, r := range s.routes() {
		s.mux.Handle(r.pattern, s.api(r))
	}
	s.mux.Handle("/v1/", s.api(route{handle: func(rq *request) (any, error) {
		return nil, &apiError{
			Status: http.StatusNotFound, Type: invalidRequest,
			Message: fmt.Sprintf("Unrecognized request URL (%s: %s).", rq.method, rq.path),
		}
	}}))
	s.pages()
	s.controls()
	return s, nil
}

// ServeHTTP serves the API under /v1/, the hosted pages, and /_sim/ for holders of ControlKey.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) { s.mux.ServeHTTP(w, r) }

// Run delivers events and lets time pass until ctx ends. It returns when the goroutines it started have ended. Call it once.
func (s *Server) Run(ctx context.Context) error {
	defer s.once.Do(func() { close(s.quit) })
	defer s.post.CloseIdleConnections()
	var group sync.WaitGroup
	group.Go(func() { s.deliver(ctx) })
	tick := time.NewTicker(s.cfg.CheckEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			group.Wait()
			return nil
		case <-tick.C:
			if err := s.Tick(); err != nil {
				group.Wait()
				return err
			}
		}
	}
}

// Calls returns the API requests so far in order. It keeps at least the latest 10,000.
func (s *Server) Calls() []Call {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make([]Call, 0, len(s.calls))
	for _, c := range s.calls {
		out = append(out, *c)
	}
	return out
}

// route is one call of the API.
type route struct {
	pattern string
	// params are the top-level parameters that the call accepts besides expand.
	params string
	handle func(rq *request) (any, error)
}

func (s *Server) routes() []route {
	return slices.Concat(
		s.customerRoutes(), s.priceRoutes(), s.checkoutRoutes(), s.subscriptionRoutes(),
		s.invoiceRoutes(), s.paymentRoutes(), s.portalRoutes(), s.clockRoutes(), s.eventRoutes(),
	)
}

// request is an API call with its parameters.
type request struct {
	form
	method, path string
	base         string // base URL of the hosted pages
	id           string // the id in the path
	key          string // Idempotency-Key
	reqID        string // Request-Id
	now          int64  // epoch seconds
}

// answer is the answer to an API call.
type answer struct {
	Status int             `json:"status"`
	Body   json.RawMessage `json:"body"`
}

// api serves a route in five steps: credentials, idempotency, faults, effect, answer.
func (s *Server) api(rt route) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		reqID := s.cfg.ID("req_")
		w.Header().Set("Request-Id", reqID)
		w.Header().Set("Stripe-Version", APIVersion)
		w.Header().Set("Content-Type", "application/json")
		call := s.record(r)
		a := s.call(w, r, rt, reqID)
		s.mu.Lock()
		call.Status = a.Status
		s.mu.Unlock()
		if a.Status == 0 {
			cut(w)
			return
		}
		w.WriteHeader(a.Status)
		_, _ = w.Write(a.Body)
	})
}

func (s *Server) record(r *http.Request) *Call {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.calls) >= 2*maxCalls {
		s.calls = slices.Clone(s.calls[maxCalls:])
	}
	c := &Call{Method: r.Method, Path: r.URL.Path, Key: r.Header.Get("Idempotency-Key")}
	s.calls = append(s.calls, c)
	return c
}

// call returns the answer to a request; status 0 means that the connection closes without one.
func (s *Server) call(w http.ResponseWriter, r *http.Request, rt route, reqID string) answer {
	if err := s.authenticate(r); err != nil {
		return refuse(err, reqID)
	}
	body, err := io.ReadAll(io.LimitReader(r.Body, maxBody+1))
	if err != nil || len(body) > maxBody {
		return refuse(invalid("", "The request cannot be read."), reqID)
	}
	values, err := url.ParseQuery(string(body))
	query, err2 := url.ParseQuery(r.URL.RawQuery)
	if errors.Join(err, err2) != nil {
		return refuse(invalid("", "The request is not form-encoded."), reqID)
	}
	rq := &request{
		form: newForm(query, values), method: r.Method, path: r.URL.Path, id: r.PathValue("id"),
		base: s.base(r), key: r.Header.Get("Idempotency-Key"), reqID: reqID,
	}
	fault := s.fault(rq)
	replayed, err := s.begin(rq)
	if err != nil {
		return refuse(err, reqID)
	}
	if replayed != nil {
		w.Header().Set("Idempotent-Replayed", "true")
		return *replayed
	}
	if fault != nil && !fault.After {
		a := s.fail(w, r, fault, reqID)
		s.end(rq, a, fault.Sticky)
		return a
	}
	a := s.do(rq, rt)
	if fault == nil {
		s.end(rq, a, false)
		return a
	}
	if fault.Sticky {
		lost := s.fail(w, r, fault, reqID)
		s.end(rq, lost, true)
		return lost
	}
	s.end(rq, a, false)
	return s.fail(w, r, fault, reqID)
}

// do executes a request and stores the answer under its idempotency key; both are saved together. Answers that reject
// invalid parameters are not stored.
func (s *Server) do(rq *request, rt route) answer {
	if err := rq.check(rt.params); err != nil {
		return refuse(err, rq.reqID)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.settle()
	rq.now, s.state.Base = s.now(), rq.base
	s.hooks.request, s.hooks.key = rq.reqID, rq.key
	out, err := rt.handle(rq)
	var a answer
	if err == nil {
		a, err = s.show(out, rq.all("expand"))
	}
	s.hooks.request, s.hooks.key = "", ""
	if err != nil {
		a = refuse(err, rq.reqID)
	}
	if rq.method != http.MethodGet {
		s.dirty = true
	}
	if a.Status < 300 || a.Status == http.StatusPaymentRequired {
		s.keep(rq, a)
	}
	if err := s.save(); err != nil {
		return refuse(err, rq.reqID)
	}
	return a
}

// show returns the answer that contains an object, expanded.
func (s *Server) show(out any, expand []string) (answer, error) {
	shown, err := s.render(out, expand)
	if err != nil {
		return answer{}, err
	}
	body, err := json.MarshalIndent(shown, "", "  ")
	if err != nil {
		return answer{}, fmt.Errorf("encode the answer: %w", err)
	}
	return answer{Status: http.StatusOK, Body: body}, nil
}

func (s *Server) authenticate(r *http.Request) error {
	key, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	if !ok {
		return &apiError{
			Status: http.StatusUnauthorized, Type: invalidRequest,
			Message: "You did not provide an API key. You need to provide your API key in the Authorization header, using Bearer auth.",
		}
	}
	if s.cfg.Key != "" && key != s.cfg.Key || !strings.HasPrefix(key, "sk_") && !strings.HasPrefix(key, "rk_") {
		return &apiError{
			Status: http.StatusUnauthorized, Type: invalidRequest,
			Message: "Invalid API Key provided: " + mask(key),
		}
	}
	return nil
}

// mask hides all but the last four characters of a key.
func mask(key string) string {
	if len(key) <= 8 {
		return "********"
	}
	return strings.Repeat("*", len(key)-4) + key[len(key)-4:]
}

// base returns the base URL of the hosted pages.
func (s *Server) base(r *http.Request) string {
	if s.cfg.PublicURL != "" {
		return strings.TrimSuffix(s.cfg.PublicURL, "/")
	}
	return "http://" + r.Host
}

// now returns the current time of everything without a test clock, in epoch seconds. The caller holds the lock.
func (s *Server) now() int64 { return s.cfg.Now().Add(s.state.Offset).Unix() }

func refuse(err error, reqID string) answer {
	e, ok := errors.AsType[*apiError](err)
	if !ok {
		e = &apiError{Status: http.StatusInternalServerError, Type: "api_error", Message: err.Error()}
	}
	e.RequestLogURL = "https://dashboard.stripe.com/test/logs/" + reqID
	var body bytes.Buffer
	enc := json.NewEncoder(&body)
	enc.SetIndent("", "  ")
	if err := enc.Encode(map[string]any{"error": e}); err != nil {
		return answer{Status: http.StatusInternalServerError, Body: json.RawMessage(`{"error":{"type":"api_error"}}`)}
	}
	return answer{Status: e.Status, Body: body.Bytes()}
}
