// Command run runs `go test` with one Postgres for all packages and, with -kafka
// apache, one Apache Kafka. It stops the servers when the tests end, even if they
// fail or are interrupted.
//
//	go run ./tools/test/run [-kafka embedded|apache] [-packages patterns] [-cached] -- [flags of go test]
package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"hash/fnv"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"waitlist.internal/libs/devservers"
	"waitlist.internal/libs/testenv"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "run:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) (err error) {
	flags := flag.NewFlagSet("run", flag.ContinueOnError)
	broker := flags.String("kafka", "embedded", "broker for the tests: embedded (one in each test binary) or apache (one for all)")
	patterns := flags.String("packages", "work", "packages to test, separated by spaces")
	cached := flags.Bool("cached", false,
		"allow cached results (not for tools: the cache does not notice a change of the programs that those tests build)")
	data := flags.String("data", ".data", "folder that keeps downloaded servers")
	if err := flags.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return nil
		}
		return err
	}
	targets := strings.Fields(*patterns)
	temp := scratch(os.Getenv("TMPDIR"), "/dev/shm")
	dir, err := testenv.TempDir(temp, "waitlist-tests-")
	if err != nil {
		return fmt.Errorf("create a folder for the servers: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()

	settings := testenv.FastPostgres()
	settings["max_connections"] = "800" // the tests of all packages run at once
	options := devservers.PostgresOptions{
		Dir: filepath.Join(dir, "postgres"), Dist: filepath.Join(*data, "postgres-dist"), Settings: settings,
	}
	if *cached {
		options.Port = steadyPort()
	}
	postgres, err := devservers.StartPostgres(ctx, options)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, postgres.Stop()) }()
	programs := filepath.Join(dir, "programs")
	if err := os.Mkdir(programs, 0o755); err != nil {
		return fmt.Errorf("create a folder for the programs: %w", err)
	}
	env := append(os.Environ(), "TEST_POSTGRES_URL="+postgres.URL("postgres"), "TEST_KAFKA="+*broker, "TEST_PROGRAMS="+programs,
		"GOTMPDIR="+cmp.Or(os.Getenv("GOTMPDIR"), os.TempDir()), "TMPDIR="+temp)

	switch *broker {
	case "embedded":
	case "apache":
		fmt.Println("starting Apache Kafka")
		kafka, kafkaErr := devservers.StartApacheKafka(ctx, devservers.ApacheOptions{
			Dir: filepath.Join(dir, "kafka"), Dist: filepath.Join(*data, "kafka-dist"),
		})
		if kafkaErr != nil {
			return kafkaErr
		}
		defer func() { err = errors.Join(err, kafka.Stop()) }()
		env = append(env, "TEST_KAFKA_BROKERS="+strings.Join(kafka.Brokers, ","))
	default:
		return fmt.Errorf("-kafka is %q: choose embedded or apache", *broker)
	}

	args = flags.Args()
	race := slices.Index(args, "-race")
	if race < 0 {
		return goTest(ctx, os.Stdout, env, args, targets)
	}
	env = append(env, "GOFLAGS="+strings.TrimSpace(os.Getenv("GOFLAGS")+" -gcflags="+unwatched))
	unraced, others, err := splitUnraced(ctx, targets)
	if err != nil {
		return err
	}
	withoutRace := append(slices.Delete(slices.Clone(args), race, race+1), "-p", "2")
	raceless := append(slices.Clone(env), "TEST_RACE=1")
	if len(others) == 0 {
		return goTest(ctx, os.Stdout, raceless, withoutRace, unraced)
	}
	// The clients wait most of the time: beside the other packages they cost little of it.
	var beside bytes.Buffer // so that the two outputs do not mix
	ended := make(chan error, 1)
	go func() { ended <- goTest(ctx, &beside, raceless, withoutRace, unraced) }()
	err = goTest(ctx, os.Stdout, env, args, others)
	err = errors.Join(err, <-ended)
	_, _ = beside.WriteTo(os.Stdout)
	return err
}

// unwatched leaves the hash of passwords out of the race detector, in the tests and in the programs that they build: it shares
// nothing, takes two and a half times as long with it, and was half of the processor time of account's tests.
const unwatched = "golang.org/x/crypto/argon2=-race=false"

// roomy is the free space, in bytes, that a folder in memory must have for the tests.
const roomy = 6 << 30

// scratch returns the folder for the tests' files. Unless the caller chose one, it
// is memory if that exists, has room and may hold programs: creating and dropping a
// database costs a fifth of the processor time there, and no test waits for a disk.
func scratch(chosen, memory string) string {
	if chosen != "" {
		return chosen
	}
	var fs syscall.Statfs_t
	if err := syscall.Statfs(memory, &fs); err != nil || fs.Bavail*uint64(fs.Bsize) < roomy || fs.Flags&noExec != 0 {
		return os.TempDir()
	}
	return memory
}

// noExec is ST_NOEXEC of statvfs(3): programs on this file system do not start.
const noExec = 8

// splitUnraced separates the packages that run without the race detector: the
// clients of the standalone program, which has it (checking an answer against the
// contract would cost more than giving it), and the search through the prose,
// which shares nothing and takes seventeen times as long with it.
func splitUnraced(ctx context.Context, patterns []string) (unraced, others []string, err error) {
	list := exec.CommandContext(ctx, "go", append([]string{"list"}, patterns...)...)
	list.Stderr = os.Stderr
	out, err := list.Output()
	if err != nil {
		return nil, nil, fmt.Errorf("go list: %w", err)
	}
	for path := range strings.FieldsSeq(string(out)) {
		switch path {
		case "waitlist.internal/tools/test/e2e", "waitlist.internal/tools/test/chaos", "waitlist.internal/tools/test/docs":
			unraced = append(unraced, path)
		default:
			others = append(others, path)
		}
	}
	return unraced, others, nil
}

// goTest runs go test and writes what it prints to out, unless there are no packages.
func goTest(ctx context.Context, out io.Writer, env, args, packages []string) error {
	if len(packages) == 0 || ctx.Err() != nil {
		return ctx.Err()
	}
	cmd := exec.CommandContext(ctx, "go", slices.Concat([]string{"test"}, args, packages)...)
	cmd.Env, cmd.Stdout, cmd.Stderr = env, out, out
	// The tests get a process group of their own. Ctrl-C then reaches this process
	// first, and the servers keep running until the tests have ended.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGINT) }
	cmd.WaitDelay = 20 * time.Second
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("go test: %w", err)
	}
	return nil
}

// steadyPort returns the same free port in each run in this folder, or 0 when
// another process listens there. go test caches a result for one value of
// TEST_POSTGRES_URL.
func steadyPort() int {
	dir, err := os.Getwd()
	if err != nil {
		return 0
	}
	const first, ports = 20000, 10000 // below the kernel's ephemeral ports
	h := fnv.New32a()
	_, _ = h.Write([]byte(dir))
	port := first + int(h.Sum32()%ports)
	l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	if err != nil {
		return 0
	}
	_ = l.Close()
	return port
}
