// Package standalone runs the whole suite in one process: the services, an edge
// that replaces the ingress, and the servers that they need.
//
//	Start   lock DATA_DIR → Postgres, Redis, Kafka (started here, or external
//	  │     ones named in the environment) → keys → services → edge → banner
//	Run     … until the context ends or a part fails
//	Stop    not ready → HTTP drains → services drain → Kafka → Redis → Postgres
//
// Acknowledged requests survive a kill of this process: Postgres and the embedded
// Kafka sync to disk, and Redis holds derived data only.
package standalone

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"waitlist.internal/libs/httpapi"
	"waitlist.internal/libs/ratelimit"
	"waitlist.internal/libs/service"
	"waitlist.internal/libs/telemetry"
)

const (
	// drainTimeout is how long Stop waits for requests in flight.
	drainTimeout = 20 * time.Second
	// readyTimeout is how long Start waits until the services are ready.
	readyTimeout = 60 * time.Second
	// checkTimeout bounds one readiness check.
	checkTimeout = 2 * time.Second
)

// Config holds the runner's own settings. The services read theirs from Environ,
// completed by the addresses and keys that the runner creates.
type Config struct {
	// Where the public interface and /readyz listen.
	HTTPAddr string `env:"HTTP_ADDR" envDefault:"127.0.0.1:8080"`
	// Open connections of the public interface. Further ones are closed at once. 0: no bound.
	HTTPMaxConns int `env:"HTTP_MAX_CONNS" envDefault:"0"`
	// Where /livez, /readyz, /metrics and /debug/pprof of all services listen. Empty: nowhere.
	InternalAddr string `env:"INTERNAL_ADDR"`
	// Key of the inbox, the payment simulator's control interface and the profiles. The banner prints their addresses.
	DevKey string `env:"DEV_KEY" run:"a new one with each start"`
	// Folder of all persistent data. One process at a time uses it.
	DataDir string `env:"DATA_DIR" envDefault:".data"`
	// Folder that gets one `.eml` file per mail.
	MailDir string `env:"MAIL_DIR" run:"DATA_DIR/mail"`
	// maildir, smtp or resend.
	MailProvider string `env:"MAIL_PROVIDER" envDefault:"maildir"`
	// Whether the pages are served at `/`.
	Pages bool `env:"PAGES" envDefault:"true"`
	// File of the log, in JSON lines; `-` is standard error. Warnings always go to standard error, too.
	LogFile string `env:"LOG_FILE" run:"DATA_DIR/standalone.log"`
	// A real PostgreSQL: `postgres://user:password@host:5432/database`.
	PostgresURL string `env:"POSTGRES_URL" run:"own server"`
	// A real Redis without eviction: `redis://host:6379/0`.
	RedisURL string `env:"REDIS_URL" run:"own server"`
	// PEM file of the authorities of a `rediss://` server.
	RedisCAFile string `env:"REDIS_CA_FILE"`
	// A real Kafka: `host:9092,host:9092`.
	KafkaBrokers []string `env:"KAFKA_BROKERS" run:"embedded broker"`
	// Stripe's secret key. Without one, a simulator takes the payments.
	StripeSecretKey string `env:"STRIPE_SECRET_KEY" run:"the simulator's"`
	// Secrets that sign Stripe's events.
	StripeWebhookSecrets []string `env:"STRIPE_WEBHOOK_SECRETS" run:"made in DATA_DIR/keys"`
	// Where the simulator's own interface listens; port 0 is a free one.
	StripesimAddr string `env:"STRIPESIM_ADDR" envDefault:"127.0.0.1:0"`
	// DEBUG, INFO, WARN or ERROR.
	LogLevel slog.Level `env:"LOG_LEVEL" envDefault:"INFO"`
	// json, or text: shorter lines for people.
	LogFormat string `env:"LOG_FORMAT" envDefault:"json"`
	// Where spans go. Empty: nowhere.
	OTLPEndpoint string `env:"OTEL_EXPORTER_OTLP_ENDPOINT"`

	// Requests a second, over all services.
	RateLimitRPS int `env:"RATE_LIMIT_RPS" envDefault:"100"`
	// Requests at once after a pause.
	RateLimitBurst int `env:"RATE_LIMIT_BURST" envDefault:"200"`
	// Origins that may call everything but `/v1/public`.
	AllowedOrigins []string `env:"CORS_ALLOWED_ORIGIN" envDefault:"*"`
	// Addresses and networks whose `X-Forwarded-For` counts; `none` where clients connect directly.
	TrustedProxies []string `env:"TRUSTED_PROXIES"`

	// Environ is the environment of the services (KEY=value).
	Environ []string `env:"-"`
	// Deploy runs the services elsewhere; if nil, they run in this process.
	Deploy func(ctx context.Context, s Suite) (Deployed, error) `env:"-"`
	// Stdout receives the banner, Stderr the warnings; nil discards them.
	Stdout, Stderr io.Writer `env:"-"`
}

// showsMails reports whether the suite shows its mails: only with maildir, at an address
// that no other machine can reach.
func (c Config) showsMails() bool {
	host, _, err := net.SplitHostPort(c.HTTPAddr)
	addr, parseErr := netip.ParseAddr(host)
	return c.MailProvider == "maildir" && err == nil && (host == "localhost" || parseErr == nil && addr.IsLoopback())
}

// Load reads the settings from environ. Its error lists all problems.
func Load(environ []string) (Config, error) {
	cfg, err := service.Load[Config](environ)
	if err != nil {
		return Config{}, err
	}
	cfg.Environ = environ
	if cfg.MailDir == "" {
		cfg.MailDir = filepath.Join(cfg.DataDir, "mail")
	}
	if cfg.LogFile == "" {
		cfg.LogFile = filepath.Join(cfg.DataDir, "standalone.log")
	}
	return cfg, nil
}

// Run starts the suite and serves until ctx ends or a part fails. It returns after
// everything has stopped. The end of ctx is not an error.
func Run(ctx context.Context, cfg Config) error {
	s, err := Start(ctx, cfg)
	switch {
	case ctx.Err() != nil && s == nil:
		return nil // interrupted during the start; Start has cleaned up
	case err != nil:
		return err
	}
	select {
	case <-ctx.Done():
	case err = <-s.failed:
	}
	return errors.Join(err, s.Stop())
}

// Standalone is the running suite.
type Standalone struct {
	// URL is the address of the public API, without the version segment.
	URL string

	cfg     Config
	log     *slog.Logger
	limiter ratelimit.Limiter
	// capacity is what the process can bear, pages apart: they call the services, and a call must not count twice.
	capacity *httpapi.Capacity
	redis    redis.UniversalClient
	parts    []part
	apps     []*service.Runtime
	// deployed is set if the services run outside this process.
	deployed Deployed
	// pages serves the payment simulator's pages; nil without a simulator.
	pages    http.Handler
	failed   chan error // buffers the first failure of a part
	stopping chan struct{}
	closers  []func() error
	stopOnce sync.Once
	stopErr  error
}

// part is a component with its line in the banner and its check for /readyz.
type part struct {
	name, what string
	check      func(context.Context) error
}

// Start starts the suite and returns when every part is ready. ctx bounds the start
// only. The caller must call Stop after a successful Start.
func Start(ctx context.Context, cfg Config) (_ *Standalone, err error) {
	if cfg.Stdout == nil {
		cfg.Stdout = io.Discard
	}
	if cfg.Stderr == nil {
		cfg.Stderr = io.Discard
	}
	cfg.DevKey = cmp.Or(cfg.DevKey, rand.Text())
	s := &Standalone{cfg: cfg, failed: make(chan error, 1), stopping: make(chan struct{})}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Stop())
		}
	}()
	if err := os.MkdirAll(cfg.DataDir, 0o755); err != nil {
		return nil, fmt.Errorf("create DATA_DIR: %w", err)
	}
	unlock, err := lock(cfg.DataDir)
	if err != nil {
		return nil, err
	}
	s.onStop(unlock)
	// Listen before the slow steps, so that an address in use fails the start at once.
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", cfg.HTTPAddr)
	if err != nil {
		return nil, fmt.Errorf("listen at HTTP_ADDR: %w", err)
	}
	s.onStop(func() error { _ = listener.Close(); return nil })
	s.URL = "http://" + reachable(listener.Addr())

	output, err := openLog(cfg)
	if err != nil {
		return nil, err
	}
	s.onStop(output.Close)
	tel, err := telemetry.New(ctx, telemetry.Options{
		Service: "standalone", Output: output, Level: cfg.LogLevel, Format: cfg.LogFormat, OTLPEndpoint: cfg.OTLPEndpoint,
	})
	if err != nil {
		return nil, err
	}
	s.onStop(func() error { return tel.Close(context.WithoutCancel(ctx)) })
	s.log = tel.Log

	if err := s.startServers(ctx); err != nil {
		return nil, err
	}
	if s.redis, err = ratelimit.OpenRedis(s.cfg.RedisURL, s.cfg.RedisCAFile); err != nil {
		return nil, fmt.Errorf("REDIS_URL: %w", err)
	}
	s.onStop(s.redis.Close)
	s.limiter = ratelimit.New(s.redis, ratelimit.Options{
		RPS: cfg.RateLimitRPS, Burst: cfg.RateLimitBurst, Replicas: 1, Registerer: tel.Registerer, Log: tel.Log,
	})
	s.capacity = httpapi.NewCapacity(tel.Registerer)
	handlers, err := s.startApps(ctx, output)
	if err != nil {
		return nil, err
	}
	edge, err := s.edge(handlers, tel)
	if err != nil {
		return nil, err
	}
	//nolint:contextcheck // draining goes on when ctx has ended
	s.serve("HTTP", listener, edge, httpapi.ServerConfig{
		Log: s.log, MaxConns: cfg.HTTPMaxConns, Registerer: tel.Registerer,
	})
	if cfg.InternalAddr != "" {
		internal, err := (&net.ListenConfig{}).Listen(ctx, "tcp", cfg.InternalAddr)
		if err != nil {
			return nil, fmt.Errorf("listen at INTERNAL_ADDR: %w", err)
		}
		s.cfg.InternalAddr = internal.Addr().String()
		s.serve("internal HTTP", internal, s.internal(tel), httpapi.ServerConfig{Log: s.log}) //nolint:contextcheck // as above
	}
	if err := s.awaitReady(ctx); err != nil {
		return nil, err
	}
	s.banner()
	return s, nil
}

// onStop registers a function for Stop, which calls them in reverse order.
func (s *Standalone) onStop(fn func() error) { s.closers = append(s.closers, fn) }

// fail ends Run with err. Only the first failure counts.
func (s *Standalone) fail(err error) {
	select {
	case s.failed <- err:
	default:
	}
}

// Stop drains and stops everything in the order that the package comment shows.
// Later calls return the result of the first.
func (s *Standalone) Stop() error {
	s.stopOnce.Do(func() {
		close(s.stopping)
		var errs []error
		for _, fn := range slices.Backward(s.closers) {
			errs = append(errs, fn())
		}
		s.stopErr = errors.Join(errs...)
	})
	return s.stopErr
}

// serve serves h on l until Stop, which lets requests in flight finish.
func (s *Standalone) serve(name string, l net.Listener, h http.Handler, cfg httpapi.ServerConfig) {
	server := httpapi.NewServer(h, cfg)
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			s.fail(fmt.Errorf("serve %s: %w", name, err))
		}
	}()
	s.onStop(func() error {
		ctx, cancel := context.WithTimeout(context.Background(), drainTimeout)
		defer cancel()
		err := server.Shutdown(ctx)
		if err != nil {
			err = errors.Join(fmt.Errorf("drain %s: %w", name, err), server.Close())
		}
		<-done
		return err
	})
}

// Ready returns nil while every part is usable, else an error that names the parts
// that are not.
func (s *Standalone) Ready(ctx context.Context) error {
	select {
	case <-s.stopping:
		return errors.New("stopping")
	default:
	}
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	checks := map[string]func(context.Context) error{}
	for _, p := range s.parts {
		if p.check != nil {
			checks[p.name] = p.check
		}
	}
	for _, a := range s.apps {
		checks[a.Name] = a.Ready
	}
	if s.deployed != nil {
		checks["services"] = s.deployed.Ready
	}
	var mu sync.Mutex
	var errs []error
	var all sync.WaitGroup
	for name, check := range checks {
		all.Go(func() {
			if err := check(ctx); err != nil {
				mu.Lock()
				defer mu.Unlock()
				errs = append(errs, fmt.Errorf("%s: %w", name, err))
			}
		})
	}
	all.Wait()
	return errors.Join(errs...)
}

func (s *Standalone) awaitReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		err := s.Ready(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("not ready: %w", err)
		case err := <-s.failed:
			return err
		case <-tick.C:
		}
	}
}

// reachable returns the address at which this machine reaches a listener.
func reachable(a net.Addr) string {
	if tcp, ok := a.(*net.TCPAddr); ok && tcp.IP.IsUnspecified() {
		return fmt.Sprintf("127.0.0.1:%d", tcp.Port)
	}
	return a.String()
}

// banner prints the suite's address, its parts and the first commands to try.
func (s *Standalone) banner() {
	var b strings.Builder
	fmt.Fprintf(&b, "\nThe waitlist service is ready at %s/v1\n\n", s.URL)
	mail := part{name: "Mail", what: "one file per email in " + s.cfg.MailDir}
	if s.cfg.MailProvider != "maildir" {
		mail.what = s.cfg.MailProvider
	}
	if s.cfg.Pages && s.deployed == nil {
		for _, page := range []part{
			{name: "Start", what: s.URL + "/"},
			{name: "Form", what: s.URL + "/w/<waitlist_id>"},
			{name: "API", what: s.URL + "/docs, error codes at /docs/errors"},
		} {
			fmt.Fprintf(&b, "  %-10s%s\n", page.name, page.what)
		}
	}
	if s.cfg.showsMails() {
		fmt.Fprintf(&b, "  %-10s%s\n", "Inbox", s.URL+mailsPath+"?key="+s.cfg.DevKey+", all mails")
	}
	if s.cfg.InternalAddr != "" {
		fmt.Fprintf(&b, "  %-10shttp://%s/debug/pprof/?key=%s\n", "Profiles", s.cfg.InternalAddr, s.cfg.DevKey)
	}
	data := part{name: "Data", what: "in " + s.cfg.DataDir + ", log in " + s.cfg.LogFile}
	for _, p := range append(append([]part(nil), s.parts...), mail, data) {
		fmt.Fprintf(&b, "  %-10s%s\n", p.name, p.what)
	}
	fmt.Fprintf(&b, `
Register, create a waitlist and sign somebody up (paste all three lines):

KEY=$(curl -s %[1]s/v1/auth/register -d '{"email":"owner'$RANDOM'@example.com","password":"correct horse"}' | grep -o 'wl_live_[^"]*')
ID=$(curl -s %[1]s/v1/waitlists -H "x-api-key: $KEY" -d '{"name":"Launch"}' | grep -o '"waitlist_id":"[^"]*' | cut -d'"' -f4)
curl -s %[1]s/v1/public/waitlists/$ID/signups -d '{"email":"ann@example.com"}'; echo

Press Ctrl-C to stop. The next start continues with the same data.

`, s.URL)
	_, _ = io.WriteString(s.cfg.Stdout, b.String())
}
