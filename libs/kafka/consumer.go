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
	kafkago "github.com/segmentio/kafka-go"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/protobuf/proto"

	"waitlist.internal/libs/loop"
	"waitlist.internal/libs/outage"
	"waitlist.internal/libs/pg"
	"waitlist.internal/libs/telemetry"
	eventv1 "waitlist.internal/proto/gen/waitlist/event/v1"
)

const scope = "waitlist.internal/libs/kafka"

// InboxSchema is the table of events that a consumer has handled, for the
// migrations of each service that consumes.
const InboxSchema = `
CREATE TABLE inbox (
    consumer    text        NOT NULL,
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

	retryFirst = 100 * time.Millisecond
	outageMax  = 10 * time.Second
	// drain is how long a batch and its commit may take after the end was asked for.
	drain = 5 * time.Second

	// inboxRetention is longer than any topic but the dead letters' keeps a
	// message; those are replayed by the replay's own offset.
	inboxRetention = 14 * 24 * time.Hour
	pruneEvery     = time.Hour
	pruneRows      = 10_000

	lagEvery = 10 * time.Second
	// stalled is how long nothing may come while there is lag, until the reader is
	// replaced (kafka-go issues 387 and 955).
	stalled = 45 * time.Second
)

// Handler applies ev in tx. It has no effect outside tx: the transaction may be
// rolled back and the event handled again, also together with others in one
// transaction. It returns nil for payloads that it does not care for. ctx has
// the trace of the event's cause.
//
// An error that says a dependency is away (outage.Is) is waited out; after
// any other, and after a panic, the event is tried again a few times and then
// dead-lettered.
type Handler func(ctx context.Context, tx pgx.Tx, ev *eventv1.Event) error

// ConsumerConfig says what a consumer reads and what it does.
type ConsumerConfig struct {
	Config
	// Group is the service's name; it also stands in the inbox.
	Group string
	// Topics without the prefix.
	Topics []string
	// Pool reaches the schema that has the inbox.
	Pool    *pgxpool.Pool
	Handler Handler
	Logger  *slog.Logger
	// Attempts before a failing event is dead-lettered; 0 means 5, about three seconds.
	Attempts int
	// AfterCommit, if set, is called when handled events have been committed.
	AfterCommit func()
}

// Consumer handles the events of some topics as one member of its group.
type Consumer struct {
	cfg     ConsumerConfig
	log     *slog.Logger
	tracer  trace.Tracer
	dead    *Writer
	metrics consumerMetrics
	// fetched is when the last message came, Unix nanoseconds.
	fetched atomic.Int64
	// waiting says that the consumer has nothing in hand.
	waiting atomic.Bool
}

type consumerMetrics struct {
	handled    metric.Int64Counter
	duplicates metric.Int64Counter
	retries    metric.Int64Counter
	dead       metric.Int64Counter
	lag        metric.Int64Gauge
	duration   metric.Float64Histogram
}

// NewConsumer returns a consumer; Run starts it.
func NewConsumer(cfg ConsumerConfig) (*Consumer, error) {
	cfg.Attempts = cmp.Or(cfg.Attempts, 5)
	c := &Consumer{cfg: cfg, log: cfg.Logger.With(slog.String("consumer", cfg.Group)), tracer: otel.Tracer(scope)}
	m := otel.Meter(scope)
	var errs [6]error
	c.metrics.handled, errs[0] = m.Int64Counter("kafka.consumer.handled", metric.WithDescription("Events whose effect was committed."))
	c.metrics.duplicates, errs[1] = m.Int64Counter("kafka.consumer.duplicates", metric.WithDescription("Deliveries that the inbox knew."))
	c.metrics.retries, errs[2] = m.Int64Counter("kafka.consumer.retries", metric.WithDescription("Failed attempts, by kind."))
	c.metrics.dead, errs[3] = m.Int64Counter("kafka.consumer.dead_letters", metric.WithDescription("Messages moved to the dead-letter topic. Alert above 0."))
	c.metrics.lag, errs[4] = m.Int64Gauge("kafka.consumer.lag", metric.WithDescription("Messages behind the end of a topic."))
	c.metrics.duration, errs[5] = m.Float64Histogram("kafka.consumer.batch.duration", metric.WithUnit("s"), metric.WithDescription("Time of one transaction."))
	return c, errors.Join(errs[:]...)
}

// Run consumes until ctx is done; then it finishes the batch in hand, commits
// its offsets and leaves the group. Outages of Kafka and Postgres are waited
// out.
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
	pruned := make(chan struct{})
	go func() {
		defer close(pruned)
		c.prune(ctx)
	}()
	defer func() { <-pruned }()
	for ctx.Err() == nil {
		err := c.read(ctx)
		if ctx.Err() != nil {
			break
		}
		c.log.WarnContext(ctx, "Kafka reader is replaced", telemetry.Err(err))
		loop.Wait(ctx, time.Second)
	}
	return nil
}

var errStalled = errors.New("lag, but nothing comes")

// read consumes with one reader until it fails, stalls or ctx is done.
func (c *Consumer) read(ctx context.Context) error {
	reader := kafkago.NewReader(kafkago.ReaderConfig{
		Brokers: c.cfg.Brokers, GroupID: c.cfg.TopicPrefix + c.cfg.Group, GroupTopics: c.cfg.names(c.cfg.Topics),
		Dialer:      c.cfg.Dialer("waitlist-" + c.cfg.Group),
		StartOffset: kafkago.FirstOffset,
		MinBytes:    1, MaxBytes: maxBytes, MaxWait: time.Second, QueueCapacity: queueCapacity,
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

// fetch moves messages from the reader to the channel until one of them ends.
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

// process handles what comes, as many messages at once as are there, and commits
// their offsets.
func (c *Consumer) process(ctx context.Context, reader *kafkago.Reader, messages <-chan kafkago.Message) {
	for {
		c.waiting.Store(true)
		var batch []kafkago.Message
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
			// A failed commit means a second delivery, which the inbox knows. It blocks
			// while the group rebalances.
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

// delivery is one message with what came out of it.
type delivery struct {
	msg   kafkago.Message
	event *eventv1.Event
	id    uuid.UUID
}

// handleBatch handles all of batch, in order, each with an effect or dead-lettered, and
// reports whether it did; it does not only when ctx ended during an outage.
// work is for what is to be finished then.
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
		good = append(good, d)
	}
	if len(good) == 0 {
		return true
	}
	if len(good) > 1 {
		err := c.handle(work, good)
		if err == nil {
			return true
		}
		// One of them spoils the transaction for all; alone each shows what it is.
		c.countRetry(work, err)
		c.log.InfoContext(ctx, "events are handled one by one", slog.Int("events", len(good)), telemetry.Err(err))
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
		return fmt.Errorf("event id: %w", err)
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
		c.countRetry(work, err)
		if !waitOut(err) {
			attempts++
			if attempts >= c.cfg.Attempts {
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

func (c *Consumer) countRetry(ctx context.Context, err error) {
	kind := "failure"
	if waitOut(err) {
		kind = "outage"
	}
	c.metrics.retries.Add(ctx, 1, metric.WithAttributes(attribute.String("group", c.cfg.Group), attribute.String("kind", kind)))
}

// waitOut reports whether err passes by itself.
func waitOut(err error) bool {
	if _, ok := errors.AsType[*panicError](err); ok {
		return false
	}
	if outage.Is(err) || pg.Retryable(err) || errors.Is(err, context.Canceled) {
		return true
	}
	// Out of disk, memory or connections; credentials that are being rotated.
	code := pg.SQLState(err)
	return strings.HasPrefix(code, "53") || strings.HasPrefix(code, "28")
}

// handle applies the events that the inbox does not know in one transaction.
func (c *Consumer) handle(ctx context.Context, batch []delivery) error {
	start := time.Now()
	ids := make([]uuid.UUID, len(batch))
	for i, d := range batch {
		ids[i] = d.id
	}
	var fresh map[uuid.UUID]bool
	err := pg.InTx(ctx, c.cfg.Pool, func(tx pgx.Tx) error {
		rows, err := tx.Query(ctx, `
			INSERT INTO inbox (consumer, event_id) SELECT $1, unnest($2::uuid[])
			ON CONFLICT DO NOTHING RETURNING event_id`, c.cfg.Group, ids)
		if err != nil {
			return fmt.Errorf("insert into inbox: %w", err)
		}
		fresh = map[uuid.UUID]bool{}
		inserted, err := pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
		if err != nil {
			return fmt.Errorf("insert into inbox: %w", err)
		}
		for _, id := range inserted {
			fresh[id] = true
		}
		for _, d := range batch {
			if !fresh[d.id] {
				continue
			}
			// The same event twice in one batch has its effect once.
			fresh[d.id] = false
			if err := c.apply(ctx, tx, d); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err //nolint:wrapcheck // ours
	}
	attrs := metric.WithAttributes(attribute.String("group", c.cfg.Group))
	c.metrics.duration.Record(ctx, time.Since(start).Seconds(), attrs)
	c.metrics.handled.Add(ctx, int64(len(fresh)), attrs)
	c.metrics.duplicates.Add(ctx, int64(len(batch)-len(fresh)), attrs)
	if c.cfg.AfterCommit != nil {
		c.cfg.AfterCommit()
	}
	return nil
}

// panicError is a handler's panic.
type panicError struct{ value any }

func (p *panicError) Error() string { return fmt.Sprintf("panic: %v", p.value) }

// apply calls the handler within the trace of the event's cause.
func (c *Consumer) apply(ctx context.Context, tx pgx.Tx, d delivery) (err error) {
	ctx = propagation.TraceContext{}.Extract(ctx, propagation.MapCarrier{HeaderTraceparent: header(d.msg, HeaderTraceparent)})
	ctx, span := c.tracer.Start(ctx, "process "+c.baseTopic(d.msg.Topic), trace.WithSpanKind(trace.SpanKindConsumer), trace.WithAttributes(
		attribute.String("messaging.system", "kafka"), attribute.String("messaging.consumer.group.name", c.cfg.Group), attribute.String("event.id", d.event.GetId()),
		attribute.Int("messaging.destination.partition.id", d.msg.Partition), attribute.Int64("messaging.kafka.offset", d.msg.Offset)))
	defer func() {
		if v := recover(); v != nil {
			p := &panicError{v}
			c.log.ErrorContext(ctx, "event handler panicked", slog.String("event_id", d.event.GetId()), telemetry.Err(p), slog.String("stack", string(debug.Stack())))
			err = p
		}
		if err != nil {
			span.SetStatus(codes.Error, "handler failed")
		}
		span.End()
	}()
	return c.cfg.Handler(ctx, tx, d.event)
}

func (c *Consumer) baseTopic(topic string) string {
	return strings.TrimPrefix(topic, c.cfg.TopicPrefix)
}

// watch records the lag, and returns errStalled when there is some but nothing
// comes.
func (c *Consumer) watch(ctx context.Context) error {
	t := c.cfg.Transport("waitlist")
	defer t.CloseIdleConnections()
	client := newClient(c.cfg.Config, t)
	for range loop.Every(ctx, lagEvery) {
		lag, err := groupLag(ctx, client, c.cfg.Config, c.cfg.Group, c.cfg.Topics)
		if err != nil {
			c.log.InfoContext(ctx, "lag not measured", telemetry.Err(err))
			continue
		}
		var total int64
		for topic, n := range lag {
			total += n
			c.metrics.lag.Record(ctx, n, metric.WithAttributes(attribute.String("group", c.cfg.Group), attribute.String("topic", topic)))
		}
		idle := time.Since(time.Unix(0, c.fetched.Load()))
		if total > 0 && c.waiting.Load() && idle > stalled {
			return errStalled
		}
	}
	return ctx.Err()
}

// Lag returns how many messages a service's group has not committed yet, by
// topic without prefix.
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
	starts, _, err := offsets(ctx, client, names, kafkago.FirstOffset)
	if err != nil {
		return nil, err
	}
	committed, err := committedOffsets(ctx, client, cfg.TopicPrefix+group, partitions)
	if err != nil {
		return nil, err
	}
	lag := map[string]int64{}
	for at, end := range ends {
		// Nothing committed: the group starts at the first message there is.
		lag[strings.TrimPrefix(at.topic, cfg.TopicPrefix)] += max(0, end-max(committed[at], starts[at]))
	}
	return lag, nil
}

// committedOffsets returns what a group has committed; a partition without is
// missing.
func committedOffsets(ctx context.Context, client *kafkago.Client, group string, partitions map[string][]int) (map[topicPartition]int64, error) {
	res, err := client.OffsetFetch(ctx, &kafkago.OffsetFetchRequest{GroupID: group, Topics: partitions})
	if err != nil {
		return nil, fmt.Errorf("fetch offsets: %w", err)
	}
	out := map[topicPartition]int64{}
	// A group that never was has committed nothing; brokers say so differently.
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

// offsets returns the first or last offset of every partition, and the
// partitions by topic.
func offsets(ctx context.Context, client *kafkago.Client, topics []string, which int64) (map[topicPartition]int64, map[string][]int, error) {
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

// prune deletes inbox rows that are too old to be delivered again.
func (c *Consumer) prune(ctx context.Context) {
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
}

// PruneInbox deletes some of a consumer's inbox rows from before a time, and
// returns how many; 0 when none are left.
func PruneInbox(ctx context.Context, pool *pgxpool.Pool, consumer string, before time.Time) (int64, error) {
	tag, err := pool.Exec(ctx, `
		DELETE FROM inbox WHERE (consumer, event_id) IN (
			SELECT consumer, event_id FROM inbox WHERE received_at < $2 AND consumer = $1 ORDER BY received_at LIMIT $3)`, consumer, before, pruneRows)
	if err != nil {
		return 0, fmt.Errorf("prune inbox: %w", err)
	}
	return tag.RowsAffected(), nil
}
