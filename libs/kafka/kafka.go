// Package kafka connects services to the event log: the topics, the writer of the
// outbox relay, consumers whose effects happen once, and the dead-letter topics
// with their replay.
//
//	outbox.Relay ─► Writer ─► topic ─► Consumer ─┬─► inbox row + effect, one transaction
//	                            ▲                └─► topic.dlq (deterministic failures)
//	                            └────── Replay ◄───────┘
//
// Kafka delivers each message at least once, in order per key. A consumer's effect
// happens once because its inbox row commits in the same transaction.
package kafka

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	kafkago "github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/sasl"
	"go.opentelemetry.io/otel/trace"

	"waitlist.internal/libs/loop"
)

// The topics. On a cluster, their names begin with Config.TopicPrefix.
const (
	// SignupsTopic is keyed by waitlist id.
	SignupsTopic = "waitlist.signups.v1"
	// AccountsTopic is keyed by account id.
	AccountsTopic = "waitlist.accounts.v1"
	// DeadLetterSuffix is appended to the name of a topic for its dead letters.
	DeadLetterSuffix = ".dlq"
)

// Topics returns all topics.
func Topics() []string { return []string{SignupsTopic, AccountsTopic} }

const (
	// MaxMessageBytes bounds messages and batches: below the broker's default of 1 MiB,
	// with room for the headers of a dead letter.
	MaxMessageBytes = 900 << 10
	// MaxBatchMessages bounds the messages of a call of WriteMessages that must write all
	// or none of each partition. kafka-go allocates room for this many in every batch,
	// even for one message.
	MaxBatchMessages = 500
	// eventRetention is how long topics keep events, which name people. It bounds how
	// long a consumer may be away.
	eventRetention = 7 * 24 * time.Hour
	// deadLetterRetention gives people time to react.
	deadLetterRetention = 30 * 24 * time.Hour
	dialTimeout         = 5 * time.Second
	requestTimeout      = 10 * time.Second
)

// Config tells how to reach a cluster and how to create topics there.
type Config struct {
	Brokers []string
	// TopicPrefix begins the names of all topics and consumer groups, so that several
	// installations, or tests, can share a cluster.
	TopicPrefix string
	// TLS, if set, encrypts connections and verifies the brokers.
	TLS *tls.Config
	// SASL, if set, authenticates the process.
	SASL sasl.Mechanism
	// Partitions and Replication apply to missing topics; 0 means 6 and 1. Existing
	// topics do not change.
	Partitions  int
	Replication int
	// Tracers makes the spans of producers and consumers; nil means none.
	Tracers trace.TracerProvider
	// Registerer takes the metrics of writers and consumers; nil means none.
	Registerer prometheus.Registerer
}

// names adds the prefix to topics.
func (c Config) names(topics []string) []string {
	out := make([]string, len(topics))
	for i, t := range topics {
		out[i] = c.TopicPrefix + t
	}
	return out
}

// EnsureTopics creates missing topics and dead-letter topics and returns when every
// partition has a leader. It keeps trying until ctx is done.
func EnsureTopics(ctx context.Context, cfg Config) error {
	t := cfg.Transport("waitlist")
	defer t.CloseIdleConnections()
	for backoff := (loop.Backoff{Min: 100 * time.Millisecond, Max: 5 * time.Second}); ; {
		err := ensureTopics(ctx, cfg, t)
		if err == nil {
			return nil
		}
		if !backoff.Wait(ctx) {
			return fmt.Errorf("ensure Kafka topics: %w: %w", ctx.Err(), err)
		}
	}
}

// ensureTopics makes one attempt.
func ensureTopics(ctx context.Context, cfg Config, t *kafkago.Transport) error {
	client := newClient(cfg, t)
	var missing []kafkago.TopicConfig
	for _, base := range Topics() {
		for _, name := range []string{base, base + DeadLetterSuffix} {
			retention := eventRetention
			if name != base {
				retention = deadLetterRetention
			}
			missing = append(missing, kafkago.TopicConfig{
				Topic:             cfg.TopicPrefix + name,
				NumPartitions:     cmp.Or(cfg.Partitions, 6),
				ReplicationFactor: cmp.Or(cfg.Replication, 1),
				ConfigEntries:     []kafkago.ConfigEntry{{ConfigName: "retention.ms", ConfigValue: fmt.Sprint(retention.Milliseconds())}},
			})
		}
	}
	names := make([]string, len(missing))
	for i, tc := range missing {
		names[i] = tc.Topic
	}
	// Look first: if an operator made the topics, the service may not have the right
	// to create any.
	ready, err := topicsReady(ctx, client, names)
	if err != nil {
		return err
	}
	var create []kafkago.TopicConfig
	for _, tc := range missing {
		if !ready[tc.Topic] {
			create = append(create, tc)
		}
	}
	if len(create) == 0 {
		return nil
	}
	res, err := client.CreateTopics(ctx, &kafkago.CreateTopicsRequest{Topics: create})
	if err != nil {
		return fmt.Errorf("create topics: %w", err)
	}
	for name, err := range res.Errors {
		if err != nil && !errors.Is(err, kafkago.TopicAlreadyExists) {
			return fmt.Errorf("create topic %s: %w", name, err)
		}
	}
	if ready, err = topicsReady(ctx, client, names); err != nil {
		return err
	}
	for _, name := range names {
		if !ready[name] {
			return fmt.Errorf("topic %s has no leader yet", name)
		}
	}
	return nil
}

// topicsReady tells which topics exist with a leader for every partition.
func topicsReady(ctx context.Context, client *kafkago.Client, names []string) (map[string]bool, error) {
	md, err := client.Metadata(ctx, &kafkago.MetadataRequest{Topics: names})
	if err != nil {
		return nil, fmt.Errorf("read topics: %w", err)
	}
	ready := map[string]bool{}
	for _, t := range md.Topics {
		ok := t.Error == nil && len(t.Partitions) > 0
		for _, p := range t.Partitions {
			ok = ok && p.Error == nil && p.Leader.Host != ""
		}
		ready[t.Name] = ok
	}
	return ready, nil
}

// Topic describes a topic of a cluster.
type Topic struct {
	// Name has the prefix.
	Name                    string
	Partitions, Replication int
}

// Describe returns the topics and their dead-letter topics as the cluster has them.
func Describe(ctx context.Context, cfg Config) ([]Topic, error) {
	t := cfg.Transport("waitlist")
	defer t.CloseIdleConnections()
	var names []string
	for _, base := range cfg.names(Topics()) {
		names = append(names, base, base+DeadLetterSuffix)
	}
	md, err := newClient(cfg, t).Metadata(ctx, &kafkago.MetadataRequest{Topics: names})
	if err != nil {
		return nil, fmt.Errorf("read topics: %w", err)
	}
	var out []Topic
	for _, t := range md.Topics {
		if t.Error != nil {
			return nil, fmt.Errorf("read topic %s: %w", t.Name, t.Error)
		}
		topic := Topic{Name: t.Name, Partitions: len(t.Partitions)}
		for i, p := range t.Partitions {
			if i == 0 || len(p.Replicas) < topic.Replication {
				topic.Replication = len(p.Replicas)
			}
		}
		out = append(out, topic)
	}
	return out, nil
}

// Transport returns a new connection pool, since kafka-go's default pool is global
// and never closed. CloseIdleConnections ends its goroutines.
func (c Config) Transport(clientID string) *kafkago.Transport {
	d := &net.Dialer{Timeout: dialTimeout}
	return &kafkago.Transport{Dial: d.DialContext, DialTimeout: dialTimeout, ClientID: clientID, TLS: c.TLS, SASL: c.SASL}
}

// Dialer returns the dialer for readers.
func (c Config) Dialer(clientID string) *kafkago.Dialer {
	return &kafkago.Dialer{Timeout: dialTimeout, DualStack: true, ClientID: clientID, TLS: c.TLS, SASLMechanism: c.SASL}
}

// Reachable returns nil if a broker answers, after TLS and SASL. A connection alone proves
// nothing: the kernel accepts connections to a broker that hangs.
func Reachable(ctx context.Context, cfg Config) error {
	var errs []error
	for _, b := range cfg.Brokers {
		err := answers(ctx, cfg, b)
		if err == nil {
			return nil
		}
		errs = append(errs, fmt.Errorf("reach %s: %w", b, err))
	}
	return errors.Join(errs...)
}

func answers(ctx context.Context, cfg Config, broker string) error {
	c, err := cfg.Dialer("waitlist").DialContext(ctx, "tcp", broker)
	if err != nil {
		return err // Reachable adds the broker
	}
	deadline, ok := ctx.Deadline()
	if !ok {
		deadline = time.Now().Add(requestTimeout)
	}
	_ = c.SetDeadline(deadline)
	_, err = c.ApiVersions()
	return errors.Join(err, c.Close())
}

func newClient(cfg Config, t *kafkago.Transport) *kafkago.Client {
	return &kafkago.Client{Addr: kafkago.TCP(cfg.Brokers...), Timeout: requestTimeout, Transport: t}
}
