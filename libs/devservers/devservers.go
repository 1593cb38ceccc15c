// Package devservers runs the servers that the suite needs on one machine, for
// development, the standalone runner and tests: Postgres and Redis as child
// processes from local binaries, Kafka in process or, where the real thing is
// wanted, Apache Kafka as a child.
//
// Every server listens on loopback only, keeps its state in one directory and
// can be started again on that directory after any kind of death. A server
// that outlived its parent is found by its pid file and stopped first. On
// Linux children also get a signal when the process that started them dies.
package devservers

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"
)

const (
	// pollEvery is how often a starting or stopping server is looked at.
	pollEvery = 20 * time.Millisecond
	// stopTimeout is how long a server may take to stop by itself before it is
	// killed.
	stopTimeout = 15 * time.Second
	// logLimit is the size from which a server's log starts anew at a start.
	logLimit = 16 << 20
	// logTail is how much of a server's log an error quotes, in bytes.
	logTail = 2000
)

// child is a running server process.
type child struct {
	name    string
	cmd     *exec.Cmd
	logPath string
	done    chan struct{} // closed when the process is gone
	err     error         // of Wait; valid after done
}

// startChild starts cmd with its output appended to logPath. The process lives
// until it is stopped; it does not depend on any context.
func startChild(name string, cmd *exec.Cmd, logPath string) (*child, error) {
	flags := os.O_CREATE | os.O_WRONLY | os.O_APPEND
	if info, err := os.Stat(logPath); err == nil && info.Size() > logLimit {
		flags |= os.O_TRUNC
	}
	log, err := os.OpenFile(logPath, flags, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open log of %s: %w", name, err)
	}
	defer log.Close()
	cmd.Stdout, cmd.Stderr = log, log
	c := &child{name: name, cmd: cmd, logPath: logPath, done: make(chan struct{})}
	started := make(chan error)
	go func() {
		// The signal at the parent's death is tied to the thread that forked.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err != nil {
			return
		}
		c.err = cmd.Wait()
		close(c.done)
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	return c, nil
}

// ready polls check until it passes. It fails when the process ends or ctx is
// done, and then says what the server wrote last.
func (c *child) ready(ctx context.Context, check func(context.Context) error) error {
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for {
		err := check(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-c.done:
			return fmt.Errorf("%s ended while starting (%w); its log ends with:\n%s", c.name, exitError(c.err), tail(c.logPath))
		case <-ctx.Done():
			return fmt.Errorf("%s is not ready: %w (last: %w); its log ends with:\n%s", c.name, ctx.Err(), err, tail(c.logPath))
		case <-tick.C:
		}
	}
}

// stop sends sig, waits and at last kills. It returns when the process is gone.
func (c *child) stop(sig syscall.Signal) error {
	select {
	case <-c.done:
		return nil
	default:
	}
	if err := c.cmd.Process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("signal %s: %w", c.name, err)
	}
	select {
	case <-c.done:
		return nil
	case <-time.After(stopTimeout):
		c.kill()
		return fmt.Errorf("%s did not stop within %s and was killed", c.name, stopTimeout)
	}
}

// kill ends the process as kill -9 does and waits until it is gone.
func (c *child) kill() {
	_ = c.cmd.Process.Kill()
	<-c.done
}

func exitError(err error) error {
	if err == nil {
		return errors.New("exit status 0")
	}
	return err
}

// tail is the end of a file, for error messages.
func tail(path string) string {
	f, err := os.Open(path)
	if err != nil {
		return err.Error()
	}
	defer f.Close()
	if info, err := f.Stat(); err == nil && info.Size() > logTail {
		_, _ = f.Seek(-logTail, io.SeekEnd)
	}
	b, _ := io.ReadAll(f)
	return strings.TrimSpace(string(b))
}

// freePort is a loopback port that nobody listened on a moment ago.
func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, fmt.Errorf("find a free port: %w", err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port, nil
}

// stopOrphan stops the server whose pid is the first line of pidFile, when such
// a process still runs and works in dir: one that outlived a killed parent. It
// leaves every other process alone. The signals are tried in turn.
func stopOrphan(pidFile, dir string, signals ...syscall.Signal) error {
	pid, ok := readPid(pidFile)
	if !ok || !worksIn(pid, dir) {
		return nil
	}
	for _, sig := range signals {
		if err := syscall.Kill(pid, sig); err != nil && !errors.Is(err, syscall.ESRCH) {
			return fmt.Errorf("stop the server left behind with pid %d: %w", pid, err)
		}
		for deadline := time.Now().Add(stopTimeout); time.Now().Before(deadline); time.Sleep(pollEvery) {
			if !worksIn(pid, dir) {
				return nil
			}
		}
	}
	return fmt.Errorf("the server left behind with pid %d does not stop", pid)
}

// readPid is the number in the first line of a pid file, if there is one.
func readPid(path string) (int, bool) {
	raw, err := os.ReadFile(path)
	if err != nil {
		return 0, false
	}
	line, _, _ := strings.Cut(string(raw), "\n")
	pid, err := strconv.Atoi(strings.TrimSpace(line))
	return pid, err == nil && pid > 1
}

// worksIn reports whether process pid runs with dir as its working directory,
// which both Postgres and Redis make their data directory.
func worksIn(pid int, dir string) bool {
	cwd, err := os.Stat(filepath.Join("/proc", strconv.Itoa(pid), "cwd"))
	if err == nil {
		want, err := os.Stat(dir)
		return err == nil && os.SameFile(cwd, want)
	}
	if _, err := os.Stat("/proc/self"); err == nil {
		return false
	}
	// No /proc (macOS): the arguments name the directory.
	out, err := exec.Command("ps", "-o", "args=", "-p", strconv.Itoa(pid)).Output()
	return err == nil && strings.Contains(string(out), dir)
}
