package devservers

import (
	"fmt"
	"syscall"
)

// FreePort returns a loopback port that no server uses, for one that is told where to
// listen and may start seconds later, or again after a kill. It is reserved for as long as
// this process lives: a socket stays bound to it, which keeps the kernel from giving the
// port to whoever asks for any, also as the near end of a connection. The server itself
// binds it nevertheless, as the socket does not listen and both have SO_REUSEADDR.
func FreePort() (int, error) {
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, fmt.Errorf("find a free port: %w", err)
	}
	port, err := bindAny(fd)
	if err != nil {
		_ = syscall.Close(fd)
		return 0, fmt.Errorf("find a free port: %w", err)
	}
	return port, nil
}

// bindAny binds a socket to a free port of 127.0.0.1 and returns it.
func bindAny(fd int) (int, error) {
	if err := syscall.SetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_REUSEADDR, 1); err != nil {
		return 0, err
	}
	if err := syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		return 0, err
	}
	name, err := syscall.Getsockname(fd)
	if err != nil {
		return 0, err
	}
	return name.(*syscall.SockaddrInet4).Port, nil
}
