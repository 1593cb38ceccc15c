package lab

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
)

const (
	// inside marks a process that Enter started.
	inside = "LAB_INSIDE"
	// podNetwork holds the addresses of pods: the range that is set aside for
	// measurements between networks, so nobody's.
	podNetwork = "198.18.0.0/16"
)

// Enter starts this program once more in network and mount namespaces of its
// own, waits and returns its exit code. Nothing in there reaches any other
// network. For the program inside it returns done = false: go on.
func Enter() (code int, done bool, err error) {
	if os.Getenv(inside) != "" {
		return 0, false, setUpNetwork()
	}
	if os.Geteuid() != 0 {
		return 0, true, errors.New("the lab needs root: it makes a network namespace, and pods have users of their own")
	}
	self, err := os.Executable()
	if err != nil {
		return 0, true, fmt.Errorf("find this program: %w", err)
	}
	cmd := exec.Command(self, os.Args[1:]...)
	cmd.Env = append(os.Environ(), inside+"=1")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	defer signal.Stop(signals)
	if err := cmd.Start(); err != nil {
		return 0, true, fmt.Errorf("enter a network namespace: %w", err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	for {
		select {
		case s := <-signals:
			_ = cmd.Process.Signal(s)
		case err := <-ended:
			if exit, ok := errors.AsType[*exec.ExitError](err); ok {
				return exit.ExitCode(), true, nil
			}
			return 0, true, err
		}
	}
}

// setUpNetwork makes loopback work and every address of a pod a local one.
func setUpNetwork() error {
	if err := syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("keep mounts to this namespace: %w", err)
	}
	interfaces, err := net.Interfaces()
	if err != nil {
		return fmt.Errorf("list the network's interfaces: %w", err)
	}
	for _, i := range interfaces {
		if i.Flags&net.FlagLoopback == 0 && i.Flags&net.FlagUp != 0 {
			return fmt.Errorf("%s is up: this is no network namespace of the lab's own", i.Name)
		}
	}
	// Who does not read holds its pod up as soon as without a gateway between: each
	// further hop would buffer megabytes.
	for name, value := range map[string]string{"tcp_wmem": "4096 16384 262144", "tcp_rmem": "4096 131072 262144"} {
		if err := os.WriteFile("/proc/sys/net/ipv4/"+name, []byte(value), 0o644); err != nil {
			return fmt.Errorf("bound the buffers of connections: %w", err)
		}
	}
	for _, args := range [][]string{
		{"link", "set", "lo", "up"},
		{"route", "replace", "local", podNetwork, "dev", "lo"},
	} {
		if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
			return fmt.Errorf("ip %v: %w: %s", args, err, out)
		}
	}
	return nil
}
