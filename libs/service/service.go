package service

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"github.com/redis/go-redis/extra/redisotel/v9"
	"github.com/redis/go-redis/v9"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"

	"waitlist.internal/libs/httpapi"
	"waitlist.internal/libs/kafka"
	"waitlist.internal/libs/loop"
	"waitlist.internal/libs/pg"
	"waitlist.internal/libs/ratelimit"
	"waitlist.internal/libs/redisconn"
	"waitlist.internal/libs/rpc"
	"waitlist.internal/libs/seal"
	"waitlist.internal/libs/telemetry"
	"waitlist.internal/libs/tlsroots"
	"waitlist.internal/libs/token"
)

const (
	// checkTimeout bounds one readiness check.
	checkTimeout = 2 * time.Second
	// redisTimeout bounds one command or pipeline, such as one that writes a rebuilt
	// index. Requests set a shorter deadline in their context.
	redisTimeout = time.Second
	// startTimeout bounds how long New waits for Postgres.
	startTimeout = 60 * time.Second
	// watchEvery is the interval at which dependencies are tried for the metrics.
	watchEvery = 10 * time.Second
	// minAudit and maxAudit bound AUDIT_RETENTION, so that a slip neither empties the audit
	// trail nor keeps it for good.
	minAudit, maxAudit = 24 * time.Hour, 10 * 365 * 24 * time.Hour
)

// Options lists what a service uses. The configuration must cover all of it.
type Options struct {
	// Schema is the service's schema in Postgres; empty means no Postgres.
	Schema string
	// Migrations are the migrations of Schema, which New applies or checks; nil means none.
	Migrations fs.FS
	// HTTP opens the public interface. It needs Redis for the rate limit.
	HTTP bool
	// Unlimited is for a service with nothing under /v1: no rate limit applies, so it needs
	// no Redis.
	Unlimited bool
	// Long are public routes that have bounds of their own and take nothing of the process' capacity. Run fails if
	// the Engine has no such route.
	Long []httpapi.Route
	// RateLimitExempt reports public requests that the rate limit and the capacity ignore; nil means none.
	RateLimitExempt func(method, path string) bool
	// GRPC opens the internal interface.
	GRPC bool
	// Problems are configuration errors that New reports together with its own.
	Problems []error
	// Calls loads the service's identity, which calls to other services need.
	Calls bool
	// Redis opens a client in addition to the rate limiter's.
	Redis bool
	Kafka bool
	// Tokens, AccountTokens and Seal load the key rings.
	Tokens        bool
	AccountTokens bool
	Seal          bool
}

// Runtime holds a service's connections and servers. Fields that Options does not select
// are nil.
type Runtime struct {
	Name      string
	Config    Config
	Log       *slog.Logger
	Telemetry *telemetry.Telemetry
	Pool      *pgxpool.Pool
	// Direct is for what needs a session: locks, notifications, temporary tables. It is Pool
	// unless that is behind a pooler of transactions.
	Direct *pgxpool.Pool
	Redis  redis.UniversalClient
	Kafka  kafka.Config
	// Engine takes the public routes.
	Engine *gin.Engine
	// GRPC takes the internal services.
	GRPC *grpc.Server
	// Identity is the service's own identity.
	Identity *rpc.Identity
	// Tokens is for links of signups, AccountTokens for links of accounts.
	Tokens        *token.Ring
	AccountTokens *token.Ring
	Seal          *seal.Ring

	health  *health.Server
	long    []httpapi.Route
	workers []worker
	left    []string
	closers []closer
	checks  []check
	soft    []check
	serving atomic.Bool
	closed  sync.Once
	closeIs error
}

type worker struct {
	name string
	run  func(context.Context) error
}

type closer struct {
	name  string
	close func(context.Context) error
}

type check struct {
	name string
	ok   func(context.Context) error
}

// New checks cfg against o and reports all problems at once. It opens what o selects and
// updates the schema. After an error, nothing stays open; otherwise call Run or Close.
func New(ctx context.Context, name string, cfg Config, o Options) (_ *Runtime, err error) {
	r := &Runtime{Name: name, Config: cfg}
	seed, keys, err := r.validate(o)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, r.Close(context.WithoutCancel(ctx)))
		}
	}()
	r.Go("dependencies", r.watch)
	if r.Telemetry = cfg.Telemetry; r.Telemetry == nil {
		r.Telemetry, err = telemetry.New(ctx, telemetry.Options{
			Service: name, Output: cfg.output(), Level: cfg.LogLevel, Format: cfg.LogFormat, OTLPEndpoint: cfg.OTLPEndpoint,
			TraceRatio: cfg.TraceRatio, TracesPerSecond: cfg.TracesPerSecond,
		})
		if err != nil {
			return nil, err
		}
		r.OnClose("telemetry", r.Telemetry.Close)
		r.Telemetry.Install()
		redis.SetLogger(redisLog{r.Telemetry.Log})
	}
	r.Log = r.Telemetry.Log
	r.Kafka.Registerer = r.Telemetry.Registerer
	expiry := tlsroots.NewExpiry(r.Telemetry.Registerer)
	if r.Kafka.TLS != nil {
		r.Kafka.TLS.VerifyConnection = func(c tls.ConnectionState) error {
			expiry.Saw("kafka", c)
			return nil
		}
	}
	r.keyAges()
	if seed != nil {
		if r.Identity, err = rpc.NewIdentity(name, seed); err != nil {
			return nil, err
		}
	}
	if o.Schema != "" {
		if err := r.openPostgres(ctx, o); err != nil {
			return nil, err
		}
	}
	if o.Redis {
		if err := r.openRedis(); err != nil {
			return nil, err
		}
	}
	if o.Kafka {
		r.Kafka.Tracers = r.Telemetry.Tracers
		r.AddSoftReady("kafka", func(ctx context.Context) error { return kafka.Reachable(ctx, r.Kafka) })
	}
	if o.HTTP {
		if err := r.openHTTP(o); err != nil {
			return nil, err
		}
	}
	r.breakServer()
	if o.GRPC {
		r.GRPC = rpc.NewServer(name, keys, r.Log)
		r.health = health.NewServer()
		r.health.SetServingStatus("", healthv1.HealthCheckResponse_NOT_SERVING)
		healthv1.RegisterHealthServer(r.GRPC, r.health)
	}
	return r, nil
}

// keyAges exports the day on which each ring's first key, which signs or encrypts, was
// made, if the key's id begins with it, as in 2026-11-23.
func (r *Runtime) keyAges() {
	made := promauto.With(r.Telemetry.Registerer).NewGaugeVec(prometheus.GaugeOpts{
		Name: "waitlist_key_created_timestamp_seconds", Help: "When the key that signs or encrypts was made, by its id.",
	}, []string{"setting"})
	for setting, ring := range map[string]string{
		"TOKEN_KEYS": r.Config.TokenKeys, "ACCOUNT_TOKEN_KEYS": r.Config.AccountTokenKeys, "SEAL_KEYS": r.Config.SealKeys,
	} {
		id, _, _ := strings.Cut(strings.TrimSpace(ring), ":")
		if day, err := time.Parse(time.DateOnly, id[:min(len(id), len(time.DateOnly))]); err == nil {
			made.WithLabelValues(setting).Set(float64(day.Unix()))
		}
	}
}

// redisLog logs the Redis driver's messages at debug level. Callers of Redis report the
// errors that matter.
type redisLog struct{ log *slog.Logger }

// Printf implements go-redis' logger.
func (l redisLog) Printf(ctx context.Context, format string, v ...any) {
	if l.log.Enabled(ctx, slog.LevelDebug) {
		l.log.LogAttrs(ctx, slog.LevelDebug, "redis driver", slog.String("message", fmt.Sprintf(format, v...)))
	}
}

// validate checks the configuration and parses its keys.
func (r *Runtime) validate(o Options) (seed []byte, keys rpc.Keys, err error) {
	p := problems(slices.Clone(o.Problems))
	c := &r.Config
	if o.Schema != "" || c.PostgresURL != "" {
		p.checkPostgres(c)
	}
	limits := o.HTTP && !o.Unlimited && c.Limiter == nil
	p.check((!o.Redis && !limits) || c.RedisURL != "", "Set REDIS_URL.")
	p.check(c.RateLimitRPS > 0, "Set RATE_LIMIT_RPS to a positive number.")
	p.check(c.RateLimitBurst > 0, "Set RATE_LIMIT_BURST to a positive number.")
	p.check(c.HTTPMaxConns >= 0, "Set HTTP_MAX_CONNS to 0 or a positive number.")
	p.check(c.Replicas > 0, "Set REPLICAS to a positive number.")
	p.check(c.TraceRatio >= 0 && c.TraceRatio <= 1, "Set TRACE_RATIO to a number from 0 to 1.")
	p.check(c.TracesPerSecond >= 0, "Set TRACES_PER_SECOND to 0 or a positive number.")
	p.check(c.LogFormat == "" || c.LogFormat == "json" || c.LogFormat == "text", "Set LOG_FORMAT to json or text.")
	p.check(c.PurgeEvery > 0, "Set PURGE_EVERY to a positive duration.")
	p.check(c.ShutdownDrain > 0, "Set SHUTDOWN_DRAIN to a positive duration.")
	p.check(c.ShutdownDelay >= 0, "Set SHUTDOWN_DELAY to 0 or longer.")
	p.check(c.AuditRetention >= minAudit && c.AuditRetention <= maxAudit, "Set AUDIT_RETENTION to a duration from 24h to 87600h.")
	p.check(!o.GRPC || c.GRPCAddr != "" || c.GRPCListener != nil, "Set GRPC_ADDR.")
	if o.Kafka {
		r.Kafka, err = c.Kafka()
		p.add(err)
	}
	if o.Tokens {
		r.Tokens, err = token.ParseRing(c.TokenKeys)
		p.add(named("TOKEN_KEYS", err))
	}
	if o.AccountTokens {
		r.AccountTokens, err = token.ParseRing(cmp.Or(c.AccountTokenKeys, c.TokenKeys))
		p.add(named("ACCOUNT_TOKEN_KEYS", err))
	}
	if o.Seal {
		r.Seal, err = seal.ParseRing(c.SealKeys)
		p.add(named("SEAL_KEYS", err))
	}
	if o.Calls {
		seed, err = rpc.ParseSeed(c.ServiceKey)
		p.add(named("SERVICE_KEY", err))
	}
	if o.GRPC {
		keys, err = rpc.ParseKeys(c.ServiceKeys)
		p.add(named("SERVICE_KEYS", err))
	}
	return seed, keys, p.err()
}

func named(variable string, err error) error {
	if err != nil {
		return fmt.Errorf("%s: %w", variable, err)
	}
	return nil
}

func (r *Runtime) openPostgres(ctx context.Context, o Options) (err error) {
	if r.Pool, err = r.openPool(ctx, "postgres", r.Config.PostgresURL, o, r.AddReady); err != nil {
		return err
	}
	r.Telemetry.Registerer.MustRegister(pg.Metrics(r.Pool))
	r.Direct = r.Pool
	if url := r.Config.directURL(); url != r.Config.PostgresURL {
		if r.Direct, err = r.openPool(ctx, "postgres direct", url, o, r.AddSoftReady); err != nil {
			return err
		}
	}
	if o.Migrations == nil {
		return nil
	}
	if err := awaitPostgres(ctx, r.Direct, r.Log); err != nil {
		return err
	}
	if !r.Config.Migrate {
		return pg.CheckMigrated(ctx, r.Direct, o.Schema, o.Migrations)
	}
	return pg.Migrate(ctx, r.Direct, o.Schema, o.Migrations, r.Log)
}

// openPool opens a pool and registers its end and, with add, its check.
func (r *Runtime) openPool(
	ctx context.Context, name, url string, o Options, add func(string, func(context.Context) error),
) (*pgxpool.Pool, error) {
	pool, err := pg.Open(ctx, url, o.Schema, r.Config.PostgresMaxConns)
	if err != nil {
		return nil, err
	}
	r.OnClose(name, func(context.Context) error { pool.Close(); return nil })
	expiry := tlsroots.NewExpiry(r.Telemetry.Registerer)
	add(name, func(ctx context.Context) error {
		return pool.AcquireFunc(ctx, func(conn *pgxpool.Conn) error {
			if secure, ok := conn.Conn().PgConn().Conn().(*tls.Conn); ok {
				expiry.Saw("postgres", secure.ConnectionState())
			}
			return pg.Ready(ctx, pool, conn)
		})
	})
	return pool, nil
}

// awaitPostgres waits up to startTimeout for a database that starts at the same time.
func awaitPostgres(ctx context.Context, pool *pgxpool.Pool, log *slog.Logger) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	for {
		err := pool.Ping(ctx)
		if err == nil {
			return nil
		}
		log.LogAttrs(ctx, slog.LevelWarn, "Postgres is not reachable yet; retrying", telemetry.Err(err))
		if !loop.Wait(ctx, 500*time.Millisecond) {
			return fmt.Errorf("reach Postgres: %w", err)
		}
	}
}

func (r *Runtime) openRedis() error {
	c, err := redisconn.Open(r.Config.RedisURL, redisconn.Options{Timeout: redisTimeout, Retries: 1, CAFile: r.Config.RedisCAFile})
	if err != nil {
		return fmt.Errorf("REDIS_URL: %w", err)
	}
	r.OnClose("redis", func(context.Context) error { return c.Close() })
	if err := redisotel.InstrumentTracing(c,
		redisotel.WithTracerProvider(r.Telemetry.Tracers), redisotel.WithDBStatement(false)); err != nil {
		return fmt.Errorf("instrument Redis: %w", err)
	}
	redisconn.Measure(c, r.Telemetry.Registerer)
	r.Redis = c
	r.AddSoftReady("redis", func(ctx context.Context) error { return redisconn.Ready(ctx, c) })
	return nil
}

func (r *Runtime) openHTTP(o Options) (err error) {
	limiter := r.Config.Limiter
	if limiter == nil && !o.Unlimited {
		c, err := ratelimit.OpenRedis(r.Config.RedisURL, r.Config.RedisCAFile)
		if err != nil {
			return err
		}
		r.OnClose("rate limit", func(context.Context) error { return c.Close() })
		limiter = ratelimit.New(c, ratelimit.Options{
			RPS: r.Config.RateLimitRPS, Burst: r.Config.RateLimitBurst, Replicas: r.Config.Replicas,
			Registerer: r.Telemetry.Registerer, Log: r.Log,
		})
	}
	r.long = o.Long
	capacity := r.Config.Capacity
	if capacity == nil {
		capacity = httpapi.NewCapacity(r.Telemetry.Registerer)
	}
	r.Engine, err = httpapi.NewEngine(httpapi.Config{
		Service: r.Name, Limiter: limiter, Capacity: capacity, Long: o.Long, Exempt: o.RateLimitExempt,
		AllowedOrigins: r.Config.CORSAllowedOrigin, TrustedProxies: r.Config.TrustedProxies,
		Log: r.Log, Registerer: r.Telemetry.Registerer, Tracers: r.Telemetry.Tracers,
	})
	if err != nil {
		return fmt.Errorf("TRUSTED_PROXIES: %w", err)
	}
	return nil
}

// Go registers a goroutine that Run starts and waits for. Its context ends after the
// servers have drained; fn must then return soon. If fn returns an error before that, the
// service stops. If it returns nil, only the goroutine ends.
func (r *Runtime) Go(name string, fn func(ctx context.Context) error) {
	r.workers = append(r.workers, worker{name, fn})
}

// Singleton registers a goroutine like Go, for work that the clock starts and one replica does for all. Several replicas may
// run it at the same time, so fn must allow for that. A candidate leaves it to the stable version.
func (r *Runtime) Singleton(name string, fn func(ctx context.Context) error) {
	if r.Config.Candidate {
		r.left = append(r.left, name)
		return
	}
	r.Go(name, fn)
}

// Goroutines returns the names of the registered goroutines, and of those that this replica leaves to others.
func (r *Runtime) Goroutines() (own, left []string) {
	for _, w := range r.workers {
		own = append(own, w.name)
	}
	return own, slices.Clone(r.left)
}

// OnClose registers a function that Close calls. Close calls the last one first.
func (r *Runtime) OnClose(name string, fn func(ctx context.Context) error) {
	r.closers = append(r.closers, closer{name, fn})
}

// AddReady registers a check that must pass for the service to be ready.
func (r *Runtime) AddReady(name string, fn func(ctx context.Context) error) {
	r.checks = append(r.checks, check{name, fn})
}

// AddSoftReady registers a check that /readyz reports but that does not affect readiness,
// for dependencies that the service can work without.
func (r *Runtime) AddSoftReady(name string, fn func(ctx context.Context) error) {
	r.soft = append(r.soft, check{name, fn})
}

// Dial returns a connection to account, admin-analytics, messaging or signup. Close closes it.
func (r *Runtime) Dial(callee string, opts ...grpc.DialOption) (*grpc.ClientConn, error) {
	target := map[string]string{
		"account": r.Config.AccountTarget, "admin-analytics": r.Config.AnalyticsTarget,
		"messaging": r.Config.MessagingTarget, "signup": r.Config.SignupTarget,
	}[callee]
	if r.Identity == nil {
		return nil, fmt.Errorf("dial %s: Options.Calls is not set", callee)
	}
	conn, err := rpc.Dial(target, r.Identity, callee, opts...)
	if err != nil {
		return nil, err
	}
	r.OnClose("connection to "+callee, func(context.Context) error { return conn.Close() })
	return conn, nil
}

// Handler returns the handler of the public interface. Where HTTPAddr is empty, the caller serves it.
func (r *Runtime) Handler() http.Handler {
	if r.Engine == nil {
		return http.NotFoundHandler()
	}
	return r.Engine
}

// Ready returns nil while the service serves and all checks of AddReady pass.
func (r *Runtime) Ready(ctx context.Context) error {
	if !r.serving.Load() {
		return errors.New("not serving")
	}
	return errors.Join(slices.Collect(func(yield func(error) bool) {
		for _, e := range run(ctx, r.checks) {
			if e != nil && !yield(e) {
				return
			}
		}
	})...)
}

// run runs checks concurrently and returns an error or nil for each.
func run(ctx context.Context, checks []check) []error {
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	errs := make([]error, len(checks))
	var wg sync.WaitGroup
	for i, c := range checks {
		wg.Go(func() {
			if err := c.ok(ctx); err != nil {
				errs[i] = fmt.Errorf("%s: %w", c.name, err)
			}
		})
	}
	wg.Wait()
	return errs
}

// watch records which dependencies answer until ctx ends.
func (r *Runtime) watch(ctx context.Context) error {
	up := promauto.With(r.Telemetry.Registerer).NewGaugeVec(prometheus.GaugeOpts{
		Name: "waitlist_dependency_up", Help: "1 while a server that the service needs answers.",
	}, []string{"dependency"})
	for range loop.Every(ctx, watchEvery) {
		all := slices.Concat(r.checks, r.soft)
		for i, err := range run(ctx, all) {
			value := 1.0
			if err != nil {
				value = 0
			}
			up.WithLabelValues(all[i].name).Set(value)
		}
	}
	return nil
}

// Close closes what is open, last opened first. Run calls it; call it yourself only if
// the service fails between New and Run. Later calls return the first call's result.
func (r *Runtime) Close(ctx context.Context) error {
	r.closed.Do(func() {
		var errs []error
		for _, c := range slices.Backward(r.closers) {
			if err := c.close(ctx); err != nil {
				errs = append(errs, fmt.Errorf("close %s: %w", c.name, err))
			}
		}
		r.closeIs = errors.Join(errs...)
	})
	return r.closeIs
}
