// Package kafkatest has helpers for tests of consumers, above all TakesPoison,
// which every consumer must pass.
package kafkatest

import (
	"context"
	"errors"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	kafkago "github.com/segmentio/kafka-go"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"waitlist.internal/libs/kafka"
	eventv1 "waitlist.internal/proto/gen/waitlist/event/v1"
)

// patience bounds the wait for each step; a failing event takes three seconds.
const patience = time.Minute

// Consumer is a running consumer and the statements that show its effects.
type Consumer struct {
	kafka.Config
	// Group and Topic have no prefix.
	Group, Topic string
	// Pool reaches the schema with the inbox and the effects.
	Pool *pgxpool.Pool
	// Event returns an event about the object with an id, such as an account. The
	// consumer can never handle an id that is not a UUID.
	Event func(id string) *eventv1.Event
	// Effects is a statement that returns, as text, the id of the object of each
	// effect, once per effect.
	Effects string
	// Undo is a statement that undoes all effects.
	Undo string
}

// TakesPoison publishes to one partition messages that the consumer cannot decode,
// does not know, can never handle and cannot handle yet, among good events. The good
// events must have their effect, and the others must become dead letters. A replay
// must handle the events whose cause of failure has gone, and no event twice.
func TakesPoison(t *testing.T, c Consumer) {
	t.Helper()
	if err := kafka.EnsureTopics(t.Context(), c.Config); err != nil {
		t.Fatal(err)
	}
	first, last, late := uuid.NewString(), uuid.NewString(), uuid.NewString()
	before, behind := c.message(t, c.Event(first)), c.message(t, c.Event(last))
	undecodable := kafkago.Message{Topic: c.Topic, Key: before.Key, Value: []byte("\xff")}
	unknown, never := c.message(t, &eventv1.Event{}), c.message(t, c.Event("no UUID"))
	event := c.Event(late)
	delayed := c.message(t, event)
	c.exec(t, `ALTER TABLE inbox ADD CONSTRAINT "`+late+`" CHECK (event_id <> '`+event.GetId()+`')`)

	c.write(t, before, undecodable, unknown, never, delayed, behind, before)
	c.wait(t)
	c.check(t, first, last)
	reasons := map[string]string{
		string(undecodable.Value): "undecodable", string(unknown.Value): "unknown_version",
		string(never.Value): "constraint", string(delayed.Value): "constraint",
	}
	letters := c.checkLetters(t, "1", reasons)

	c.exec(t, `ALTER TABLE inbox DROP CONSTRAINT "`+late+`"`)
	if n, err := kafka.Replay(t.Context(), c.Config, c.Topic); err != nil || n != letters {
		t.Errorf("replayed %d, %v; want %d", n, err, letters)
	}
	c.wait(t)
	c.check(t, first, last, late)
	delete(reasons, string(delayed.Value))
	c.checkLetters(t, "2", reasons)

	// This also shows repeated effects that would otherwise be invisible.
	c.exec(t, c.Undo)
	c.write(t, before, delayed, behind)
	c.wait(t)
	c.check(t)
}

// message completes an event. All messages go to one partition.
func (c Consumer) message(t *testing.T, ev *eventv1.Event) kafkago.Message {
	t.Helper()
	ev.Id, ev.OccurredAt = uuid.Must(uuid.NewV7()).String(), timestamppb.Now()
	b, err := proto.Marshal(ev)
	if err != nil {
		t.Fatal(err)
	}
	return kafkago.Message{Topic: c.Topic, Key: []byte("k"), Value: b}
}

func (c Consumer) exec(t *testing.T, statement string) {
	t.Helper()
	if _, err := c.Pool.Exec(t.Context(), statement); err != nil {
		t.Fatal(err)
	}
}

func (c Consumer) write(t *testing.T, msgs ...kafkago.Message) {
	t.Helper()
	w := kafka.NewWriter(c.Config)
	defer func() {
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	}()
	// One partition takes all messages or none. It may have no leader yet.
	eventually(t, "messages are written", func() error { return w.WriteMessages(t.Context(), msgs...) })
}

// wait waits until the group has no lag.
func (c Consumer) wait(t *testing.T) {
	t.Helper()
	eventually(t, c.Group+" has consumed "+c.Topic, func() error {
		lag, err := kafka.Lag(t.Context(), c.Config, c.Group, c.Topic)
		if err == nil && lag[c.Topic] > 0 {
			err = errors.New("it lags behind")
		}
		return err
	})
}

func (c Consumer) check(t *testing.T, want ...string) {
	t.Helper()
	rows, err := c.Pool.Query(t.Context(), c.Effects)
	if err != nil {
		t.Fatal(err)
	}
	got, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("effects on %q, want %q", got, want)
	}
}

// checkLetters compares the dead letters of one attempt with the expected reason of
// each value, and returns their number: a message may have two letters if the group
// rebalanced in between.
func (c Consumer) checkLetters(t *testing.T, attempt string, want map[string]string) (n int) {
	t.Helper()
	got := map[string]string{}
	for _, m := range DeadLetters(t, c.Config, c.Topic) {
		h := Headers(m)
		if h[kafka.HeaderAttempt] != attempt {
			continue
		}
		n++
		got[string(m.Value)] = h[kafka.HeaderReason]
		if h[kafka.HeaderConsumer] != c.Group || h[kafka.HeaderTopic] != c.Topic {
			t.Errorf("headers of a dead letter: %v", h)
		}
	}
	if !maps.Equal(got, want) {
		t.Errorf("dead letters of attempt %s: %q, want %q", attempt, got, want)
	}
	return n
}

func eventually(t *testing.T, what string, try func() error) {
	t.Helper()
	deadline := time.After(patience)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for err := try(); err != nil; err = try() {
		select {
		case <-deadline:
			t.Fatalf("not within %s: %s: %v", patience, what, err)
		case <-tick.C:
		}
	}
}

// DeadLetters returns all dead letters of a topic, including replayed ones.
func DeadLetters(t testing.TB, cfg kafka.Config, topic string) []kafkago.Message {
	t.Helper()
	return Messages(t, cfg, topic+kafka.DeadLetterSuffix)
}

// Messages returns all messages of a topic.
func Messages(t testing.TB, cfg kafka.Config, topic string) []kafkago.Message {
	t.Helper()
	ctx := t.Context()
	dialer := &kafkago.Dialer{}
	conn, err := dialer.DialContext(ctx, "tcp", cfg.Brokers[0])
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	name := cfg.TopicPrefix + topic
	partitions, err := conn.ReadPartitions(name)
	if err != nil {
		t.Fatal(err)
	}
	var msgs []kafkago.Message
	for _, p := range partitions {
		part, err := readPartition(ctx, dialer, cfg.Brokers, name, p.ID)
		if err != nil {
			t.Fatal(err)
		}
		msgs = append(msgs, part...)
	}
	return msgs
}

func readPartition(
	ctx context.Context, dialer *kafkago.Dialer, brokers []string, topic string, partition int,
) (msgs []kafkago.Message, err error) {
	leader, err := dialer.DialLeader(ctx, "tcp", brokers[0], topic, partition)
	if err != nil {
		return nil, err
	}
	first, last, err := leader.ReadOffsets()
	_ = leader.Close()
	if err != nil {
		return nil, err
	}
	r := kafkago.NewReader(kafkago.ReaderConfig{Brokers: brokers, Topic: topic, Partition: partition, Dialer: dialer, MaxWait: time.Second})
	defer func() { err = errors.Join(err, r.Close()) }()
	for next := first; next < last; {
		m, err := r.FetchMessage(ctx)
		if err != nil {
			return nil, err
		}
		msgs, next = append(msgs, m), m.Offset+1
	}
	return msgs, nil
}

// Headers returns the headers of a message by key.
func Headers(m kafkago.Message) map[string]string {
	h := map[string]string{}
	for _, kv := range m.Headers {
		h[kv.Key] = string(kv.Value)
	}
	return h
}
