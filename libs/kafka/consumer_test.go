package kafka_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	kafkago "github.com/segmentio/kafka-go"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"waitlist.internal/libs/devservers"
	"waitlist.internal/libs/kafka"
	"waitlist.internal/libs/kafka/kafkatest"
	"waitlist.internal/libs/outbox"
	"waitlist.internal/libs/pg"
	"waitlist.internal/libs/testenv"
	eventv1 "waitlist.internal/proto/gen/waitlist/event/v1"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// env is the database, the cluster and the writers of one test.
type env struct {
	testing.TB
	pool   *pgxpool.Pool
	cfg    kafka.Config
	writer *kafka.Writer
	// failures counts failed attempts of the consumers.
	failures atomic.Int64
}

// Write receives the consumers' log.
func (e *env) Write(p []byte) (int, error) {
	if strings.Contains(string(p), "event failed") {
		e.failures.Add(1)
	}
	return e.Output().Write(p)
}

func newEnv(t testing.TB) *env {
	t.Helper()
	brokers, prefix := testenv.Kafka(t)
	return openEnv(t, testenv.Postgres(t), kafka.Config{Brokers: brokers, TopicPrefix: prefix})
}

func openEnv(t testing.TB, url string, cfg kafka.Config) *env {
	t.Helper()
	pool, err := pg.Open(t.Context(), url, "consumer", 20)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	if _, err := pool.Exec(t.Context(), `CREATE SCHEMA consumer;
		CREATE TABLE effect (no bigserial, consumer text, event_id text, key text);`+kafka.InboxSchema+outbox.Schema); err != nil {
		t.Fatal(err)
	}
	w := kafka.NewWriter(cfg)
	t.Cleanup(func() {
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	})
	return &env{TB: t, pool: pool, cfg: cfg, writer: w}
}

// run starts a consumer and returns a function that stops it and waits.
func (e *env) run(group string, h kafka.Handler) func() {
	e.Helper()
	return e.start(kafka.ConsumerConfig{Group: group, Handler: h})
}

// start starts a consumer with what cfg does not say.
func (e *env) start(cfg kafka.ConsumerConfig) func() {
	e.Helper()
	cfg.Config, cfg.Topics, cfg.Pool = e.cfg, []string{kafka.SignupsTopic, kafka.AccountsTopic}, e.pool
	cfg.Logger, cfg.Attempts = slog.New(slog.NewTextHandler(e, nil)), 3
	c := kafka.NewConsumer(cfg)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	stop := sync.OnceFunc(func() {
		cancel()
		select {
		case err := <-done:
			if err != nil {
				e.Errorf("consumer: %v", err)
			}
		case <-time.After(20 * time.Second):
			e.Error("the consumer does not stop")
		}
	})
	e.Cleanup(stop)
	return stop
}

// record is the effect of an event in these tests.
func record(group string) kafka.Handler {
	return func(ctx context.Context, tx pgx.Tx, ev *eventv1.Event) error {
		_, err := tx.Exec(ctx, "INSERT INTO effect (consumer, event_id, key) VALUES ($1, $2, $3)",
			group, ev.GetId(), ev.GetSignupCreated().GetWaitlistId())
		return err
	}
}

func newEvent(key string) *eventv1.Event {
	return &eventv1.Event{Id: uuid.NewString(), Payload: &eventv1.Event_SignupCreated{SignupCreated: &eventv1.SignupCreated{WaitlistId: key}}}
}

func (e *env) write(msgs ...kafkago.Message) {
	e.Helper()
	// In one call, the second of two batches might be written before the first one.
	for part := range slices.Chunk(msgs, kafka.MaxBatchMessages) {
		// A broker may take a while to lead its new partitions.
		testenv.Eventually(e, "written", func() bool { return e.writer.WriteMessages(e.Context(), part...) == nil })
	}
}

func (e *env) message(key string, ev *eventv1.Event) kafkago.Message {
	e.Helper()
	b, err := proto.Marshal(ev)
	if err != nil {
		e.Fatal(err)
	}
	return kafkago.Message{Topic: kafka.SignupsTopic, Key: []byte(key), Value: b}
}

// effects returns the ids of the events in the order of their effects.
func (e *env) effects(group string) []string {
	e.Helper()
	rows, err := e.pool.Query(context.Background(), "SELECT event_id FROM effect WHERE consumer = $1 ORDER BY no", group)
	if err != nil {
		e.Fatal(err)
	}
	ids, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		e.Fatal(err)
	}
	return ids
}

// consumed waits until the group has committed all messages.
func (e *env) consumed(group string) {
	e.Helper()
	testenv.Eventually(e, group+" has consumed everything", func() bool {
		// Ignore errors: the group may have no coordinator yet.
		lag, err := kafka.Lag(e.Context(), e.cfg, group, kafka.SignupsTopic, kafka.AccountsTopic)
		return err == nil && len(lag) == 2 && lag[kafka.SignupsTopic] == 0 && lag[kafka.AccountsTopic] == 0
	})
}

// deadLetters returns the dead letters of the signups topic.
func (e *env) deadLetters() []kafkago.Message {
	e.Helper()
	return kafkatest.DeadLetters(e, e.cfg, kafka.SignupsTopic)
}

func TestEventsHaveTheirEffectOnce(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	var want []string
	var all []kafkago.Message
	for range 300 {
		ev := newEvent("k")
		ev.OccurredAt = timestamppb.Now()
		want = append(want, ev.GetId())
		m := e.message("k", ev)
		all = append(all, m, m)
	}
	e.write(all...)
	stop := e.run("first", record("first"))
	e.consumed("first")
	stop()
	// A new member reads the whole topic again, as after a lost commit.
	e.write(all...)
	reg := prometheus.NewRegistry()
	e.cfg.Registerer = reg
	e.run("first", record("first"))
	e.consumed("first")
	// Replayed events are not handled, and how old they are says nothing about us.
	if handled, duplicates, delays := counted(t, reg); handled != 0 || duplicates != 600 || delays != 0 {
		t.Errorf("of 600 replayed events, %v were handled, %v were known, %v have a delay", handled, duplicates, delays)
	}
	if got := e.effects("first"); !slices.Equal(got, want) {
		t.Fatalf("%d effects of %d events, or out of order", len(got), len(want))
	}
	// Another consumer has its own inbox.
	e.run("second", record("second"))
	e.consumed("second")
	if got := e.effects("second"); !slices.Equal(got, want) {
		t.Fatalf("second group: %d effects of %d events, or out of order", len(got), len(want))
	}
}

// counted returns the events of a registry's only group: those that were handled, those that were known, and those
// whose delay was observed.
func counted(t *testing.T, reg *prometheus.Registry) (handled, duplicates, delays float64) {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			switch f.GetName() {
			case "kafka_consumer_handled_total":
				handled += m.GetCounter().GetValue()
			case "kafka_consumer_duplicates_total":
				duplicates += m.GetCounter().GetValue()
			case "kafka_consumer_event_delay_seconds":
				delays += float64(m.GetHistogram().GetSampleCount())
			}
		}
	}
	return handled, duplicates, delays
}

// TestABatchOfWantedEvents: a handler of batches gets each wanted event once and in order,
// whatever else comes, and events that nobody wants leave nothing in the inbox.
func TestABatchOfWantedEvents(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	var want []string
	var all []kafkago.Message
	for i := range 300 {
		ev := newEvent([]string{"wanted", "other"}[i%2])
		m := e.message("k", ev)
		all = append(all, m, m)
		if i%2 == 0 {
			want = append(want, ev.GetId())
		}
	}
	all = append(all, e.message("k", newEvent("poison")), e.message("k", newEvent("other")))
	e.write(all...)
	var most atomic.Int64
	e.start(kafka.ConsumerConfig{
		Group: "batches",
		Wants: func(ev *eventv1.Event) bool { return ev.GetSignupCreated().GetWaitlistId() != "other" },
		Batch: func(ctx context.Context, tx pgx.Tx, evs []*eventv1.Event) error {
			most.Store(max(most.Load(), int64(len(evs))))
			for _, ev := range evs {
				if ev.GetSignupCreated().GetWaitlistId() == "poison" {
					panic("poison")
				}
				if err := record("batches")(ctx, tx, ev); err != nil {
					return err
				}
			}
			return nil
		},
	})
	e.consumed("batches")
	if got := e.effects("batches"); !slices.Equal(got, want) {
		t.Errorf("%d effects of %d events, or out of order", len(got), len(want))
	}
	if most.Load() < 2 {
		t.Error("no batch had two events")
	}
	if n := len(e.deadLetters()); n != 1 {
		t.Errorf("%d dead letters", n)
	}
	var rows int
	if err := e.pool.QueryRow(t.Context(), "SELECT count(*) FROM inbox").Scan(&rows); err != nil {
		t.Fatal(err)
	}
	if rows != len(want) {
		t.Errorf("%d rows in the inbox, want %d", rows, len(want))
	}
}

// poison returns messages that always fail, each in its own way, with the expected
// reason of their dead letter.
func (e *env) poison(h *poisonHandler) map[string]kafkago.Message {
	e.Helper()
	unknown, err := proto.Marshal(&eventv1.Event{Id: uuid.NewString()})
	if err != nil {
		e.Fatal(err)
	}
	unknown = protowire.AppendBytes(protowire.AppendTag(unknown, 999, protowire.BytesType), []byte("a payload of the future"))
	panics, fails, violates := newEvent("k"), newEvent("k"), newEvent("k")
	h.panics, h.fails, h.violates = panics.GetId(), fails.GetId(), violates.GetId()
	raw := func(b []byte) kafkago.Message {
		return kafkago.Message{Topic: kafka.SignupsTopic, Key: []byte("k"), Value: b}
	}
	return map[string]kafkago.Message{
		"undecodable":     raw([]byte{0xff, 0xff, 0xff}),
		"unknown_version": raw(unknown),
		"panic":           e.message("k", panics),
		"failure":         e.message("k", fails),
		"constraint":      e.message("k", violates),
	}
}

type poisonHandler struct {
	mu                      sync.Mutex
	panics, fails, violates string
	cured                   bool
	group                   string
}

func (h *poisonHandler) handle(ctx context.Context, tx pgx.Tx, ev *eventv1.Event) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.cured {
		switch ev.GetId() {
		case h.panics:
			panic("out of cheese")
		case h.fails:
			return errors.New("always")
		case h.violates:
			if _, err := tx.Exec(ctx, "INSERT INTO inbox (consumer, event_id) VALUES (NULL, NULL)"); err != nil {
				return fmt.Errorf("effect: %w", err)
			}
		}
	}
	return record(h.group)(ctx, tx, ev)
}

// replay replays the dead letters of an attempt, caused by want messages. A message
// may have two letters if the group rebalanced in between.
func (e *env) replay(attempt string, want int) {
	e.Helper()
	letters, messages := 0, map[string]bool{}
	for _, m := range e.deadLetters() {
		if h := kafkatest.Headers(m); h[kafka.HeaderAttempt] == attempt {
			letters++
			messages[h[kafka.HeaderConsumer]+string(m.Value)] = true
		}
	}
	if len(messages) != want {
		e.Fatalf("%d messages have dead letters of attempt %s, want %d", len(messages), attempt, want)
	}
	if n, err := kafka.Replay(e.Context(), e.cfg, kafka.SignupsTopic); err != nil || n != letters {
		e.Fatalf("replayed %d, %v; want %d", n, err, letters)
	}
}

func TestPoisonIsDeadLetteredAndReplayedOnce(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	h := &poisonHandler{group: "one"}
	stop := e.run("one", h.handle)
	e.run("other", record("other"))
	var good []string
	reasons := e.poison(h)
	for reason, m := range reasons {
		e.Log(reason)
		before, after := newEvent("k"), newEvent("k")
		good = append(good, before.GetId(), after.GetId())
		m.Headers = []kafkago.Header{{Key: "mine", Value: []byte("kept")}}
		e.write(e.message("k", before), m, e.message("k", after))
	}
	e.consumed("one")
	e.consumed("other")
	// All are in one partition, so the consumer continued after each.
	if got := e.effects("one"); !slices.Equal(got, good) {
		t.Fatalf("%d effects, want %d in order", len(got), len(good))
	}
	others := len(e.effects("other"))
	if others != len(good)+3 {
		t.Fatalf("other group: %d effects, want %d", others, len(good)+3)
	}
	seen := map[string]bool{}
	for _, m := range e.deadLetters() {
		got := kafkatest.Headers(m)
		if got[kafka.HeaderConsumer] == "other" {
			continue
		}
		reason := got[kafka.HeaderReason]
		seen[reason] = true
		want, ok := reasons[reason]
		if !ok || string(m.Value) != string(want.Value) || string(m.Key) != "k" || got["mine"] != "kept" {
			t.Errorf("%s: not the original message", reason)
		}
		if got[kafka.HeaderTopic] != kafka.SignupsTopic || got[kafka.HeaderPartition] == "" || got[kafka.HeaderOffset] == "" ||
			got[kafka.HeaderAttempt] != "1" || got[kafka.HeaderError] == "" {
			t.Errorf("%s: headers %v", reason, got)
		}
	}
	if len(seen) != len(reasons) {
		t.Fatalf("dead letters for %v", seen)
	}

	// The code is still broken: the letters come back with a higher attempt.
	e.replay("1", 7) // 5 of one, 2 of the other
	e.consumed("one")
	e.consumed("other")

	// The code is repaired.
	h.mu.Lock()
	h.cured = true
	h.mu.Unlock()
	e.replay("2", 7)
	e.consumed("one")
	if got := e.effects("one"); len(got) != len(good)+3 || !slices.Contains(got, h.fails) ||
		!slices.Contains(got, h.panics) || !slices.Contains(got, h.violates) {
		t.Fatalf("%d effects after the replay", len(got))
	}
	// Each has its effect once; undecodable messages stay dead letters.
	e.consumed("other")
	e.replay("3", 4)
	e.consumed("one")
	e.consumed("other")
	if got := e.effects("one"); len(got) != len(good)+3 {
		t.Fatalf("%d effects after another replay", len(got))
	}
	if got := len(e.effects("other")); got != others {
		t.Fatalf("other group: %d effects after replays for the first", got)
	}
	stop()
}

func TestOnlyThePoisonOfABatchSuffers(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	h := &poisonHandler{group: "g"}
	m := e.poison(h)["failure"]
	var msgs []kafkago.Message
	var want []string
	for i := range 200 {
		ev := newEvent("k")
		want = append(want, ev.GetId())
		msgs = append(msgs, e.message("k", ev))
		if i == 100 {
			msgs = append(msgs, m)
		}
	}
	e.write(msgs...)
	e.run("g", h.handle)
	e.consumed("g")
	if got := e.effects("g"); !slices.Equal(got, want) {
		t.Fatalf("%d effects, want %d in order", len(got), len(want))
	}
	if n := len(e.deadLetters()); n != 1 {
		t.Fatalf("%d dead letters", n)
	}
}

func TestADependencyAwayIsWaitedOut(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	var mu sync.Mutex
	attempts := 0
	e.run("g", func(ctx context.Context, tx pgx.Tx, ev *eventv1.Event) error {
		mu.Lock()
		defer mu.Unlock()
		if attempts++; attempts <= 5 { // more than Attempts
			return fmt.Errorf("ask the other service: %w", status.Error(codes.Unavailable, "starting"))
		}
		return record("g")(ctx, tx, ev)
	})
	ev := newEvent("k")
	e.write(e.message("k", ev))
	e.consumed("g")
	if got := e.effects("g"); !slices.Equal(got, []string{ev.GetId()}) || len(e.deadLetters()) != 0 {
		t.Fatalf("effects %v, %d dead letters", got, len(e.deadLetters()))
	}
}

func TestPostgresAwayIsWaitedOut(t *testing.T) {
	t.Parallel()
	brokers, prefix := testenv.Kafka(t)
	dir := t.TempDir()
	server := testenv.PostgresServer(t, devservers.PostgresOptions{Dir: dir})
	e := openEnv(t, server.URL("postgres"), kafka.Config{Brokers: brokers, TopicPrefix: prefix})
	e.run("g", record("g"))
	var want []string
	send := func() {
		ev := newEvent("k")
		want = append(want, ev.GetId())
		e.write(e.message("k", ev))
	}
	send()
	e.consumed("g")
	port := server.Port()
	server.Kill()
	for range 20 {
		send()
	}
	testenv.Eventually(e, "more attempts than a failing event has", func() bool { return e.failures.Load() > 3 })
	testenv.PostgresServer(t, devservers.PostgresOptions{Dir: dir, Port: port})
	e.consumed("g")
	if got := e.effects("g"); !slices.Equal(got, want) || len(e.deadLetters()) != 0 {
		t.Fatalf("%d effects, %d dead letters", len(got), len(e.deadLetters()))
	}
}

func TestKafkaRestartIsWaitedOut(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	k, err := devservers.StartKafka(t.Context(), devservers.KafkaOptions{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	e := openEnv(t, testenv.Postgres(t), kafka.Config{Brokers: k.Brokers})
	stop := e.run("g", record("g"))
	var want []string
	for round := range 2 {
		for range 10 {
			ev := newEvent("k")
			want = append(want, ev.GetId())
			testenv.Eventually(e, "written", func() bool { return e.writer.WriteMessages(t.Context(), e.message("k", ev)) == nil })
		}
		testenv.Eventually(e, "effects", func() bool { return len(e.effects("g")) == len(want) })
		if round == 0 {
			var port int
			if _, err := fmt.Sscanf(strings.Split(k.Brokers[0], ":")[1], "%d", &port); err != nil {
				t.Fatal(err)
			}
			k.Kill()
			if k, err = devservers.StartKafka(t.Context(), devservers.KafkaOptions{Dir: dir, Port: port}); err != nil {
				t.Fatal(err)
			}
		}
	}
	stop()
	if got := e.effects("g"); !slices.Equal(got, want) {
		t.Fatalf("%d effects, want %d in order", len(got), len(want))
	}
	if err := k.Stop(); err != nil {
		t.Error(err)
	}
}

// Members join and leave while events flow; each event has its effect once, in
// order per key.
func TestMembersComeAndGo(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	const keys = 12
	want := map[string][]string{}
	stops := []func(){e.run("g", record("g"))}
	for round := range 6 {
		for i := range 200 {
			key := fmt.Sprint("k", i%keys)
			ev := newEvent(key)
			want[key] = append(want[key], ev.GetId())
			e.write(e.message(key, ev))
		}
		if round%2 == 0 {
			stops = append(stops, e.run("g", record("g")))
		} else {
			stops[0]()
			stops = stops[1:]
		}
	}
	e.consumed("g")
	for key, ids := range want {
		rows, err := e.pool.Query(t.Context(), "SELECT event_id FROM effect WHERE key = $1 ORDER BY no", key)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := pgx.CollectRows(rows, pgx.RowTo[string]); err != nil || !slices.Equal(got, ids) {
			t.Fatalf("%s: %d effects, want %d in order; %v", key, len(got), len(ids), err)
		}
	}
}

func TestTheTraceGoesFromCauseToEffect(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	got := make(chan trace.SpanContext, 1)
	e.run("g", func(ctx context.Context, _ pgx.Tx, _ *eventv1.Event) error {
		got <- trace.SpanContextFromContext(ctx)
		return nil
	})
	cause := trace.NewSpanContext(trace.SpanContextConfig{
		TraceID: trace.TraceID{1, 2, 3}, SpanID: trace.SpanID{4, 5}, TraceFlags: trace.FlagsSampled,
	})
	ctx := trace.ContextWithSpanContext(t.Context(), cause)
	r := outbox.NewRelay(e.pool, e.writer, "consumer", slog.New(slog.NewTextHandler(t.Output(), nil)), nil)
	relaying, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { _ = r.Run(relaying) })
	defer wg.Wait()
	defer cancel()
	if err := pg.InTx(ctx, e.pool, func(tx pgx.Tx) error {
		ev, err := outbox.NewEvent(time.Now())
		if err != nil {
			return err
		}
		ev.Payload = newEvent("k").GetPayload()
		return outbox.Insert(ctx, tx, outbox.Message{Topic: kafka.AccountsTopic, Key: "k", Events: []*eventv1.Event{ev}})
	}); err != nil {
		t.Fatal(err)
	}
	r.Wake()
	select {
	case sc := <-got:
		if sc.TraceID() != cause.TraceID() || !sc.IsSampled() {
			t.Fatalf("trace %s, want %s", sc.TraceID(), cause.TraceID())
		}
	case <-time.After(30 * time.Second):
		t.Fatal("nothing came")
	}
}

func TestOldInboxRowsGo(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	if _, err := e.pool.Exec(t.Context(), `INSERT INTO inbox
		SELECT 'g', gen_random_uuid(), now() - make_interval(days => n) FROM generate_series(0, 29) n`); err != nil {
		t.Fatal(err)
	}
	n, err := kafka.PruneInbox(t.Context(), e.pool, "g", time.Now().Add(-14*24*time.Hour))
	if err != nil || n != 16 {
		t.Fatalf("pruned %d, %v", n, err)
	}
}

// Topics keep events for a week and dead letters for a month, on brokers with any default.
func TestTopicsForget(t *testing.T) {
	t.Parallel()
	brokers, prefix := testenv.Kafka(t)
	cfg := kafka.Config{Brokers: brokers, TopicPrefix: prefix}
	if err := kafka.EnsureTopics(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
	transport := cfg.Transport("test")
	defer transport.CloseIdleConnections()
	client := &kafkago.Client{Addr: kafkago.TCP(brokers...), Transport: transport}
	for _, topic := range kafka.Topics() {
		for name, want := range map[string]string{topic: "604800000", topic + kafka.DeadLetterSuffix: "2592000000"} {
			res, err := client.DescribeConfigs(t.Context(), &kafkago.DescribeConfigsRequest{Resources: []kafkago.DescribeConfigRequestResource{
				{ResourceType: kafkago.ResourceTypeTopic, ResourceName: prefix + name, ConfigNames: []string{"retention.ms"}},
			}})
			if err != nil {
				t.Fatal(err)
			}
			if c := res.Resources[0].ConfigEntries; len(c) != 1 || c[0].ConfigValue != want {
				t.Errorf("%s: %+v, want %s ms", name, c, want)
			}
		}
	}
}
