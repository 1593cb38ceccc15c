package standalone

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
)

// logLimit is the size in bytes at which the log file is rotated. One old file is kept.
const logLimit = 64 << 20

// warningMarks tell warnings and errors by their line, as JSON and as text.
var warningMarks = []string{`"level":"WARN"`, `"level":"ERROR"`, ` level=WARN `, ` level=ERROR `} // a constant

// openLog opens the writer for the services' log lines.
func openLog(cfg Config) (io.WriteCloser, error) {
	if cfg.LogFile == "-" {
		return nopCloser{cfg.Stderr}, nil
	}
	if err := os.MkdirAll(filepath.Dir(cfg.LogFile), 0o755); err != nil {
		return nil, fmt.Errorf("create the folder of LOG_FILE: %w", err)
	}
	l := &logFile{path: cfg.LogFile, warnings: cfg.Stderr}
	return l, l.open()
}

type nopCloser struct{ io.Writer }

func (nopCloser) Close() error { return nil }

// logFile writes lines to a file of bounded size and copies warnings and errors to
// the warnings writer.
type logFile struct {
	path     string
	warnings io.Writer

	mu   sync.Mutex
	file *os.File
	size int64
}

func (l *logFile) open() error {
	f, err := os.OpenFile(l.path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return fmt.Errorf("open LOG_FILE: %w", err)
	}
	info, err := f.Stat()
	if err != nil {
		_ = f.Close()
		return fmt.Errorf("stat LOG_FILE: %w", err)
	}
	l.file, l.size = f, info.Size()
	return nil
}

// Write writes whole lines.
func (l *logFile) Write(lines []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for line := range bytes.Lines(lines) {
		for _, mark := range warningMarks {
			if bytes.Contains(line, []byte(mark)) {
				_, _ = l.warnings.Write(line)
				break
			}
		}
	}
	if l.size > logLimit {
		// If the rename fails, the current file keeps growing.
		if os.Rename(l.path, l.path+".old") == nil {
			_ = l.file.Close()
			if err := l.open(); err != nil {
				return 0, err
			}
		}
	}
	n, err := l.file.Write(lines)
	l.size += int64(n)
	return n, err
}

// Close closes the file.
func (l *logFile) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.file.Close()
}
