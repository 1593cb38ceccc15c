// Package standalone runs the whole suite in one process: the six services,
// an edge in place of the ingress, and the servers they need.
//
//	Start   lock DATA_DIR → keys → Postgres, Redis, Kafka (own, or the ones named
//	  │     in the environment) → services → edge → banner
//	Run     … until its context ends or a part fails
//	stop    not ready → HTTP drains → services drain → Kafka → Redis → Postgres
//
// What is acknowledged survives a kill of this process: Postgres and the
// embedded Kafka sync to disk, Redis holds derived data only.
package standalone

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"waitlist.internal/libs/ratelimit"
	"waitlist.internal/libs/service"
	"waitlist.internal/libs/telemetry"
)

const (
	// drainTimeout bounds how long requests in flight may take at a stop.
	drainTimeout = 20 * time.Second
	// readyTimeout bounds how long the services may take to become ready.
	readyTimeout = 60 * time.Second
	// checkTimeout bounds one look at /readyz.
	checkTimeout = 2 * time.Second

	readHeaderTimeout = 10 * time.Second
	idleTimeout       = 2 * time.Minute
	maxHeaderBytes    = 32 << 10
)

// Config is the runner's own environment. The services read theirs from
// Environ too, with the addresses and keys that the runner makes.
type Config struct {
	// HTTPAddr is where the public interface listens.
	HTTPAddr string `env:"HTTP_ADDR" envDefault:"127.0.0.1:8080"`
	// InternalAddr serves /livez, /readyz, /metrics and /debug/pprof of all
	// services; empty: nowhere.
	InternalAddr string `env:"INTERNAL_ADDR"`
	// DataDir holds everything that is kept. One runner at a time uses it.
	DataDir string `env:"DATA_DIR" envDefault:".data"`
	// MailDir takes one file per mail; empty: mail in DataDir.
	MailDir string `env:"MAIL_DIR"`
	// MailProvider is maildir or smtp.
	MailProvider string `env:"MAIL_PROVIDER" envDefault:"maildir"`
	// LogFile takes the log; "-" is standard error, empty standalone.log in
	// DataDir. Warnings go to standard error in any case.
	LogFile string `env:"LOG_FILE"`
	// PostgresURL, RedisURL and KafkaBrokers name real servers; empty: the
	// runner starts its own.
	PostgresURL  string   `env:"POSTGRES_URL"`
	RedisURL     string   `env:"REDIS_URL"`
	RedisCAFile  string   `env:"REDIS_CA_FILE"`
	KafkaBrokers []string `env:"KAFKA_BROKERS"`
	// StripeSecretKey and StripeWebhookSecrets are billing's. Without a key the
	// runner starts a payment simulator, whose API is at StripesimAddr.
	StripeSecretKey      string     `env:"STRIPE_SECRET_KEY"`
	StripeWebhookSecrets []string   `env:"STRIPE_WEBHOOK_SECRETS"`
	StripesimAddr        string     `env:"STRIPESIM_ADDR" envDefault:"127.0.0.1:0"`
	LogLevel             slog.Level `env:"LOG_LEVEL" envDefault:"INFO"`
	OTLPEndpoint         string     `env:"OTEL_EXPORTER_OTLP_ENDPOINT"`

	RateLimitRPS   int      `env:"RATE_LIMIT_RPS" envDefault:"100"`
	RateLimitBurst int      `env:"RATE_LIMIT_BURST" envDefault:"200"`
	AllowedOrigins []string `env:"CORS_ALLOWED_ORIGIN" envDefault:"*"`
	TrustedProxies []string `env:"TRUSTED_PROXIES"`

	// Environ is the environment that the services read (KEY=value).
	Environ []string `env:"-"`
	// Deploy runs the services elsewhere; nil: in this process.
	Deploy func(ctx context.Context, s Suite) (Deployed, error) `env:"-"`
	// Stdout takes the banner, Stderr warnings; nil: nobody reads them.
	Stdout, Stderr io.Writer `env:"-"`
}

// Load reads an environment. All problems are in the one error.
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

// Run starts the suite and serves until ctx ends, which is no error, or a part
// fails. It returns when everything has stopped.
func Run(ctx context.Context, cfg Config) error {
	s, err := Start(ctx, cfg)
	switch {
	case ctx.Err() != nil && s == nil:
		return nil // told to stop while it started; it has cleaned up
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
	// URL is the public interface's, without the version segment.
	URL string

	cfg     Config
	log     *slog.Logger
	limiter ratelimit.Limiter
	redis   redis.UniversalClient
	parts   []part
	apps    []runningApp
	// deployed are the services where they are not in this process.
	deployed Deployed
	// pages are those of the payment simulator; nil: there is none.
	pages    http.Handler
	failed   chan error // holds the first failure of a part
	stopping chan struct{}
	closers  []func() error
	stopOnce sync.Once
	stopErr  error
}

// part is a line of the banner and a check of /readyz.
type part struct {
	name, what string
	check      func(context.Context) error
}

// Start returns when every part is usable. ctx bounds the start alone; Stop
// must be called.
func Start(ctx context.Context, cfg Config) (_ *Standalone, err error) {
	if cfg.Stdout == nil {
		cfg.Stdout = io.Discard
	}
	if cfg.Stderr == nil {
		cfg.Stderr = io.Discard
	}
	s := &Standalone{cfg: cfg, failed: make(chan error, 1), stopping: make(chan struct{})}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Stop())
		}
	}()
	if err := os.MkdirAll(cfg.DataDir, 0o755); err != nil {
		return nil, fmt.Errorf("make DATA_DIR: %w", err)
	}
	unlock, err := lock(cfg.DataDir)
	if err != nil {
		return nil, err
	}
	s.onStop(unlock)
	// Before anything slow: whoever has the address already is told at once.
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
	tel, err := telemetry.New(ctx, telemetry.Options{Service: "standalone", Output: output, Level: cfg.LogLevel, OTLPEndpoint: cfg.OTLPEndpoint})
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
	handlers, err := s.startApps(ctx, output)
	if err != nil {
		return nil, err
	}
	edge, err := s.edge(handlers, tel)
	if err != nil {
		return nil, err
	}
	s.serve("HTTP", listener, edge) //nolint:contextcheck // draining goes on when ctx has ended
	if cfg.InternalAddr != "" {
		internal, err := (&net.ListenConfig{}).Listen(ctx, "tcp", cfg.InternalAddr)
		if err != nil {
			return nil, fmt.Errorf("listen at INTERNAL_ADDR: %w", err)
		}
		s.serve("internal HTTP", internal, s.internal(tel)) //nolint:contextcheck // as above
	}
	if err := s.awaitReady(ctx); err != nil {
		return nil, err
	}
	s.banner()
	return s, nil
}

// onStop registers what Stop does; last registered first.
func (s *Standalone) onStop(fn func() error) { s.closers = append(s.closers, fn) }

// fail ends Run; only the first failure counts.
func (s *Standalone) fail(err error) {
	select {
	case s.failed <- err:
	default:
	}
}

// Stop drains and stops everything, in the order of the package comment. Only
// the first call counts.
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

// serve serves h until Stop, which lets requests in flight finish.
func (s *Standalone) serve(name string, l net.Listener, h http.Handler) {
	server := &http.Server{
		Handler: h, ReadHeaderTimeout: readHeaderTimeout, IdleTimeout: idleTimeout, MaxHeaderBytes: maxHeaderBytes,
		ErrorLog: slog.NewLogLogger(s.log.Handler(), slog.LevelDebug),
	}
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

// Ready is nil while every part is usable. Its text names the others.
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
		checks[a.name] = a.Ready
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

// reachable is where this machine reaches a listener.
func reachable(a net.Addr) string {
	if tcp, ok := a.(*net.TCPAddr); ok && tcp.IP.IsUnspecified() {
		return fmt.Sprintf("127.0.0.1:%d", tcp.Port)
	}
	return a.String()
}

// banner says where the suite is, what it is made of and how to begin.
func (s *Standalone) banner() {
	var b strings.Builder
	fmt.Fprintf(&b, "\nThe waitlist service is ready at %s/v1\n\n", s.URL)
	mail := part{name: "Mail", what: "one file per mail in " + s.cfg.MailDir}
	if s.cfg.MailProvider != "maildir" {
		mail.what = s.cfg.MailProvider
	}
	data := part{name: "Data", what: "in " + s.cfg.DataDir + ", log in " + s.cfg.LogFile}
	for _, p := range append(append([]part(nil), s.parts...), mail, data) {
		fmt.Fprintf(&b, "  %-10s%s\n", p.name, p.what)
	}
	fmt.Fprintf(&b, `
Register, create a waitlist, sign somebody up (paste all three lines):

KEY=$(curl -s %[1]s/v1/auth/register -d '{"email":"owner'$RANDOM'@example.com","password":"correct horse battery"}' | grep -o 'wl_live_[^"]*')
ID=$(curl -s %[1]s/v1/waitlists -H "x-api-key: $KEY" -d '{"name":"Launch"}' | grep -o '"waitlist_id":"[^"]*' | cut -d'"' -f4)
curl -s %[1]s/v1/public/waitlists/$ID/signups -d '{"email":"ann@example.com"}'; echo

Ctrl-C stops it; the next start goes on from here.

`, s.URL)
	_, _ = io.WriteString(s.cfg.Stdout, b.String())
}
