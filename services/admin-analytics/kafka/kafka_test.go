package kafka_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	kafkago "github.com/segmentio/kafka-go"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"waitlist.internal/libs/kafka"
	"waitlist.internal/libs/testenv"
	eventv1 "waitlist.internal/proto/gen/waitlist/event/v1"
	adminanalytics "waitlist.internal/services/admin-analytics"
	analyticskafka "waitlist.internal/services/admin-analytics/kafka"
	"waitlist.internal/services/admin-analytics/postgres"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// eventOf is the id of TestHandler's events.
const eventOf = "0193d4a2-5c1e-7a41-8000-0000000000ee"

// calls keeps what a handler does.
type calls struct{ got []string }

func (c *calls) Count(_ context.Context, _ pgx.Tx, counts ...adminanalytics.Count) error {
	for _, n := range counts {
		if n.EventID != eventOf {
			c.got = append(c.got, "event "+n.EventID)
		}
		c.got = append(c.got, fmt.Sprintf("%s %s v%d s%d r%d #%d %q %q %q", n.WaitlistID, n.Day.Format(time.RFC3339), n.Views, n.Signups,
			n.ReferralSignups, n.Number, n.Source, n.Medium, n.Campaign))
	}
	return nil
}

func (c *calls) Forget(_ context.Context, _ pgx.Tx, id string) error {
	c.got = append(c.got, "forget "+id)
	return nil
}

func TestHandler(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 3, 1, 23, 59, 59, 999_999_999, time.UTC)
	const on = "w 2026-03-01T00:00:00Z"
	for _, tt := range []struct {
		name string
		ev   *eventv1.Event
		want []string
	}{
		{"signup", &eventv1.Event{Payload: &eventv1.Event_SignupCreated{SignupCreated: &eventv1.SignupCreated{
			WaitlistId: "w", Number: 7, UtmSource: "s", UtmMedium: "m", UtmCampaign: "c",
		}}}, []string{on + ` v0 s1 r0 #7 "s" "m" "c"`}},
		{"referred", &eventv1.Event{Payload: &eventv1.Event_SignupCreated{SignupCreated: &eventv1.SignupCreated{
			WaitlistId: "w",
			Number:     8, Referred: true,
		}}}, []string{on + ` v0 s1 r1 #8 "" "" ""`}},
		{"import", &eventv1.Event{Payload: &eventv1.Event_SignupsImported{SignupsImported: &eventv1.SignupsImported{
			WaitlistId:  "w",
			FirstNumber: 9, LastNumber: 12,
		}}}, []string{on + ` v0 s4 r0 #12 "" "" ""`}},
		{"views", &eventv1.Event{Payload: &eventv1.Event_PageViewsCounted{PageViewsCounted: &eventv1.PageViewsCounted{
			WaitlistId: "w",
			Views:      5,
		}}}, []string{on + ` v5 s0 r0 #0 "" "" ""`}},
		{
			"deleted", &eventv1.Event{Payload: &eventv1.Event_WaitlistDeleted{WaitlistDeleted: &eventv1.WaitlistDeleted{WaitlistId: "w"}}},
			[]string{"forget w"},
		},
		{"removal", &eventv1.Event{Payload: &eventv1.Event_SignupRemoved{SignupRemoved: &eventv1.SignupRemoved{
			WaitlistId: "w",
			Number:     7,
		}}}, nil},
		{"credit", &eventv1.Event{Payload: &eventv1.Event_ReferralCredited{ReferralCredited: &eventv1.ReferralCredited{
			WaitlistId: "w",
			Number:     7,
		}}}, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			c := &calls{}
			tt.ev.Id, tt.ev.OccurredAt = eventOf, timestamppb.New(at)
			if err := analyticskafka.Handler(c)(t.Context(), nil, []*eventv1.Event{tt.ev}); err != nil {
				t.Fatal(err)
			}
			if analyticskafka.Wants(tt.ev) != (len(tt.want) > 0) {
				t.Errorf("wanted: %v", analyticskafka.Wants(tt.ev))
			}
			if !slices.Equal(c.got, tt.want) {
				t.Errorf("%q, want %q", c.got, tt.want)
			}
		})
	}
}

func event(t testing.TB, at time.Time, fill func(*eventv1.Event)) []byte {
	t.Helper()
	ev := &eventv1.Event{Id: uuid.NewString(), OccurredAt: timestamppb.New(at)}
	fill(ev)
	raw, err := proto.Marshal(ev)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

func views(id string, n int64) func(*eventv1.Event) {
	return func(e *eventv1.Event) {
		e.Payload = &eventv1.Event_PageViewsCounted{PageViewsCounted: &eventv1.PageViewsCounted{WaitlistId: id, Views: n}}
	}
}

// publish writes messages once each. A broker refuses those whose partition has
// no leader yet.
func publish(t *testing.T, w *kafka.Writer, msgs []kafkago.Message) {
	t.Helper()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for until := time.Now().Add(time.Minute); ; <-tick.C {
		err := w.WriteMessages(t.Context(), msgs...)
		if err == nil {
			return
		}
		if time.Now().After(until) {
			t.Fatal(err)
		}
		if each, ok := errors.AsType[kafkago.WriteErrors](err); ok {
			var left []kafkago.Message
			for i, err := range each {
				if err != nil {
					left = append(left, msgs[i])
				}
			}
			msgs = left
		}
	}
}

// TestLog: a log is read from its beginning to its end, and then on from there.
func TestLog(t *testing.T) {
	t.Parallel()
	brokers, prefix := testenv.Kafka(t)
	cfg := kafka.Config{Brokers: brokers, TopicPrefix: prefix, Partitions: 3}
	writer := kafka.NewWriter(cfg)
	defer func() {
		if err := writer.Close(); err != nil {
			t.Error(err)
		}
	}()
	if err := kafka.EnsureTopics(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
	log := analyticskafka.NewLog(cfg)
	read := func() (sum int64, lists map[string]bool) {
		t.Helper()
		lists = map[string]bool{}
		if err := log.Read(t.Context(), func(events []adminanalytics.ViewEvent) error {
			for _, e := range events {
				sum += e.Views
				lists[e.WaitlistID] = true
				if e.Day != time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC) || e.ID == "" {
					t.Errorf("%+v", e)
				}
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		return sum, lists
	}
	if sum, _ := read(); sum != 0 {
		t.Errorf("an empty log has %d views", sum)
	}
	if since := time.Since(log.Since()); since > time.Minute {
		t.Errorf("an empty log holds everything since %s", log.Since())
	}
	began := time.Now().Truncate(time.Millisecond)
	at := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	write := func(n int) {
		t.Helper()
		msgs := []kafkago.Message{{Topic: kafka.SignupsTopic, Key: []byte("w0"), Value: []byte("no event")}}
		for i := range n {
			id := fmt.Sprint("w", i%10)
			msgs = append(msgs,
				kafkago.Message{Topic: kafka.SignupsTopic, Key: []byte(id), Value: event(t, at, func(e *eventv1.Event) {
					e.Payload = &eventv1.Event_SignupCreated{SignupCreated: &eventv1.SignupCreated{WaitlistId: id}}
				})},
				// The newest message of each partition is a view.
				kafkago.Message{Topic: kafka.SignupsTopic, Key: []byte(id), Value: event(t, at, views(id, 1))})
		}
		for part := range slices.Chunk(msgs, kafka.MaxBatchMessages) {
			publish(t, writer, part)
		}
	}
	const many = 2500
	write(many)
	log = analyticskafka.NewLog(cfg)
	if sum, lists := read(); sum != many || len(lists) != 10 {
		t.Errorf("read %d views of %d waitlists", sum, len(lists))
	}
	if since := log.Since(); since.Before(began.Add(-time.Second)) || since.After(time.Now()) {
		t.Errorf("everything since %s", since)
	}
	if sum, _ := read(); sum != 0 {
		t.Errorf("read %d views again", sum)
	}
	write(30)
	if sum, _ := read(); sum != 30 {
		t.Errorf("read %d views more", sum)
	}
}

// TestConsumer: events in any order and any number of times, with deletions in
// between and restarts of the consumer, end in the same sums, from which the
// views can be made again.
func TestConsumer(t *testing.T) {
	t.Parallel()
	brokers, prefix := testenv.Kafka(t)
	cfg := kafka.Config{Brokers: brokers, TopicPrefix: prefix}
	pool := testenv.Migrated(t, postgres.Schema, 8, postgres.Migrations)
	store := postgres.New(pool)
	start := func() (stop func()) {
		consumer := kafka.NewConsumer(kafka.ConsumerConfig{
			Config: cfg, Group: adminanalytics.Name, Topics: []string{kafka.SignupsTopic}, Pool: pool,
			Batch: analyticskafka.Handler(store), Wants: analyticskafka.Wants, Logger: slog.New(slog.NewTextHandler(t.Output(), nil)),
		})
		return testenv.Run(t, consumer.Run)
	}
	writer := kafka.NewWriter(cfg)
	defer func() {
		if err := writer.Close(); err != nil {
			t.Error(err)
		}
	}()
	const lists, each = 5, 60
	ids := make([]string, lists)
	var msgs []kafkago.Message
	now := time.Now()
	for l := range ids {
		ids[l] = uuid.NewString()
		add := func(fill func(*eventv1.Event)) {
			msgs = append(msgs, kafkago.Message{Topic: kafka.SignupsTopic, Key: []byte(ids[l]), Value: event(t, now, fill)})
		}
		for n := range int64(each) {
			add(func(e *eventv1.Event) {
				e.Payload = &eventv1.Event_SignupCreated{SignupCreated: &eventv1.SignupCreated{
					WaitlistId: ids[l], Number: n + 1,
					UtmSource: fmt.Sprint("s", n%3), Referred: n%2 == 0,
				}}
			})
			add(views(ids[l], 2))
		}
		add(func(e *eventv1.Event) {
			e.Payload = &eventv1.Event_SignupsImported{SignupsImported: &eventv1.SignupsImported{
				WaitlistId: ids[l], FirstNumber: each + 1,
				LastNumber: 2 * each,
			}}
		})
	}
	// All three times, once in order, once backwards, and one list has gone.
	all := slices.Concat(msgs)
	slices.Reverse(msgs)
	all = append(all, msgs...)
	all = append(all, kafkago.Message{Topic: kafka.SignupsTopic, Key: []byte(ids[0]), Value: event(t, now, func(e *eventv1.Event) {
		e.Payload = &eventv1.Event_WaitlistDeleted{WaitlistDeleted: &eventv1.WaitlistDeleted{WaitlistId: ids[0]}}
	})})
	all = append(all, msgs...)
	all = append(all, kafkago.Message{Topic: kafka.SignupsTopic, Key: []byte(ids[0]), Value: event(t, now, views(ids[0], 1000))})
	stop := start()
	for part := range slices.Chunk(all, 300) {
		publish(t, writer, part)
		stop()
		stop = start()
	}
	read := func() (out []string) {
		rows, err := pool.Query(t.Context(), `
			SELECT format('%s views %s signups %s referred %s', waitlist_id, sum(views), sum(signups), sum(referral_signups))
				FROM day GROUP BY waitlist_id
			UNION ALL SELECT format('%s %s %s %s', waitlist_id, value, count, last_number) FROM utm_value ORDER BY 1`)
		if err != nil {
			t.Fatal(err)
		}
		if out, err = pgx.CollectRows(rows, pgx.RowTo[string]); err != nil {
			t.Fatal(err)
		}
		return out
	}
	var want []string
	for _, id := range ids[1:] {
		want = append(want, fmt.Sprintf("%s views %d signups %d referred %d", id, 2*each, 2*each, each/2))
		for s := range 3 {
			want = append(want, fmt.Sprintf("%s s%d %d %d", id, s, each/3, each-2+s))
		}
	}
	slices.Sort(want)
	settled := func() {
		t.Helper()
		deadline := time.NewTimer(time.Minute)
		defer deadline.Stop()
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for {
			lag, err := kafka.Lag(t.Context(), cfg, adminanalytics.Name, kafka.SignupsTopic)
			if err == nil && lag[kafka.SignupsTopic] == 0 {
				return
			}
			select {
			case <-deadline.C:
				t.Fatalf("lag %v, %v", lag, err)
			case <-tick.C:
			}
		}
	}
	settled()
	if err := store.Fold(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := store.PurgeOnce(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := read(); !slices.Equal(got, want) {
		t.Errorf("got %q\nwant %q", got, want)
	}

	// The views again, from the log, while the consumer runs and more comes.
	job := adminanalytics.Rebuild{Store: store, Now: time.Now, Log: slog.New(slog.DiscardHandler)}
	for _, damage := range []string{`UPDATE day SET views = 0`, `SELECT`} {
		if _, err := pool.Exec(t.Context(), damage); err != nil {
			t.Fatal(err)
		}
		if err := job.Views(t.Context(), "", analyticskafka.NewLog(cfg)); err != nil {
			t.Fatal(err)
		}
		if got := read(); !slices.Equal(got, want) {
			t.Errorf("after %q and a rebuild: got %q\nwant %q", damage, got, want)
		}
	}
	stop()
}
