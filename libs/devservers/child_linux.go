package devservers

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"
)

// childAttr puts a child in its own process group, so that Ctrl-C reaches only
// the parent, which then stops its servers in order, and asks the kernel to
// send it onDeath when the parent dies.
func childAttr(onDeath syscall.Signal) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: onDeath}
}

// unprivileged makes attr drop root, which Postgres refuses to run as, and
// gives dir with everything in it to the user it drops to. Without root it
// changes nothing.
func unprivileged(attr *syscall.SysProcAttr, dir string) error {
	if os.Geteuid() != 0 {
		return nil
	}
	uid, gid, err := serverUser()
	if err != nil {
		return err
	}
	attr.Credential = &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
	err = filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return os.Lchown(path, uid, gid)
	})
	if err != nil {
		return fmt.Errorf("give %s to the server's user: %w", dir, err)
	}
	if reachable(dir) {
		return nil
	}
	// A parent (say /root) is closed to others. One capability lets the server
	// through it, without opening that folder to anybody else.
	const capDACOverride, capDACReadSearch = 1, 2
	for _, c := range []uintptr{capDACReadSearch, capDACOverride} {
		if permitted(c) {
			attr.AmbientCaps = []uintptr{c}
			return nil
		}
	}
	return fmt.Errorf("user id %d cannot enter %s: choose a directory whose parents everybody may enter (chmod o+x)", uid, dir)
}

// serverUser returns the account that servers run as in place of root.
func serverUser() (uid, gid int, err error) {
	for _, name := range []string{"postgres", "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, err1 := strconv.Atoi(u.Uid)
		gid, err2 := strconv.Atoi(u.Gid)
		if err := errors.Join(err1, err2); err != nil {
			return 0, 0, fmt.Errorf("read the ids of user %s: %w", name, err)
		}
		return uid, gid, nil
	}
	return 0, 0, errors.New("Postgres does not run as root, and there is neither a user postgres nor nobody")
}

// reachable reports whether any user may enter every parent of dir.
func reachable(dir string) bool {
	for p := filepath.Dir(dir); ; p = filepath.Dir(p) {
		info, err := os.Stat(p)
		if err != nil || info.Mode().Perm()&0o001 == 0 {
			return false
		}
		if p == filepath.Dir(p) {
			return true
		}
	}
}

// permitted reports whether this process holds the capability.
func permitted(capability uintptr) bool {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return false
	}
	for line := range bytes.Lines(status) {
		if hex, ok := bytes.CutPrefix(line, []byte("CapPrm:")); ok {
			set, err := strconv.ParseUint(string(bytes.TrimSpace(hex)), 16, 64)
			return err == nil && set&(1<<capability) != 0
		}
	}
	return false
}
