package devservers

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/alicebob/miniredis/v2"

	"waitlist.internal/libs/redisconn"
)

// ErrNoRedis means that redis-server is not installed.
var ErrNoRedis = errors.New("no redis-server found: " +
	"install it (Debian, Ubuntu: apt-get install redis-server; macOS: brew install redis), " +
	"or set REDIS_URL to a running one")

// redisStart bounds a start, including reading the append-only file.
const redisStart = 30 * time.Second

// RedisOptions says what StartRedis starts.
type RedisOptions struct {
	// Dir holds the append-only file and the log and is created if missing.
	Dir string
	// Port on 127.0.0.1; 0 takes a free one.
	Port int
	// Volatile keeps nothing on disk.
	Volatile bool
	// Password, if set, is required of clients.
	Password string
	// CAFile, CertFile and KeyFile are PEM files. If set, the server accepts only TLS.
	CAFile, CertFile, KeyFile string
}

// Redis is a running server.
type Redis struct {
	// URL is what clients connect to.
	URL  string
	port int
	done <-chan struct{} // nil for the embedded one
	stop func() error
	kill func()
}

// StartRedis starts redis-server with an append-only file and without eviction. The
// error is ErrNoRedis if redis-server is not installed. ctx bounds the start alone.
func StartRedis(ctx context.Context, o RedisOptions) (*Redis, error) {
	bin, err := exec.LookPath("redis-server")
	if err != nil {
		return nil, ErrNoRedis
	}
	dir, err := filepath.Abs(o.Dir)
	if err != nil {
		return nil, fmt.Errorf("resolve %s: %w", o.Dir, err)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make the Redis directory: %w", err)
	}
	if err := stopOrphan(filepath.Join(dir, "redis.pid"), dir, syscall.SIGTERM, syscall.SIGKILL); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, redisStart)
	defer cancel()
	for try := 1; ; try++ {
		r, err := startRedis(ctx, bin, dir, o)
		if err != nil && try < portTries && o.Port == 0 && strings.Contains(err.Error(), "Address already in use") {
			continue
		}
		return r, err
	}
}

func startRedis(ctx context.Context, bin, dir string, o RedisOptions) (*Redis, error) {
	port := o.Port
	if port == 0 {
		var err error
		if port, err = FreePort(); err != nil {
			return nil, err
		}
	}
	aof := "yes"
	if o.Volatile {
		aof = "no"
	}
	scheme, listen := "redis", []string{"--port", strconv.Itoa(port)}
	if o.CertFile != "" {
		scheme, listen = "rediss", []string{
			"--port", "0", "--tls-port", strconv.Itoa(port), "--tls-auth-clients", "no",
			"--tls-ca-cert-file", o.CAFile, "--tls-cert-file", o.CertFile, "--tls-key-file", o.KeyFile,
		}
	}
	var user *url.Userinfo
	if o.Password != "" {
		user = url.UserPassword("", o.Password)
		listen = append(listen, "--requirepass", o.Password)
	}
	cmd := exec.Command(bin, append([]string{
		"--bind", "127.0.0.1", "--dir", dir, "--pidfile", filepath.Join(dir, "redis.pid"),
		"--save", "", "--appendonly", aof, "--maxmemory-policy", "noeviction", "--loglevel", "warning",
	}, listen...)...)
	cmd.Dir, cmd.SysProcAttr = dir, childAttr(syscall.SIGTERM)
	logPath := filepath.Join(dir, "redis.log")
	_ = os.Rename(logPath, logPath+".old")
	c, err := startChild("redis-server", cmd, logPath)
	if err != nil {
		return nil, err
	}
	address := (&url.URL{Scheme: scheme, User: user, Host: fmt.Sprintf("127.0.0.1:%d", port), Path: "/0"}).String()
	client, err := redisconn.Open(address, redisconn.Options{Timeout: time.Second, CAFile: o.CAFile})
	if err != nil {
		c.kill()
		return nil, err
	}
	defer func() { _ = client.Close() }()
	if err := c.ready(ctx, func(ctx context.Context) error {
		// The client would log each refused connection.
		conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
		if err != nil {
			return err
		}
		_ = conn.Close()
		return client.Ping(ctx).Err() // fails with LOADING while Redis reads its file
	}); err != nil {
		c.kill()
		return nil, err
	}
	return &Redis{URL: address, port: port, done: c.done, stop: func() error { return c.stop(syscall.SIGTERM) }, kill: c.kill}, nil
}

// EmbeddedRedis starts a substitute for Redis (miniredis) inside this process, for
// machines without redis-server. It is slow with sorted sets of more than some ten
// thousand members and has no persistence. The suite keeps only derived data
// there and rebuilds it after a start.
func EmbeddedRedis() (*Redis, error) {
	mini := miniredis.NewMiniRedis()
	if err := mini.StartAddr("127.0.0.1:0"); err != nil {
		return nil, fmt.Errorf("start the Redis stand-in: %w", err)
	}
	stop := make(chan struct{})
	var running sync.WaitGroup
	running.Go(func() {
		// miniredis expires keys only when told how much time has passed.
		const step = 50 * time.Millisecond
		tick := time.NewTicker(step)
		defer tick.Stop()
		last := time.Now()
		for {
			select {
			case <-stop:
				return
			case now := <-tick.C:
				mini.FastForward(now.Sub(last))
				last = now
			}
		}
	})
	end := sync.OnceFunc(func() {
		close(stop)
		running.Wait()
		mini.Close()
	})
	return &Redis{URL: "redis://" + mini.Addr() + "/0", stop: func() error { end(); return nil }, kill: end}, nil
}

// Port is the server's port on 127.0.0.1, 0 for the embedded one.
func (r *Redis) Port() int { return r.port }

// Done is closed when the server has ended for any reason. It is nil for the
// embedded one.
func (r *Redis) Done() <-chan struct{} { return r.done }

// Stop writes all data to disk and stops the server.
func (r *Redis) Stop() error { return r.stop() }

// Kill ends the server with SIGKILL.
func (r *Redis) Kill() { r.kill() }
