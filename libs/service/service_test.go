package service_test

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/fstest"
	"time"

	"github.com/gin-gonic/gin"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"

	"waitlist.internal/libs/devservers"
	"waitlist.internal/libs/httpapi"
	"waitlist.internal/libs/ratelimit"
	"waitlist.internal/libs/rpc"
	"waitlist.internal/libs/service"
	"waitlist.internal/libs/testenv"
	accountv1 "waitlist.internal/proto/gen/waitlist/account/v1"
)

func TestMain(m *testing.M) {
	// While Redis is away the driver's pool looks once a second whether it is
	// back, and sees only then that it was closed.
	testenv.Main(m, goleak.IgnoreAnyFunction("github.com/redis/go-redis/v9/internal/pool.(*ConnPool).tryDial"))
}

func ring() string {
	key := make([]byte, 32)
	_, _ = rand.Read(key)
	return "k1:" + base64.StdEncoding.EncodeToString(key)
}

type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

func listen(t *testing.T) net.Listener {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// base is a configuration for a service that uses nothing.
func base(t *testing.T) service.Config {
	t.Helper()
	cfg, err := service.Load[service.Config](nil)
	if err != nil {
		t.Fatal(err)
	}
	cfg.LogOutput = io.Discard
	cfg.Limiter = ratelimit.NewLocal(1_000_000, 1_000_000)
	cfg.ShutdownDrain = 10 * time.Second
	return cfg
}

func TestLoad(t *testing.T) {
	type config struct {
		service.Config
		Own string `env:"OWN,required"`
	}
	cfg, err := service.Load[config]([]string{
		"OWN=x",
		"HTTP_ADDR=:1",
		"KAFKA_BROKERS=a:1,b:2",
		"LOG_LEVEL=WARN",
		"SHUTDOWN_DRAIN=3s",
		"REPLICAS=",
		"CORS_ALLOWED_ORIGIN=https://a.example,https://b.example",
	})
	if err != nil {
		t.Fatal(err)
	}
	if cfg.Own != "x" || cfg.HTTPAddr != ":1" || len(cfg.KafkaBrokers) != 2 || cfg.LogLevel != slog.LevelWarn ||
		cfg.ShutdownDrain != 3*time.Second || cfg.RateLimitRPS != 100 || cfg.RateLimitBurst != 200 || cfg.Replicas != 1 ||
		len(cfg.CORSAllowedOrigin) != 2 {
		t.Errorf("%+v", cfg)
	}
	_, err = service.Load[config]([]string{"RATE_LIMIT_RPS=x", "SHUTDOWN_DRAIN=y", "LOG_LEVEL=z"})
	for _, want := range []string{"OWN", "RateLimitRPS", "ShutdownDrain", "LogLevel"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v does not name %s", err, want)
		}
	}
}

// Behind a pooler of transactions, something must lead past it.
func TestPoolerNeedsADirectURL(t *testing.T) {
	const pooled, direct = "postgres://x/y?default_query_exec_mode=cache_describe", "postgres://x/y"
	for _, c := range []struct {
		url, direct, want string
	}{
		{pooled, "", "Set POSTGRES_DIRECT_URL"},
		{pooled, pooled, "Set POSTGRES_DIRECT_URL"},
		{direct, pooled, "Set POSTGRES_DIRECT_URL"},
		{direct, "://", "POSTGRES_DIRECT_URL is not a valid connection string"},
		{"postgres://x/y?default_query_exec_mode=exec", direct, "POSTGRES_URL is not a valid connection string"},
	} {
		cfg := base(t)
		cfg.PostgresURL, cfg.PostgresDirectURL = c.url, c.direct
		_, err := service.New(t.Context(), "x", cfg, service.Options{Schema: "x"})
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s and %q: %v", c.url, c.direct, err)
		}
	}
}

func TestProblemsComeTogether(t *testing.T) {
	cfg := base(t)
	cfg.RateLimitRPS, cfg.Replicas, cfg.Limiter = 0, -1, nil
	cfg.TokenKeys, cfg.AccountTokenKeys = "bad", "bad"
	_, err := service.New(t.Context(), "x", cfg, service.Options{
		Schema: "x", HTTP: true, GRPC: true, Calls: true, Kafka: true, Redis: true, Tokens: true, AccountTokens: true, Seal: true,
	})
	for _, want := range []string{
		"POSTGRES_URL", "REDIS_URL", "KAFKA_BROKERS", "RATE_LIMIT_RPS", "REPLICAS", "GRPC_ADDR",
		"\nTOKEN_KEYS", "ACCOUNT_TOKEN_KEYS", "SEAL_KEYS", "SERVICE_KEY:", "SERVICE_KEYS",
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v does not name %s", err, want)
		}
	}
}

func get(t *testing.T, url string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	res, err := client.Do(req)
	if err != nil {
		return 0, err.Error()
	}
	defer res.Body.Close()
	raw, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, string(raw)
}

// account answers Authorize when it is told to.
type account struct {
	accountv1.UnimplementedAccountServiceServer
}

func (account) Authorize(context.Context, *accountv1.AuthorizeRequest) (*accountv1.AuthorizeResponse, error) {
	return &accountv1.AuthorizeResponse{}, nil
}

// TestLife takes a service with everything through start, work and stop.
func TestLife(t *testing.T) {
	redis := testenv.RedisServer(t, devservers.RedisOptions{Volatile: true})
	brokers, _ := testenv.Kafka(t)
	seed := make([]byte, ed25519.SeedSize)
	caller, err := rpc.NewIdentity("billing", seed)
	if err != nil {
		t.Fatal(err)
	}
	cfg := base(t)
	out := new(syncBuffer)
	cfg.LogOutput = out
	cfg.Limiter = nil
	cfg.RedisURL, cfg.PostgresURL, cfg.KafkaBrokers = redis.URL, testenv.Postgres(t), brokers
	cfg.TokenKeys, cfg.SealKeys = ring(), ring()
	cfg.ServiceKey = base64.StdEncoding.EncodeToString(seed)
	cfg.ServiceKeys = rpc.Keys{"billing": {caller.Public()}}.String()
	cfg.HTTPListener, cfg.GRPCListener, cfg.InternalListener = listen(t), listen(t), listen(t)
	public, internal := "http://"+cfg.HTTPListener.Addr().String(), "http://"+cfg.InternalListener.Addr().String()

	r, err := service.New(t.Context(), "account", cfg, service.Options{
		Schema: "account", HTTP: true, GRPC: true, Calls: true, Kafka: true, Redis: true, Tokens: true, Seal: true,
		Migrations: fstest.MapFS{"00001_thing.sql": {Data: []byte("-- +goose Up\nCREATE TABLE thing (id bigint);\n")}},
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.Pool.Exec(t.Context(), "INSERT INTO thing VALUES (1)"); err != nil {
		t.Fatal(err)
	}
	if r.Ready(t.Context()) == nil {
		t.Error("ready before Run")
	}

	var mu sync.Mutex
	var order []string
	note := func(s string) {
		mu.Lock()
		defer mu.Unlock()
		order = append(order, s)
	}
	entered, release := make(chan struct{}), make(chan struct{})
	r.Engine.GET("/v1/slow", httpapi.H(func(c *gin.Context) error {
		close(entered)
		<-release
		note("request done")
		c.String(200, "done")
		return nil
	}))
	r.Engine.GET("/v1/fast", func(c *gin.Context) { c.String(200, "fast") })
	accountv1.RegisterAccountServiceServer(r.GRPC, account{})
	r.OnClose("first", func(context.Context) error { note("first closed"); return nil })
	r.OnClose("second", func(context.Context) error { note("second closed"); return nil })
	r.Go("worker", func(ctx context.Context) error {
		<-ctx.Done()
		note("worker done")
		return ctx.Err()
	})

	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ran := make(chan error, 1)
	go func() { ran <- r.Run(ctx) }()
	testenv.Eventually(t, "readiness", func() bool { s, _ := get(t, internal+"/readyz"); return s == 200 })
	if err := r.Ready(t.Context()); err != nil {
		t.Error(err)
	}
	if s, body := get(t, internal+"/livez"); s != 200 {
		t.Error(s, body)
	}
	if s, body := get(t, public+"/v1/fast"); s != 200 || body != "fast" {
		t.Error(s, body)
	}
	if s, body := get(
		t,
		internal+"/metrics",
	); s != 200 ||
		!strings.Contains(body, `http_server_responses_total{http_request_method="GET",`+
			`http_response_status_code="200",http_route="/v1/fast",service="account"} 1`) {
		t.Error(s, body)
	}
	put, err := http.NewRequestWithContext(t.Context(), http.MethodPut, internal+"/log/level", strings.NewReader(`{"level":"DEBUG"}`))
	if err != nil {
		t.Fatal(err)
	}
	if res, err := http.DefaultClient.Do(put); err != nil || res.Body.Close() != nil || res.StatusCode != http.StatusNoContent ||
		r.Telemetry.Level.Level() != slog.LevelDebug {
		t.Error(res, err, r.Telemetry.Level.Level())
	}
	conn, err := r.Dial("account")
	if err != nil {
		t.Fatal(err)
	}
	// r calls under its own name, which is not among the callers.
	if _, err := accountv1.NewAccountServiceClient(conn).Authorize(t.Context(), &accountv1.AuthorizeRequest{}); err == nil {
		t.Error("account may call itself")
	}
	other, err := rpc.Dial(cfg.GRPCListener.Addr().String(), caller, "account")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = other.Close() }()
	if _, err := accountv1.NewAccountServiceClient(other).Authorize(t.Context(), &accountv1.AuthorizeRequest{}); err != nil {
		t.Error(err)
	}

	// Redis that is away, or takes no writes, is reported, but the service goes on.
	redisIs := func(state string) {
		t.Helper()
		testenv.Eventually(t, "Redis "+state, func() bool {
			s, body := get(t, internal+"/readyz")
			return s == 200 && strings.Contains(body, `"redis":"`+state+`"`)
		})
	}
	redisIs("ok")
	if err := r.Redis.ReplicaOf(t.Context(), "127.0.0.1", "1").Err(); err != nil {
		t.Fatal(err)
	}
	redisIs("away")
	if err := r.Redis.ReplicaOf(t.Context(), "NO", "ONE").Err(); err != nil {
		t.Fatal(err)
	}
	redisIs("ok")
	redis.Kill()
	redisIs("away")
	if s, body := get(t, public+"/v1/fast"); s != 200 {
		t.Error(s, body)
	}

	answered := make(chan string, 1)
	go func() { _, body := get(t, public+"/v1/slow"); answered <- body }()
	<-entered
	cancel()
	testenv.Eventually(t, "readiness failing first", func() bool {
		s, body := get(t, internal+"/readyz")
		return s == 503 && strings.Contains(body, `"serving":"no"`)
	})
	close(release)
	if body := <-answered; body != "done" {
		t.Errorf("the request in flight got %q", body)
	}
	if err := <-ran; err != nil {
		t.Error(err)
	}
	if got := strings.Join(order, ", "); got != "request done, worker done, second closed, first closed" {
		t.Errorf("order: %s", got)
	}
	if err := r.Close(t.Context()); err != nil {
		t.Error(err)
	}
	for line := range strings.SplitSeq(strings.TrimSpace(out.String()), "\n") {
		if !json.Valid([]byte(line)) {
			t.Errorf("log: %s", line)
		}
	}
}

// Migrate needs the servers and nothing of the rest; a start that may not
// migrate wants it done.
func TestMigrateFirst(t *testing.T) {
	brokers, prefix := testenv.Kafka(t)
	cfg, err := service.Load[service.Config]([]string{
		"POSTGRES_URL=" + testenv.Postgres(t), "KAFKA_BROKERS=" + strings.Join(brokers, ","), "KAFKA_TOPIC_PREFIX=" + prefix,
		"KAFKA_PARTITIONS=2", "MIGRATE=false",
	})
	if err != nil {
		t.Fatal(err)
	}
	out := new(syncBuffer)
	cfg.LogOutput = out
	o := service.Options{
		Schema: "x", HTTP: true, GRPC: true, Calls: true, Kafka: true, Redis: true, Tokens: true, Seal: true,
		Migrations: fstest.MapFS{"00001_thing.sql": {Data: []byte("-- +goose Up\nCREATE TABLE thing (id bigint);\n")}},
	}
	start := func() error {
		r, err := service.New(t.Context(), "x", cfg, service.Options{Schema: "x", Migrations: o.Migrations, Kafka: true})
		if err == nil {
			return r.Close(t.Context())
		}
		return err
	}
	if err := start(); err == nil || !strings.Contains(err.Error(), "lacks 00001_thing.sql") {
		t.Errorf("a start before the migration: %v", err)
	}
	for range 2 {
		if err := service.Migrate(t.Context(), "x", cfg, o); err != nil {
			t.Fatal(err)
		}
	}
	for want, times := range map[string]int{
		`"msg":"migration applied","service":"x","version":"dev","schema":"x","file":"00001_thing.sql"`:      1,
		`"topic":"` + prefix + `waitlist.signups.v1","partitions":2,"replication":1`:                         2,
		`"msg":"topic exists","service":"x","version":"dev","topic":"` + prefix + `waitlist.signups.v1.dlq"`: 2,
		`"msg":"up to date"`: 2,
	} {
		if n := strings.Count(out.String(), want); n != times {
			t.Errorf("the log says %s %d times, want %d:\n%s", want, n, times, out)
		}
	}
	if err := start(); err != nil {
		t.Errorf("a start after the migration: %v", err)
	}
	cfg.PostgresURL, cfg.KafkaReplication, cfg.KafkaCAFile = "", 0, "/x"
	err = service.Migrate(t.Context(), "x", cfg, o)
	for _, want := range []string{"POSTGRES_URL", "KAFKA_REPLICATION", "KAFKA_CA_FILE"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v does not name %s", err, want)
		}
	}
}

func TestPostgresAwayIsNotReady(t *testing.T) {
	postgres := testenv.PostgresServer(t, devservers.PostgresOptions{Settings: testenv.FastPostgres()})
	cfg := base(t)
	cfg.PostgresURL = postgres.URL("postgres")
	cfg.InternalListener = listen(t)
	cfg.HTTPListener = listen(t)
	internal, public := "http://"+cfg.InternalListener.Addr().String(), "http://"+cfg.HTTPListener.Addr().String()
	r, err := service.New(t.Context(), "x", cfg, service.Options{Schema: "x", HTTP: true})
	if err != nil {
		t.Fatal(err)
	}
	r.Engine.GET("/v1/read", httpapi.H(func(c *gin.Context) error {
		_, err := r.Pool.Exec(c.Request.Context(), "SELECT 1")
		if err == nil {
			c.String(200, "ok")
		}
		return err
	}))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ran := make(chan error, 1)
	go func() { ran <- r.Run(ctx) }()
	testenv.Eventually(t, "readiness", func() bool { s, _ := get(t, internal+"/readyz"); return s == 200 })
	if s, body := get(t, public+"/v1/read"); s != 200 {
		t.Fatal(s, body)
	}
	postgres.Kill()
	testenv.Eventually(t, "unreadiness", func() bool { s, _ := get(t, internal+"/readyz"); return s == 503 })
	start := time.Now()
	s, body := get(t, public+"/v1/read")
	if s != 500 || !strings.Contains(body, "INTERNAL_ERROR") || time.Since(start) > 5*time.Second {
		t.Errorf("%d %s after %v", s, body, time.Since(start))
	}
	cancel()
	if err := <-ran; err != nil {
		t.Error(err)
	}
}

func TestFailures(t *testing.T) {
	boom := errors.New("boom")
	for name, fn := range map[string]func(context.Context) error{
		"boom":            func(context.Context) error { return boom },
		"worker panicked": func(context.Context) error { panic("x") },
	} {
		t.Run(name, func(t *testing.T) {
			r, err := service.New(t.Context(), "x", base(t), service.Options{})
			if err != nil {
				t.Fatal(err)
			}
			r.Go("done", func(context.Context) error { return nil })
			r.Go("worker", fn)
			closed := false
			r.OnClose("x", func(context.Context) error { closed = true; return nil })
			if err := r.Run(t.Context()); err == nil || !strings.Contains(err.Error(), name) || !closed {
				t.Fatalf("Run = %v, closed %v", err, closed)
			}
		})
	}
	t.Run("address in use", func(t *testing.T) {
		l := listen(t)
		defer l.Close()
		cfg := base(t)
		cfg.InternalAddr = l.Addr().String()
		cfg.GRPCListener = listen(t)
		cfg.ServiceKeys = rpc.Keys{"x": {make([]byte, ed25519.PublicKeySize)}}.String()
		cfg.ShutdownDelay = time.Minute // for clients, of which there are none
		r, err := service.New(t.Context(), "x", cfg, service.Options{GRPC: true})
		if err != nil {
			t.Fatal(err)
		}
		ran := make(chan error, 1)
		go func() { ran <- r.Run(t.Context()) }()
		select {
		case err := <-ran:
			if err == nil {
				t.Fatal("no error")
			}
		case <-time.After(20 * time.Second):
			t.Fatal("it does not say so at once")
		}
	})
	t.Run("a long route that nobody serves", func(t *testing.T) {
		r, err := service.New(t.Context(), "x", base(t), service.Options{
			HTTP: true, Long: []httpapi.Route{{Method: http.MethodGet, Path: "/v1/export"}},
		})
		if err != nil {
			t.Fatal(err)
		}
		r.Engine.GET("/v1/exports", httpapi.NoContent)
		if err := r.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "GET /v1/export") {
			t.Fatal(err)
		}
	})
	t.Run("a goroutine that does not end", func(t *testing.T) {
		cfg := base(t)
		cfg.ShutdownDrain = 50 * time.Millisecond
		r, err := service.New(t.Context(), "x", cfg, service.Options{})
		if err != nil {
			t.Fatal(err)
		}
		end, ended := make(chan struct{}), make(chan struct{})
		r.Go("stubborn", func(context.Context) error { <-end; close(ended); return nil })
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := r.Run(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatal(err)
		}
		close(end)
		<-ended
	})
}

// TestSixInOneProcess is what the standalone runner does.
func TestSixInOneProcess(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var all []*service.Runtime
	ran := make(chan error, 6)
	limiter := ratelimit.NewLocal(1000, 1000)
	for _, name := range []string{"account", "signup", "admin-analytics", "billing", "messaging", "notifier"} {
		cfg := base(t)
		cfg.Limiter = limiter
		cfg.InternalListener = listen(t)
		r, err := service.New(t.Context(), name, cfg, service.Options{HTTP: name != "notifier"})
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, r)
		go func() { ran <- r.Run(ctx) }()
	}
	for _, r := range all {
		testenv.Eventually(t, "readiness of "+r.Name, func() bool { return r.Ready(t.Context()) == nil })
		if r.Handler() == nil {
			t.Error("no handler")
		}
	}
	cancel()
	for range all {
		if err := <-ran; err != nil {
			t.Error(err)
		}
	}
}

// TestKeptConnections sends on one connection all through a stop: what is
// answered is answered well, and the last answer says that the connection ends.
func TestKeptConnections(t *testing.T) {
	cfg := base(t)
	cfg.HTTPListener = listen(t)
	cfg.ShutdownDelay = 300 * time.Millisecond
	url := "http://" + cfg.HTTPListener.Addr().String()
	r, err := service.New(t.Context(), "x", cfg, service.Options{HTTP: true})
	if err != nil {
		t.Fatal(err)
	}
	r.Engine.POST("/v1/x", httpapi.NoContent)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ran := make(chan error, 1)
	go func() { ran <- r.Run(ctx) }()
	testenv.Eventually(t, "serving", func() bool { return r.Ready(t.Context()) == nil })
	transport := &http.Transport{MaxIdleConns: 1}
	defer transport.CloseIdleConnections()
	for i := 0; ; i++ {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url+"/v1/x", nil)
		if err != nil {
			t.Fatal(err)
		}
		res, err := transport.RoundTrip(req)
		if err != nil {
			t.Fatalf("request %d: %v", i, err)
		}
		_ = res.Body.Close()
		if res.StatusCode != http.StatusNoContent {
			t.Fatal(res.StatusCode)
		}
		if res.Close {
			break
		}
		if i == 10 {
			cancel()
		}
	}
	if ctx.Err() == nil {
		t.Error("the connection ended before the stop")
	}
	if err := <-ran; err != nil {
		t.Error(err)
	}
}

// TestDelay is the time in which load balancers learn that the service stops:
// whoever comes is served, on new connections too, and nobody restarts it.
func TestDelay(t *testing.T) {
	caller, err := rpc.NewIdentity("billing", make([]byte, ed25519.SeedSize))
	if err != nil {
		t.Fatal(err)
	}
	cfg := base(t)
	cfg.HTTPListener, cfg.GRPCListener, cfg.InternalListener = listen(t), listen(t), listen(t)
	cfg.ServiceKeys = rpc.Keys{"billing": {caller.Public()}}.String()
	cfg.ShutdownDelay = 3 * time.Second
	public, internal := "http://"+cfg.HTTPListener.Addr().String(), "http://"+cfg.InternalListener.Addr().String()
	r, err := service.New(t.Context(), "account", cfg, service.Options{HTTP: true, GRPC: true})
	if err != nil {
		t.Fatal(err)
	}
	r.Engine.GET("/v1/x", func(c *gin.Context) { c.String(200, "x") })
	accountv1.RegisterAccountServiceServer(r.GRPC, account{})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ran := make(chan error, 1)
	go func() { ran <- r.Run(ctx) }()
	testenv.Eventually(t, "readiness", func() bool { s, _ := get(t, internal+"/readyz"); return s == 200 })
	cancel()
	told := time.Now()
	testenv.Eventually(t, "unreadiness", func() bool { s, _ := get(t, internal+"/readyz"); return s == 503 })
	if took := time.Since(told); took > cfg.ShutdownDelay/2 {
		t.Errorf("readiness failed after %v", took)
	}
	for range 10 {
		if s, body := get(t, public+"/v1/x"); s != 200 {
			t.Errorf("a new request: %d %s", s, body)
		}
		if s, body := get(t, internal+"/livez"); s != 200 {
			t.Errorf("liveness: %d %s", s, body)
		}
		conn, err := rpc.Dial(cfg.GRPCListener.Addr().String(), caller, "account")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := accountv1.NewAccountServiceClient(conn).Authorize(t.Context(), &accountv1.AuthorizeRequest{}); err != nil {
			t.Errorf("a new call: %v", err)
		}
		_ = conn.Close()
	}
	if took := time.Since(told); took > cfg.ShutdownDelay {
		t.Fatalf("the test itself took %v, which shows nothing", took)
	}
	if err := <-ran; err != nil {
		t.Error(err)
	}
	if took := time.Since(told); took < cfg.ShutdownDelay {
		t.Errorf("it ended after %v", took)
	}
}

func TestHealthFollowsServing(t *testing.T) {
	cfg := base(t)
	cfg.GRPCListener = listen(t)
	cfg.ServiceKeys = rpc.Keys{"x": {make([]byte, ed25519.PublicKeySize)}}.String()
	cfg.ShutdownDelay = 300 * time.Millisecond
	addr := cfg.GRPCListener.Addr().String()
	r, err := service.New(t.Context(), "x", cfg, service.Options{GRPC: true})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ran := make(chan error, 1)
	go func() { ran <- r.Run(ctx) }()
	conn, err := grpc.NewClient(addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	state := func() healthv1.HealthCheckResponse_ServingStatus {
		res, err := healthv1.NewHealthClient(conn).Check(t.Context(), &healthv1.HealthCheckRequest{})
		if err != nil {
			return healthv1.HealthCheckResponse_UNKNOWN
		}
		return res.GetStatus()
	}
	testenv.Eventually(t, "serving", func() bool { return state() == healthv1.HealthCheckResponse_SERVING })
	cancel()
	testenv.Eventually(t, "not serving, still answering", func() bool { return state() == healthv1.HealthCheckResponse_NOT_SERVING })
	if err := <-ran; err != nil {
		t.Error(err)
	}
}
