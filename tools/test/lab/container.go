package lab

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

// containerCommand is the argument that makes this program start a container.
const containerCommand = "container"

// container describes the file system, user and command of a pod's process.
type container struct {
	// Root is the directory that becomes the root of its file system.
	Root     string
	ReadOnly bool
	Mounts   []mount
	UID, GID int
	Dir      string
	Args     []string
	Env      []string
}

// mount makes a directory or file of the machine visible in a container.
type mount struct {
	Source, Target string
	ReadOnly       bool
}

// runContainer turns this process, which runs in its own mount namespace, into the container's process. It returns only with
// an error.
func runContainer(spec string) error {
	runtime.LockOSThread()
	var c container
	if err := json.Unmarshal([]byte(spec), &c); err != nil {
		return fmt.Errorf("decode the container: %w", err)
	}
	parent := os.Getppid()
	mounts := append([]mount{{Source: "/proc", Target: "/proc"}, {Source: "/dev", Target: "/dev"}}, c.Mounts...)
	if err := bind(mount{Source: c.Root, Target: c.Root, ReadOnly: false}); err != nil {
		return err
	}
	for _, m := range mounts {
		m.Target = filepath.Join(c.Root, m.Target)
		// Not earlier: the mount point may be inside a directory that was mounted just now.
		if err := errors.Join(mountPoint(m), bind(m)); err != nil {
			return err
		}
	}
	if c.ReadOnly {
		if err := syscall.Mount("", c.Root, "", syscall.MS_BIND|syscall.MS_REMOUNT|syscall.MS_RDONLY, ""); err != nil {
			return fmt.Errorf("make the files read-only: %w", err)
		}
	}
	if err := errors.Join(syscall.Chroot(c.Root), os.Chdir(c.Dir)); err != nil {
		return fmt.Errorf("enter the image: %w", err)
	}
	if err := errors.Join(
		unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0),
		syscall.Setgroups(nil), syscall.Setgid(c.GID), syscall.Setuid(c.UID),
		// The kernel clears the parent-death signal when the user changes, so set it after that.
		unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(syscall.SIGKILL), 0, 0, 0),
	); err != nil {
		return fmt.Errorf("become user %d: %w", c.UID, err)
	}
	if os.Getppid() != parent {
		return errors.New("the node died")
	}
	return fmt.Errorf("run %s: %w", c.Args[0], syscall.Exec(c.Args[0], c.Args, c.Env))
}

// mountPoint creates the mount point of m.
func mountPoint(m mount) error {
	info, err := os.Stat(m.Source)
	if err != nil {
		return err
	}
	if info.IsDir() {
		return os.MkdirAll(m.Target, 0o755)
	}
	return errors.Join(os.MkdirAll(filepath.Dir(m.Target), 0o755), os.WriteFile(m.Target, nil, 0o644))
}

// bind makes m.Source visible at m.Target, which must exist.
func bind(m mount) error {
	if err := syscall.Mount(m.Source, m.Target, "", syscall.MS_BIND|syscall.MS_REC, ""); err != nil {
		return fmt.Errorf("mount %s: %w", m.Target, err)
	}
	if !m.ReadOnly {
		return nil
	}
	if err := syscall.Mount("", m.Target, "", syscall.MS_BIND|syscall.MS_REMOUNT|syscall.MS_RDONLY, ""); err != nil {
		return fmt.Errorf("mount %s read-only: %w", m.Target, err)
	}
	return nil
}

// ContainerMain becomes the container's process if this program was started for that. It returns true on failure; the
// program must then exit with ContainerFailed. Every program that starts nodes calls it first.
func ContainerMain() (failed bool) {
	if len(os.Args) != 2 || os.Args[1] != containerCommand || os.Getenv(containerVariable) == "" {
		return false
	}
	fmt.Fprintln(os.Stderr, runContainer(os.Getenv(containerVariable)))
	return true
}

// ContainerFailed is the exit code for a container that could not start.
const ContainerFailed = 128
