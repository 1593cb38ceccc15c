package deploy

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"waitlist.internal/libs/devservers"
	"waitlist.internal/libs/testenv"
	"waitlist.internal/tools/internal/stripesim"
	"waitlist.internal/tools/internal/webhooksink"
)

// paymentSecret signs the payment provider's events.
const paymentSecret = "whsec_of_the_site"

// site is the programs with servers of their own. Each of them can be killed and started
// again, on its data and at its address.
type site struct {
	*deployment

	db      database
	running map[string]*process
	// servers holds Postgres, Redis and Kafka.
	servers map[string]*server
	sim     *stripesim.Server
	hooks   *receiver
	mails   string
	// redisDir is what Redis keeps.
	redisDir string
}

// server is one that the programs stand on.
type server struct {
	kill  func()
	start func()
}

// servers are their names, as victims of a kill.
func servers() []string { return []string{"Postgres", "Redis", "Kafka"} }

func newSite(t *testing.T, dir string) *site {
	t.Helper()
	s := &site{running: map[string]*process{}, servers: map[string]*server{}, hooks: newReceiver(), mails: t.TempDir()}
	s.startPostgres(t)
	d := newDeployment(t, s.db, dir)
	s.deployment = d
	redisURL, brokers := s.startRedis(t), s.startKafka(t)
	sink, err := webhooksink.New(t.TempDir(), s.hooks)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(sink.Close)
	maps.Copy(d.base, sink.Env)
	edge := httptest.NewServer(s.edge())
	t.Cleanup(edge.Close)
	maps.Copy(d.base, map[string]string{
		"REDIS_URL": redisURL, "KAFKA_BROKERS": strings.Join(brokers, ","), "KAFKA_TOPIC_PREFIX": "",
		"RATE_LIMIT_RPS": "100000", "RATE_LIMIT_BURST": "100000", "SHUTDOWN_DELAY": "0s", "LOG_LEVEL": "WARN",
	})
	maps.Copy(d.env["pages"], map[string]string{"PAGES_API_URL": edge.URL + "/v1", "PUBLIC_FORM_URL": edge.URL})
	d.env["messaging"]["MAIL_DIR"] = s.mails
	d.env["billing"]["STRIPE_URL"] = s.startPayments(t)
	d.env["billing"]["STRIPE_WEBHOOK_SECRETS"] = paymentSecret
	d.migrate()
	var started []*process
	for _, p := range programs() {
		started = append(started, s.launch(p))
	}
	for _, p := range started {
		s.awaitReady(p)
		d.names.set(name(p.service), p.host)
	}
	return s
}

func (s *site) startPostgres(t *testing.T) {
	t.Helper()
	// The settings are the server's own: what a commit promises must survive the kill.
	options := devservers.PostgresOptions{Dir: t.TempDir(), Settings: map[string]string{
		"autovacuum_naptime": "10s",
		// A commit that waited for nothing stays in the server's memory longer, and dies with it.
		"wal_writer_delay": "10s",
	}}
	start := func() {
		t.Helper()
		p, err := devservers.StartPostgres(context.WithoutCancel(t.Context()), options)
		if err != nil {
			t.Fatal(err)
		}
		s.db, options.Port = database{p}, p.Port()
	}
	start()
	t.Cleanup(func() { _ = s.db.server.Stop() })
	s.servers["Postgres"] = &server{kill: func() { s.db.server.Kill() }, start: start}
	if err := s.db.server.CreateDatabase(t.Context(), databaseName); err != nil {
		t.Fatal(err)
	}
	s.db.applyRoles(t, "postgres")
}

func (s *site) startRedis(t *testing.T) (address string) {
	t.Helper()
	s.redisDir = t.TempDir()
	options := devservers.RedisOptions{Dir: s.redisDir}
	var running *devservers.Redis
	start := func() {
		t.Helper()
		var err error
		if running, err = devservers.StartRedis(context.WithoutCancel(t.Context()), options); err != nil {
			t.Fatal(err)
		}
		options.Port = running.Port()
	}
	start()
	t.Cleanup(func() { _ = running.Stop() })
	s.servers["Redis"] = &server{kill: func() { running.Kill() }, start: start}
	return running.URL
}

// startKafka starts the kind of broker that TEST_KAFKA names.
func (s *site) startKafka(t *testing.T) (brokers []string) {
	t.Helper()
	dir, port := t.TempDir(), testenv.FreePort(t)
	dist, err := filepath.Abs("../../../.data/kafka-dist")
	if err != nil {
		t.Fatal(err)
	}
	var running *devservers.Kafka
	start := func() {
		t.Helper()
		ctx := context.WithoutCancel(t.Context())
		if os.Getenv("TEST_KAFKA") == "apache" {
			running, err = devservers.StartApacheKafka(ctx, devservers.ApacheOptions{Dir: dir, Dist: dist, Port: port})
		} else {
			running, err = devservers.StartKafka(ctx, devservers.KafkaOptions{Dir: dir, Port: port})
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	start()
	t.Cleanup(func() { _ = running.Stop() })
	s.servers["Kafka"] = &server{kill: func() { running.Kill() }, start: start}
	return running.Brokers
}

// startPayments starts a payment provider that repeats its events until they are taken.
func (s *site) startPayments(t *testing.T) (address string) {
	t.Helper()
	var err error
	s.sim, err = stripesim.New(stripesim.Config{
		WebhookURL: "http://" + s.host("billing", 0) + ":8080/v1/billing/webhook", WebhookSecret: paymentSecret,
		Backoff: func(int) (time.Duration, bool) { return 200 * time.Millisecond, true },
	})
	if err != nil {
		t.Fatal(err)
	}
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	testenv.Run(t, func(ctx context.Context) error {
		if err := s.sim.Serve(ctx, listener); !errors.Is(err, context.Canceled) {
			return err
		}
		return nil
	})
	return "http://" + listener.Addr().String()
}

// edge is the ingress: it leads requests to the services by their paths.
func (s *site) edge() http.Handler {
	prefixes := [][2]string{
		{"/v1/auth", "account"},
		{"/v1/team", "account"},
		{"/v1/public", "signup"},
		{"/v1/waitlists", "signup"},
		{"/v1/billing", "billing"},
		{"/v1/templates", "messaging"},
		{"/v1/domains", "messaging"},
		{"/", "pages"},
	}
	return &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			at := slices.IndexFunc(prefixes, func(p [2]string) bool { return strings.HasPrefix(r.In.URL.Path, p[0]) })
			r.SetURL(&url.URL{Scheme: "http", Host: s.host(prefixes[at][1], 0) + ":8080"})
			r.SetXForwarded()
		},
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, _ error) { w.WriteHeader(http.StatusBadGateway) },
	}
}

// launch starts a program in the place of the one that ran before.
func (s *site) launch(program string) *process {
	s.t.Helper()
	p := s.start(program, 0)
	s.running[program] = p
	return p
}

func (s *site) awaitReady(p *process) {
	s.t.Helper()
	testenv.Within(s.t, patience, p.service+" is ready", func() bool { return p.ready(s.t) })
}

// kill ends some of the programs and servers with SIGKILL, all at once.
func (s *site) kill(victims ...string) {
	for _, v := range victims {
		if on := s.servers[v]; on != nil {
			on.kill()
			continue
		}
		p := s.running[v]
		p.killed = true
		_ = p.cmd.Process.Kill()
		<-p.done
	}
}

// revive starts what was killed again, servers first, and waits until it is ready.
func (s *site) revive(victims ...string) {
	s.t.Helper()
	var started []*process
	for _, v := range victims {
		if on := s.servers[v]; on != nil {
			on.start()
		}
	}
	for _, v := range victims {
		if s.servers[v] == nil {
			started = append(started, s.launch(v))
		}
	}
	for _, p := range started {
		s.awaitReady(p)
	}
}

// alive requires that no program has ended by itself.
func (s *site) alive() {
	s.t.Helper()
	for _, p := range s.running {
		select {
		case <-p.done:
			s.t.Errorf("%s has ended: %v", p.service, p.err)
		default:
		}
	}
}

// between returns a random time.
func between(rng *rand.Rand, least, most time.Duration) time.Duration {
	return least + time.Duration(rng.Int64N(int64(most-least)))
}

// url returns the address of a path at a program.
func (s *site) url(program, path string) string {
	return fmt.Sprintf("http://%s:8080%s", s.host(program, 0), path)
}
