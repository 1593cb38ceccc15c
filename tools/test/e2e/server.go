package e2e

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"waitlist.internal/libs/devservers"
)

const (
	// pollEvery is the interval at which conditions are checked.
	pollEvery = 20 * time.Millisecond
	// readyTimeout bounds a start, including the first initdb on a busy machine.
	readyTimeout = 5 * time.Minute
	// stopTimeout bounds an orderly stop.
	stopTimeout = 45 * time.Second
)

// BinaryVariable names a standalone program to test instead of a fresh build.
const BinaryVariable = "E2E_STANDALONE"

// programsVariable names a directory for built programs that all packages of a test run share. The first package that needs
// a program builds it.
const programsVariable = "TEST_PROGRAMS"

// raceVariable requests a program with the race detector although the tests run without it.
const raceVariable = "TEST_RACE"

// Build builds the standalone program and returns its path. It has the race detector if the tests have it or TEST_RACE is
// set.
func Build(t testing.TB) string {
	t.Helper()
	if path := os.Getenv(BinaryVariable); path != "" {
		return path
	}
	dir := os.Getenv(programsVariable)
	if dir == "" {
		dir = t.TempDir()
	}
	path := filepath.Join(dir, "standalone")
	lock, err := os.Create(path + ".lock")
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close() // unlocks it
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		t.Fatalf("lock the standalone program: %v", err)
	}
	if _, err := os.Stat(path); err == nil {
		return path
	}
	args := []string{"build", "-o", path + ".new"}
	if raceDetector || os.Getenv(raceVariable) != "" {
		args = append(args, "-race")
	}
	cmd := exec.CommandContext(t.Context(), "go", append(args, "waitlist.internal/tools/cmd/standalone")...)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build the standalone program: %v\n%s", err, out)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
	return path
}

// Options configures Start.
type Options struct {
	// Binary is the program's path, as returned by Build.
	Binary string
	// Dir holds the data, the mails and the log. A second start in the same Dir finds what the first left.
	Dir string
	// Addr is the host:port to listen on; empty: a free loopback port.
	Addr string
	// Env is added to the variables that the program always needs.
	Env map[string]string
}

// Server is a running standalone program.
type Server struct {
	// URL is the program's URL without the version segment.
	URL string
	// MailDir is the directory that receives its mails.
	MailDir string
	// Addr is the host:port it listens on.
	Addr string

	cmd     *exec.Cmd
	logPath string
	done    chan struct{} // closed when the process has ended
	err     error         // from Wait; valid after done
}

// Start starts the program and returns when it is ready. The process lives until it is stopped; ctx bounds the start only.
func Start(ctx context.Context, o Options) (*Server, error) {
	if o.Addr == "" {
		port, err := devservers.FreePort()
		if err != nil {
			return nil, err
		}
		o.Addr = fmt.Sprintf("127.0.0.1:%d", port)
	}
	s := &Server{
		URL: "http://" + o.Addr, Addr: o.Addr, MailDir: filepath.Join(o.Dir, "mail"),
		logPath: filepath.Join(o.Dir, "standalone.log"), done: make(chan struct{}),
	}
	log, err := os.OpenFile(s.logPath, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the log: %w", err)
	}
	defer log.Close()
	s.cmd = exec.Command(o.Binary)
	s.cmd.Dir = o.Dir
	s.cmd.Stdout, s.cmd.Stderr = log, log
	env := map[string]string{
		"PATH": os.Getenv("PATH"), "HOME": os.Getenv("HOME"), "TMPDIR": os.TempDir(),
		"HTTP_ADDR": o.Addr, "DATA_DIR": filepath.Join(o.Dir, "data"), "MAIL_DIR": s.MailDir, "LOG_FILE": "-",
		// A dead proxy keeps the tests from notifying real servers of signups.
		"HTTPS_PROXY": "http://127.0.0.1:9",
	}
	maps.Copy(env, o.Env)
	// For a program that replaces the standalone one; see tools/test/lab.
	for _, kv := range os.Environ() {
		if k, v, _ := strings.Cut(kv, "="); strings.HasPrefix(k, "LAB_") {
			env[k] = v
		}
	}
	for k, v := range env {
		s.cmd.Env = append(s.cmd.Env, k+"="+v)
	}
	if err := s.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start the standalone program: %w", err)
	}
	go func() {
		s.err = s.cmd.Wait()
		close(s.done)
	}()
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	if err := s.AwaitReady(ctx); err != nil {
		s.Kill()
		return nil, err
	}
	return s, nil
}

// Run starts the program for the duration of a test. At the end it stops the program in order and fails the test if the log
// reports a panic or a data race.
func Run(t testing.TB, o Options) *Server {
	t.Helper()
	if o.Dir == "" {
		o.Dir = DataDir(t)
	}
	s, err := Start(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Stop(); err != nil {
			t.Error(err)
		}
		log := s.Log()
		for _, bad := range []string{"DATA RACE", "panic:", "goroutine 1 ["} {
			if strings.Contains(log, bad) {
				t.Errorf("the log contains %q", bad)
			}
		}
		if t.Failed() {
			t.Logf("the log ends with:\n%s\nits errors:\n%s", tail(log), tail(failures(log)))
		}
	})
	return s
}

// DataDir returns a temporary directory that the database's own user may enter.
func DataDir(t testing.TB) string {
	t.Helper()
	dir := t.TempDir()
	for d := dir; strings.HasPrefix(d, os.TempDir()) && d != os.TempDir(); d = filepath.Dir(d) {
		if err := os.Chmod(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// AwaitReady waits until /readyz answers 200. It fails if the process ends or ctx is done first.
func (s *Server) AwaitReady(ctx context.Context) error {
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for {
		status, err := s.ready(ctx)
		if err == nil && status == http.StatusOK {
			return nil
		}
		select {
		case <-s.done:
			return fmt.Errorf("the standalone program ended while starting (%w); its log ends with:\n%s", s.err, tail(s.Log()))
		case <-ctx.Done():
			return fmt.Errorf("the standalone program is not ready (last: %d, %w); its log ends with:\n%s", status, err, tail(s.Log()))
		case <-tick.C:
		}
	}
}

func (s *Server) ready(ctx context.Context) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.URL+"/readyz", nil)
	if err != nil {
		return 0, err
	}
	transport := &http.Transport{DisableKeepAlives: true}
	res, err := transport.RoundTrip(req)
	if err != nil {
		return 0, err
	}
	defer res.Body.Close()
	_, _ = io.Copy(io.Discard, res.Body)
	return res.StatusCode, nil
}

// Stop stops the program in order, like Ctrl-C, and fails unless it exits successfully. It does nothing if the program has
// already ended.
func (s *Server) Stop() error {
	select {
	case <-s.done:
		return nil
	default:
	}
	if err := s.cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("stop the standalone program: %w", err)
	}
	select {
	case <-s.done:
	case <-time.After(stopTimeout):
		s.Kill()
		return fmt.Errorf("the standalone program did not stop within %s", stopTimeout)
	}
	if s.err != nil {
		return fmt.Errorf("the standalone program failed: %w", s.err)
	}
	return nil
}

// Kill kills the program with SIGKILL and waits for its end.
func (s *Server) Kill() {
	_ = s.cmd.Process.Kill()
	<-s.done
}

// Log returns the program's log, including earlier starts in the same directory.
func (s *Server) Log() string {
	b, err := os.ReadFile(s.logPath)
	if err != nil {
		return err.Error()
	}
	return string(b)
}

// failures returns the log lines about errors.
func failures(log string) string {
	var b strings.Builder
	for line := range strings.Lines(log) {
		if strings.Contains(line, `"level":"ERROR"`) {
			b.WriteString(line)
		}
	}
	return b.String()
}

func tail(log string) string {
	const most = 6000
	if len(log) > most {
		return log[len(log)-most:]
	}
	return log
}

// Await polls done until it returns true, and fails the test after timeout.
func Await(t testing.TB, timeout time.Duration, what string, done func() bool) {
	t.Helper()
	deadline := time.NewTimer(timeout)
	defer deadline.Stop()
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for !done() {
		select {
		case <-deadline.C:
			t.Fatalf("did not happen within %s: %s", timeout, what)
		case <-tick.C:
		}
	}
}
