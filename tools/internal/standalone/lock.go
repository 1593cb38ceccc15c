package standalone

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
)

// lock makes this process the only runner that uses dir. The kernel releases the lock
// when the process ends, even after a kill.
func lock(dir string) (unlock func() error, err error) {
	f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the lock file in DATA_DIR: %w", err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		_ = f.Close()
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, fmt.Errorf("another standalone program uses %s: stop it, or choose another DATA_DIR", dir)
		}
		return nil, fmt.Errorf("lock DATA_DIR: %w", err)
	}
	return f.Close, nil
}
