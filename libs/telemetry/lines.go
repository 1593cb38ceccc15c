package telemetry

import (
	"io"
	"sync"
	"time"
)

const (
	// linesBuffered is how many bytes of log wait for one write.
	linesBuffered = 64 << 10
	// linesDelay is how long a line waits at most, and so what a kill loses.
	linesDelay = 200 * time.Millisecond
)

// lineWriter collects lines and writes them together: at a few thousand
// requests a second one system call per line is a good part of their cost. It
// never cuts a line, so that several may share a file.
type lineWriter struct {
	mu   sync.Mutex
	out  io.Writer
	buf  []byte
	stop chan struct{}
	done chan struct{}
	once sync.Once
}

func newLineWriter(out io.Writer) *lineWriter {
	w := &lineWriter{out: out, buf: make([]byte, 0, linesBuffered), stop: make(chan struct{}), done: make(chan struct{})}
	go w.tick()
	return w
}

func (w *lineWriter) tick() {
	defer close(w.done)
	t := time.NewTicker(linesDelay)
	defer t.Stop()
	for {
		select {
		case <-t.C:
			w.Flush()
		case <-w.stop:
			w.Flush()
			return
		}
	}
}

// Write takes one line.
func (w *lineWriter) Write(line []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.buf)+len(line) > cap(w.buf) {
		w.flush()
	}
	if len(line) > cap(w.buf) {
		return w.out.Write(line)
	}
	w.buf = append(w.buf, line...)
	select {
	case <-w.stop:
		// Closed: nobody comes to write it later.
		w.flush()
	default:
	}
	return len(line), nil
}

// Flush writes what waits.
func (w *lineWriter) Flush() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.flush()
}

func (w *lineWriter) flush() {
	if len(w.buf) > 0 {
		// A log that cannot be written has nowhere to complain.
		_, _ = w.out.Write(w.buf)
		w.buf = w.buf[:0]
	}
}

// Close writes what waits and ends the goroutine. Later lines are written
// unbuffered.
func (w *lineWriter) Close() {
	w.once.Do(func() { close(w.stop) })
	<-w.done
}
