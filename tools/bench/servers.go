package main

import (
	"bufio"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"

	"waitlist.internal/libs/devservers"
	"waitlist.internal/libs/rpc"
)

// startTimeout bounds the service's start.
const startTimeout = 60 * time.Second

// settings returns the Postgres settings for both sides: durable, with enough memory and WAL.
func settings() map[string]string {
	return map[string]string{
		"fsync":                "on",
		"synchronous_commit":   "on",
		"full_page_writes":     "on",
		"shared_buffers":       "1GB",
		"max_wal_size":         "8GB",
		"checkpoint_timeout":   "30min",
		"maintenance_work_mem": "1GB",
	}
}

// lab holds the servers of one run.
type lab struct {
	root, dir string
	postgres  *devservers.Postgres
	redis     *devservers.Redis
	brokers   string
	closers   closers
}

// closers stop what was started, in the reverse order.
type closers []func() error

func (c closers) close() error {
	var errs []error
	for _, stop := range slices.Backward(c) {
		errs = append(errs, stop())
	}
	return errors.Join(errs...)
}

// newLab starts Postgres, Redis and, in its own process, Kafka.
func newLab(ctx context.Context, root string) (_ *lab, err error) {
	l := &lab{root: root, dir: filepath.Join(root, ".data", "bench")}
	defer func() {
		if err != nil {
			err = errors.Join(err, l.close())
		}
	}()
	if err := os.RemoveAll(l.dir); err != nil {
		return nil, fmt.Errorf("remove the last run's data: %w", err)
	}
	if err := os.MkdirAll(l.dir, 0o755); err != nil {
		return nil, fmt.Errorf("create the run's directory: %w", err)
	}
	if l.postgres, err = devservers.StartPostgres(ctx,
		devservers.PostgresOptions{Dir: filepath.Join(l.dir, "postgres"), Settings: settings()}); err != nil {
		return nil, err
	}
	l.closers = append(l.closers, l.postgres.Stop)
	if l.redis, err = devservers.StartRedis(ctx, devservers.RedisOptions{Dir: filepath.Join(l.dir, "redis")}); err != nil {
		return nil, err
	}
	l.closers = append(l.closers, l.redis.Stop)
	l.brokers, err = l.role(ctx, roleKafka, filepath.Join(l.dir, "kafka"))
	return l, err
}

// close stops all servers in the reverse order of their start. Their data stays until the next run or clean.
func (l *lab) close() error {
	err := l.closers.close()
	l.closers = nil
	return err
}

// clean removes the run's data.
func (l *lab) clean() error {
	if err := os.RemoveAll(l.dir); err != nil {
		return fmt.Errorf("clean up: %w", err)
	}
	return nil
}

// role starts this program as a helper process (see playRole) and returns the address that it prints. The helper ends when
// its standard input is closed.
func (l *lab) role(ctx context.Context, args ...string) (string, error) {
	self, err := os.Executable()
	if err != nil {
		return "", fmt.Errorf("find this program: %w", err)
	}
	cmd := exec.CommandContext(context.WithoutCancel(ctx), self, args...)
	cmd.Stderr = os.Stderr
	in, err1 := cmd.StdinPipe()
	out, err2 := cmd.StdoutPipe()
	if err := errors.Join(err1, err2, cmd.Start()); err != nil {
		return "", fmt.Errorf("start %s: %w", args[0], err)
	}
	l.closers = append(l.closers, func() error { return errors.Join(in.Close(), cmd.Wait()) })
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		return "", fmt.Errorf("start %s: %w", args[0], err)
	}
	return strings.TrimSpace(line), nil
}

// build builds a program's package and returns the binary.
func (l *lab) build(ctx context.Context, pkg string) (string, error) {
	file := filepath.Join(l.dir, filepath.Base(pkg))
	cmd := exec.CommandContext(ctx, "go", "build", "-o", file, pkg)
	cmd.Dir = l.root
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build %s: %w\n%s", pkg, err, out)
	}
	return file, nil
}

// server is the service under test, in its own process.
type server struct {
	addr, internal string
	cmd            *exec.Cmd
	ended          chan error
}

// serverSettings returns the settings that differ from the service's defaults.
func serverSettings() map[string]string {
	return map[string]string{
		"RATE_LIMIT_RPS":   "1000000",
		"RATE_LIMIT_BURST": "1000000",
	}
}

// The programs under test.
const (
	signupProgram     = "signup"     // the service alone
	standaloneProgram = "standalone" // all services in one process
)

// packages returns the programs' packages.
func packages() map[string]string {
	return map[string]string{signupProgram: "./services/signup/cmd/signup", standaloneProgram: "./tools/cmd/standalone"}
}

// devKey opens the standalone program's profiles.
const devKey = "bench"

// start runs a built program on a database until stop. name is the name of the instance; settings common to all instances
// override extra.
func (l *lab) start(ctx context.Context, program, postgresURL, name string, extra ...string) (*server, error) {
	addrs := make([]string, 3)
	for i := range addrs {
		var err error
		if addrs[i], err = freeAddr(ctx); err != nil {
			return nil, err
		}
	}
	env := map[string]string{
		"HTTP_ADDR": addrs[0], "INTERNAL_ADDR": addrs[1], "DEV_KEY": devKey,
		"POSTGRES_URL": postgresURL, "REDIS_URL": l.redis.URL, "KAFKA_BROKERS": l.brokers, "KAFKA_TOPIC_PREFIX": name + ".",
	}
	if filepath.Base(program) == standaloneProgram {
		env["DATA_DIR"] = filepath.Join(l.dir, name) // it creates its own keys there
	} else {
		public, _, err := ed25519.GenerateKey(rand.Reader)
		if err != nil {
			return nil, fmt.Errorf("create a key: %w", err)
		}
		env["GRPC_ADDR"] = addrs[2]
		env["TOKEN_KEYS"], env["SEAL_KEYS"] = "k1:"+secret(), "k1:"+secret()
		env["SERVICE_KEY"] = secret()
		env["SERVICE_KEYS"] = rpc.Keys{"account": {public}}.String()
	}
	maps.Copy(env, serverSettings())
	log, err := os.OpenFile(filepath.Join(l.dir, name+".log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the service's log: %w", err)
	}
	defer log.Close()
	cmd := exec.Command(program) // stop ends it, not a context, so that it drains
	cmd.Env = os.Environ()
	for k, v := range env {
		cmd.Env = append(cmd.Env, k+"="+v)
	}
	cmd.Env = append(cmd.Env, extra...)
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start the service: %w", err)
	}
	s := &server{addr: addrs[0], internal: addrs[1], cmd: cmd, ended: make(chan error, 1)}
	go func() { s.ended <- cmd.Wait() }()
	if err := s.awaitReady(ctx); err != nil {
		text, _ := os.ReadFile(log.Name())
		return nil, errors.Join(err, s.stop(), fmt.Errorf("its log ends with:\n%s", text[max(0, len(text)-2000):]))
	}
	return s, nil
}

func (s *server) awaitReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	return poll(ctx, 50*time.Millisecond, func() (bool, error) {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+s.internal+"/readyz", nil)
		if err != nil {
			return false, fmt.Errorf("request readiness: %w", err)
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			select {
			case err := <-s.ended:
				s.ended <- err
				return false, fmt.Errorf("the service ended while starting: %w", err)
			default:
				return false, nil // not listening yet
			}
		}
		defer resp.Body.Close()
		_, _ = io.Copy(io.Discard, resp.Body)
		return resp.StatusCode == http.StatusOK, nil
	})
}

// stop stops the service and lets it drain. Another call only returns the same error again.
func (s *server) stop() error {
	_ = s.cmd.Process.Signal(syscall.SIGTERM)
	err := <-s.ended
	s.ended <- err
	if err != nil {
		return fmt.Errorf("the service failed: %w", err)
	}
	return nil
}

// poll calls done until it returns true or an error, or ctx ends.
func poll(ctx context.Context, every time.Duration, done func() (bool, error)) error {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		if ok, err := done(); ok || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}

// freeAddr returns a loopback address that was free a moment ago.
func freeAddr(ctx context.Context) (string, error) {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return "", fmt.Errorf("find a free port: %w", err)
	}
	defer l.Close()
	return l.Addr().String(), nil
}

func secret() string {
	b := make([]byte, 32)
	_, _ = rand.Read(b) // never fails
	return base64.StdEncoding.EncodeToString(b)
}

// database creates a database and returns a connection to it.
func (l *lab) database(ctx context.Context, name string) (*pgx.Conn, error) {
	if err := l.postgres.CreateDatabase(ctx, name); err != nil {
		return nil, err
	}
	conn, err := pgx.Connect(ctx, l.postgres.URL(name))
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", name, err)
	}
	return conn, nil
}

// through returns a database URL that goes through a proxy.
func through(url, from, to string) string { return strings.Replace(url, from, to, 1) }

// postgresAddr returns the server's listen address.
func (l *lab) postgresAddr() string {
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(l.postgres.Port()))
}
