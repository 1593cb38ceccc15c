// Package testenv gives tests real servers: Postgres, Redis and a Kafka broker.
//
// A test binary shares one Postgres and one Kafka. They start when the first test
// needs them and stop in Main. A run over many packages (tools/test/run) starts
// them once and passes TEST_POSTGRES_URL and TEST_KAFKA_BROKERS to the binaries.
// Each test gets a database, a Redis and a topic prefix of its own, so tests run
// in parallel and leave nothing behind.
//
// TEST_KAFKA=apache starts an Apache Kafka in place of the embedded broker.
package testenv

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/segmentio/kafka-go"
	"go.uber.org/goleak"

	"waitlist.internal/libs/devservers"
	"waitlist.internal/libs/pg"
)

// startTimeout bounds the start of a server, including a first Apache Kafka.
const startTimeout = 3 * time.Minute

// env is what the tests of one binary share. It is the only package variable in
// test code: tests have no main function that could hold it.
var env shared

type shared struct {
	dirOnce      sync.Once
	dir          string
	dirErr       error
	postgresOnce sync.Once
	postgres     *devservers.Postgres // nil if TEST_POSTGRES_URL names the server
	postgresURL  string
	postgresErr  error
	kafkaOnce    sync.Once
	kafka        *devservers.Kafka
	brokers      []string
	kafkaErr     error
	templates    sync.Map // key → *template
	number       atomic.Int64
}

type template struct {
	once sync.Once
	name string
	err  error
}

// Main is the body of TestMain. It runs the tests of a package, stops the servers
// and fails the run if a goroutine is left over. Use options for the goroutines
// that may stay, and say why each may.
func Main(m *testing.M, options ...goleak.Option) {
	code := m.Run()
	if err := env.stop(); err != nil {
		fmt.Fprintln(os.Stderr, "testenv:", err)
		code = max(code, 1)
	}
	if code == 0 {
		if err := leaks(options); err != nil {
			fmt.Fprintln(os.Stderr, "testenv: goroutines left over:", err)
			code = 1
		}
	}
	os.Exit(code)
}

// leakPatience is how long goroutines have to end after the last test. A closed
// Redis client's dialer still sleeps for a second between two attempts to reach
// a stopped server, and goleak by itself does not wait that long.
const leakPatience = 5 * time.Second

func leaks(options []goleak.Option) error {
	for deadline := time.Now().Add(leakPatience); ; {
		if err := goleak.Find(options...); err == nil || time.Now().After(deadline) {
			return err
		}
	}
}

func (s *shared) stop() error {
	var errs []error
	if s.kafka != nil {
		errs = append(errs, s.kafka.Stop())
	}
	s.templates.Range(func(_, v any) bool {
		if t := v.(*template); s.postgres == nil && t.name != "" {
			errs = append(errs, dropDatabase(s.postgresURL, t.name))
		}
		return true
	})
	if s.postgres != nil {
		errs = append(errs, s.postgres.Stop())
	}
	if s.dir != "" {
		errs = append(errs, os.RemoveAll(s.dir))
	}
	return errors.Join(errs...)
}

// workDir returns the folder of this binary's servers.
func (s *shared) workDir() (string, error) {
	s.dirOnce.Do(func() { s.dir, s.dirErr = TempDir("", "waitlist-test-") })
	return s.dir, s.dirErr
}

// TempDir creates a folder in parent (empty: the default for temporary files) which
// the database's user may enter. It also removes the folders with the same prefix
// of processes that died.
func TempDir(parent, prefix string) (string, error) {
	parent = cmp.Or(parent, os.TempDir())
	old, _ := filepath.Glob(filepath.Join(parent, prefix+"*-*"))
	for _, dir := range old {
		pid, err := strconv.Atoi(strings.SplitN(strings.TrimPrefix(filepath.Base(dir), prefix), "-", 2)[0])
		if err == nil && errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) {
			_ = os.RemoveAll(dir)
		}
	}
	dir, err := os.MkdirTemp(parent, prefix+strconv.Itoa(os.Getpid())+"-")
	if err != nil {
		return "", err
	}
	return dir, os.Chmod(dir, 0o711)
}

// name returns a name that is unique among all tests that share the servers.
func (s *shared) name() string {
	return fmt.Sprintf("t%d_%s", s.number.Add(1), strings.ToLower(rand.Text()[:10]))
}

func (s *shared) startPostgres() (string, error) {
	s.postgresOnce.Do(func() {
		if s.postgresURL = os.Getenv("TEST_POSTGRES_URL"); s.postgresURL != "" {
			return
		}
		var dir string
		if dir, s.postgresErr = s.workDir(); s.postgresErr != nil {
			return
		}
		ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
		defer cancel()
		s.postgres, s.postgresErr = devservers.StartPostgres(ctx, devservers.PostgresOptions{
			Dir: filepath.Join(dir, "postgres"), Settings: FastPostgres(),
		})
		if s.postgresErr == nil {
			s.postgresURL = s.postgres.URL("postgres")
		}
	})
	return s.postgresURL, s.postgresErr
}

// FastPostgres returns settings for a server that never waits for the disk. A
// crash of the machine may lose its data.
func FastPostgres() map[string]string {
	return map[string]string{"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off", "autovacuum_naptime": "10s"}
}

// Postgres creates an empty database for the test and returns its URL. The end of
// the test drops the database and closes the connections to it.
func Postgres(t testing.TB) string {
	t.Helper()
	return database(t, "template1")
}

// PostgresFrom is Postgres with a copy of a template database. prepare fills the
// template once per key and test binary. It must close its connections.
func PostgresFrom(t testing.TB, key string, prepare func(ctx context.Context, url string) error) string {
	t.Helper()
	server := server(t)
	v, _ := env.templates.LoadOrStore(key, new(template))
	tmpl := v.(*template)
	tmpl.once.Do(func() {
		tmpl.name = env.name()
		if tmpl.err = createDatabase(server, tmpl.name, "template1"); tmpl.err == nil {
			tmpl.err = prepare(context.Background(), withDatabase(server, tmpl.name))
		}
	})
	if tmpl.err != nil {
		t.Fatalf("prepare a database: %v", tmpl.err)
	}
	return database(t, tmpl.name)
}

// Migrated creates a database with a service's schema for the test and returns a
// pool of at most conns connections to it. The end of the test closes the pool
// and drops the database.
func Migrated(t testing.TB, schema string, conns int32, migrations func() (fs.FS, error)) *pgxpool.Pool {
	t.Helper()
	pool, err := pg.Open(t.Context(), MigratedURL(t, Schema{schema, migrations}), schema, conns)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

// Fill executes a statement that makes many rows.
func Fill(t testing.TB, pool *pgxpool.Pool, sql string, args ...any) {
	t.Helper()
	if err := Unhurried(t.Context(), pool, func(tx pgx.Tx) error {
		_, err := tx.Exec(t.Context(), sql, args...)
		return err
	}); err != nil {
		t.Fatal(err)
	}
}

// Unhurried runs do in a transaction whose statements may take longer than a service would wait.
func Unhurried(ctx context.Context, pool *pgxpool.Pool, do func(pgx.Tx) error) error {
	return pg.InTx(ctx, pool, func(tx pgx.Tx) error {
		if err := pg.NoTimeouts(ctx, tx); err != nil {
			return err
		}
		return do(tx)
	})
}

// Schema is a service's schema and the migrations that create it.
type Schema struct {
	Name       string
	Migrations func() (fs.FS, error)
}

// MigratedURL is Postgres with the given schemas in the database. The migrations
// run once per test binary.
func MigratedURL(t testing.TB, schemas ...Schema) string {
	t.Helper()
	var key strings.Builder
	for _, s := range schemas {
		key.WriteString(s.Name + " ")
	}
	return PostgresFrom(t, key.String(), func(ctx context.Context, url string) error {
		for _, s := range schemas {
			if err := migrate(ctx, url, s); err != nil {
				return err
			}
		}
		return nil
	})
}

func migrate(ctx context.Context, url string, s Schema) error {
	files, err := s.Migrations()
	if err != nil {
		return err
	}
	pool, err := pg.Open(ctx, url, s.Name, 2)
	if err != nil {
		return err
	}
	defer pool.Close()
	return pg.Migrate(ctx, pool, s.Name, files, slog.New(slog.DiscardHandler))
}

func server(t testing.TB) string {
	t.Helper()
	server, err := env.startPostgres()
	if err != nil {
		t.Fatalf("start Postgres: %v", err)
	}
	return server
}

func database(t testing.TB, from string) string {
	t.Helper()
	server, name := server(t), env.name()
	if err := createDatabase(server, name, from); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := dropDatabase(server, name); err != nil {
			t.Error(err)
		}
	})
	return withDatabase(server, name)
}

func createDatabase(server, name, from string) error {
	return exec(server, fmt.Sprintf("create database %s template %s strategy file_copy", name, from))
}

func dropDatabase(server, name string) error {
	return exec(server, fmt.Sprintf("drop database if exists %s with (force)", name))
}

func exec(server, sql string) error {
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	conn, err := pgx.Connect(ctx, server)
	if err != nil {
		return fmt.Errorf("connect to Postgres: %w", err)
	}
	defer conn.Close(ctx)
	if _, err := conn.Exec(ctx, sql); err != nil {
		return fmt.Errorf("%s: %w", sql, err)
	}
	return nil
}

// withDatabase returns the server's URL with another database name.
func withDatabase(server, name string) string {
	u, err := url.Parse(server)
	if err != nil {
		return server // the driver reports what is wrong with it
	}
	u.Path = "/" + name
	return u.String()
}

// Redis starts an empty Redis without persistence for the test and returns its
// URL.
func Redis(t testing.TB) string {
	t.Helper()
	return RedisServer(t, devservers.RedisOptions{Volatile: true}).URL
}

// RedisServer starts a Redis that the test may stop or kill.
func RedisServer(t testing.TB, o devservers.RedisOptions) *devservers.Redis {
	t.Helper()
	if o.Dir == "" {
		o.Dir = t.TempDir()
	}
	r, err := devservers.StartRedis(context.Background(), o)
	if err != nil {
		t.Fatalf("start Redis: %v", err)
	}
	t.Cleanup(func() {
		if err := r.Stop(); err != nil {
			t.Error(err)
		}
	})
	return r
}

// FreePort is a loopback port for a server that the test starts and may start again.
func FreePort(t testing.TB) int {
	t.Helper()
	port, err := devservers.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	return port
}

// PostgresServer starts a Postgres that the test may stop or kill.
func PostgresServer(t testing.TB, o devservers.PostgresOptions) *devservers.Postgres {
	t.Helper()
	if o.Dir == "" {
		o.Dir = t.TempDir()
	}
	p, err := devservers.StartPostgres(context.Background(), o)
	if err != nil {
		t.Fatalf("start Postgres: %v", err)
	}
	t.Cleanup(func() {
		if err := p.Stop(); err != nil {
			t.Error(err)
		}
	})
	return p
}

// PgBouncer starts a pooler before a Postgres.
func PgBouncer(t testing.TB, o devservers.PgBouncerOptions) *devservers.PgBouncer {
	t.Helper()
	if o.Dir == "" {
		o.Dir = t.TempDir()
	}
	p, err := devservers.StartPgBouncer(context.Background(), o)
	if err != nil {
		t.Fatalf("start PgBouncer: %v", err)
	}
	t.Cleanup(func() {
		if err := p.Stop(); err != nil {
			t.Error(err)
		}
	})
	return p
}

func (s *shared) startKafka() ([]string, error) {
	s.kafkaOnce.Do(func() {
		if outside := os.Getenv("TEST_KAFKA_BROKERS"); outside != "" {
			s.brokers = strings.Split(outside, ",")
			return
		}
		ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
		defer cancel()
		if os.Getenv("TEST_KAFKA") == "apache" {
			s.kafka, s.kafkaErr = s.startApache(ctx)
		} else {
			s.kafka, s.kafkaErr = devservers.StartKafka(ctx, devservers.KafkaOptions{})
		}
		if s.kafkaErr == nil {
			s.brokers = s.kafka.Brokers
		}
	})
	return s.brokers, s.kafkaErr
}

func (s *shared) startApache(ctx context.Context) (*devservers.Kafka, error) {
	dir, err := s.workDir()
	if err != nil {
		return nil, err
	}
	root, err := workspace()
	if err != nil {
		return nil, err
	}
	return devservers.StartApacheKafka(ctx, devservers.ApacheOptions{
		Dir: filepath.Join(dir, "kafka"), Dist: filepath.Join(root, ".data", "kafka-dist"),
	})
}

// workspace returns the folder above the package under test that has go.work.
func workspace() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for ; ; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "go.work")); err == nil {
			return dir, nil
		}
		if dir == filepath.Dir(dir) {
			return "", errors.New("no go.work above the package under test")
		}
	}
}

// Kafka returns the brokers and a prefix for the names of the test's topics and
// groups. The end of the test deletes the topics with the prefix. The broker does
// not create topics automatically.
func Kafka(t testing.TB) (brokers []string, prefix string) {
	t.Helper()
	brokers, err := env.startKafka()
	if err != nil {
		t.Fatalf("start Kafka: %v", err)
	}
	prefix = env.name() + "."
	t.Cleanup(func() {
		if err := deleteTopics(brokers, prefix); err != nil {
			t.Error(err)
		}
	})
	return slices.Clone(brokers), prefix
}

func deleteTopics(brokers []string, prefix string) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	transport := &kafka.Transport{DialTimeout: time.Minute} // a broker under load is slow to accept
	defer transport.CloseIdleConnections()
	client := &kafka.Client{Addr: kafka.TCP(brokers...), Transport: transport}
	meta, err := client.Metadata(ctx, new(kafka.MetadataRequest))
	if err != nil {
		return fmt.Errorf("list topics: %w", err)
	}
	var topics []string
	for _, topic := range meta.Topics {
		if strings.HasPrefix(topic.Name, prefix) {
			topics = append(topics, topic.Name)
		}
	}
	if len(topics) == 0 {
		return nil
	}
	if _, err := client.DeleteTopics(ctx, &kafka.DeleteTopicsRequest{Topics: topics}); err != nil {
		return fmt.Errorf("delete topics: %w", err)
	}
	return nil
}

// StripeMock builds Stripe's stripe-mock from the module that pins it, starts it
// and returns its URL.
func StripeMock(t testing.TB) string {
	t.Helper()
	root, err := workspace()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	m, err := devservers.StartStripeMock(ctx, devservers.StripeMockOptions{
		Module: filepath.Join(root, "tools", "buildtools", "stripemock"), Dir: t.TempDir(),
	})
	if err != nil {
		t.Fatalf("start stripe-mock: %v", err)
	}
	t.Cleanup(func() {
		if err := m.Stop(); err != nil {
			t.Error(err)
		}
	})
	return m.URL
}
