package outbox_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	kafkago "github.com/segmentio/kafka-go"
	"google.golang.org/protobuf/proto"

	"waitlist.internal/libs/devservers"
	"waitlist.internal/libs/kafka"
	"waitlist.internal/libs/outbox"
	"waitlist.internal/libs/pg"
	"waitlist.internal/libs/testenv"
	eventv1 "waitlist.internal/proto/gen/waitlist/event/v1"
)

func TestMain(m *testing.M) { testenv.Main(m) }

const schema = "producer"

// database returns a pool on a schema with an outbox.
func database(t testing.TB) *pgxpool.Pool {
	t.Helper()
	return openDatabase(t, testenv.Postgres(t))
}

func openDatabase(t testing.TB, url string) *pgxpool.Pool {
	t.Helper()
	pool, err := pg.Open(t.Context(), url, schema, 20)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	if _, err := pool.Exec(t.Context(), "CREATE SCHEMA IF NOT EXISTS "+schema+"; "+outbox.Schema); err != nil {
		t.Fatal(err)
	}
	return pool
}

// log is a Kafka in memory. fail, if set, decides about each call before it is
// written; lose says that it is written, and the acknowledgement lost.
type log struct {
	mu    sync.Mutex
	byKey map[string][]string
	calls int
	fail  func(msgs []kafkago.Message) error
	after func()
	lose  func() bool
}

var errAway = errors.New("kafka is away")

func (l *log) WriteMessages(_ context.Context, msgs ...kafkago.Message) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.calls++
	var err error
	if l.fail != nil {
		err = l.fail(msgs)
	}
	partial, _ := errors.AsType[kafkago.WriteErrors](err)
	if err != nil && partial == nil {
		return err
	}
	for i, m := range msgs {
		if partial != nil && partial[i] != nil {
			continue
		}
		var ev eventv1.Event
		if e := proto.Unmarshal(m.Value, &ev); e != nil {
			return e
		}
		if l.byKey == nil {
			l.byKey = map[string][]string{}
		}
		l.byKey[string(m.Key)] = append(l.byKey[string(m.Key)], ev.GetId())
	}
	if l.after != nil {
		l.after()
	}
	if l.lose != nil && l.lose() {
		return errAway
	}
	return err
}

// first returns the events of key in the order of their first delivery.
func (l *log) first(key string) []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var out []string
	seen := map[string]bool{}
	for _, id := range l.byKey[key] {
		if !seen[id] {
			seen[id] = true
			out = append(out, id)
		}
	}
	return out
}

func (l *log) has(key, id string) bool { return slices.Contains(l.first(key), id) }

func event(id string) *eventv1.Event { return &eventv1.Event{Id: id} }

func message(key string, ids ...string) outbox.Message {
	m := outbox.Message{Topic: kafka.SignupsTopic, Key: key}
	for _, id := range ids {
		m.Events = append(m.Events, event(id))
	}
	return m
}

func insert(t testing.TB, pool *pgxpool.Pool, msgs ...outbox.Message) {
	t.Helper()
	if err := pg.InTx(t.Context(), pool, func(tx pgx.Tx) error { return outbox.Insert(t.Context(), tx, msgs...) }); err != nil {
		t.Fatal(err)
	}
}

// start runs a relay and returns it with a function that stops it and waits.
func start(t testing.TB, pool *pgxpool.Pool, w outbox.Writer) (*outbox.Relay, func()) {
	t.Helper()
	r := outbox.NewRelay(pool, w, schema, slog.New(slog.NewTextHandler(t.Output(), nil)), nil)
	return r, testenv.Run(t, r.Run)
}

// The gauges of an outbox go with the leadership of their relay: another replica has them then.
func TestGaugesGoWithTheLeader(t *testing.T) {
	pool := database(t)
	var l log
	reg := prometheus.NewRegistry()
	r := outbox.NewRelay(pool, &l, schema, slog.New(slog.NewTextHandler(t.Output(), nil)), reg)
	stop := testenv.Run(t, r.Run)
	names := func() (names []string) {
		families, err := reg.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range families {
			names = append(names, f.GetName())
		}
		return names
	}
	always := []string{"outbox_failures_total", "outbox_leader", "outbox_published_total"}
	testenv.Eventually(t, "the leader measures", func() bool {
		return slices.Equal(names(), []string{
			"outbox_failures_total", "outbox_leader", "outbox_oldest_seconds", "outbox_published_total", "outbox_rows",
		})
	})
	stop()
	if got := names(); !slices.Equal(got, always) {
		t.Errorf("after the end: %v, want %v", got, always)
	}
}

func left(t testing.TB, pool *pgxpool.Pool) (rows, parked int) {
	t.Helper()
	if err := pool.QueryRow(context.Background(), "SELECT count(*), count(parked_at) FROM outbox").Scan(&rows, &parked); err != nil {
		t.Fatal(err)
	}
	return rows, parked
}

func drained(t testing.TB, pool *pgxpool.Pool) {
	t.Helper()
	testenv.Eventually(t, "outbox drained", func() bool { rows, _ := left(t, pool); return rows == 0 })
}

func TestRowsThatCommitLateWithALowerIDAreFound(t *testing.T) {
	pool := database(t)
	var l log
	r, _ := start(t, pool, &l)
	late, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer late.Rollback(context.Background()) //nolint:errcheck // after the commit it does nothing
	if err := outbox.Insert(t.Context(), late, message("a", "early id, late commit")); err != nil {
		t.Fatal(err)
	}
	for i := range 5 {
		insert(t, pool, message("b", fmt.Sprint(i)))
		r.Wake()
		testenv.Eventually(t, "the later id is published", func() bool { return l.has("b", fmt.Sprint(i)) })
	}
	if err := late.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, "the lower id is published", func() bool { return l.has("a", "early id, late commit") })
	drained(t, pool)
}

// sweeps has the times at which a relay's sweeps begin: each measures the outbox first.
type sweeps struct {
	mu sync.Mutex
	at []time.Time
}

// TraceQueryStart implements pgx.QueryTracer.
func (s *sweeps) TraceQueryStart(ctx context.Context, _ *pgx.Conn, q pgx.TraceQueryStartData) context.Context {
	if strings.Contains(q.SQL, "parked_at IS NOT NULL") {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.at = append(s.at, time.Now())
	}
	return ctx
}

// TraceQueryEnd implements pgx.QueryTracer.
func (s *sweeps) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

func (s *sweeps) times() []time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.at)
}

// A relay without work sweeps after 1, 2 and 4 seconds, and soon after it was woken.
func TestAnIdleRelaySweepsLessOften(t *testing.T) {
	t.Parallel()
	cfg, seen := database(t).Config(), &sweeps{}
	cfg.ConnConfig.Tracer = seen
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	r, stop := start(t, pool, &log{})
	defer stop()
	const rests = 3
	testenv.Within(t, time.Minute, "the relay rests longest", func() bool { return len(seen.times()) == rests+1 })
	r.Wake()
	testenv.Within(t, time.Minute, "the relay sweeps once more", func() bool { return len(seen.times()) > rests+1 })
	at := seen.times()
	for i, shortest := range [rests]time.Duration{time.Second, 2 * time.Second, 4 * time.Second} {
		if pause := at[i+1].Sub(at[i]); pause < shortest {
			t.Errorf("sweep %d came after %s, want at least %s", i+2, pause, shortest)
		}
	}
	if pause := at[rests+1].Sub(at[rests]); pause >= 4*time.Second {
		t.Errorf("the sweep after a wake-up came after %s", pause)
	}
}

// A transaction that stays open, with CHAOS=full for three minutes, keeps every deleted row's
// index entry alive and its own xid in progress; neither may stop the rest. Its own event comes
// once it ends.
func TestALongTransactionStopsNothing(t *testing.T) {
	pool := database(t)
	var l log
	r, _ := start(t, pool, &l)
	long, err := pool.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
	if err != nil {
		t.Fatal(err)
	}
	defer long.Rollback(context.Background()) //nolint:errcheck // ends it
	// The pool's sessions may not be idle for so long.
	if _, err := long.Exec(t.Context(), "SET LOCAL idle_in_transaction_session_timeout = 0"); err != nil {
		t.Fatal(err)
	}
	if err := outbox.Insert(t.Context(), long, message("long", "x")); err != nil {
		t.Fatal(err)
	}
	const batch = 100
	open, pause := time.Now(), time.NewTicker(100*time.Millisecond)
	defer pause.Stop()
	if os.Getenv("CHAOS") == "full" {
		open = open.Add(3 * time.Minute)
	}
	i := 0
	for ; i < 50 || time.Now().Before(open); i++ {
		if i >= 50 {
			<-pause.C
		}
		var msgs []outbox.Message
		for j := range batch {
			msgs = append(msgs, message(fmt.Sprint("k", j%7), fmt.Sprint(i, "/", j)))
		}
		insert(t, pool, msgs...)
		r.Wake()
	}
	drained(t, pool)
	n := 0
	for j := range 7 {
		n += len(l.first(fmt.Sprint("k", j)))
	}
	if n != i*batch {
		t.Fatalf("%d of %d published", n, i*batch)
	}
	t.Logf("%d rows passed", n)
	if err := long.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	drained(t, pool)
	if got := l.first("long"); len(got) != 1 {
		t.Fatalf("of the long transaction %v came", got)
	}
}

// The connection dies after Kafka has the events and before their rows are
// deleted: they come again, and their first deliveries are in order.
func TestKilledBetweenPublishAndDelete(t *testing.T) {
	pool := database(t)
	var l log
	kills := 3
	l.after = func() {
		if kills == 0 {
			return
		}
		kills--
		if _, err := pool.Exec(
			context.Background(),
			"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = $1",
			schema+" outbox relay",
		); err != nil {
			t.Error(err)
		}
	}
	var want []string
	for i := range 20 {
		want = append(want, fmt.Sprint(i))
		insert(t, pool, message("k", want[i]))
	}
	start(t, pool, &l)
	drained(t, pool)
	if got := l.first("k"); !slices.Equal(got, want) {
		t.Fatalf("first deliveries %v", got)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if kills != 0 || len(l.byKey["k"]) < 2*len(want) {
		t.Fatalf("%d kills missing, %d deliveries", kills, len(l.byKey["k"]))
	}
}

func TestTwoRelaysHandOver(t *testing.T) {
	pool := database(t)
	var l log
	first, stopFirst := start(t, pool, &l)
	insert(t, pool, message("k", "0"))
	first.Wake()
	testenv.Eventually(t, "the first leads", func() bool { return l.has("k", "0") })
	second, stopSecond := start(t, pool, &l)

	// The stand-by's wakes reach the leader: at its sweeps alone, one a second,
	// these would take 30 s.
	begin := time.Now()
	want := []string{"0"}
	for i := 1; i <= 30; i++ {
		want = append(want, fmt.Sprint(i))
		insert(t, pool, message("k", want[i]))
		second.Wake()
		testenv.Eventually(t, "published", func() bool { return l.has("k", want[i]) })
	}
	if d := time.Since(begin); d > 20*time.Second {
		t.Fatalf("wakes of the stand-by did not reach the leader: %v", d)
	}
	for i := 31; i <= 300; i++ {
		want = append(want, fmt.Sprint(i))
		insert(t, pool, message("k", want[i]))
		first.Wake()
		second.Wake()
		if i == 150 {
			stopFirst()
		}
	}
	drained(t, pool)
	stopSecond()
	// Nothing failed, and one publishes at a time: no event came twice.
	if got := l.byKey["k"]; !slices.Equal(got, want) {
		t.Fatalf("deliveries %v", got)
	}
}

// Writers take a lock by key, as services do; Kafka fails in every way it can,
// for a key's partition alone, for a whole call, or after it has written.
// A follower passes wake-ups on, and publishes nothing even while nobody leads.
// The leader's session breaks after a write to Kafka, before the rows are deleted, again and
// again, while a transaction stays open, ids commit in another order and another relay stands by.
func TestTwoRelaysKilledUnderLoad(t *testing.T) {
	pool := database(t)
	if _, err := pool.Exec(t.Context(), "CREATE TABLE parent (key text PRIMARY KEY, n int NOT NULL DEFAULT 0)"); err != nil {
		t.Fatal(err)
	}
	long, err := pool.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
	if err != nil {
		t.Fatal(err)
	}
	defer long.Rollback(context.Background()) //nolint:errcheck // after the commit it does nothing
	if err := outbox.Insert(t.Context(), long, message("long", "x")); err != nil {
		t.Fatal(err)
	}
	const keys, writers, each = 5, 8, 40
	rng := rand.New(rand.NewPCG(testenv.Seed(t), 1))
	kills := 0
	var l log
	l.after = func() {
		if kills == 8 || rng.IntN(2) == 0 {
			return
		}
		kills++
		// Of the two sessions, the leader's alone has the lock.
		if _, err := pool.Exec(context.Background(), `SELECT pg_terminate_backend(pid) FROM pg_locks
			WHERE locktype = 'advisory' AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`); err != nil {
			t.Error(err)
		}
	}
	first, _ := start(t, pool, &l)
	second, _ := start(t, pool, &l)
	var wg sync.WaitGroup
	for w := range writers {
		wg.Go(func() {
			for i := range each {
				key := fmt.Sprint("k", (w+i)%keys)
				err := pg.InTx(t.Context(), pool, func(tx pgx.Tx) error {
					var n int
					if err := tx.QueryRow(t.Context(),
						"INSERT INTO parent (key, n) VALUES ($1, 1) ON CONFLICT (key) DO UPDATE SET n = parent.n + 1 RETURNING n", key,
					).Scan(&n); err != nil {
						return err
					}
					if err := outbox.Insert(t.Context(), tx, message(key, fmt.Sprint(n-1))); err != nil {
						return err
					}
					// Ids of other keys overtake this one.
					_, err := tx.Exec(t.Context(), "SELECT pg_sleep(0.01 * ($1 % 3))", w)
					return err
				})
				if err != nil {
					t.Error(err)
				}
				first.Wake()
				second.Wake()
			}
		})
	}
	wg.Wait()
	testenv.Eventually(t, "all but the open transaction's is published", func() bool { rows, _ := left(t, pool); return rows == 0 })
	if err := long.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, "the lowest id is published", func() bool { return l.has("long", "x") })
	drained(t, pool)
	for k := range keys {
		var want []string
		for i := range writers * each / keys {
			want = append(want, fmt.Sprint(i))
		}
		if got := l.first(fmt.Sprint("k", k)); !slices.Equal(got, want) {
			t.Fatalf("key %d: %v", k, got)
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if kills < 8 {
		t.Errorf("the leader was killed %d times only", kills)
	}
	t.Logf("%d writes to Kafka, %d kills of the leader", l.calls, kills)
}

// The hold of a topic ends in the middle of a sweep of several pages. What the first of them had
// of the topic still goes out before what the next ones have.
func TestAHoldThatEndsInASweep(t *testing.T) {
	pool := database(t)
	calls := map[string]int{}
	l := log{fail: func(msgs []kafkago.Message) error {
		topic := msgs[0].Topic
		calls[topic]++
		switch {
		case topic == kafka.SignupsTopic && calls[topic] <= 2, topic == kafka.AccountsTopic && calls[topic] == 1:
			return errAway
		case topic == kafka.AccountsTopic && calls[topic] == 2:
			<-time.After(time.Second) // longer than the second hold of the other topic
		}
		return nil
	}}
	var want []string
	var msgs []outbox.Message
	to := func(topic, id string) outbox.Message {
		m := message(topic, id)
		m.Topic = topic
		return m
	}
	for i := range 1500 {
		want = append(want, fmt.Sprint(i))
		msgs = append(msgs, message("k", want[i]), to(kafka.AccountsTopic, want[i]))
	}
	insert(t, pool, append(msgs, to("waitlist.others.v1", "last"))...)
	start(t, pool, &l)
	drained(t, pool)
	if got := l.first("k"); !slices.Equal(got, want) {
		t.Fatalf("published %v", got)
	}
}

func TestAFollowerNeverLeads(t *testing.T) {
	url := testenv.Postgres(t)
	pool := openDatabase(t, url)
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	if _, err := conn.Exec(t.Context(), "LISTEN outbox_"+schema); err != nil {
		t.Fatal(err)
	}
	var own, leaders log
	follower := outbox.NewRelay(pool, &own, schema, slog.New(slog.DiscardHandler), nil)
	testenv.Run(t, follower.Forward)
	insert(t, pool, message("k", "0"))
	follower.Wake()
	patient, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if _, err := conn.WaitForNotification(patient); err != nil {
		t.Fatalf("the wake-up was not passed on: %v", err)
	}
	start(t, pool, &leaders)
	drained(t, pool)
	if own.calls != 0 || !leaders.has("k", "0") {
		t.Errorf("the follower published %d times", own.calls)
	}
}

func TestOrderByKeyWithFailures(t *testing.T) {
	pool := database(t)
	if _, err := pool.Exec(t.Context(), "CREATE TABLE parent (key text PRIMARY KEY, n int NOT NULL DEFAULT 0)"); err != nil {
		t.Fatal(err)
	}
	const keys, writers, each = 5, 8, 60
	rng := rand.New(rand.NewPCG(testenv.Seed(t), 1))
	l := log{
		fail: func(msgs []kafkago.Message) error {
			switch rng.IntN(8) {
			case 0:
				return errAway
			case 1, 2:
				// Kafka's unit is the partition.
				bad, werr := fmt.Sprint("k", rng.IntN(keys)), make(kafkago.WriteErrors, len(msgs))
				for i, m := range msgs {
					if string(m.Key) == bad {
						werr[i] = kafkago.NotLeaderForPartition
					}
				}
				if werr.Count() > 0 {
					return werr
				}
			}
			return nil
		},
		lose: func() bool { return rng.IntN(8) == 0 },
	}
	r, _ := start(t, pool, &l)
	var wg sync.WaitGroup
	for w := range writers {
		wg.Go(func() {
			for i := range each {
				key := fmt.Sprint("k", (w+i)%keys)
				err := pg.InTx(t.Context(), pool, func(tx pgx.Tx) error {
					var n int
					if err := tx.QueryRow(
						t.Context(),
						"INSERT INTO parent (key, n) VALUES ($1, 2) ON CONFLICT (key) DO UPDATE SET n = parent.n + 2 RETURNING n",
						key,
					).Scan(
						&n,
					); err != nil {
						return err
					}
					return outbox.Insert(t.Context(), tx, message(key, fmt.Sprint(n-2), fmt.Sprint(n-1)))
				})
				if err != nil {
					t.Error(err)
				}
				r.Wake()
			}
		})
	}
	wg.Wait()
	drained(t, pool)
	for k := range keys {
		var want []string
		for i := range 2 * writers * each / keys {
			want = append(want, fmt.Sprint(i))
		}
		if got := l.first(fmt.Sprint("k", k)); !slices.Equal(got, want) {
			t.Fatalf("key %d: %v", k, got)
		}
	}
}

func TestUnsendableRowsAreParked(t *testing.T) {
	pool := database(t)
	l := log{fail: func(msgs []kafkago.Message) error {
		// What the broker says when its limit is below the client's: the whole
		// partition's batch is refused.
		werr := make(kafkago.WriteErrors, len(msgs))
		for _, m := range msgs {
			if strings.Contains(string(m.Value), "poison") {
				for i := range werr {
					werr[i] = kafkago.MessageSizeTooLarge
				}
				return werr
			}
		}
		return nil
	}}
	var want []string
	for i := range 100 {
		id := fmt.Sprint(i)
		if i%20 == 7 {
			id = "poison" + id
		} else {
			want = append(want, id)
		}
		insert(t, pool, message("k", id))
	}
	r, _ := start(t, pool, &l)
	testenv.Eventually(t, "only parked rows are left", func() bool { rows, parked := left(t, pool); return rows == 5 && parked == 5 })
	if got := l.first("k"); !slices.Equal(got, want) {
		t.Fatalf("published %v", got)
	}
	var reason string
	if err := pool.QueryRow(
		t.Context(),
		"SELECT DISTINCT error FROM outbox",
	).Scan(
		&reason,
	); err != nil ||
		!strings.Contains(reason, "Too Large") {
		t.Fatalf("reason %q, %v", reason, err)
	}
	// The limit was raised.
	l.mu.Lock()
	l.fail = nil
	l.mu.Unlock()
	if _, err := pool.Exec(t.Context(), "UPDATE outbox SET parked_at = NULL, error = ''"); err != nil {
		t.Fatal(err)
	}
	r.Wake()
	drained(t, pool)
	if got := l.first("k"); len(got) != 100 {
		t.Fatalf("%d published after the release", len(got))
	}
}

// broker returns a Kafka with the suite's topics, and what reads one of them.
func broker(t testing.TB) (kafka.Config, func(topic string, n int) []kafkago.Message) {
	t.Helper()
	brokers, prefix := testenv.Kafka(t)
	cfg := kafka.Config{Brokers: brokers, TopicPrefix: prefix}
	if err := kafka.EnsureTopics(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
	return cfg, func(topic string, n int) []kafkago.Message {
		t.Helper()
		r := kafkago.NewReader(kafkago.ReaderConfig{
			Brokers: brokers, GroupID: prefix + "test", Topic: prefix + topic, MaxWait: time.Second, StartOffset: kafkago.FirstOffset,
			Dialer: &kafkago.Dialer{}, JoinGroupBackoff: 100 * time.Millisecond,
		})
		defer func() {
			if err := r.Close(); err != nil {
				t.Error(err)
			}
		}()
		ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
		defer cancel()
		var msgs []kafkago.Message
		for len(msgs) < n {
			m, err := r.FetchMessage(ctx)
			if errors.Is(err, kafkago.NotCoordinatorForGroup) || errors.Is(err, kafkago.GroupCoordinatorNotAvailable) {
				continue // the group is new to the broker
			}
			if err != nil {
				t.Fatalf("read message %d of %d: %v", len(msgs), n, err)
			}
			msgs = append(msgs, m)
		}
		return msgs
	}
}

func kafkaWriter(t testing.TB, cfg kafka.Config) *kafka.Writer {
	t.Helper()
	w := kafka.NewWriter(cfg)
	t.Cleanup(func() {
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	})
	return w
}

func TestRowsOfManyEventsReachKafkaInOrder(t *testing.T) {
	pool := database(t)
	cfg, read := broker(t)
	w := kafkaWriter(t, cfg)
	var ids []string
	big := message("k")
	for i := range 6000 { // more than one batch holds
		ids = append(ids, fmt.Sprintf("%0300d", i))
		big.Events = append(big.Events, event(ids[i]))
	}
	ids = append(ids, "after", "and after")
	// Too large for any batch: parked, and nothing waits for it.
	insert(t, pool, big, message("k", strings.Repeat("x", 2<<20)), message("k", "after", "and after"))
	start(t, pool, w)
	got := read(kafka.SignupsTopic, len(ids))
	for i, m := range got {
		var ev eventv1.Event
		if err := proto.Unmarshal(m.Value, &ev); err != nil || ev.GetId() != ids[i] || string(m.Key) != "k" {
			t.Fatalf("message %d: %v, %v", i, ev.GetId(), err)
		}
	}
	testenv.Eventually(t, "the row is parked", func() bool { rows, parked := left(t, pool); return rows == 1 && parked == 1 })
}

func TestAnUnknownTopicBlocksNoOther(t *testing.T) {
	pool := database(t)
	cfg, read := broker(t)
	w := kafkaWriter(t, cfg)
	for range 20 {
		insert(t, pool, outbox.Message{Topic: "nobody.made.this", Key: "k", Events: []*eventv1.Event{event("x")}}, message("k", "y"))
	}
	r, _ := start(t, pool, w)
	read(kafka.SignupsTopic, 20)
	testenv.Eventually(t, "the others are gone", func() bool { rows, parked := left(t, pool); return rows == 20 && parked == 0 })
	insert(t, pool, message("k", "z"))
	r.Wake()
	read(kafka.SignupsTopic, 1)
}

func TestKafkaAwayIsWaitedOut(t *testing.T) {
	pool := database(t)
	dir := t.TempDir()
	k, err := devservers.StartKafka(t.Context(), devservers.KafkaOptions{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	cfg := kafka.Config{Brokers: k.Brokers}
	w := kafkaWriter(t, cfg)
	r, stop := start(t, pool, w)
	insert(t, pool, message("k", "before"))
	r.Wake()
	drained(t, pool)
	k.Kill()
	for i := range 50 {
		insert(t, pool, message("k", fmt.Sprint(i)))
		r.Wake()
	}
	var port int
	if _, err := fmt.Sscanf(k.Brokers[0], "127.0.0.1:%d", &port); err != nil {
		t.Fatal(err)
	}
	if k, err = devservers.StartKafka(t.Context(), devservers.KafkaOptions{Dir: dir, Port: port}); err != nil {
		t.Fatal(err)
	}
	drained(t, pool)
	stop()
	if err := k.Stop(); err != nil {
		t.Error(err)
	}
}

func TestPostgresAwayIsWaitedOut(t *testing.T) {
	dir := t.TempDir()
	server := testenv.PostgresServer(t, devservers.PostgresOptions{Dir: dir})
	pool := openDatabase(t, server.URL("postgres"))
	var l log
	r, _ := start(t, pool, &l)
	insert(t, pool, message("k", "before"))
	r.Wake()
	drained(t, pool)
	port := server.Port()
	server.Kill()
	testenv.PostgresServer(t, devservers.PostgresOptions{Dir: dir, Port: port})
	testenv.Eventually(t, "insert", func() bool {
		return pg.InTx(t.Context(), pool, func(tx pgx.Tx) error { return outbox.Insert(t.Context(), tx, message("k", "after")) }) == nil
	})
	r.Wake()
	testenv.Eventually(t, "published after the restart", func() bool { return l.has("k", "after") })
}

func TestRelayStopsWhileNothingWorks(t *testing.T) {
	pool := database(t)
	_, stop := start(t, pool, &log{fail: func([]kafkago.Message) error { return errAway }})
	insert(t, pool, message("k", "x"))
	stop()
	if rows, _ := left(t, pool); rows != 1 {
		t.Fatalf("%d rows", rows)
	}
}

// BenchmarkRelay measures events/s from the table to Kafka.
func BenchmarkRelay(b *testing.B) {
	for _, perRow := range []int{1, 50} {
		b.Run(fmt.Sprintf("eventsPerRow=%d", perRow), func(b *testing.B) {
			pool := database(b)
			cfg, _ := broker(b)
			w := kafkaWriter(b, cfg)
			const events = 50_000
			for b.Loop() {
				b.StopTimer()
				n := 0
				for n < events {
					var msgs []outbox.Message
					for range 1000 / perRow {
						m := message(fmt.Sprint("key", n%64))
						for range perRow {
							m.Events = append(m.Events, event(fmt.Sprintf("%0250d", n)))
							n++
						}
						msgs = append(msgs, m)
					}
					insert(b, pool, msgs...)
				}
				b.StartTimer()
				_, stop := start(b, pool, w)
				testenv.Eventually(b, "outbox drained", func() bool {
					var empty bool
					if err := pool.QueryRow(b.Context(), "SELECT NOT EXISTS (SELECT FROM outbox)").Scan(&empty); err != nil {
						b.Fatal(err)
					}
					return empty
				})
				b.StopTimer()
				stop()
				b.StartTimer()
			}
			b.ReportMetric(float64(events*b.N)/b.Elapsed().Seconds(), "events/s")
		})
	}
}
