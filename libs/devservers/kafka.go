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
	// Dir holds the log; it is made when missing. "" keeps everything in memory.
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

// StartKafka starts a broker of one node inside this process. It answers
// after a write is on disk, so that what it acknowledged survives a kill. It
// creates no topics by itself.
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

// Stop ends the broker in order.
func (k *Kafka) Stop() error { return k.stop() }

// Kill ends the broker as kill -9 does. Inside a process that is a stop.
func (k *Kafka) Kill() { k.kill() }
