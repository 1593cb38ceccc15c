package kafka

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"strings"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	kafkago "github.com/segmentio/kafka-go"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/protobuf/proto"

	"waitlist.internal/libs/loop"
	"waitlist.internal/libs/outage"
	"waitlist.internal/libs/pg"
	"waitlist.internal/libs/telemetry"
	eventv1 "waitlist.internal/proto/gen/waitlist/event/v1"
)

const scope = "waitlist.internal/libs/kafka"

// InboxSchema creates the table of handled events. Services with a consumer add it
// to their migrations.
const InboxSchema = `
CREATE TABLE inbox (
    consumer    text        COLLATE "C" NOT NULL,
    event_id    uuid        NOT NULL,
    received_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (consumer, event_id)
);
CREATE INDEX inbox_received_at ON inbox (received_at);
`

const (
	// maxBatch bounds the events of one transaction.
	maxBatch = 200
	// queueCapacity bounds what the reader fetches ahead, in messages.
	queueCapacity = 1000
	maxBytes      = 4 << 20
	// maxWait is how long a fetch waits for a message; a message ends the wait at once.
	// Each partition has its own fetch, so a shorter wait would keep an idle process busy.
	// A rebalance and a stop wait for the fetches under way.
	maxWait = 3 * time.Second

	retryFirst = 100 * time.Millisecond
	outageMax  = 10 * time.Second
	// drain bounds a batch and its commit after the consumer was told to stop.
	drain = 5 * time.Second

	// inboxRetention is longer than the retention of any topic except dead letters,
	// which the offsets of Replay keep from being delivered twice.
	inboxRetention = 14 * 24 * time.Hour
	pruneEvery     = time.Hour
	pruneRows      = 10_000

	lagEvery = 10 * time.Second
	// stalled is how long a reader with lag may deliver nothing before it is replaced,
	// since kafka-go's readers can hang.
	stalled = 45 * time.Second
)

// Handler applies ev in tx. It must have no effect outside tx: the transaction may
// be rolled back and the event handled again, also in one transaction with others.
// It returns nil for payloads that it ignores. ctx carries the trace of the event.
//
// If a dependency is unavailable (outage.Is), the consumer tries again until it is
// back. After any other error, or a panic, it tries a few times and then
// dead-letters the event.
type Handler func(ctx context.Context, tx pgx.Tx, ev *eventv1.Event) error

// ConsumerConfig configures a consumer.
type ConsumerConfig struct {
	Config
	// Group is the name of the service; inbox rows carry it.
	Group string
	// Topics have no prefix.
	Topics []string
	// Pool reaches the schema that has the inbox.
	Pool    *pgxpool.Pool
	Handler Handler
	// Batch, if set, replaces Handler under the same rules. It gets all events of a
	// transaction at once, in order, and the events of a failed batch one by one.
	Batch func(ctx context.Context, tx pgx.Tx, evs []*eventv1.Event) error
	// Wants, if set, reports whether an event may have an effect. Events that it does not
	// want are passed over: they need no row in the inbox and no transaction.
	Wants func(ev *eventv1.Event) bool
	// Confirm, if set, asks whether what an event claims is true, before its transaction,
	// and may correct the event. After ErrRefuted the event is dead-lettered at once; other
	// errors are treated like those of Handler.
	Confirm func(ctx context.Context, ev *eventv1.Event) error
	Logger  *slog.Logger
	// Attempts is how often a failing event is tried before it is dead-lettered; 0
	// means 5, which take about three seconds.
	Attempts int
	// AfterCommit, if set, is called after each commit of handled events.
	AfterCommit func()
}

// ErrRefuted means that what an event claims is not true: whoever can write to Kafka can
// claim anything.
var ErrRefuted = errors.New("kafka: what the event claims is not true")

// Consumer handles the events of some topics as a member of its group.
type Consumer struct {
	cfg     ConsumerConfig
	log     *slog.Logger
	tracer  trace.Tracer
	dead    *Writer
	metrics consumerMetrics
	// fetched is when the last message arrived, in Unix nanoseconds.
	fetched atomic.Int64
	// waiting is true while the consumer has no batch.
	waiting atomic.Bool
}

// NewConsumer returns a consumer; Run starts it.
func NewConsumer(cfg ConsumerConfig) *Consumer {
	cfg.Attempts = cmp.Or(cfg.Attempts, 5)
	return &Consumer{
		cfg: cfg, log: cfg.Logger.With(slog.String("consumer", cfg.Group)), tracer: telemetry.Tracer(cfg.Tracers, scope),
		metrics: newConsumerMetrics(cfg.Registerer, cfg.Group),
	}
}

// Run consumes until ctx is done; then it finishes the current batch, commits its
// offsets and leaves the group. It survives outages of Kafka and Postgres.
func (c *Consumer) Run(ctx context.Context) (err error) {
	// A reader that starts before its topics exist may never see them.
	if err := EnsureTopics(ctx, c.cfg.Config); err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return err
	}
	c.dead = NewWriter(c.cfg.Config)
	defer func() { err = errors.Join(err, c.dead.Close()) }()
	for ctx.Err() == nil {
		err := c.read(ctx)
		if ctx.Err() != nil {
			break
		}
		c.log.WarnContext(ctx, "replacing the Kafka reader", telemetry.Err(err))
		loop.Wait(ctx, time.Second)
	}
	return nil
}

var errStalled = errors.New("reader has lag but delivers nothing")

// read consumes with one reader until it fails, stalls or ctx is done.
func (c *Consumer) read(ctx context.Context) error {
	reader := kafkago.NewReader(kafkago.ReaderConfig{
		Brokers: c.cfg.Brokers, GroupID: c.cfg.TopicPrefix + c.cfg.Group, GroupTopics: c.cfg.names(c.cfg.Topics),
		Dialer:      c.cfg.Dialer("waitlist-" + c.cfg.Group),
		StartOffset: kafkago.FirstOffset,
		MinBytes:    1, MaxBytes: maxBytes, MaxWait: maxWait, QueueCapacity: queueCapacity,
		HeartbeatInterval: time.Second, SessionTimeout: 10 * time.Second, RebalanceTimeout: 10 * time.Second,
		JoinGroupBackoff: 500 * time.Millisecond, ReadBackoffMin: 50 * time.Millisecond, ReadBackoffMax: time.Second,
		ErrorLogger: kafkago.LoggerFunc(func(msg string, args ...any) {
			c.log.InfoContext(ctx, "Kafka reader", slog.String("detail", fmt.Sprintf(msg, args...)))
		}),
	})
	reading, cancel := context.WithCancelCause(ctx)
	messages := make(chan kafkago.Message, maxBatch)
	fetcher := make(chan struct{})
	go func() {
		defer close(fetcher)
		cancel(c.fetch(reading, reader, messages))
	}()
	watcher := make(chan struct{})
	c.fetched.Store(time.Now().UnixNano())
	go func() {
		defer close(watcher)
		cancel(c.watch(reading))
	}()
	c.process(reading, reader, messages)
	cause := context.Cause(reading)
	cancel(nil)
	<-fetcher
	<-watcher
	return errors.Join(cause, reader.Close())
}

// fetch moves messages from the reader to the channel until reader or ctx ends.
func (c *Consumer) fetch(ctx context.Context, reader *kafkago.Reader, messages chan<- kafkago.Message) error {
	for {
		m, err := reader.FetchMessage(ctx)
		if err != nil {
			return fmt.Errorf("fetch: %w", err)
		}
		c.fetched.Store(time.Now().UnixNano())
		select {
		case messages <- m:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// process handles messages in batches of all that are waiting, and commits their
// offsets.
func (c *Consumer) process(ctx context.Context, reader *kafkago.Reader, messages <-chan kafkago.Message) {
	var batch []kafkago.Message
	for {
		clear(batch) // so that an idle consumer holds no messages
		batch = batch[:0]
		c.waiting.Store(true)
		select {
		case <-ctx.Done():
			return
		case m := <-messages:
			batch = append(batch, m)
		}
		c.waiting.Store(false)
	fill:
		for len(batch) < maxBatch {
			select {
			case m := <-messages:
				batch = append(batch, m)
			default:
				break fill
			}
		}
		work, stop := loop.Drain(ctx, drain)
		ok := c.handleBatch(ctx, work, batch)
		if ok {
			// After a failed commit, the messages come again and the inbox drops them. The
			// call blocks while the group rebalances.
			commit, cancel := context.WithTimeout(work, drain)
			if err := reader.CommitMessages(commit, batch...); err != nil {
				c.log.InfoContext(ctx, "offsets not committed", telemetry.Err(err))
			}
			cancel()
		}
		stop()
		if !ok {
			return
		}
	}
}

// delivery is a message with its decoded event.
type delivery struct {
	msg   kafkago.Message
	event *eventv1.Event
	id    uuid.UUID
}

// handleBatch handles batch in order: each message has its effect or is
// dead-lettered. It returns false only if ctx ends during an outage. work is the
// context for what must finish after that.
func (c *Consumer) handleBatch(ctx, work context.Context, batch []kafkago.Message) bool {
	var good []delivery
	for _, m := range batch {
		if f := header(m, HeaderReplayFor); f != "" && f != c.cfg.Group {
			continue
		}
		d := delivery{msg: m}
		if err := d.decode(); err != nil {
			if !c.deadLetter(ctx, work, m, reasonUndecodable, err) {
				return false
			}
			continue
		}
		if d.event.GetPayload() == nil {
			if !c.deadLetter(ctx, work, m, reasonUnknown, errors.New("event has no payload that this version knows")) {
				return false
			}
			continue
		}
		if c.cfg.Wants == nil || c.cfg.Wants(d.event) {
			good = append(good, d)
		} else {
			c.metrics.skipped.WithLabelValues(c.cfg.Group).Inc()
		}
	}
	if len(good) == 0 {
		return true
	}
	if len(good) > 1 {
		err := c.handle(work, good)
		if err == nil {
			return true
		}
		// One event fails the transaction of all; handling them one by one finds it.
		c.countRetry(err)
		c.log.InfoContext(ctx, "batch failed; handling its events one by one", slog.Int("events", len(good)), telemetry.Err(err))
	}
	for _, d := range good {
		if !c.handleOne(ctx, work, d) {
			return false
		}
	}
	return true
}

func (d *delivery) decode() error {
	d.event = &eventv1.Event{}
	if err := proto.Unmarshal(d.msg.Value, d.event); err != nil {
		return fmt.Errorf("decode event: %w", err)
	}
	id, err := uuid.Parse(d.event.GetId())
	if err != nil {
		return fmt.Errorf("parse event id: %w", err)
	}
	d.id = id
	return nil
}

// newBackoff returns the pauses between attempts.
func newBackoff() loop.Backoff { return loop.Backoff{Min: retryFirst, Max: outageMax} }

// handleOne handles d until it succeeds, is dead-lettered, or ctx ends.
func (c *Consumer) handleOne(ctx, work context.Context, d delivery) bool {
	attempts := 0
	for backoff := newBackoff(); ; {
		err := c.handle(work, []delivery{d})
		if err == nil {
			return true
		}
		c.countRetry(err)
		if !waitOut(err) {
			attempts++
			if attempts >= c.cfg.Attempts || errors.Is(err, ErrRefuted) {
				return c.deadLetter(ctx, work, d.msg, reasonOf(err), err)
			}
		}
		wait := backoff.Next()
		c.log.WarnContext(ctx, "event failed", slog.String("event_id", d.event.GetId()), slog.Int("attempt", attempts),
			slog.Bool("outage", waitOut(err)), slog.Duration("retry_in", wait), telemetry.Err(err))
		if !loop.Wait(ctx, wait) {
			return false
		}
	}
}

func (c *Consumer) countRetry(err error) {
	kind := "failure"
	if waitOut(err) {
		kind = "outage"
	}
	c.metrics.retries.WithLabelValues(c.cfg.Group, kind).Inc()
}

// waitOut reports whether err is temporary.
func waitOut(err error) bool {
	if _, ok := errors.AsType[*panicError](err); ok {
		return false
	}
	if outage.Is(err) || pg.Retryable(err) || errors.Is(err, context.Canceled) {
		return true
	}
	// Class 53 is a lack of disk, memory or connections; class 28 occurs while
	// credentials rotate.
	code := pg.SQLState(err)
	return strings.HasPrefix(code, "53") || strings.HasPrefix(code, "28")
}

// handle applies, in one transaction, the events that the inbox does not have.
func (c *Consumer) handle(ctx context.Context, batch []delivery) error {
	start := time.Now()
	if c.cfg.Confirm != nil {
		for _, d := range batch {
			if err := c.cfg.Confirm(remote(ctx, d.msg), d.event); err != nil {
				return fmt.Errorf("confirm event: %w", err)
			}
		}
	}
	ids := make([]uuid.UUID, len(batch))
	for i, d := range batch {
		ids[i] = d.id
	}
	var todo []delivery
	err := pg.InTx(ctx, c.cfg.Pool, func(tx pgx.Tx) error {
		rows, err := tx.Query(ctx, `
			INSERT INTO inbox (consumer, event_id) SELECT $1, unnest($2::uuid[])
			ON CONFLICT DO NOTHING RETURNING event_id`, c.cfg.Group, ids)
		if err != nil {
			return fmt.Errorf("insert into inbox: %w", err)
		}
		inserted, err := pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
		if err != nil {
			return fmt.Errorf("insert into inbox: %w", err)
		}
		fresh := map[uuid.UUID]bool{}
		for _, id := range inserted {
			fresh[id] = true
		}
		todo = nil // of an earlier attempt at the transaction
		for _, d := range batch {
			// An event that occurs twice in the batch has its effect once.
			if fresh[d.id] {
				todo = append(todo, d)
				delete(fresh, d.id)
			}
		}
		return c.apply(ctx, tx, todo)
	})
	if err != nil {
		return err
	}
	c.metrics.duration.WithLabelValues(c.cfg.Group).Observe(time.Since(start).Seconds())
	c.metrics.handled.WithLabelValues(c.cfg.Group).Add(float64(len(todo)))
	c.metrics.duplicates.WithLabelValues(c.cfg.Group).Add(float64(len(batch) - len(todo)))
	for _, d := range todo {
		if age := d.event.GetOccurredAt(); age != nil {
			telemetry.Observe(remote(ctx, d.msg), c.metrics.delay.WithLabelValues(c.cfg.Group), time.Since(age.AsTime()).Seconds())
		}
	}
	if c.cfg.AfterCommit != nil {
		c.cfg.AfterCommit()
	}
	return nil
}

// panicError is the panic of a handler.
type panicError struct{ value any }

func (p *panicError) Error() string { return fmt.Sprintf("panic: %v", p.value) }

// apply passes events to the handler: one by one, each in its trace, or all together. A
// batch has a span for each event, which all last as long as the batch.
func (c *Consumer) apply(ctx context.Context, tx pgx.Tx, events []delivery) error {
	if c.cfg.Batch != nil && len(events) > 0 {
		// The batch's own spans are children of the first event's span.
		evs, spans, within := make([]*eventv1.Event, len(events)), []trace.Span(nil), ctx
		for i := range events {
			evs[i] = events[i].event
			one, span := c.startProcess(ctx, &events[i], trace.WithAttributes(attribute.Int("messaging.batch.message_count", len(events))))
			if !span.IsRecording() {
				continue
			}
			if spans == nil {
				within = one //nolint:fatcontext // at most once
			}
			spans = append(spans, span)
		}
		return c.within(within, events[0], func() error { return c.cfg.Batch(within, tx, evs) }, spans...)
	}
	for i := range events {
		d := &events[i]
		within, span := c.startProcess(ctx, d)
		if err := c.within(within, *d, func() error { return c.cfg.Handler(within, tx, d.event) }, span); err != nil {
			return err
		}
	}
	return nil
}

// within calls fn, turns a panic into an error, and ends spans. first is the event to name in the
// log of a panic.
func (c *Consumer) within(ctx context.Context, first delivery, fn func() error, spans ...trace.Span) (err error) {
	defer func() {
		if v := recover(); v != nil {
			p := &panicError{v}
			c.log.ErrorContext(ctx, "event handler panicked", slog.String("event_id", first.event.GetId()), telemetry.Err(p),
				slog.String("stack", string(debug.Stack())))
			err = p
		}
		for _, span := range spans {
			if err != nil {
				span.SetStatus(codes.Error, "handler failed")
				span.SetAttributes(attribute.String("error.type", reasonOf(err)))
			}
			span.End()
		}
	}()
	return fn()
}

func (c *Consumer) baseTopic(topic string) string {
	return strings.TrimPrefix(topic, c.cfg.TopicPrefix)
}

// watch records the lag. It returns errStalled if the reader has lag but delivers
// nothing.
func (c *Consumer) watch(ctx context.Context) error {
	t := c.cfg.Transport("waitlist")
	t.MetadataTTL = 3 * lagEvery // after a change of leaders, the lag may be missing for this long
	defer t.CloseIdleConnections()
	client := newClient(c.cfg.Config, t)
	defer c.metrics.lag.DeletePartialMatch(prometheus.Labels{"group": c.cfg.Group})
	for range loop.Every(ctx, lagEvery) {
		lag, err := groupLag(ctx, client, c.cfg.Config, c.cfg.Group, c.cfg.Topics)
		if err != nil {
			c.log.InfoContext(ctx, "lag not measured", telemetry.Err(err))
			c.metrics.lag.DeletePartialMatch(prometheus.Labels{"group": c.cfg.Group}) // no value is better than an old one
			continue
		}
		var total int64
		for topic, n := range lag {
			total += n
			c.metrics.lag.WithLabelValues(c.cfg.Group, topic).Set(float64(n))
		}
		idle := time.Since(time.Unix(0, c.fetched.Load()))
		if total > 0 && c.waiting.Load() && idle > stalled {
			return errStalled
		}
	}
	return ctx.Err()
}

// Lag returns how many messages a group has not committed, by topic (without
// prefix).
func Lag(ctx context.Context, cfg Config, group string, topics ...string) (map[string]int64, error) {
	t := cfg.Transport("waitlist")
	defer t.CloseIdleConnections()
	return groupLag(ctx, newClient(cfg, t), cfg, group, topics)
}

func groupLag(ctx context.Context, client *kafkago.Client, cfg Config, group string, topics []string) (map[string]int64, error) {
	names := cfg.names(topics)
	ends, partitions, err := offsets(ctx, client, names, kafkago.LastOffset)
	if err != nil {
		return nil, err
	}
	committed, err := committedOffsets(ctx, client, cfg.TopicPrefix+group, partitions)
	if err != nil {
		return nil, err
	}
	var starts map[topicPartition]int64
	for at, end := range ends {
		if end <= committed[at] || starts != nil {
			continue
		}
		if starts, _, err = offsets(ctx, client, names, kafkago.FirstOffset); err != nil {
			return nil, err
		}
	}
	lag := map[string]int64{}
	for at, end := range ends {
		// Without a commit, the group starts at the first message.
		lag[strings.TrimPrefix(at.topic, cfg.TopicPrefix)] += max(0, end-max(committed[at], starts[at]))
	}
	return lag, nil
}

// committedOffsets returns the committed offsets of a group; partitions without one
// are missing.
func committedOffsets(
	ctx context.Context, client *kafkago.Client, group string, partitions map[string][]int,
) (map[topicPartition]int64, error) {
	res, err := client.OffsetFetch(ctx, &kafkago.OffsetFetchRequest{GroupID: group, Topics: partitions})
	if err != nil {
		return nil, fmt.Errorf("fetch offsets: %w", err)
	}
	out := map[topicPartition]int64{}
	// A group that never existed has committed nothing; some brokers report an error.
	if res.Error != nil && !errors.Is(res.Error, kafkago.GroupIdNotFound) {
		return nil, fmt.Errorf("fetch offsets: %w", res.Error)
	}
	for topic, ps := range res.Topics {
		for _, p := range ps {
			if p.CommittedOffset >= 0 {
				out[topicPartition{topic, p.Partition}] = p.CommittedOffset
			}
		}
	}
	return out, nil
}

type topicPartition struct {
	topic     string
	partition int
}

// offsets returns the first or last offset (which) of every partition, and the
// partitions by topic.
func offsets(
	ctx context.Context, client *kafkago.Client, topics []string, which int64,
) (map[topicPartition]int64, map[string][]int, error) {
	md, err := client.Metadata(ctx, &kafkago.MetadataRequest{Topics: topics})
	if err != nil {
		return nil, nil, fmt.Errorf("read topics: %w", err)
	}
	req := &kafkago.ListOffsetsRequest{Topics: map[string][]kafkago.OffsetRequest{}}
	partitions := map[string][]int{}
	for _, t := range md.Topics {
		for _, p := range t.Partitions {
			or := kafkago.LastOffsetOf(p.ID)
			if which == kafkago.FirstOffset {
				or = kafkago.FirstOffsetOf(p.ID)
			}
			req.Topics[t.Name] = append(req.Topics[t.Name], or)
			partitions[t.Name] = append(partitions[t.Name], p.ID)
		}
	}
	res, err := client.ListOffsets(ctx, req)
	if err != nil {
		return nil, nil, fmt.Errorf("list offsets: %w", err)
	}
	out := map[topicPartition]int64{}
	for topic, ps := range res.Topics {
		for _, p := range ps {
			if p.Error != nil {
				return nil, nil, fmt.Errorf("list offsets of %s: %w", topic, p.Error)
			}
			out[topicPartition{topic, p.Partition}] = p.LastOffset
			if which == kafkago.FirstOffset {
				out[topicPartition{topic, p.Partition}] = p.FirstOffset
			}
		}
	}
	return out, partitions, nil
}

// Prune periodically deletes inbox rows of events too old to come again, until ctx is done.
func (c *Consumer) Prune(ctx context.Context) error {
	for loop.Wait(ctx, pruneEvery) {
		for {
			n, err := PruneInbox(ctx, c.cfg.Pool, c.cfg.Group, time.Now().Add(-inboxRetention))
			if err != nil {
				c.log.InfoContext(ctx, "inbox not pruned", telemetry.Err(err))
			}
			if err != nil || n < pruneRows {
				break
			}
		}
	}
	return nil
}

// PruneInbox deletes a chunk of a consumer's inbox rows older than before and
// returns their number; 0 when none are left.
func PruneInbox(ctx context.Context, pool *pgxpool.Pool, consumer string, before time.Time) (int64, error) {
	tag, err := pool.Exec(ctx, `
		DELETE FROM inbox WHERE (consumer, event_id) IN (
			SELECT consumer, event_id FROM inbox WHERE received_at < $2 AND consumer = $1
			ORDER BY received_at LIMIT $3)`, consumer, before, pruneRows)
	if err != nil {
		return 0, fmt.Errorf("prune inbox: %w", err)
	}
	return tag.RowsAffected(), nil
}
