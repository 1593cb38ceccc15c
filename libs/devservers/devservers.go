// Package devservers runs the servers that the suite needs on one machine, for
// development, the standalone runner and tests. Postgres and Redis are child
// processes from local binaries. Kafka is embedded in the process or, if the test
// needs the real one, an Apache Kafka as a child process.
//
// Every server listens on loopback only and keeps its state in one directory. It
// starts again on that directory after a stop, a kill or a crash. A start first
// stops a server that outlived its parent, which it finds by the pid file. On
// Linux the kernel also signals the children when their parent dies.
package devservers

import (
	"context"
	"errors"
	"fmt"
	"io"
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
	// pollEvery is the interval between two looks at a starting or stopping server.
	pollEvery = 20 * time.Millisecond
	// stopTimeout is how long a server may take to stop before it is killed.
	stopTimeout = 15 * time.Second
	// logLimit is the size in bytes from which a start truncates the server's log.
	logLimit = 16 << 20
	// logTail is how many bytes from the end of a server's log an error quotes.
	logTail = 2000
)

// child is a running server process.
type child struct {
	name    string
	cmd     *exec.Cmd
	logPath string
	done    chan struct{} // closed when the process has ended
	err     error         // the result of Wait, valid after done
}

// startChild starts cmd and appends its output to logPath. No context ends the
// process, only stop and kill.
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
		// The kernel sends the parent-death signal when the forking thread ends.
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
// done; the error then quotes the end of the server's log.
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

// stop sends sig and waits until the process has ended. After stopTimeout it kills
// the process.
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

// kill sends SIGKILL and waits until the process has ended.
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

// tail returns the end of a file, for error messages.
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

// stopOrphan stops a server that outlived a killed parent: the process whose pid is
// the first line of pidFile, if its working directory is dir. It leaves every
// other process alone. It tries the signals in turn.
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

// readPid returns the pid in the first line of a file, if there is one.
func readPid(path string) (int, bool) {
	raw, err := os.ReadFile(path)
	if err != nil {
		return 0, false
	}
	line, _, _ := strings.Cut(string(raw), "\n")
	pid, err := strconv.Atoi(strings.TrimSpace(line))
	return pid, err == nil && pid > 1
}

// worksIn reports whether dir is the working directory of process pid. Postgres
// and Redis change to their data directory.
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
