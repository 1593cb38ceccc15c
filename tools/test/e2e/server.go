package e2e

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

const (
	// pollEvery is how often a condition is looked at.
	pollEvery = 20 * time.Millisecond
	// readyTimeout bounds a start, a first initdb on a busy machine included.
	readyTimeout = 90 * time.Second
	// stopTimeout is how long an orderly stop may take.
	stopTimeout = 45 * time.Second
)

// BinaryVariable names a standalone program to test in place of a fresh build.
const BinaryVariable = "E2E_STANDALONE"

// programsVariable names a folder for built programs that all packages of a test
// run share. The first one to need a program builds it.
const programsVariable = "TEST_PROGRAMS"

// raceVariable asks for a program with the race detector where the tests run
// without it.
const raceVariable = "TEST_RACE"

// Build returns the path of the standalone program. The program reports data
// races if the tests do or if TEST_RACE is set.
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

// Options says what Start starts.
type Options struct {
	// Binary is what Build returned.
	Binary string
	// Dir holds the data, the mails and the log. A second start on it finds
	// what the first left.
	Dir string
	// Addr is host:port to listen on; empty takes a free loopback port.
	Addr string
	// Env is added to what the program needs in any case.
	Env map[string]string
}

// Server is a running standalone program.
type Server struct {
	// URL is its address, without the version segment.
	URL string
	// MailDir is where its mails are.
	MailDir string
	// Addr is host:port.
	Addr string

	cmd     *exec.Cmd
	logPath string
	done    chan struct{} // closed when the process is gone
	err     error         // of Wait; valid after done
}

// Start starts the program and returns once it says that it is ready. The
// process lives until it is stopped; ctx bounds the start alone.
func Start(ctx context.Context, o Options) (*Server, error) {
	if o.Addr == "" {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, fmt.Errorf("find a free port: %w", err)
		}
		o.Addr = l.Addr().String()
		if err := l.Close(); err != nil {
			return nil, fmt.Errorf("find a free port: %w", err)
		}
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
		// No test tells a stranger of its signups.
		"HTTPS_PROXY": "http://127.0.0.1:9",
	}
	maps.Copy(env, o.Env)
	// What a program in place of the standalone one needs; see tools/test/lab.
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

// Run is Start for a test: it ends with the test, in order, and then its log
// must not tell of a panic or a data race.
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
				t.Errorf("the log has %q", bad)
			}
		}
		if t.Failed() {
			t.Logf("the log ends with:\n%s\nits errors:\n%s", tail(log), tail(failures(log)))
		}
	})
	return s
}

// DataDir is a temporary directory that a database's own user gets through.
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

// AwaitReady returns once /readyz answers 200, or the process ends, or ctx is
// done.
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

// Stop ends the program in order, as Ctrl-C does, and fails where it does not
// end with success. A program that is gone is left alone.
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
		return fmt.Errorf("the standalone program ended badly: %w", s.err)
	}
	return nil
}

// Kill ends the program as kill -9 does and waits until it is gone.
func (s *Server) Kill() {
	_ = s.cmd.Process.Kill()
	<-s.done
}

// Log is what the program wrote, earlier starts on the same directory included.
func (s *Server) Log() string {
	b, err := os.ReadFile(s.logPath)
	if err != nil {
		return err.Error()
	}
	return string(b)
}

// failures are the lines about errors.
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

// Await polls until done says so; it fails the test after timeout.
func Await(t testing.TB, timeout time.Duration, what string, done func() bool) {
	t.Helper()
	deadline := time.NewTimer(timeout)
	defer deadline.Stop()
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for !done() {
		select {
		case <-deadline.C:
			t.Fatalf("not within %s: %s", timeout, what)
		case <-tick.C:
		}
	}
}
