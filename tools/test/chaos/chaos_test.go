package chaos_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"waitlist.internal/libs/devservers"
	"waitlist.internal/libs/testenv"
	"waitlist.internal/tools/test/chaos"
	"waitlist.internal/tools/test/e2e"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// full reports whether CHAOS=full asks for the long faults.
func full() bool { return os.Getenv("CHAOS") == "full" }

func outage() time.Duration {
	if full() {
		return 30 * time.Second
	}
	return 4 * time.Second
}

func kills() int {
	switch {
	case full():
		return 20
	case testing.Short():
		return 2
	}
	return 4
}

// site is a running suite whose servers the test can stop one by one.
type site struct {
	t        *testing.T
	server   *e2e.Server
	postgres *devservers.Postgres
	redis    *devservers.Redis
	kafka    *devservers.Kafka
	list     string
	// startRedis and startKafka start the server again on its former port.
	startRedis func()
	startKafka func()
}

func newSite(t *testing.T) *site {
	t.Helper()
	s := &site{t: t}
	dir := e2e.DataDir(t)
	ctx := t.Context()
	var err error
	if s.postgres, err = devservers.StartPostgres(ctx, devservers.PostgresOptions{Dir: filepath.Join(dir, "postgres")}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.postgres.Stop() })
	if err := s.postgres.CreateDatabase(ctx, "chaos"); err != nil {
		t.Fatal(err)
	}
	redisPort, kafkaPort := testenv.FreePort(t), testenv.FreePort(t)
	s.startRedis = func() {
		t.Helper()
		if s.redis, err = devservers.StartRedis(ctx, devservers.RedisOptions{Dir: filepath.Join(dir, "redis"), Port: redisPort}); err != nil {
			t.Fatal(err)
		}
	}
	s.startKafka = func() {
		t.Helper()
		s.kafka = startKafka(t, filepath.Join(dir, "kafka"), kafkaPort)
	}
	s.startRedis()
	s.startKafka()
	t.Cleanup(func() { _ = s.redis.Stop(); _ = s.kafka.Stop() })
	s.server = e2e.Run(t, e2e.Options{Binary: e2e.Build(t), Dir: filepath.Join(dir), Env: map[string]string{
		"POSTGRES_URL": s.postgres.URL("chaos"), "REDIS_URL": s.redis.URL, "KAFKA_BROKERS": strings.Join(s.kafka.Brokers, ","),
		"RATE_LIMIT_RPS": "2000", "RATE_LIMIT_BURST": "4000",
	}})
	s.list = newList(t, s.server.URL)
	return s
}

// startKafka starts the kind of broker that TEST_KAFKA names.
func startKafka(t *testing.T, dir string, port int) *devservers.Kafka {
	t.Helper()
	var k *devservers.Kafka
	var err error
	if os.Getenv("TEST_KAFKA") == "apache" {
		dist, absErr := filepath.Abs("../../../.data/kafka-dist")
		if absErr != nil {
			t.Fatal(absErr)
		}
		k, err = devservers.StartApacheKafka(t.Context(), devservers.ApacheOptions{Dir: dir, Dist: dist, Port: port})
	} else {
		k, err = devservers.StartKafka(t.Context(), devservers.KafkaOptions{Dir: dir, Port: port})
	}
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// newList registers an owner, creates a waitlist and returns its id.
func newList(t *testing.T, url string) string {
	t.Helper()
	var owner struct {
		APIKey string `json:"api_key"`
	}
	post(t, url+"/v1/auth/register", "", `{"email":"owner@example.com","password":"correct horse"}`, &owner)
	var list struct {
		WaitlistID string `json:"waitlist_id"`
	}
	post(t, url+"/v1/waitlists", owner.APIKey, `{"name":"Launch"}`, &list)
	return list.WaitlistID
}

func post(t *testing.T, url, apiKey, body string, into any) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("X-Api-Key", apiKey)
	transport := &http.Transport{DisableKeepAlives: true}
	res, err := transport.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if err := json.NewDecoder(res.Body).Decode(into); err != nil || res.StatusCode != http.StatusCreated {
		t.Fatalf("%s: %d, %v", url, res.StatusCode, err)
	}
}

func listURL(server, list string) string { return server + "/v1/public/waitlists/" + list }

func (s *site) load() *chaos.Load {
	return chaos.StartLoad(s.t, "p", func() string { return listURL(s.server.URL, s.list) })
}

// acknowledges waits until n more signups are acknowledged.
func acknowledges(t *testing.T, l *chaos.Load, n int) {
	t.Helper()
	from := l.Acknowledged()
	e2e.Await(t, time.Minute, fmt.Sprintf("%d more signups", n), func() bool { return l.Acknowledged() >= from+n })
}

// pass waits for d, the length of the fault, while the load goes on.
func pass(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// audit stops the load and compares it with Postgres, the API, the index, the analytics
// and the events.
func (s *site) audit(l *chaos.Load) {
	s.t.Helper()
	acks := l.Stop()
	stored := chaos.AuditRows(s.t, s.postgres.URL("chaos"), s.list, acks)
	chaos.AuditStatus(s.t, listURL(s.server.URL, s.list), stored)
	chaos.AuditIndex(s.t, s.redis.URL, s.list, stored)
	chaos.AuditAnalytics(s.t, s.postgres.URL("chaos"), s.list, stored)
	repeated := chaos.AuditEvents(s.t, s.kafka.Brokers, s.list, stored)
	s.t.Logf("%d acknowledged, %d failed, %d stored, %d events delivered again", len(acks), l.Failed(), len(stored), repeated)
}

// indexed is above 1000 signups, the size from which a list has an index.
const indexed = 1100

func TestRedis(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	l := s.load()
	acknowledges(t, l, indexed)

	o, err := redis.ParseURL(s.redis.URL)
	if err != nil {
		t.Fatal(err)
	}
	rdb := redis.NewClient(o)
	if err := rdb.FlushAll(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	_ = rdb.Close()
	acknowledges(t, l, 200)
	if n := l.Failed(); n > 0 {
		t.Errorf("%d signups failed after FLUSHALL", n)
	}

	before := l.Acknowledged()
	if err := s.redis.Stop(); err != nil {
		t.Fatal(err)
	}
	pass(t.Context(), outage())
	if n := l.Acknowledged() - before; n < int(outage().Seconds())*chaos.Rate/2 {
		t.Errorf("only %d signups succeeded in %s without Redis", n, outage())
	}
	if n := l.Failed(); n > 0 {
		t.Errorf("%d signups failed without Redis", n)
	}
	s.startRedis()
	acknowledges(t, l, 200)
	s.audit(l)
}

func TestKafkaAway(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	l := s.load()
	acknowledges(t, l, indexed)
	before := l.Acknowledged()
	if err := s.kafka.Stop(); err != nil {
		t.Fatal(err)
	}
	pass(t.Context(), outage())
	if n := l.Acknowledged() - before; n < int(outage().Seconds())*chaos.Rate/2 {
		t.Errorf("only %d signups succeeded in %s without Kafka", n, outage())
	}
	if n := l.Failed(); n > 0 {
		t.Errorf("%d signups failed without Kafka", n)
	}
	s.startKafka()
	acknowledges(t, l, 200)
	s.audit(l)
}

// TestKilled kills the suite and the servers that it started under load, and restarts
// it on the same data.
func TestKilled(t *testing.T) {
	t.Parallel()
	dir := e2e.DataDir(t)
	binary := e2e.Build(t)
	env := map[string]string{"RATE_LIMIT_RPS": "2000", "RATE_LIMIT_BURST": "4000"}
	addr := fmt.Sprintf("127.0.0.1:%d", testenv.FreePort(t))
	start := func() *e2e.Server {
		t.Helper()
		server, err := e2e.Start(t.Context(), e2e.Options{Binary: binary, Dir: dir, Addr: addr, Env: env})
		if err != nil {
			t.Fatal(err)
		}
		return server
	}
	server := start()
	stop := func() {
		if err := server.Stop(); err != nil {
			t.Error(err)
		}
	}
	t.Cleanup(stop)
	list := newList(t, server.URL)
	l := chaos.StartLoad(t, "p", func() string { return listURL("http://"+addr, list) })
	for range kills() {
		acknowledges(t, l, 100)
		server.Kill()
		server = start()
	}
	acknowledges(t, l, 100)
	acks := l.Stop()
	stop()

	// Audit the data on disk with a Postgres that the test starts.
	data := filepath.Join(dir, "data")
	postgres, err := devservers.StartPostgres(t.Context(), devservers.PostgresOptions{Dir: filepath.Join(data, "postgres")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = postgres.Stop() })
	stored := chaos.AuditRows(t, postgres.URL("waitlist"), list, acks)
	if err := postgres.Stop(); err != nil {
		t.Fatal(err)
	}
	// A last start publishes the events that the kill held back and serves the statuses.
	server = start()
	chaos.AuditStatus(t, listURL(server.URL, list), stored)
	chaos.AuditAnalytics(t, chaos.RunningPostgres(t, filepath.Join(data, "postgres", "data"), "waitlist"), list, stored)
	stop()
	broker, err := devservers.StartKafka(t.Context(), devservers.KafkaOptions{Dir: filepath.Join(data, "kafka")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = broker.Stop() })
	repeated := chaos.AuditEvents(t, broker.Brokers, list, stored)
	t.Logf("%d kills: %d acknowledged, %d failed, %d stored, %d events delivered again",
		kills(), len(acks), l.Failed(), len(stored), repeated)
}
