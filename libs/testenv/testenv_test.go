package testenv_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/redis/go-redis/v9"
	"github.com/segmentio/kafka-go"

	"waitlist.internal/libs/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

func TestPostgresGivesEachTestItsOwnDatabase(t *testing.T) {
	t.Parallel()
	for range 2 {
		conn := connect(t, testenv.Postgres(t))
		if _, err := conn.Exec(t.Context(), "create table only_here (id int)"); err != nil {
			t.Fatal(err)
		}
	}
}

func TestTempDirRemovesWhatTheDeadLeft(t *testing.T) {
	t.Parallel()
	dead := exec.Command("true")
	if err := dead.Run(); err != nil {
		t.Fatal(err)
	}
	parent := t.TempDir()
	left := filepath.Join(parent, "tests-"+strconv.Itoa(dead.Process.Pid)+"-1")
	other := filepath.Join(parent, "others-"+strconv.Itoa(dead.Process.Pid)+"-1")
	for _, dir := range []string{left, other} {
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 { // the second finds the folder of a process that lives
		if _, err := testenv.TempDir(parent, "tests-"); err != nil {
			t.Fatal(err)
		}
	}
	dirs, err := filepath.Glob(filepath.Join(parent, "*"))
	if err != nil {
		t.Fatal(err)
	}
	if len(dirs) != 3 || !slices.Contains(dirs, other) || slices.Contains(dirs, left) {
		t.Errorf("the folders are %q, want two of this process and the other one", dirs)
	}
}

func TestPostgresFromPreparesOnce(t *testing.T) {
	t.Parallel()
	times := 0
	prepare := func(ctx context.Context, url string) error {
		times++
		conn, err := pgx.Connect(ctx, url)
		if err != nil {
			return err
		}
		defer conn.Close(ctx)
		_, err = conn.Exec(ctx, "create table filled as select 42 as answer")
		return err
	}
	for range 3 {
		conn := connect(t, testenv.PostgresFrom(t, t.Name(), prepare))
		var answer int
		if err := conn.QueryRow(t.Context(), "delete from filled returning answer").Scan(&answer); err != nil || answer != 42 {
			t.Fatalf("got %d, %v", answer, err)
		}
	}
	if times != 1 {
		t.Errorf("prepared %d times", times)
	}
}

func TestRedisIsTheTestsOwn(t *testing.T) {
	t.Parallel()
	for range 2 {
		opts, err := redis.ParseURL(testenv.Redis(t))
		if err != nil {
			t.Fatal(err)
		}
		client := redis.NewClient(opts)
		defer client.Close()
		if set, err := client.SetNX(t.Context(), "k", 1, 0).Result(); err != nil || !set {
			t.Fatalf("got %v, %v", set, err)
		}
	}
}

func TestKafkaTopicsGoWithTheTest(t *testing.T) {
	t.Parallel()
	var brokers []string
	var prefix string
	t.Run("a test", func(t *testing.T) {
		brokers, prefix = testenv.Kafka(t)
		client := newClient(t, brokers)
		got, err := client.CreateTopics(t.Context(), &kafka.CreateTopicsRequest{Topics: []kafka.TopicConfig{
			{Topic: prefix + "x", NumPartitions: 2, ReplicationFactor: 1},
		}})
		if err != nil || got.Errors[prefix+"x"] != nil {
			t.Fatalf("got %v, %v", got, err)
		}
	})
	// A broker acknowledges a deletion before it is in everybody's metadata.
	testenv.Eventually(t, "the topic is gone", func() bool {
		meta, err := newClient(t, brokers).Metadata(t.Context(), new(kafka.MetadataRequest))
		if err != nil {
			t.Fatal(err)
		}
		return !slices.ContainsFunc(meta.Topics, func(topic kafka.Topic) bool { return topic.Name == prefix+"x" })
	})
}

// newClient has its own transport: a transport answers from metadata that it
// read before.
func newClient(t *testing.T, brokers []string) *kafka.Client {
	t.Helper()
	transport := new(kafka.Transport)
	t.Cleanup(transport.CloseIdleConnections)
	return &kafka.Client{Addr: kafka.TCP(brokers...), Transport: transport}
}

func connect(t *testing.T, url string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close(context.Background()) })
	return conn
}
