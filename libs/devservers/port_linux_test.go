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

// A port that a server will listen on is nobody else's: on 2026-11-26 a connection of
// another test got it while Apache Kafka started, which takes ten seconds.
func TestFreePortIsForItsServerAlone(t *testing.T) {
	t.Parallel()
	port, err := devservers.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	// take makes the kernel choose a socket's port among this one alone.
	take := func(_, _ string, c syscall.RawConn) error {
		var failed error
		err := c.Control(func(fd uintptr) {
			failed = unix.SetsockoptInt(int(fd), unix.SOL_IP, unix.IP_LOCAL_PORT_RANGE, port<<16|port)
		})
		return errors.Join(err, failed)
	}
	server, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		t.Fatalf("the server for which port %d is: %v", port, err)
	}
	if err := server.Close(); err != nil {
		t.Fatal(err)
	}

	l, err := (&net.ListenConfig{Control: take}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("another server got port %d: %v, %v", port, l, err)
	}
	elsewhere, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer elsewhere.Close()
	dialer := net.Dialer{ControlContext: func(_ context.Context, network, address string, c syscall.RawConn) error {
		return take(network, address, c)
	}}
	conn, err := dialer.DialContext(t.Context(), "tcp", elsewhere.Addr().String())
	if !errors.Is(err, syscall.EADDRNOTAVAIL) {
		t.Errorf("a connection got port %d: %v, %v", port, conn, err)
	}
}
