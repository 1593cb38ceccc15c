// Command replay sends dead letters to their topics again, each for the service
// that failed, after the cause was removed:
//
//	KAFKA_BROKERS=127.0.0.1:9092 go run ./tools/replay
//
// A letter is replayed once; one that fails again is a new dead letter. It reads
// KAFKA_BROKERS and KAFKA_TOPIC_PREFIX as the services do.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"waitlist.internal/libs/kafka"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Getenv, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		stop()
		os.Exit(1)
	}
}

func run(ctx context.Context, getenv func(string) string, out io.Writer) error {
	brokers := getenv("KAFKA_BROKERS")
	if brokers == "" {
		return errors.New("KAFKA_BROKERS is required")
	}
	cfg := kafka.Config{Brokers: strings.Split(brokers, ","), TopicPrefix: getenv("KAFKA_TOPIC_PREFIX")}
	for _, topic := range kafka.Topics() {
		n, err := kafka.Replay(ctx, cfg, topic)
		fmt.Fprintf(out, "%s: %d dead letters replayed\n", topic, n)
		if err != nil {
			return fmt.Errorf("%s: %w", topic, err)
		}
	}
	return nil
}
