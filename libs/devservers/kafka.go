package devservers

import (
	"context"
	"fmt"
	"os"
	"sync"

	"github.com/twmb/franz-go/pkg/kfake"
)

// KafkaOptions says what StartKafka starts.
type KafkaOptions struct {
	// Dir holds the log and is created if missing. "" keeps everything in memory.
	Dir string
	// Port on 127.0.0.1; 0 takes a free one.
	Port int
}

// Kafka is a running broker.
type Kafka struct {
	// Brokers are the addresses that clients start from.
	Brokers []string
	stop    func() error
	kill    func()
}

// StartKafka starts a single broker inside this process. With Dir set it
// acknowledges a write once that is on disk, so acknowledged records survive a
// kill. It does not create topics automatically.
func StartKafka(_ context.Context, o KafkaOptions) (*Kafka, error) {
	opts := []kfake.Opt{
		kfake.NumBrokers(1),
		kfake.Ports(o.Port),
		kfake.ClusterID("waitlist-dev"),
		kfake.DefaultNumPartitions(6),
	}
	if o.Dir != "" {
		if err := os.MkdirAll(o.Dir, 0o700); err != nil {
			return nil, fmt.Errorf("make the Kafka directory: %w", err)
		}
		opts = append(opts, kfake.DataDir(o.Dir), kfake.SyncWrites(), kfake.BrokerConfigs(map[string]string{
			"log.retention.ms": "604800000", // a week
		}))
	}
	cluster, err := kfake.NewCluster(opts...)
	if err != nil {
		return nil, fmt.Errorf("start the embedded Kafka: %w", err)
	}
	stop := sync.OnceFunc(cluster.Close)
	return &Kafka{Brokers: cluster.ListenAddrs(), stop: func() error { stop(); return nil }, kill: stop}, nil
}

// Stop shuts the broker down.
func (k *Kafka) Stop() error { return k.stop() }

// Kill ends the broker: an Apache Kafka with SIGKILL, the embedded one as Stop does.
func (k *Kafka) Kill() { k.kill() }
