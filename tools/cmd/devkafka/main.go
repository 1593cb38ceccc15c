// Command devkafka runs a Kafka broker on this machine until it is interrupted
// and prints the address for KAFKA_BROKERS: the embedded broker, or with
// -apache a real Apache Kafka of one node.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"waitlist.internal/libs/devservers"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "devkafka:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("devkafka", flag.ContinueOnError)
	apache := flags.Bool("apache", false, "run Apache Kafka; needs java 17 and, the first time, mvn")
	fetch := flags.Bool("fetch", false, "only fetch Apache Kafka, if it is missing")
	data := flags.String("data", ".data", "folder for the broker's log and its programs")
	port := flags.Int("port", 9092, "port on 127.0.0.1; 0 takes a free one")
	if err := flags.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return nil
		}
		return err
	}
	dist := filepath.Join(*data, "kafka-dist")
	if *fetch {
		return devservers.FetchApacheKafka(ctx, dist)
	}
	var broker *devservers.Kafka
	var err error
	if *apache {
		broker, err = devservers.StartApacheKafka(ctx, devservers.ApacheOptions{
			Dir: filepath.Join(*data, "devkafka-apache"), Dist: dist, Port: *port,
		})
	} else {
		broker, err = devservers.StartKafka(ctx, devservers.KafkaOptions{Dir: filepath.Join(*data, "devkafka"), Port: *port})
	}
	if err != nil {
		return err
	}
	fmt.Println("KAFKA_BROKERS=" + strings.Join(broker.Brokers, ","))
	<-ctx.Done()
	return broker.Stop()
}
