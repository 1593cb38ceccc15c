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
	// podNetwork contains the pods' addresses. The range is reserved for benchmarks of networks, so nobody else uses it.
	podNetwork = "198.18.0.0/16"
)

// Enter starts this program again in new network and mount namespaces, waits for it and returns its exit code. Nothing in
// there can reach another network. In the inner program it returns done = false, and the program goes on.
func Enter() (code int, done bool, err error) {
	if os.Getenv(inside) != "" {
		return 0, false, setUpNetwork()
	}
	if os.Geteuid() != 0 {
		return 0, true, errors.New("run the lab as root: it creates a network namespace and runs pods as other users")
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

// setUpNetwork enables loopback and makes all pod addresses local.
func setUpNetwork() error {
	if err := syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	interfaces, err := net.Interfaces()
	if err != nil {
		return fmt.Errorf("list the network's interfaces: %w", err)
	}
	for _, i := range interfaces {
		if i.Flags&net.FlagLoopback == 0 && i.Flags&net.FlagUp != 0 {
			return fmt.Errorf("interface %s is up: this is not the lab's network namespace", i.Name)
		}
	}
	// Small buffers make a client that does not read block the pod about as soon as without a gateway: each hop would otherwise
	// buffer megabytes.
	for name, value := range map[string]string{"tcp_wmem": "4096 16384 262144", "tcp_rmem": "4096 131072 262144"} {
		if err := os.WriteFile("/proc/sys/net/ipv4/"+name, []byte(value), 0o644); err != nil {
			return fmt.Errorf("limit the buffers of connections: %w", err)
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
