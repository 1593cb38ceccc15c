// Package service is the runtime that the services share: configuration, connections,
// servers, health, and an orderly start and stop.
//
//	New     checks the configuration, waits up to a minute for Postgres, migrates it
//	  │     (or checks its migrations) and opens clients; nothing listens yet
//	  │     the app registers routes, gRPC services, goroutines, closers
//	Run     listeners → goroutines → ready
//	  │     … until its context ends or a goroutine fails
//	stop    not ready → SHUTDOWN_DELAY → HTTP and gRPC drain → goroutines end
//	        → closers, last opened first → telemetry; all within SHUTDOWN_DRAIN
//
// During SHUTDOWN_DELAY the service works as before and accepts connections; only /readyz
// fails. /livez answers 200 while the internal listener is open. It opens after New, so a
// startup probe must allow more than startTimeout.
//
// An app package declares its service with a Definition, whose comment shows how.
//
// Code can set every field of Config, so that one process can run all services.
package service

import (
	"cmp"
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

	"waitlist.internal/libs/httpapi"
	"waitlist.internal/libs/kafka"
	"waitlist.internal/libs/pg"
	"waitlist.internal/libs/ratelimit"
	"waitlist.internal/libs/telemetry"
	"waitlist.internal/libs/tlsroots"
)

// Config is the environment that all services share. Each service embeds it in its own
// Config.
type Config struct {
	// Where the public interface listens.
	HTTPAddr string `env:"HTTP_ADDR" run:"127.0.0.1:8080" deployed:"set by the chart"`
	// Open connections of the public interface in one process. Further ones are closed at once. 0: no bound.
	HTTPMaxConns int `env:"HTTP_MAX_CONNS" envDefault:"0" deployed:"5000"`
	// Where the internal interface (gRPC) listens, of the services that have one.
	GRPCAddr string `env:"GRPC_ADDR" run:"loopback" deployed:"set by the chart"`
	// Where /livez, /readyz, /metrics, /log/level and /debug/pprof listen. Empty: nowhere.
	InternalAddr string `env:"INTERNAL_ADDR" deployed:"set by the chart"`

	// The database, by the service's own role: `postgres://user:password@host:5432/database`.
	PostgresURL string `env:"POSTGRES_URL" run:"own server" deployed:"required"`
	// The database past a pooler of transactions, for what needs a session, such as locks and migrations. Empty:
	// POSTGRES_URL.
	PostgresDirectURL string `env:"POSTGRES_DIRECT_URL" deployed:"behind a pooler of transactions"`
	// Whether a start updates the schema. Otherwise it only checks that `<service> migrate` did.
	Migrate bool `env:"MIGRATE" envDefault:"true" deployed:"false"`
	// Size of the connection pool of one process. 0: see below.
	PostgresMaxConns int32 `env:"POSTGRES_MAX_CONNS" envDefault:"0" deployed:"set it where nodes have many processors"`
	// Redis, for the limit of all services but notifier and for signup's positions; `rediss://` for TLS.
	RedisURL string `env:"REDIS_URL" run:"own server" deployed:"required"`
	// PEM file of the authorities of a `rediss://` server. Empty: the machine's.
	RedisCAFile string `env:"REDIS_CA_FILE"`

	// Kafka: `host:9092,host:9092`.
	KafkaBrokers []string `env:"KAFKA_BROKERS" run:"embedded broker" deployed:"required"`
	// Prefix of the names of topics and consumer groups.
	KafkaTopicPrefix string `env:"KAFKA_TOPIC_PREFIX"`
	// Whether connections to Kafka are encrypted.
	KafkaTLS bool `env:"KAFKA_TLS" envDefault:"false" deployed:"true"`
	// PEM file of the authorities of the brokers. Empty: the machine's.
	KafkaCAFile string `env:"KAFKA_CA_FILE"`
	// PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512. Empty: no login.
	KafkaSASLMechanism string `env:"KAFKA_SASL_MECHANISM"`
	// User name of the login at Kafka.
	KafkaUsername string `env:"KAFKA_USERNAME"`
	// Password of the login at Kafka.
	KafkaPassword string `env:"KAFKA_PASSWORD"`
	// Partitions of topics that do not exist yet. A topic feeds at most this many replicas of a service.
	KafkaPartitions int `env:"KAFKA_PARTITIONS" envDefault:"6"`
	// Brokers that keep each message of a topic that does not exist yet.
	KafkaReplication int `env:"KAFKA_REPLICATION" envDefault:"1" deployed:"3"`

	// Requests a second, over all services and replicas.
	RateLimitRPS int `env:"RATE_LIMIT_RPS" envDefault:"100"`
	// Requests at once after a pause.
	RateLimitBurst int `env:"RATE_LIMIT_BURST" envDefault:"200"`
	// Processes that share the limit while Redis is away.
	Replicas int `env:"REPLICAS" envDefault:"1" deployed:"replicas of all services together"`

	// Origins that may call everything but `/v1/public`, which every origin may call.
	CORSAllowedOrigin []string `env:"CORS_ALLOWED_ORIGIN" envDefault:"*" deployed:"set it"`
	// Addresses and networks whose `X-Forwarded-For` counts; `none` where clients connect directly. account does not start
	// without: one client could lock everybody's logins.
	TrustedProxies []string `env:"TRUSTED_PROXIES" run:"none" deployed:"the ingress' networks"`

	// Keys of the links in mails to signups: `id:base64,id:base64`. The first signs.
	TokenKeys string `env:"TOKEN_KEYS" run:"made in DATA_DIR/keys" deployed:"required"`
	// Keys of the links that verify accounts and reset passwords, in the same form. Empty: TOKEN_KEYS.
	AccountTokenKeys string `env:"ACCOUNT_TOKEN_KEYS" run:"made in DATA_DIR/keys" deployed:"required"`
	// Keys that encrypt stored secrets, in the same form. The first encrypts.
	SealKeys string `env:"SEAL_KEYS" run:"made in DATA_DIR/keys" deployed:"required"`
	// Where account serves its internal interface: `host:port` or a gRPC URL. The name must resolve to all replicas (a
	// headless service).
	AccountTarget string `env:"ACCOUNT_GRPC" envDefault:"account:9090" run:"loopback" deployed:"set by the chart"`
	// Where that of admin-analytics is.
	AnalyticsTarget string `env:"ADMIN_ANALYTICS_GRPC" envDefault:"admin-analytics:9090" run:"loopback" deployed:"set by the chart"`
	// Where that of messaging is.
	MessagingTarget string `env:"MESSAGING_GRPC" envDefault:"messaging:9090" run:"loopback" deployed:"set by the chart"`
	// Where that of signup is.
	SignupTarget string `env:"SIGNUP_GRPC" envDefault:"signup:9090" run:"loopback" deployed:"set by the chart"`

	// Ed25519 seed of the service's own identity, base64.
	ServiceKey string `env:"SERVICE_KEY" run:"made in DATA_DIR/keys" deployed:"required"`
	// Public keys of all services: `name:base64,…`. A name may have several, for a rotation.
	ServiceKeys string `env:"SERVICE_KEYS" run:"made in DATA_DIR/keys" deployed:"required"`

	// Whether this replica is a version on trial, which leaves to the others what one replica does for all, such as
	// publishing the outbox. Set it only where others run with false.
	Candidate bool `env:"CANDIDATE" envDefault:"false" deployed:"true in a canary's target, false in its stable copy"`

	// Whether invitations, sending domains, blasts and mails from templates need a verified address: of account, messaging and
	// signup.
	EnforceEmailVerification bool `env:"ENFORCE_EMAIL_VERIFICATION" envDefault:"false" deployed:"true"`

	// Pause between two searches for the rows of deleted accounts and waitlists, in admin-analytics, messaging and signup.
	PurgeEvery time.Duration `env:"PURGE_EVERY" envDefault:"1m"`
	// How long entries of the audit trail stay, in account, signup and messaging: 24h to 87600h.
	AuditRetention time.Duration `env:"AUDIT_RETENTION" envDefault:"9600h"`

	// Time between failing readiness and closing the listeners. All requests are served until then.
	ShutdownDelay time.Duration `env:"SHUTDOWN_DELAY" envDefault:"0s" deployed:"15s"`
	// Time that requests in flight may take at a stop.
	ShutdownDrain time.Duration `env:"SHUTDOWN_DRAIN" envDefault:"25s" deployed:"40s"`

	// DEBUG, INFO, WARN or ERROR.
	LogLevel slog.Level `env:"LOG_LEVEL" envDefault:"INFO"`
	// json, or text: shorter lines for people.
	LogFormat string `env:"LOG_FORMAT" envDefault:"json"`
	// Where spans go. Empty: nowhere.
	OTLPEndpoint string `env:"OTEL_EXPORTER_OTLP_ENDPOINT"`
	// Share of the requests that begin a trace, 0 to 1. What a traced request causes belongs to its trace.
	TraceRatio float64 `env:"TRACE_RATIO" envDefault:"0.05"`
	// Traces that one process begins in a second at most.
	TracesPerSecond int `env:"TRACES_PER_SECOND" envDefault:"50"`

	// Only code can set the following fields; nil means the default.

	// LogOutput takes the log lines; nil means standard error.
	LogOutput io.Writer `env:"-"`
	// Telemetry replaces the service's own. The service does not close it.
	Telemetry *telemetry.Telemetry `env:"-"`
	// Limiter replaces the one in Redis.
	Limiter ratelimit.Limiter `env:"-"`
	// Capacity is shared by services that run in one process.
	Capacity *httpapi.Capacity `env:"-"`
	// HTTPListener, GRPCListener and InternalListener take precedence over the addresses.
	// Run closes them.
	HTTPListener     net.Listener `env:"-"`
	GRPCListener     net.Listener `env:"-"`
	InternalListener net.Listener `env:"-"`
}

// Load reads an environment (KEY=value) into a struct with env tags. Its error lists all
// problems. Unset and empty variables get their defaults, so Load[Config](nil) returns
// the default configuration.
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

// Kafka returns the configuration of the Kafka cluster.
func (c *Config) Kafka() (kafka.Config, error) {
	k := kafka.Config{
		Brokers: c.KafkaBrokers, TopicPrefix: c.KafkaTopicPrefix, Partitions: c.KafkaPartitions, Replication: c.KafkaReplication,
	}
	var p problems
	p.check(len(c.KafkaBrokers) > 0, "Set KAFKA_BROKERS.")
	p.check(c.KafkaPartitions > 0, "Set KAFKA_PARTITIONS to a positive number.")
	p.check(c.KafkaReplication > 0, "Set KAFKA_REPLICATION to a positive number.")
	p.check(c.KafkaTLS || c.KafkaCAFile == "", "Set KAFKA_TLS to true to use KAFKA_CA_FILE.")
	if c.KafkaTLS {
		roots, err := tlsroots.Read(c.KafkaCAFile)
		p.add(named("KAFKA_CA_FILE", err))
		k.TLS = &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: roots}
	}
	if c.KafkaSASLMechanism != "" {
		p.check(c.KafkaUsername != "" && c.KafkaPassword != "", "Set KAFKA_USERNAME and KAFKA_PASSWORD to use KAFKA_SASL_MECHANISM.")
	} else {
		p.check(c.KafkaUsername == "" && c.KafkaPassword == "", "Set KAFKA_SASL_MECHANISM to use a user name and password.")
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
		p.check(false, "Set KAFKA_SASL_MECHANISM to PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512.")
	}
	p.add(named("KAFKA_USERNAME, KAFKA_PASSWORD", err))
	return k, p.err()
}

// problems collects the errors of a configuration.
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

func (p *problems) checkPostgres(c *Config) {
	p.check(c.PostgresURL != "", "Set POSTGRES_URL.")
	// An error of the driver may quote the password.
	for name, url := range map[string]string{"POSTGRES_URL": c.PostgresURL, "POSTGRES_DIRECT_URL": c.PostgresDirectURL} {
		pooled, err := pg.Pooled(url)
		p.check(err == nil, name+" is not a valid connection string, or has another default_query_exec_mode than cache_describe.")
		p.check(!pooled || url != c.directURL(), "Set POSTGRES_DIRECT_URL to a URL that leads past the pooler of transactions.")
	}
}

func (p *problems) err() error {
	if len(*p) == 0 {
		return nil
	}
	return fmt.Errorf("configuration: %w", errors.Join(*p...))
}

func (c *Config) directURL() string { return cmp.Or(c.PostgresDirectURL, c.PostgresURL) }

func (c *Config) output() io.Writer {
	if c.LogOutput != nil {
		return c.LogOutput
	}
	return os.Stderr
}
