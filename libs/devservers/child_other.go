//go:build !linux

package devservers

import (
	"errors"
	"os"
	"syscall"
)

// childAttr puts a child in its own process group, so that Ctrl-C reaches only
// the parent, which then stops its servers in order.
func childAttr(syscall.Signal) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true}
}

// unprivileged only checks here: run the suite as an ordinary user.
func unprivileged(*syscall.SysProcAttr, string) error {
	if os.Geteuid() == 0 {
		return errors.New("Postgres does not run as root: start this as an ordinary user")
	}
	return nil
}
