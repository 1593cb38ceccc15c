package kafka

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	kafkago "github.com/segmentio/kafka-go"
)

// Writer writes messages durably (acknowledged by all in-sync replicas), those
// of one key to one partition. Share one per process; it is safe for concurrent
// use.
type Writer struct {
	cfg       Config
	transport *kafkago.Transport
	writer    *kafkago.Writer
	topicsOK  atomic.Bool
}

// NewWriter connects with the first message, and then also sees to the topics.
func NewWriter(cfg Config) *Writer {
	t := cfg.Transport("waitlist")
	return &Writer{cfg: cfg, transport: t, writer: &kafkago.Writer{
		Addr:         kafkago.TCP(cfg.Brokers...),
		Transport:    t,
		Balancer:     &kafkago.Hash{},
		RequiredAcks: kafkago.RequireAll,
		Compression:  kafkago.Snappy,
		BatchSize:    MaxBatchMessages,
		BatchBytes:   MaxMessageBytes,
		// A call hands over all its messages at once; there is nothing to wait for.
		BatchTimeout: time.Millisecond,
		MaxAttempts:  3,
		WriteTimeout: requestTimeout,
		ReadTimeout:  requestTimeout,
	}}
}

// WriteMessages writes msgs, whose topics are given without the prefix. Messages
// of one partition keep their order. If a call has at most MaxBatchMessages and
// MaxMessageBytes, those of one partition are written all or none. The error is kafka-go's: a
// WriteErrors has one entry a message. After ctx is done the messages may still
// be written.
func (w *Writer) WriteMessages(ctx context.Context, msgs ...kafkago.Message) error {
	if !w.topicsOK.Load() {
		if err := ensureTopics(ctx, w.cfg, w.transport); err != nil {
			return fmt.Errorf("ensure Kafka topics: %w", err)
		}
		w.topicsOK.Store(true)
	}
	prefixed := make([]kafkago.Message, len(msgs))
	for i, m := range msgs {
		m.Topic = w.cfg.TopicPrefix + m.Topic
		prefixed[i] = m
	}
	return w.writer.WriteMessages(ctx, prefixed...) //nolint:wrapcheck // the caller looks into kafka-go's types
}

// Close writes what is under way and closes the connections. Let every
// WriteMessages return first.
func (w *Writer) Close() error {
	err := w.writer.Close()
	w.transport.CloseIdleConnections()
	return err //nolint:wrapcheck // says all there is
}

// Unsendable reports whether err says that this very message will be refused
// however often it is sent.
func Unsendable(err error) bool {
	if _, ok := errors.AsType[kafkago.MessageTooLargeError](err); ok {
		return true
	}
	if ke, ok := errors.AsType[kafkago.Error](err); ok {
		switch ke {
		case kafkago.MessageSizeTooLarge, kafkago.RecordListTooLarge, kafkago.InvalidTopic,
			kafkago.InvalidMessage, kafkago.InvalidMessageSize, kafkago.PolicyViolation:
			return true
		}
	}
	return false
}
