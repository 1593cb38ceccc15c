package httpapi

import (
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"strings"

	"github.com/gin-gonic/gin"
)

// proxies are the networks of the proxies whose X-Forwarded-For and trace context count.
type proxies []netip.Prefix

// newProxies reads addresses and networks; the only element "none" means none.
func newProxies(list []string) (out proxies, err error) {
	if slices.Equal(list, []string{"none"}) {
		return nil, nil
	}
	for _, s := range list {
		p, err := netip.ParsePrefix(s)
		if addr, addrErr := netip.ParseAddr(s); addrErr == nil {
			p, err = addr.Unmap().Prefix(addr.Unmap().BitLen())
		}
		if err != nil || p.Addr().Is4In6() {
			return nil, fmt.Errorf("write the proxy %q as an address or a network like 10.0.0.0/8", s)
		}
		out = append(out, p)
	}
	return out, nil
}

func (p proxies) trust(addr netip.Addr) bool {
	return slices.ContainsFunc(p, func(network netip.Prefix) bool { return network.Contains(addr) })
}

// client returns the address of the client of a request: of X-Forwarded-For, from the right, the first address that is no
// trusted proxy's, or else the leftmost. Whatever stands to the left of that may be the client's invention. It returns the
// address of the peer if the peer is not trusted or an entry cannot be read, and the zero Addr if the peer has none.
func (p proxies) client(in *http.Request) netip.Addr {
	peer, _ := parseAddr(in.RemoteAddr)
	if !p.trust(peer) {
		return peer
	}
	client := peer
	for _, line := range slices.Backward(in.Header["X-Forwarded-For"]) {
		for more := true; more; {
			entry := line
			if i := strings.LastIndexByte(line, ','); i >= 0 {
				line, entry = line[:i], line[i+1:]
			} else {
				more = false
			}
			addr, ok := parseAddr(strings.Trim(entry, " \t"))
			if !ok {
				return peer
			}
			if client = addr; !p.trust(addr) {
				return client
			}
		}
	}
	return client
}

// parseAddr reads an address as proxies write it: alone or with a port, IPv6 in brackets or bare. The result has no zone.
func parseAddr(s string) (netip.Addr, bool) {
	addr, err := netip.ParseAddr(s)
	if err != nil {
		var at netip.AddrPort
		if at, err = netip.ParseAddrPort(s); err == nil {
			addr = at.Addr()
		} else if inner, ok := strings.CutPrefix(s, "["); ok && strings.HasSuffix(inner, "]") {
			addr, err = netip.ParseAddr(strings.TrimSuffix(inner, "]"))
		}
	}
	return addr.Unmap().WithZone(""), err == nil
}

// ClientIP returns the client's address as the trusted proxies report it, without a port or zone, or "" if it has none.
func ClientIP(c *gin.Context) string {
	r := requestOf(c)
	if r == nil || !r.client.IsValid() {
		return ""
	}
	return r.client.String()
}
