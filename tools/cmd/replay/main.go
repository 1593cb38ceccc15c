// Command replay sends dead letters back to their topics, addressed to the service
// that failed. Run it after you have removed the cause:
//
//	KAFKA_BROKERS=127.0.0.1:9092 go run ./tools/cmd/replay
//
// Each dead letter is replayed once; if it fails again, it becomes a new dead letter.
// Replay reads the same KAFKA_* variables as the services.
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
		fmt.Fprintf(out, "%s: replayed %d dead letters\n", topic, n)
		if err != nil {
			return fmt.Errorf("replay %s: %w", topic, err)
		}
	}
	return nil
}
