package kafka

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"time"

	kafkago "github.com/segmentio/kafka-go"

	"waitlist.internal/libs/loop"
	"waitlist.internal/libs/pg"
	"waitlist.internal/libs/telemetry"
)

// The reasons for dead-lettering a message.
const (
	reasonUndecodable = "undecodable"
	reasonUnknown     = "unknown_version"
	reasonPanic       = "panic"
	reasonConstraint  = "constraint"
	reasonRefuted     = "refuted"
	reasonFailure     = "failure"
)

// maxErrorHeader bounds the error text in a dead letter, in bytes.
const maxErrorHeader = 1000

func reasonOf(err error) string {
	if _, ok := errors.AsType[*panicError](err); ok {
		return reasonPanic
	}
	if errors.Is(err, ErrRefuted) {
		return reasonRefuted
	}
	if code := pg.SQLState(err); strings.HasPrefix(code, "22") || strings.HasPrefix(code, "23") {
		return reasonConstraint
	}
	return reasonFailure
}

// deadLetter moves m to the dead-letter topic, however long Kafka is unavailable.
// It returns false only if ctx ends first.
func (c *Consumer) deadLetter(ctx, work context.Context, m kafkago.Message, reason string, cause error) bool {
	attempt, _ := strconv.Atoi(header(m, HeaderAttempt))
	// telemetry.Err removes email addresses: the letter stays for weeks.
	text := telemetry.Err(cause).Value.String()
	if len(text) > maxErrorHeader {
		text = strings.ToValidUTF8(text[:maxErrorHeader], "")
	}
	var headers []kafkago.Header
	for _, h := range m.Headers {
		if !strings.HasPrefix(h.Key, "dlq-") && h.Key != HeaderReplayFor {
			headers = append(headers, h)
		}
	}
	for _, kv := range [][2]string{
		{HeaderConsumer, c.cfg.Group},
		{HeaderReason, reason},
		{HeaderError, text},
		{HeaderTopic, c.baseTopic(m.Topic)},
		{HeaderPartition, strconv.Itoa(m.Partition)},
		{HeaderOffset, strconv.FormatInt(m.Offset, 10)},
		{HeaderAttempt, strconv.Itoa(attempt + 1)},
	} {
		headers = append(headers, kafkago.Header{Key: kv[0], Value: []byte(kv[1])})
	}
	letter := kafkago.Message{Topic: c.baseTopic(m.Topic) + DeadLetterSuffix, Key: m.Key, Value: m.Value, Headers: headers}
	for backoff := newBackoff(); ; {
		err := c.dead.WriteMessages(work, letter)
		if err == nil {
			c.metrics.dead.WithLabelValues(c.cfg.Group, reason).Inc()
			c.log.ErrorContext(ctx, "message dead-lettered",
				slog.String("topic", m.Topic), slog.Int("partition", m.Partition), slog.Int64("offset", m.Offset),
				slog.String("reason", reason), slog.String("error", text))
			return true
		}
		if we, ok := errors.AsType[kafkago.WriteErrors](err); ok && len(we) == 1 {
			err = we[0]
		}
		if Unsendable(err) && letter.Value != nil {
			// The message is too large to be written again; the headers say where the original
			// is.
			letter.Value = nil
			continue
		}
		wait := backoff.Next()
		c.log.WarnContext(ctx, "dead letter not written", slog.Duration("retry_in", wait), telemetry.Err(err))
		if !loop.Wait(ctx, wait) {
			return false
		}
	}
}

// replayGroup holds the offsets up to which dead letters have been replayed.
const replayGroup = "replay"

// Replay sends the dead letters of topic (without prefix or suffix) to topic again,
// each for the group that failed, and returns their number. It replays each letter
// once: the next Replay continues after it. A message that fails again becomes a
// new dead letter with a higher attempt. Consumers skip an event that they have
// handled in the meantime, by its id.
func Replay(ctx context.Context, cfg Config, topic string) (n int, err error) {
	t := cfg.Transport("waitlist")
	defer t.CloseIdleConnections()
	client := newClient(cfg, t)
	w := NewWriter(cfg)
	defer func() { err = errors.Join(err, w.Close()) }()
	dlq := cfg.TopicPrefix + topic + DeadLetterSuffix
	group := cfg.TopicPrefix + replayGroup
	// Stop at the current ends: letters that fail again come after them.
	ends, partitions, err := offsets(ctx, client, []string{dlq}, kafkago.LastOffset)
	if err != nil {
		return 0, err
	}
	starts, _, err := offsets(ctx, client, []string{dlq}, kafkago.FirstOffset)
	if err != nil {
		return 0, err
	}
	committed, err := committedOffsets(ctx, client, group, partitions)
	if err != nil {
		return 0, err
	}
	for at, end := range ends {
		m, err := replayPartition(ctx, cfg, w, client, group, at, max(committed[at], starts[at]), end)
		n += m
		if err != nil {
			return n, err
		}
	}
	return n, nil
}

// replayPartition replays the letters from offset from up to, not including, end.
func replayPartition(
	ctx context.Context, cfg Config, w *Writer, client *kafkago.Client, group string, at topicPartition, from, end int64,
) (n int, err error) {
	if from >= end {
		return 0, nil
	}
	r := kafkago.NewReader(kafkago.ReaderConfig{
		Brokers: cfg.Brokers, Topic: at.topic, Partition: at.partition,
		Dialer:   cfg.Dialer("waitlist-replay"),
		MinBytes: 1, MaxBytes: maxBytes, MaxWait: time.Second,
	})
	defer func() { err = errors.Join(err, r.Close()) }()
	if err := r.SetOffset(from); err != nil {
		return 0, fmt.Errorf("seek: %w", err)
	}
	for next := from; next < end; {
		m, err := r.FetchMessage(ctx)
		if err != nil {
			return n, fmt.Errorf("read dead letters: %w", err)
		}
		if m.Offset >= end {
			break
		}
		next = m.Offset + 1
		var headers []kafkago.Header
		for _, h := range m.Headers {
			if h.Key == HeaderAttempt || !strings.HasPrefix(h.Key, "dlq-") {
				headers = append(headers, h)
			}
		}
		headers = append(headers, kafkago.Header{Key: HeaderReplayFor, Value: []byte(header(m, HeaderConsumer))})
		topic := header(m, HeaderTopic)
		if err := w.WriteMessages(ctx, kafkago.Message{Topic: topic, Key: m.Key, Value: m.Value, Headers: headers}); err != nil {
			return n, fmt.Errorf("replay to %s: %w", topic, err)
		}
		n++
		// After a crash before this commit, the letter is replayed again, and the consumer's
		// inbox drops the event.
		res, err := client.OffsetCommit(ctx, &kafkago.OffsetCommitRequest{
			GroupID: group, GenerationID: -1,
			Topics: map[string][]kafkago.OffsetCommit{at.topic: {{Partition: at.partition, Offset: next}}},
		})
		if err != nil {
			return n, fmt.Errorf("commit replay offset: %w", err)
		}
		for _, p := range res.Topics[at.topic] {
			if p.Error != nil {
				return n, fmt.Errorf("commit replay offset: %w", p.Error)
			}
		}
	}
	return n, nil
}
