// Command run runs `go test` with one Postgres for all packages and, with -kafka
// apache, one Apache Kafka. It stops the servers when the tests end, even if they
// fail or are interrupted.
//
//	go run ./tools/test/run [-kafka embedded|apache] -- [arguments of go test]
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
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
	data := flags.String("data", ".data", "folder that keeps downloaded servers")
	if err := flags.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return nil
		}
		return err
	}
	dir, err := os.MkdirTemp("", "waitlist-test-")
	if err != nil {
		return fmt.Errorf("create a folder for the servers: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()

	settings := testenv.FastPostgres()
	settings["max_connections"] = "800" // every package's tests at once
	postgres, err := devservers.StartPostgres(ctx, devservers.PostgresOptions{
		Dir: filepath.Join(dir, "postgres"), Dist: filepath.Join(*data, "postgres-dist"), Settings: settings,
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, postgres.Stop()) }()
	env := append(os.Environ(), "TEST_POSTGRES_URL="+postgres.URL("postgres"), "TEST_KAFKA="+*broker)

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

	cmd := exec.CommandContext(ctx, "go", append([]string{"test"}, flags.Args()...)...)
	cmd.Env, cmd.Stdout, cmd.Stderr = env, os.Stdout, os.Stderr
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
