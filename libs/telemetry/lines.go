package telemetry

import (
	"io"
	"sync"
	"time"
)

const (
	// linesBuffered is the size of the buffer in bytes.
	linesBuffered = 64 << 10
	// linesDelay is the longest time that a line stays in the buffer. A kill loses the
	// lines in the buffer.
	linesDelay = 200 * time.Millisecond
)

// lineWriter collects lines and writes them together. At a few thousand requests a
// second, a system call for each line is a considerable part of a request's cost. A write
// never splits a line, so several lineWriters may share a file.
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
		// After Close, no goroutine flushes the buffer.
		w.flush()
	default:
	}
	return len(line), nil
}

// Flush writes the buffered lines.
func (w *lineWriter) Flush() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.flush()
}

func (w *lineWriter) flush() {
	if len(w.buf) > 0 {
		// There is nowhere to report that the log cannot be written.
		_, _ = w.out.Write(w.buf)
		w.buf = w.buf[:0]
	}
}

// Close writes the buffered lines and ends the goroutine. Write does not buffer later
// lines.
func (w *lineWriter) Close() {
	w.once.Do(func() { close(w.stop) })
	<-w.done
}
