// Command replay sends dead letters to their topics again, each for the service
// that failed, after the cause was removed:
//
//	KAFKA_BROKERS=127.0.0.1:9092 go run ./tools/cmd/replay
//
// A letter is replayed once; one that fails again is a new dead letter. It reads
// KAFKA_* as the services do.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"waitlist.internal/libs/kafka"
	"waitlist.internal/libs/service"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Environ(), os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		stop()
		os.Exit(1)
	}
}

func run(ctx context.Context, environ []string, out io.Writer) error {
	env, err := service.Load[service.Config](environ)
	if err != nil {
		return err
	}
	cfg, err := env.Kafka()
	if err != nil {
		return err
	}
	for _, topic := range kafka.Topics() {
		n, err := kafka.Replay(ctx, cfg, topic)
		fmt.Fprintf(out, "%s: %d dead letters replayed\n", topic, n)
		if err != nil {
			return fmt.Errorf("%s: %w", topic, err)
		}
	}
	return nil
}
