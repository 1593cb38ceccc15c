//go:build !linux

package devservers

import (
	"fmt"
	"net"
)

// FreePort returns a loopback port that no server used a moment ago. Another process may
// take it before the server for which it is listens.
func FreePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, fmt.Errorf("find a free port: %w", err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port, nil
}
