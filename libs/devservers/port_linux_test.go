package devservers_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"waitlist.internal/libs/devservers"
)

// A port that a server will listen on is nobody else's: on 2026-11-26 another process had
// got it when Apache Kafka listened, ten seconds after it was chosen.
func TestFreePortIsForItsServerAlone(t *testing.T) {
	t.Parallel()
	port, err := devservers.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	address := fmt.Sprintf("127.0.0.1:%d", port)
	server, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", address)
	if err != nil {
		t.Fatalf("the server for which port %d is: %v", port, err)
	}
	if err := server.Close(); err != nil {
		t.Fatal(err)
	}
	unshared := with(unix.SOL_SOCKET, unix.SO_REUSEADDR, 0)
	if l, err := (&net.ListenConfig{Control: unshared}).Listen(t.Context(), "tcp", address); !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("port %d is free: %v, %v", port, l, err)
	}

	// From here on the kernel chooses, among this port alone. Linux before 6.3 cannot be told so.
	only := with(unix.SOL_IP, unix.IP_LOCAL_PORT_RANGE, port<<16|port)
	l, err := (&net.ListenConfig{Control: only}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if !errors.Is(err, syscall.EADDRINUSE) && !errors.Is(err, syscall.ENOPROTOOPT) {
		t.Errorf("another server got port %d: %v, %v", port, l, err)
	}
	elsewhere, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer elsewhere.Close()
	dialer := net.Dialer{ControlContext: func(_ context.Context, network, address string, c syscall.RawConn) error {
		return only(network, address, c)
	}}
	conn, err := dialer.DialContext(t.Context(), "tcp", elsewhere.Addr().String())
	if !errors.Is(err, syscall.EADDRNOTAVAIL) && !errors.Is(err, syscall.ENOPROTOOPT) {
		t.Errorf("a connection got port %d: %v, %v", port, conn, err)
	}
}

// with sets an option of a socket before it is bound.
func with(level, option, value int) func(_, _ string, c syscall.RawConn) error {
	return func(_, _ string, c syscall.RawConn) (err error) {
		return errors.Join(c.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), level, option, value) }), err)
	}
}
