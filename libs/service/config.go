// Package service is the runtime that the six services share: configuration,
// connections, servers, health, and an orderly start and stop.
//
//	New     configuration checked, Postgres migrated (or its migrations checked),
//	  │     clients opened; waits a minute for Postgres, and nobody listens yet
//	  │     the app registers routes, gRPC services, goroutines, closers
//	Run     listeners → goroutines → ready
//	  │     … until its context ends or a goroutine fails
//	stop    not ready → SHUTDOWN_DELAY → HTTP and gRPC drain → goroutines end
//	        → closers, last opened first → telemetry; all within SHUTDOWN_DRAIN
//
// During SHUTDOWN_DELAY everything goes on, new connections too: only /readyz
// fails. /livez is 200 for as long as somebody listens. Before that nobody
// answers either, so a prober needs patience with the start of more than
// startTimeout.
//
// Everything can be given in code, so that one process can run all six.
package service

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"strings"
	"time"

	"github.com/caarlos0/env/v11"
	"github.com/segmentio/kafka-go/sasl/plain"
	"github.com/segmentio/kafka-go/sasl/scram"

	"waitlist.internal/libs/kafka"
	"waitlist.internal/libs/ratelimit"
	"waitlist.internal/libs/telemetry"
	"waitlist.internal/libs/tlsroots"
)

// Config is what every service reads from its environment. A service embeds
// it in its own.
type Config struct {
	// HTTPAddr is where the public interface listens; empty: nowhere, it is
	// reached through Runtime.Handler.
	HTTPAddr string `env:"HTTP_ADDR"`
	// GRPCAddr is where the internal interface listens, for services with one.
	GRPCAddr string `env:"GRPC_ADDR"`
	// InternalAddr is where /livez, /readyz and /metrics are; empty: nowhere.
	InternalAddr string `env:"INTERNAL_ADDR"`

	PostgresURL string `env:"POSTGRES_URL"`
	// Migrate says that a start brings the schema up to date. Without, it only
	// checks that somebody has: see Migrate.
	Migrate bool `env:"MIGRATE" envDefault:"true"`
	// PostgresMaxConns is the pool's size; 0: the driver's default.
	PostgresMaxConns int32  `env:"POSTGRES_MAX_CONNS"`
	RedisURL         string `env:"REDIS_URL"`
	// RedisCAFile has the authorities of a rediss:// server in PEM; empty: the
	// machine's.
	RedisCAFile string `env:"REDIS_CA_FILE"`

	KafkaBrokers     []string `env:"KAFKA_BROKERS"`
	KafkaTopicPrefix string   `env:"KAFKA_TOPIC_PREFIX"`
	// KafkaTLS encrypts; KafkaCAFile has the brokers' authorities in PEM, empty: the
	// machine's.
	KafkaTLS    bool   `env:"KAFKA_TLS"`
	KafkaCAFile string `env:"KAFKA_CA_FILE"`
	// KafkaSASLMechanism is PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, or empty: no login.
	KafkaSASLMechanism string `env:"KAFKA_SASL_MECHANISM"`
	KafkaUsername      string `env:"KAFKA_USERNAME"`
	KafkaPassword      string `env:"KAFKA_PASSWORD"`
	// KafkaPartitions and KafkaReplication are those of topics that are missing.
	KafkaPartitions  int `env:"KAFKA_PARTITIONS" envDefault:"6"`
	KafkaReplication int `env:"KAFKA_REPLICATION" envDefault:"1"`

	// RateLimitRPS and RateLimitBurst are the global token bucket; Replicas is
	// how many processes share it, for the time without Redis.
	RateLimitRPS   int `env:"RATE_LIMIT_RPS" envDefault:"100"`
	RateLimitBurst int `env:"RATE_LIMIT_BURST" envDefault:"200"`
	Replicas       int `env:"REPLICAS" envDefault:"1"`

	// CORSAllowedOrigin lists origins for everything but /v1/public.
	CORSAllowedOrigin []string `env:"CORS_ALLOWED_ORIGIN" envDefault:"*"`
	// TrustedProxies lists addresses and networks whose X-Forwarded-For counts.
	TrustedProxies []string `env:"TRUSTED_PROXIES"`

	// TokenKeys, SealKeys: see packages token and seal.
	TokenKeys string `env:"TOKEN_KEYS"`
	SealKeys  string `env:"SEAL_KEYS"`
	// ServiceKey is the base64 seed of the service's own key, ServiceKeys are
	// the public keys of all; see package rpc.
	ServiceKey  string `env:"SERVICE_KEY"`
	ServiceKeys string `env:"SERVICE_KEYS"`

	// ShutdownDelay is the time between failing readiness and closing the
	// listeners, in which load balancers learn of it.
	ShutdownDelay time.Duration `env:"SHUTDOWN_DELAY" envDefault:"0s"`
	// ShutdownDrain bounds the rest of the stop.
	ShutdownDrain time.Duration `env:"SHUTDOWN_DRAIN" envDefault:"25s"`

	LogLevel     slog.Level `env:"LOG_LEVEL" envDefault:"INFO"`
	OTLPEndpoint string     `env:"OTEL_EXPORTER_OTLP_ENDPOINT"`

	// What follows can be given in code only; nil means the ordinary.

	// LogOutput takes the log lines; nil: standard error.
	LogOutput io.Writer `env:"-"`
	// Telemetry is used, and left open, instead of an own one.
	Telemetry *telemetry.Telemetry `env:"-"`
	// Limiter is used instead of the one in Redis.
	Limiter ratelimit.Limiter `env:"-"`
	// HTTPListener, GRPCListener, InternalListener go before the addresses.
	// Run closes them.
	HTTPListener     net.Listener `env:"-"`
	GRPCListener     net.Listener `env:"-"`
	InternalListener net.Listener `env:"-"`
}

// Load reads an environment (KEY=value) into a struct with env tags. All
// problems are in the one error. Unset variables get their defaults, so
// Load[Config](nil) is the default configuration.
func Load[C any](environ []string) (C, error) {
	vars := make(map[string]string, len(environ))
	for _, kv := range environ {
		if k, v, ok := strings.Cut(kv, "="); ok && v != "" {
			vars[k] = v
		}
	}
	cfg, err := env.ParseAsWithOptions[C](env.Options{Environment: vars})
	if err != nil {
		return cfg, fmt.Errorf("configuration: %w", err)
	}
	return cfg, nil
}

// Kafka is how to reach the cluster that c names.
func (c *Config) Kafka() (kafka.Config, error) {
	k := kafka.Config{Brokers: c.KafkaBrokers, TopicPrefix: c.KafkaTopicPrefix, Partitions: c.KafkaPartitions, Replication: c.KafkaReplication}
	var p problems
	p.check(len(c.KafkaBrokers) > 0, "KAFKA_BROKERS is required")
	p.check(c.KafkaPartitions > 0, "KAFKA_PARTITIONS must be positive")
	p.check(c.KafkaReplication > 0, "KAFKA_REPLICATION must be positive")
	p.check(c.KafkaTLS || c.KafkaCAFile == "", "KAFKA_CA_FILE needs KAFKA_TLS=true")
	if c.KafkaTLS {
		roots, err := tlsroots.Read(c.KafkaCAFile)
		p.add(named("KAFKA_CA_FILE", err))
		k.TLS = &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: roots}
	}
	if c.KafkaSASLMechanism != "" {
		p.check(c.KafkaUsername != "" && c.KafkaPassword != "", "KAFKA_USERNAME and KAFKA_PASSWORD are required")
	} else {
		p.check(c.KafkaUsername == "" && c.KafkaPassword == "", "KAFKA_SASL_MECHANISM is required for a login")
	}
	var err error
	switch c.KafkaSASLMechanism {
	case "":
	case "PLAIN":
		k.SASL = plain.Mechanism{Username: c.KafkaUsername, Password: c.KafkaPassword}
	case "SCRAM-SHA-256":
		k.SASL, err = scram.Mechanism(scram.SHA256, c.KafkaUsername, c.KafkaPassword)
	case "SCRAM-SHA-512":
		k.SASL, err = scram.Mechanism(scram.SHA512, c.KafkaUsername, c.KafkaPassword)
	default:
		p.check(false, "KAFKA_SASL_MECHANISM must be PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512")
	}
	p.add(named("KAFKA_USERNAME, KAFKA_PASSWORD", err))
	return k, p.err()
}

// problems collects what is wrong with a configuration.
type problems []error

func (p *problems) check(ok bool, message string) {
	if !ok {
		*p = append(*p, errors.New(message))
	}
}

func (p *problems) add(err error) {
	if err != nil {
		*p = append(*p, err)
	}
}

func (p *problems) err() error {
	if len(*p) == 0 {
		return nil
	}
	return fmt.Errorf("configuration: %w", errors.Join(*p...))
}

func (c *Config) output() io.Writer {
	if c.LogOutput != nil {
		return c.LogOutput
	}
	return os.Stderr
}
