package standalone

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"path/filepath"
	"time"

	"waitlist.internal/libs/devservers"
	"waitlist.internal/libs/telemetry"
)

const (
	// database is the name of the suite's database in its own Postgres.
	database = "waitlist"
	// restartPause is the wait before a dead server is restarted and between failed
	// restarts.
	restartPause = time.Second
)

// startServers starts the servers that the environment does not name and stores their
// addresses in s.cfg.
func (s *Standalone) startServers(ctx context.Context) error {
	for _, start := range []func(context.Context) error{s.startPostgres, s.startRedis, s.startKafka} {
		if err := start(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (s *Standalone) dir(name string) string { return filepath.Join(s.cfg.DataDir, name) }

func (s *Standalone) startPostgres(ctx context.Context) error {
	if s.cfg.PostgresURL != "" {
		s.parts = append(s.parts, part{name: "Postgres", what: "external server from POSTGRES_URL"})
		return nil
	}
	p, err := keepRunning(ctx, s, "Postgres", func(ctx context.Context, port int) (*devservers.Postgres, error) {
		return devservers.StartPostgres(ctx, devservers.PostgresOptions{
			Dir: s.dir("postgres"), Dist: s.dir("postgres-dist"), Port: port,
			Settings: map[string]string{"shared_buffers": "256MB", "max_wal_size": "2GB"},
		})
	})
	if err != nil {
		return err
	}
	if err := p.CreateDatabase(ctx, database); err != nil {
		return err
	}
	s.cfg.PostgresURL = p.URL(database)
	s.parts = append(s.parts, part{name: "Postgres", what: "own server in " + s.dir("postgres")})
	return nil
}

func (s *Standalone) startRedis(ctx context.Context) error {
	ping := func(ctx context.Context) error { return s.redis.Ping(ctx).Err() }
	redis := part{name: "Redis", what: "external server from REDIS_URL", check: ping}
	if s.cfg.RedisURL == "" {
		redis.what = "own server in " + s.dir("redis")
		r, err := keepRunning(ctx, s, redis.name, func(ctx context.Context, port int) (*devservers.Redis, error) {
			return devservers.StartRedis(ctx, devservers.RedisOptions{Dir: s.dir("redis"), Port: port})
		})
		if errors.Is(err, devservers.ErrNoRedis) {
			redis.what = "embedded stand-in, for small lists only; install redis-server for larger ones"
			if r, err = devservers.EmbeddedRedis(); err == nil {
				s.onStop(r.Stop)
			}
		}
		if err != nil {
			return err
		}
		s.cfg.RedisURL = r.URL
	}
	s.parts = append(s.parts, redis)
	return nil
}

func (s *Standalone) startKafka(ctx context.Context) error {
	kafka := part{name: "Kafka", what: "external brokers from KAFKA_BROKERS", check: s.kafkaReachable}
	if len(s.cfg.KafkaBrokers) == 0 {
		kafka.what = "embedded broker, log in " + s.dir("kafka")
		k, err := devservers.StartKafka(ctx, devservers.KafkaOptions{Dir: s.dir("kafka")})
		if err != nil {
			return err
		}
		s.onStop(k.Stop)
		s.cfg.KafkaBrokers = k.Brokers
	}
	s.parts = append(s.parts, kafka)
	return nil
}

// kafkaReachable returns nil if at least one broker accepts a connection.
func (s *Standalone) kafkaReachable(ctx context.Context) error {
	var errs []error
	for _, broker := range s.cfg.KafkaBrokers {
		conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", broker)
		if err == nil {
			return conn.Close()
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// server is a database server in a child process.
type server interface {
	Port() int
	Done() <-chan struct{}
	Stop() error
}

// keepRunning starts a server and restarts it on the same port whenever it dies before
// the suite stops. start picks a free port if its port is 0.
func keepRunning[S server](
	ctx context.Context, s *Standalone, name string, start func(ctx context.Context, port int) (S, error),
) (S, error) {
	first, err := start(ctx, 0)
	if err != nil {
		return first, err
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	ended := make(chan error)
	go func() {
		running := first
		for {
			select {
			case <-ctx.Done():
				ended <- running.Stop()
				return
			case <-running.Done():
			}
			s.log.LogAttrs(ctx, slog.LevelError, "server died; restarting it", slog.String("server", name))
			for {
				select {
				case <-ctx.Done():
					ended <- nil
					return
				case <-time.After(restartPause):
				}
				next, err := start(ctx, first.Port())
				if err == nil {
					running = next
					break
				}
				s.log.LogAttrs(ctx, slog.LevelError, "restart of a server failed", slog.String("server", name), telemetry.Err(err))
			}
		}
	}()
	s.onStop(func() error {
		cancel()
		if err := <-ended; err != nil {
			return fmt.Errorf("stop %s: %w", name, err)
		}
		return nil
	})
	return first, nil
}
