package netguard

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"syscall"
)

// ErrBlocked means that the address of a connection is Blocked.
var ErrBlocked = errors.New("address is not public")

// Guard refuses connections to addresses that are not public. It checks the
// address that the kernel is about to connect to, after name resolution, so that
// DNS rebinding does not help an attacker. If a name has both public and other
// addresses, the dialer connects to the public ones only.
type Guard struct {
	// Allowed networks may be reached although they are blocked, for operators that
	// run receivers in their own network.
	Allowed []netip.Prefix
}

// Control is for net.Dialer.ControlContext. Its errors wrap ErrBlocked.
func (g Guard) Control(_ context.Context, network, address string, _ syscall.RawConn) error {
	target, err := netip.ParseAddrPort(address)
	if err != nil || (network != "tcp4" && network != "tcp6") {
		return fmt.Errorf("%w: %s %s", ErrBlocked, network, address)
	}
	addr := target.Addr().Unmap()
	if !Blocked(addr) {
		return nil
	}
	for _, p := range g.Allowed {
		if p.Contains(addr) {
			return nil
		}
	}
	return fmt.Errorf("%w: %s", ErrBlocked, addr)
}

// ParseNetworks parses networks and single addresses, such as 10.1.0.0/16 and
// 127.0.0.1.
func ParseNetworks(list []string) ([]netip.Prefix, error) {
	out := make([]netip.Prefix, 0, len(list))
	for _, s := range list {
		if !strings.Contains(s, "/") {
			addr, err := netip.ParseAddr(s)
			if err != nil {
				return nil, fmt.Errorf("network %q: %w", s, err)
			}
			out = append(out, netip.PrefixFrom(addr.Unmap(), addr.Unmap().BitLen()))
			continue
		}
		p, err := netip.ParsePrefix(s)
		if err != nil {
			return nil, fmt.Errorf("network %q: %w", s, err)
		}
		out = append(out, p.Masked())
	}
	return out, nil
}
