package kafka_test

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	kafkago "github.com/segmentio/kafka-go"

	"waitlist.internal/libs/kafka"
	"waitlist.internal/libs/outbox"
	"waitlist.internal/libs/pg"
	"waitlist.internal/libs/testenv"
	eventv1 "waitlist.internal/proto/gen/waitlist/event/v1"
)

// BenchmarkConsumer measures events/s from Kafka to an effect in Postgres.
func BenchmarkConsumer(b *testing.B) {
	e := newEnv(b)
	const events = 20_000
	n := 0
	for b.Loop() {
		b.StopTimer()
		n++
		group := fmt.Sprint("g", n)
		var msgs []kafkago.Message
		for i := range events {
			key := fmt.Sprint("k", i%64)
			msgs = append(msgs, e.message(key, newEvent(key)))
		}
		for chunk := range slices.Chunk(msgs, kafka.MaxBatchMessages) {
			e.write(chunk...)
		}
		b.StartTimer()
		stop := e.run(group, record(group))
		testenv.Eventually(e, "effects", func() bool {
			var done bool
			if err := e.pool.QueryRow(b.Context(), "SELECT count(*) >= $2 FROM inbox WHERE consumer = $1", group, events*n).Scan(&done); err != nil {
				b.Fatal(err)
			}
			return done
		})
		b.StopTimer()
		stop()
		b.StartTimer()
	}
	b.ReportMetric(float64(events*n*(n+1)/2)/b.Elapsed().Seconds(), "events/s")
}

// BenchmarkLatency measures the time from a commit to the start of the handler in
// an idle system: outbox, relay, broker, consumer.
func BenchmarkLatency(b *testing.B) {
	e := newEnv(b)
	got := make(chan time.Time, 1)
	e.run("g", func(context.Context, pgx.Tx, *eventv1.Event) error {
		got <- time.Now()
		return nil
	})
	r := outbox.NewRelay(e.pool, e.writer, "consumer", slog.New(slog.NewTextHandler(b.Output(), nil)), nil)
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { _ = r.Run(ctx) })
	defer wg.Wait()
	defer cancel()
	var took []time.Duration
	send := func() {
		err := pg.InTx(b.Context(), e.pool, func(tx pgx.Tx) error {
			return outbox.Insert(b.Context(), tx, outbox.Message{Topic: kafka.SignupsTopic, Key: "k", Events: []*eventv1.Event{newEvent("k")}})
		})
		if err != nil {
			b.Fatal(err)
		}
		committed := time.Now()
		r.Wake()
		took = append(took, (<-got).Sub(committed))
	}
	send() // joins the group
	took = took[:0]
	for b.Loop() {
		send()
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Microseconds())/1000, "p50-ms")
	b.ReportMetric(float64(took[len(took)*95/100].Microseconds())/1000, "p95-ms")
}
