// Command devkafka runs a Kafka broker on this machine until it is interrupted and
// prints its address as KAFKA_BROKERS=…. The broker is the embedded one or, with
// -apache, a single node of Apache Kafka.
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
	apache := flags.Bool("apache", false, "run Apache Kafka; requires java 17 and, for the first start, mvn")
	fetch := flags.Bool("fetch", false, "download Apache Kafka if it is missing, then exit")
	data := flags.String("data", ".data", "folder that keeps the broker's log and the Apache Kafka download")
	port := flags.Int("port", 9092, "port on 127.0.0.1; 0 picks a free port")
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
