package kafka

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	kafkago "github.com/segmentio/kafka-go"
)

// Writer writes messages durably: all in-sync replicas acknowledge them. Messages
// with one key go to one partition. A Writer is safe for concurrent use; share one
// per process.
type Writer struct {
	cfg       Config
	transport *kafkago.Transport
	writer    *kafkago.Writer
	metrics   producerMetrics
	topicsOK  atomic.Bool
}

// NewWriter returns a writer that connects, and creates missing topics, with its
// first message.
func NewWriter(cfg Config) *Writer {
	t := cfg.Transport("waitlist")
	return &Writer{cfg: cfg, transport: t, metrics: newProducerMetrics(cfg.Registerer), writer: &kafkago.Writer{
		Addr:         kafkago.TCP(cfg.Brokers...),
		Transport:    t,
		Balancer:     &kafkago.Hash{},
		RequiredAcks: kafkago.RequireAll,
		Compression:  kafkago.Snappy,
		BatchSize:    MaxBatchMessages,
		BatchBytes:   MaxMessageBytes,
		// A call hands over all its messages at once, so waiting for more gains nothing.
		BatchTimeout: time.Millisecond,
		MaxAttempts:  3,
		WriteTimeout: requestTimeout,
		ReadTimeout:  requestTimeout,
	}}
}

// WriteMessages writes msgs, whose topics have no prefix. Messages of one partition
// keep their order. If a call has at most MaxBatchMessages and MaxMessageBytes,
// either all messages of a partition are written or none. The error is kafka-go's:
// a WriteErrors has one entry per message. If ctx ends, the messages may still be
// written.
func (w *Writer) WriteMessages(ctx context.Context, msgs ...kafkago.Message) (err error) {
	start := time.Now()
	defer func() { w.metrics.record(start, len(msgs), err) }()
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
	end := w.traceSend(ctx, msgs, prefixed)
	err = w.writer.WriteMessages(ctx, prefixed...)
	end(err)
	return err // the caller looks into kafka-go's types
}

// Close finishes pending writes and closes the connections. Call it after every
// WriteMessages has returned.
func (w *Writer) Close() error {
	err := w.writer.Close()
	w.transport.CloseIdleConnections()
	return err
}

// Unsendable reports whether err means that Kafka will refuse the message however
// often it is sent.
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
