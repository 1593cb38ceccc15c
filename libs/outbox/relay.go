package outbox

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"log/slog"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	kafkago "github.com/segmentio/kafka-go"

	"waitlist.internal/libs/kafka"
	"waitlist.internal/libs/loop"
	"waitlist.internal/libs/pg"
	"waitlist.internal/libs/telemetry"
)

const (
	// pageRows and pageBytes bound one read of the outbox.
	pageRows  = 1000
	pageBytes = 8 << 20
	// chunkOverhead is added to the size of each message. One call to Kafka stays below
	// kafka's MaxBatchMessages and MaxMessageBytes, so that the messages for a partition
	// form one batch. Kafka writes a batch entirely or not at all, so no later message
	// overtakes a failed one.
	chunkOverhead = 128

	// sweepEvery is how long a row that committed late with a lower id waits. A sweep
	// reads from the lowest id and therefore also steps over index entries of deleted
	// rows, which a long transaction keeps. Slow sweeps run less often, so that they take
	// less than a tenth of the relay's time.
	// A late row comes with a wake-up of its own, as every row does unless its process is
	// killed right after the commit. So the pause doubles up to sweepRest while nothing
	// comes: five relays that sweep each second are a tenth of what an idle suite costs.
	sweepEvery = time.Second
	sweepRest  = 4 * time.Second
	sweepShare = 10

	// recentIDs is how far below the newest id a new leader looks for ids of open
	// transactions; maxGaps bounds how many ids it looks for. Sweeps find the rows with older
	// ids, but out of order.
	recentIDs = 1000
	maxGaps   = 10_000

	// standbyPoll bounds how long a stand-by takes to notice that the leader is gone.
	standbyPoll = 250 * time.Millisecond
	// wakePause coalesces the wake-ups that a stand-by forwards.
	wakePause = 10 * time.Millisecond

	// gather is the pause after publishing the last row. Commits during the pause are
	// published together, which saves a query, a write and a deletion for each.
	gather = 5 * time.Millisecond

	holdFirst   = 100 * time.Millisecond
	holdLongest = 5 * time.Second
	// drain is how long a batch in progress may take after the shutdown has begun.
	drain = 5 * time.Second
	// sessionLife is how long an idle relay stays with a server that its name may no longer
	// stand for.
	sessionLife = 10 * time.Minute
)

// Writer publishes messages. kafka.Writer implements it.
type Writer interface {
	WriteMessages(ctx context.Context, msgs ...kafkago.Message) error
}

// Relay publishes the outbox of one schema. Each replica of a service runs a Relay. The
// one that holds the schema's advisory lock publishes, the others stand by. A Relay has
// its own connection outside the pool.
type Relay struct {
	cfg     *pgx.ConnConfig
	writer  Writer
	schema  string
	follow  bool // never leads
	life    time.Duration
	log     *slog.Logger
	wake    loop.Signal
	metrics metrics
}

// NewRelay returns a Relay for the pool's schema. The pool's connections must keep their sessions.
// The name of its lock contains schema. reg takes the metrics; nil means none.
func NewRelay(pool *pgxpool.Pool, w Writer, schema string, log *slog.Logger, reg prometheus.Registerer) *Relay {
	r := &Relay{
		cfg: pool.Config().ConnConfig.Copy(), writer: w, schema: schema, life: sessionLife, log: log,
		wake: loop.NewSignal(), metrics: newMetrics(reg, schema),
	}
	r.cfg.RuntimeParams["application_name"] = schema + " outbox relay"
	pg.Set(r.cfg, map[string]string{
		// A sweep over many dead index entries may take longer than a request's timeout.
		"statement_timeout": "60s",
		// If a crash of Postgres undoes a deletion, the relay publishes the row again, as after
		// a crash of the relay. Waiting for the disk would delay the service's commits.
		"synchronous_commit": "off",
	})
	return r
}

// Wake tells the relay that a transaction has committed rows. It never blocks.
func (r *Relay) Wake() { r.wake.Send() }

// Run publishes until ctx ends and then finishes the batch in progress. It waits out
// outages of Postgres and Kafka.
func (r *Relay) Run(ctx context.Context) error {
	for backoff := newBackoff(); ; {
		start := time.Now()
		err := r.session(ctx)
		if ctx.Err() != nil {
			return nil //nolint:nilerr // a shutdown is not an error
		}
		if err == nil {
			continue // its session was old
		}
		if time.Since(start) > holdLongest {
			backoff.Reset()
		}
		wait := backoff.Next()
		r.log.WarnContext(ctx, "outbox relay lost its connection; reconnecting",
			slog.String("schema", r.schema), slog.Duration("retry_in", wait), telemetry.Err(err))
		if !loop.Wait(ctx, wait) {
			return nil
		}
	}
}

// Forward passes wake-ups on to the relay that leads until ctx ends, and never leads. It waits
// out outages of Postgres.
func (r *Relay) Forward(ctx context.Context) error {
	r.follow = true
	return r.Run(ctx)
}

// newBackoff returns the backoff after failures.
func newBackoff() loop.Backoff { return loop.Backoff{Min: holdFirst, Max: holdLongest} }

// session opens a connection, stands by for the lock, and leads until the connection
// breaks, is old while nothing comes, or ctx ends.
func (r *Relay) session(ctx context.Context) error {
	conn, err := pgx.ConnectConfig(ctx, r.cfg)
	if err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	// Closing the connection releases the lock for the next relay.
	defer func() {
		end, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_ = conn.Close(end)
	}()
	end := time.Now().Add(r.life)
	if leads, err := r.standBy(ctx, conn, end); err != nil || !leads {
		return err
	}
	r.metrics.leader.Set(1)
	defer r.metrics.resign()
	l := leader{Relay: r, conn: conn, held: map[string]hold{}}
	return l.run(ctx, end)
}

// standBy returns true when conn holds the lock, and false at end. It polls, because a session
// that blocks on the lock holds a snapshot, which delays vacuum.
func (r *Relay) standBy(ctx context.Context, conn *pgx.Conn, end time.Time) (leads bool, err error) {
	for time.Now().Before(end) {
		var ok, demoted bool
		if !r.follow {
			if err := conn.QueryRow(ctx, "SELECT pg_try_advisory_lock($1), current_setting('transaction_read_only')::boolean",
				lockID(r.schema)).Scan(&ok, &demoted); err != nil {
				return false, fmt.Errorf("take the relay's lock: %w", err)
			}
		}
		if demoted {
			return false, errDemoted
		}
		if ok {
			return true, nil
		}
		timer := time.NewTimer(standbyPoll)
		select {
		case <-ctx.Done():
			timer.Stop()
			return false, ctx.Err()
		case <-timer.C:
		case <-r.wake:
			timer.Stop()
			// This runs outside the service's transactions, because NOTIFY serialises the
			// commits of all transactions that use it.
			if _, err := conn.Exec(ctx, "SELECT pg_notify($1, '')", r.channel()); err != nil {
				return false, fmt.Errorf("wake the leading relay: %w", err)
			}
			if !loop.Wait(ctx, wakePause) {
				return false, ctx.Err()
			}
		}
	}
	return false, nil
}

func (r *Relay) channel() string { return "outbox_" + r.schema }

func lockID(schema string) int64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte("outbox relay " + schema))
	return int64(h.Sum64())
}

// row is one row of the outbox.
type row struct {
	id          int64
	topic       string
	key         string
	payloads    [][]byte
	traceparent string
	// traceparents, if not nil, has one for each payload.
	traceparents []string
	createdAt    time.Time
	// acked means that Kafka has acknowledged all payloads.
	acked bool
}

// hold delays a topic after a failure. Only a sweep ends it: a page that begins above some of
// the topic's rows must not publish those behind them.
type hold struct {
	until   time.Time
	backoff loop.Backoff
	over    bool
}

// gap is an id that no page has had: its transaction is open, or was rolled back.
type gap struct {
	id int64
	// ended is a transaction id: once all transactions below it have ended, nobody needs to
	// look for id any more. 0 until the next sweep sets it.
	ended int64
}

// leader is the state of the relay that holds the lock.
type leader struct {
	*Relay
	conn *pgx.Conn
	// after is the last handled id. The next page starts above it, which skips the index
	// entries of deleted rows.
	after int64
	held  map[string]hold
	// gaps are the ids up to last, the highest id seen, that may still appear. Each page looks
	// for them as well. Otherwise a page could publish a row of a key before an earlier row of
	// that key: one that committed first, but after a page with higher ids of other keys.
	gaps []gap
	last int64
}

// run publishes until the session breaks, ctx ends, or end has come and nothing waits, not
// even a gap: another leader may know less of the order.
func (l *leader) run(ctx context.Context, end time.Time) error {
	if _, err := l.conn.Exec(ctx, "LISTEN "+pgx.Identifier{l.channel()}.Sanitize()); err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	if err := l.conn.QueryRow(ctx, `
		SELECT greatest(coalesce(pg_sequence_last_value(pg_get_serial_sequence('outbox', 'id')::regclass), 0) - $1, 0)`,
		recentIDs).Scan(&l.last); err != nil {
		return fmt.Errorf("read the newest id: %w", err)
	}
	var (
		sweepAt, sweepStart, sweepEnd time.Time
		sweeping                      bool
		resume                        int64 // the id at which the sweep ends: rows up to it were handled before
		rest                          = sweepEvery
	)
	schedule := func() { sweepAt = sweepEnd.Add(max(rest, sweepShare*sweepEnd.Sub(sweepStart))) }
	for ctx.Err() == nil {
		now := time.Now()
		begin := !sweeping && !now.Before(sweepAt)
		if begin {
			sweeping, sweepStart, resume, l.after = true, now, l.after, 0
			for topic, h := range l.held {
				h.over = !h.until.After(now)
				l.held[topic] = h
			}
			if err := l.observe(ctx, now); err != nil {
				return err
			}
		}
		rows, more, err := l.page(ctx)
		if err != nil {
			return err
		}
		if len(rows) > 0 {
			if err := l.publish(ctx, rows); err != nil {
				return err
			}
			l.after = max(l.after, rows[len(rows)-1].id)
			rest = sweepEvery
			if !more && !loop.Wait(ctx, gather) {
				break
			}
		}
		if sweeping && (!more || l.after >= resume) {
			sweeping = false
			l.after = max(l.after, resume)
			sweepEnd = time.Now()
			schedule()
			rest = min(2*rest, sweepRest)
		}
		// The ids of a held topic's rows are below after, so only a sweep finds them.
		for _, h := range l.held {
			if !h.over && h.until.Before(sweepAt) {
				sweepAt = h.until
			}
		}
		if len(rows) == 0 && !more {
			if len(l.gaps) == 0 && !time.Now().Before(end) {
				return nil
			}
			woken, err := l.wait(ctx, time.Until(sweepAt))
			if err != nil {
				return err
			}
			if woken {
				rest = sweepEvery
				schedule()
			}
		}
	}
	return ctx.Err()
}

// page reads the next rows after l.after and those that have appeared in the gaps, in order of
// id, except those of held topics. more means that further rows may follow.
func (l *leader) page(ctx context.Context) (rows []*row, more bool, err error) {
	heldTopics := []string{}
	for topic, h := range l.held {
		if !h.over {
			heldTopics = append(heldTopics, topic)
		}
	}
	gaps := make([]int64, len(l.gaps))
	for i, g := range l.gaps {
		gaps[i] = g.id
	}
	rs, err := l.conn.Query(ctx, `
		SELECT id, topic, key, payloads, traceparent, traceparents, created_at FROM (
			SELECT * FROM outbox WHERE id = ANY($4) AND id <= $1 AND parked_at IS NULL AND topic <> ALL($2)
			UNION ALL
			(SELECT * FROM outbox WHERE id > $1 AND parked_at IS NULL AND topic <> ALL($2) ORDER BY id LIMIT $3)
		) o
		ORDER BY id LIMIT $3`, l.after, heldTopics, pageRows, gaps)
	if err != nil {
		return nil, false, fmt.Errorf("read outbox: %w", err)
	}
	defer rs.Close()
	size := 0
	for rs.Next() {
		var w row
		if err := rs.Scan(&w.id, &w.topic, &w.key, &w.payloads, &w.traceparent, &w.traceparents, &w.createdAt); err != nil {
			return nil, false, fmt.Errorf("read outbox: %w", err)
		}
		rows = append(rows, &w)
		for _, p := range w.payloads {
			size += len(p)
		}
		if size >= pageBytes {
			more = true
			break
		}
	}
	rs.Close()
	if err := rs.Err(); err != nil {
		return nil, false, fmt.Errorf("read outbox: %w", err)
	}
	return rows, more || len(rows) == pageRows, l.note(ctx, rows, heldTopics)
}

// note updates the gaps with the ids of a page.
func (l *leader) note(ctx context.Context, rows []*row, heldTopics []string) error {
	found := make(map[int64]bool, len(rows))
	var missing []int64
	for _, w := range rows {
		found[w.id] = true
		for id := max(l.last+1, w.id-maxGaps); id < w.id; id++ {
			missing = append(missing, id)
		}
		l.last = max(l.last, w.id)
	}
	if len(missing) > 0 && len(heldTopics) > 0 {
		// The sweep at the end of the hold finds these rows.
		rs, err := l.conn.Query(ctx, "SELECT id FROM outbox WHERE id = ANY($1) AND topic = ANY($2)", missing, heldTopics)
		if err != nil {
			return fmt.Errorf("read held rows: %w", err)
		}
		held, err := pgx.CollectRows(rs, pgx.RowTo[int64])
		if err != nil {
			return fmt.Errorf("read held rows: %w", err)
		}
		for _, id := range held {
			found[id] = true
		}
	}
	for _, id := range missing {
		l.gaps = append(l.gaps, gap{id: id})
	}
	l.gaps = slices.DeleteFunc(l.gaps, func(g gap) bool { return found[g.id] })
	l.gaps = l.gaps[max(0, len(l.gaps)-maxGaps):]
	return nil
}

var errDemoted = errors.New("the server takes no writes any more")

// observe records the gauges and forgets the gaps whose transactions have ended: the sweep
// that begins reads the rows of those that committed.
func (l *leader) observe(ctx context.Context, now time.Time) error {
	var parked, depth, ended, begun int64
	var oldest *time.Time
	var demoted bool
	if err := l.conn.QueryRow(ctx, `
		SELECT (SELECT count(*) FROM outbox WHERE parked_at IS NOT NULL),
		       (SELECT count(*) FROM (SELECT 1 FROM outbox WHERE parked_at IS NULL LIMIT $1) waiting),
		       (SELECT created_at FROM outbox WHERE parked_at IS NULL ORDER BY id LIMIT 1),
		       pg_snapshot_xmin(pg_current_snapshot())::text::bigint, pg_snapshot_xmax(pg_current_snapshot())::text::bigint,
		       current_setting('transaction_read_only')::boolean`,
		maxDepth).Scan(&parked, &depth, &oldest, &ended, &begun, &demoted); err != nil {
		return fmt.Errorf("measure outbox: %w", err)
	}
	if demoted {
		// The rows come to another server now.
		return errDemoted
	}
	l.gaps = slices.DeleteFunc(l.gaps, func(g gap) bool { return g.ended > 0 && g.ended <= ended })
	for i, g := range l.gaps {
		if g.ended == 0 {
			l.gaps[i].ended = begun
		}
	}
	age := 0.0
	if oldest != nil {
		age = max(0, now.Sub(*oldest).Seconds())
	}
	l.metrics.rows.WithLabelValues(l.schema, "parked").Set(float64(parked))
	l.metrics.rows.WithLabelValues(l.schema, "waiting").Set(float64(depth))
	l.metrics.age.WithLabelValues(l.schema).Set(age)
	return nil
}

// publish sends rows and deletes those that Kafka acknowledges. If ctx ends, it still has
// the time of drain to finish. It returns only errors of Postgres; rows that Kafka does
// not accept stay in the table.
func (l *leader) publish(ctx context.Context, rows []*row) error {
	work, stop := loop.Drain(ctx, drain)
	defer stop()

	byTopic := map[string][]*row{}
	var topics []string
	for _, w := range rows {
		if byTopic[w.topic] == nil {
			topics = append(topics, w.topic)
		}
		byTopic[w.topic] = append(byTopic[w.topic], w)
	}
	for _, topic := range topics {
		err := l.publishTopic(work, byTopic[topic])
		switch {
		case err == nil:
			delete(l.held, topic)
		case ctx.Err() != nil:
			// The shutdown interrupted it; the next leader sends the rows again.
		default:
			h, ok := l.held[topic]
			if !ok {
				h.backoff = newBackoff()
			}
			wait := h.backoff.Next()
			h.until = time.Now().Add(wait)
			h.over = false
			l.held[topic] = h
			l.metrics.failures.Inc()
			l.log.WarnContext(work, "publishing outbox rows failed; retrying",
				slog.String("topic", topic), slog.Duration("retry_in", wait), telemetry.Err(err))
		}
	}
	var done []int64
	events := 0
	for _, w := range rows {
		if w.acked {
			done = append(done, w.id)
			events += len(w.payloads)
		}
	}
	if len(done) == 0 {
		return nil
	}
	l.metrics.published.Add(float64(events))
	if _, err := l.conn.Exec(work, "DELETE FROM outbox WHERE id = ANY($1)", done); err != nil {
		return fmt.Errorf("delete published rows: %w", err)
	}
	return nil
}

// publishTopic sends the rows of one topic in order and parks those that Kafka refuses
// permanently. It returns the first other error and sends no further chunk. Of the rows
// after a failed one, only those of the same chunk for other partitions have been sent.
func (l *leader) publishTopic(ctx context.Context, rows []*row) error {
	for len(rows) > 0 {
		n, messages, size := 0, 0, 0
		for n < len(rows) {
			messages += len(rows[n].payloads)
			size += rows[n].size()
			if messages > kafka.MaxBatchMessages || size > kafka.MaxMessageBytes {
				break
			}
			n++
		}
		var err error
		if n > 0 {
			err = l.sendChunk(ctx, rows[:n])
		} else {
			n = 1
			err = l.sendAlone(ctx, rows[0])
		}
		if err != nil {
			return err
		}
		rows = rows[n:]
	}
	return nil
}

// sendChunk sends rows that fit into one batch.
func (l *leader) sendChunk(ctx context.Context, rows []*row) error {
	var msgs []kafkago.Message
	for _, w := range rows {
		msgs = w.appendMessages(msgs, 0, len(w.payloads))
	}
	err := l.writer.WriteMessages(ctx, msgs...)
	if err == nil {
		for _, w := range rows {
			w.acked = true
		}
		return nil
	}
	unsendable := kafka.Unsendable(err)
	if werr, ok := errors.AsType[kafkago.WriteErrors](err); ok && len(werr) == len(msgs) {
		i := 0
		for _, w := range rows {
			w.acked = true
			for range w.payloads {
				if werr[i] != nil {
					w.acked = false
					// A temporary error takes precedence: all failed rows then wait together.
					if !unsendable || !kafka.Unsendable(werr[i]) {
						err, unsendable = werr[i], kafka.Unsendable(werr[i])
					}
				}
				i++
			}
		}
	}
	if !unsendable {
		return fmt.Errorf("write to Kafka: %w", err)
	}
	// Send each row alone to find out which one Kafka refuses.
	for _, w := range rows {
		if w.acked {
			continue
		}
		if err := l.sendAlone(ctx, w); err != nil {
			return err
		}
	}
	return nil
}

// sendAlone sends one row of any size and parks it if Kafka refuses it permanently.
func (l *leader) sendAlone(ctx context.Context, w *row) error {
	for from := 0; from < len(w.payloads); {
		n, size, rest := 0, 0, w.payloads[from:]
		for n < len(rest) && n < kafka.MaxBatchMessages {
			size += w.messageSize(rest[n])
			if n > 0 && size > kafka.MaxMessageBytes {
				break
			}
			n++
		}
		err := l.writer.WriteMessages(ctx, w.appendMessages(nil, from, from+n)...)
		if werr, ok := errors.AsType[kafkago.WriteErrors](err); ok {
			for _, e := range werr {
				if e != nil {
					err = e
					break
				}
			}
		}
		if err != nil && kafka.Unsendable(err) {
			return l.park(ctx, w, err)
		}
		if err != nil {
			return fmt.Errorf("write to Kafka: %w", err)
		}
		from += n
	}
	w.acked = true
	return nil
}

// appendMessages adds the messages of the payloads from first up to, not including, end.
func (w *row) appendMessages(msgs []kafkago.Message, first, end int) []kafkago.Message {
	shared := traceHeader(w.traceparent)
	for i := first; i < end; i++ {
		headers := shared
		// Only other code writes fewer traceparents than payloads; the events without one have no
		// trace.
		if i < len(w.traceparents) {
			headers = traceHeader(w.traceparents[i])
		}
		msgs = append(msgs, kafkago.Message{Topic: w.topic, Key: []byte(w.key), Value: w.payloads[i], Headers: headers})
	}
	return msgs
}

func traceHeader(traceparent string) []kafkago.Header {
	if traceparent == "" {
		return nil
	}
	return []kafkago.Header{{Key: kafka.HeaderTraceparent, Value: []byte(traceparent)}}
}

func (w *row) messageSize(payload []byte) int {
	return len(payload) + len(w.key) + len(w.traceparent) + chunkOverhead
}

func (w *row) size() (n int) {
	for _, p := range w.payloads {
		n += w.messageSize(p)
	}
	return n
}

func (l *leader) park(ctx context.Context, w *row, cause error) error {
	l.log.ErrorContext(ctx, "outbox row parked: Kafka refuses it permanently",
		slog.String("schema", l.schema), slog.Int64("id", w.id), slog.String("topic", w.topic), slog.String("key", w.key), telemetry.Err(cause))
	if _, err := l.conn.Exec(ctx, "UPDATE outbox SET parked_at = now(), error = $2 WHERE id = $1", w.id, cause.Error()); err != nil {
		return fmt.Errorf("park outbox row: %w", err)
	}
	return nil
}

// wait returns after d, or earlier, woken, on a Wake or a stand-by's notification.
func (l *leader) wait(ctx context.Context, d time.Duration) (woken bool, err error) {
	waiting, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	done := make(chan struct{})
	go func() {
		defer close(done)
		select {
		case <-l.wake:
			woken = true
			cancel()
		case <-waiting.Done():
		}
	}()
	_, err = l.conn.WaitForNotification(waiting)
	ended := waiting.Err() != nil
	cancel()
	<-done
	if err != nil && !ended {
		return false, fmt.Errorf("wait for notifications: %w", err)
	}
	// Drain notifications that have already arrived; waiting has ended, so this does not block.
	for ; err == nil; woken = true {
		_, err = l.conn.WaitForNotification(waiting)
	}
	return woken, nil
}
