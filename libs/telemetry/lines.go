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
	mu  sync.Mutex
	out io.Writer
	buf []byte
	// timer flushes linesDelay after a line came into an empty buffer, so a process without
	// lines does not wake up for them.
	timer  *time.Timer
	closed bool
}

func newLineWriter(out io.Writer) *lineWriter {
	w := &lineWriter{out: out, buf: make([]byte, 0, linesBuffered)}
	w.timer = time.AfterFunc(linesDelay, w.Flush)
	w.timer.Stop()
	return w
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
	if len(w.buf) == 0 {
		w.timer.Reset(linesDelay)
	}
	w.buf = append(w.buf, line...)
	if w.closed {
		w.flush()
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
		w.timer.Stop()
	}
}

// Close writes the buffered lines. Write does not buffer later lines.
func (w *lineWriter) Close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closed = true
	w.flush()
}
