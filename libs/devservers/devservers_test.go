package devservers_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/redis/go-redis/v9"
	"github.com/segmentio/kafka-go"
	"go.uber.org/goleak"

	"waitlist.internal/libs/devservers"
)

// helperDir makes the test binary, started again as a child, run a server set
// in that directory until it is killed.
const helperDir = "DEVSERVERS_HELPER_DIR"

func TestMain(m *testing.M) {
	if dir := os.Getenv(helperDir); dir != "" {
		helper(dir)
	}
	goleak.VerifyTestMain(m)
}

// helper starts Postgres and Redis, says so and waits for its death.
func helper(dir string) {
	ctx := context.Background()
	if _, err := devservers.StartPostgres(ctx, devservers.PostgresOptions{Dir: filepath.Join(dir, "postgres")}); err != nil {
		fmt.Print(err)
		os.Exit(1)
	}
	if _, err := devservers.StartRedis(ctx, devservers.RedisOptions{Dir: filepath.Join(dir, "redis")}); err != nil {
		fmt.Print(err)
		os.Exit(1)
	}
	fmt.Println("ready")
	select {}
}

func TestPostgresKeepsWhatItAcknowledged(t *testing.T) {
	t.Parallel()
	dir := t.TempDir() // closed to other users, as /root is
	for round, end := range []func(*devservers.Postgres){
		func(p *devservers.Postgres) { p.Kill() },
		func(p *devservers.Postgres) {
			if err := p.Stop(); err != nil {
				t.Error(err)
			}
		},
		(*devservers.Postgres).Kill,
	} {
		p := startPostgres(t, dir)
		conn, err := pgx.Connect(t.Context(), p.URL("postgres"))
		if err != nil {
			t.Fatal(err)
		}
		if round == 0 {
			exec1(t, conn, "create table kept (round int)")
		}
		var rounds int
		if err := conn.QueryRow(t.Context(), "select count(*) from kept").Scan(&rounds); err != nil || rounds != round {
			t.Fatalf("round %d: %d rows are there, %v", round, rounds, err)
		}
		exec1(t, conn, "insert into kept values ("+strconv.Itoa(round)+")")
		end(p)
		_ = conn.Close(t.Context())
	}
}

func TestPostgresStartsBesideAForeignPidFile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := startPostgres(t, dir).Stop(); err != nil {
		t.Fatal(err)
	}
	// The number of the dead server now belongs to another process.
	pidFile := filepath.Join(dir, "data", "postmaster.pid")
	if err := os.WriteFile(pidFile, []byte(strconv.Itoa(os.Getpid())+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := startPostgres(t, dir).Stop(); err != nil {
		t.Fatal(err)
	}
}

func TestPostgresMakesAnUnfinishedClusterAnew(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "data.new", "base"), 0o700); err != nil {
		t.Fatal(err)
	}
	p := startPostgres(t, dir)
	for range 2 {
		if err := p.CreateDatabase(t.Context(), "some"); err != nil {
			t.Error(err)
		}
	}
	if err := p.Stop(); err != nil {
		t.Fatal(err)
	}
}

func TestServersThatOutliveTheirParentAreReplaced(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for range 2 {
		parent := exec.Command(os.Args[0])
		parent.Env = append(os.Environ(), helperDir+"="+dir)
		out, err := parent.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := parent.Start(); err != nil {
			t.Fatal(err)
		}
		buf := make([]byte, 4096)
		n, _ := out.Read(buf)
		if got := string(buf[:n]); got != "ready\n" {
			t.Fatalf("the parent says %q", got)
		}
		if err := parent.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = parent.Wait()
	}
	p := startPostgres(t, filepath.Join(dir, "postgres"))
	r, err := devservers.StartRedis(t.Context(), devservers.RedisOptions{Dir: filepath.Join(dir, "redis")})
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Stop(); err != nil {
		t.Error(err)
	}
	if err := r.Stop(); err != nil {
		t.Error(err)
	}
}

// A parent's death need not reach its servers (another platform, a thread that
// ended late), so one that still runs on the directory is stopped by its pid.
func TestARunningServerOnTheDirectoryIsStopped(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	first := startPostgres(t, dir)
	second := startPostgres(t, dir)
	if _, err := pgx.Connect(t.Context(), first.URL("postgres")); err == nil {
		t.Error("the first server still answers")
	}
	if err := second.Stop(); err != nil {
		t.Error(err)
	}
	_ = first.Stop() // reaps it
}

func TestRedisKeepsItsKeys(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for round := range 3 {
		r, err := devservers.StartRedis(t.Context(), devservers.RedisOptions{Dir: dir})
		if err != nil {
			t.Fatal(err)
		}
		client := redisClient(t, r)
		if got, err := client.Incr(t.Context(), "rounds").Result(); err != nil || got != int64(round+1) {
			t.Errorf("round %d: got %d, %v", round, got, err)
		}
		if round == 1 {
			r.Kill() // what it answered was handed to the kernel
		} else if err := r.Stop(); err != nil {
			t.Error(err)
		}
	}
}

func TestEmbeddedRedisExpiresKeys(t *testing.T) {
	t.Parallel()
	r, err := devservers.EmbeddedRedis()
	if err != nil {
		t.Fatal(err)
	}
	client := redisClient(t, r)
	if err := client.Set(t.Context(), "k", 1, 60*time.Millisecond).Err(); err != nil {
		t.Fatal(err)
	}
	deadline := time.After(time.Minute)
	for client.Exists(t.Context(), "k").Val() == 1 {
		select {
		case <-deadline:
			t.Fatal("the key is still there")
		default:
		}
	}
	if err := r.Stop(); err != nil {
		t.Error(err)
	}
}

func TestKafkaKeepsItsLog(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	keepsItsLog(t, func() (*devservers.Kafka, error) {
		return devservers.StartKafka(t.Context(), devservers.KafkaOptions{Dir: dir})
	})
}

// keepsItsLog writes one message per start and reads all at the last.
func keepsItsLog(t *testing.T, start func() (*devservers.Kafka, error)) {
	t.Helper()
	const topic = "kept"
	for round := range 3 {
		k, err := start()
		if err != nil {
			t.Fatal(err)
		}
		transport := new(kafka.Transport)
		client := &kafka.Client{Addr: kafka.TCP(k.Brokers...), Transport: transport}
		if round == 0 {
			one := []kafka.TopicConfig{{Topic: topic, NumPartitions: 1, ReplicationFactor: 1}}
			made, err := client.CreateTopics(t.Context(), &kafka.CreateTopicsRequest{Topics: one})
			if err != nil || made.Errors[topic] != nil {
				t.Fatal(err, made)
			}
		}
		// The topic's leader may take a moment after the start.
		write := func() error {
			got, err := client.Produce(t.Context(), &kafka.ProduceRequest{
				Topic: topic, RequiredAcks: kafka.RequireAll,
				Records: kafka.NewRecordReader(kafka.Record{Value: kafka.NewBytes([]byte("x"))}),
			})
			if err != nil {
				return err
			}
			return got.Error
		}
		deadline := time.Now().Add(time.Minute)
		for err = write(); err != nil && time.Now().Before(deadline); err = write() {
		}
		if err != nil {
			t.Fatal(err)
		}
		last := map[string][]kafka.OffsetRequest{topic: {kafka.LastOffsetOf(0)}}
		offsets, err := client.ListOffsets(t.Context(), &kafka.ListOffsetsRequest{Topics: last})
		if err != nil {
			t.Fatal(err)
		}
		if got := offsets.Topics[topic][0].LastOffset; got != int64(round+1) {
			t.Errorf("round %d: the log ends at %d", round, got)
		}
		transport.CloseIdleConnections()
		if err := k.Stop(); err != nil {
			t.Error(err)
		}
	}
}

func startPostgres(t *testing.T, dir string) *devservers.Postgres {
	t.Helper()
	p, err := devservers.StartPostgres(t.Context(), devservers.PostgresOptions{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func exec1(t *testing.T, conn *pgx.Conn, sql string) {
	t.Helper()
	if _, err := conn.Exec(t.Context(), sql); err != nil {
		t.Fatal(err)
	}
}

func redisClient(t *testing.T, r *devservers.Redis) *redis.Client {
	t.Helper()
	opts, err := redis.ParseURL(r.URL)
	if err != nil {
		t.Fatal(err)
	}
	client := redis.NewClient(opts)
	t.Cleanup(func() { _ = client.Close() })
	return client
}
