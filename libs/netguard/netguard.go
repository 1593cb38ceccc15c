// Package netguard keeps URLs that customers give us from leading into
// networks that are not theirs. CheckURL judges a URL when it is saved, without
// resolving anything; Blocked judges an address when it is dialled, which is
// what also holds against names that resolve to private addresses.
package netguard

import (
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/net/idna"
)

// Options say what CheckURL accepts.
type Options struct {
	// MaxLength bounds the URL, in code points.
	MaxLength int
	// AllowHTTP accepts http beside https.
	AllowHTTP bool
	// AnyHost accepts every host. It is for URLs that we never call ourselves.
	AnyHost bool
}

// The errors of CheckURL. Their texts are made to be shown.
var (
	errURL      = errors.New("must be a valid URL")
	errHTTPS    = errors.New("must start with https://")
	errHTTP     = errors.New("must start with https:// or http://")
	errUserinfo = errors.New("must not contain a user name or password")
	errHost     = errors.New("must have a public host")
)

// CheckURL returns nil where raw is an absolute URL within opts. Hosts must be
// names or canonical address literals; names that Unicode mapping turns into
// blocked ones are blocked too.
func CheckURL(raw string, opts Options) error {
	if utf8.RuneCountInString(raw) > opts.MaxLength {
		return fmt.Errorf("must have at most %d characters", opts.MaxLength)
	}
	// Browsers and other parsers drop or turn these; nobody needs them raw.
	if !utf8.ValidString(raw) || strings.ContainsFunc(raw, func(r rune) bool {
		return r == '\\' || unicode.IsSpace(r) || unicode.IsControl(r)
	}) {
		return errURL
	}
	u, err := url.Parse(raw)
	if err != nil {
		return errURL // the parser's text would repeat the URL, which may be a secret
	}
	switch {
	case u.Scheme == "https":
	case !opts.AllowHTTP:
		return errHTTPS
	case u.Scheme != "http":
		return errHTTP
	}
	if u.User != nil {
		return errUserinfo
	}
	if u.Hostname() == "" || !validPort(u) {
		return errURL
	}
	if !opts.AnyHost && !publicHost(u) {
		return errHost
	}
	return nil
}

// validPort reports whether u has no port, or one from 1 to 65535.
func validPort(u *url.URL) bool {
	if u.Port() == "" {
		return !strings.HasSuffix(u.Host, ":")
	}
	n, err := strconv.ParseUint(u.Port(), 10, 16)
	return err == nil && n > 0
}

// publicHost judges the literal form of u's host.
func publicHost(u *url.URL) bool {
	host := u.Hostname()
	if strings.HasPrefix(u.Host, "[") {
		addr, err := netip.ParseAddr(host)
		return err == nil && !addr.Is4In6() && addr.String() == strings.ToLower(host) && !Blocked(addr)
	}
	host = strings.ToLower(host)
	if strings.ContainsFunc(host, func(r rune) bool { return r >= utf8.RuneSelf }) || strings.Contains(host, "xn--") {
		var err error
		if host, err = idna.Lookup.ToASCII(host); err != nil {
			return false
		}
	}
	labels := strings.Split(strings.TrimSuffix(host, "."), ".")
	if len(host) > 253 || slices.ContainsFunc(labels, func(l string) bool { return !label(l) }) {
		return false
	}
	last := labels[len(labels)-1]
	// What ends in a number is an IPv4 address to every parser, in whatever
	// base and with however many parts; only the canonical form is clear.
	if numeric(last) {
		addr, err := netip.ParseAddr(host)
		return err == nil && addr.Is4() && !Blocked(addr)
	}
	return last != "localhost" && last != "localdomain" && host != "ip6-localhost" && host != "ip6-loopback"
}

// label reports whether s is a label of a name in the DNS.
func label(s string) bool {
	return s != "" && len(s) <= 63 && !strings.ContainsFunc(s, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < '0' || r > '9') && r != '-' && r != '_'
	})
}

// numeric reports whether s is a decimal, octal or hexadecimal number.
func numeric(s string) bool {
	if hex, ok := strings.CutPrefix(s, "0x"); ok {
		return strings.Trim(hex, "0123456789abcdef") == ""
	}
	return strings.Trim(s, "0123456789") == ""
}

// Blocked reports whether addr is anything but a public unicast address. An
// IPv4 address in IPv6 form counts as what it maps to. Translation prefixes
// (NAT64, 6to4, Teredo) are blocked whole, since they may lead anywhere.
func Blocked(addr netip.Addr) bool {
	addr = addr.Unmap()
	if !addr.IsValid() || addr.Zone() != "" {
		return true
	}
	if addr.Is4() {
		return within(addr,
			"0.0.0.0/8",       // this network
			"10.0.0.0/8",      // private
			"100.64.0.0/10",   // carrier-grade NAT
			"127.0.0.0/8",     // loopback
			"169.254.0.0/16",  // link-local, cloud metadata
			"172.16.0.0/12",   // private
			"192.0.0.0/24",    // protocol assignments
			"192.0.2.0/24",    // documentation
			"192.88.99.0/24",  // 6to4 relays
			"192.168.0.0/16",  // private
			"198.18.0.0/15",   // benchmarks
			"198.51.100.0/24", // documentation
			"203.0.113.0/24",  // documentation
			"224.0.0.0/4",     // multicast
			"240.0.0.0/4",     // reserved, broadcast
		)
	}
	// 2000::/3 is all that is allocated to the public. Loopback, ULA, link- and
	// site-local, multicast, NAT64 and IPv4-compatible addresses lie outside.
	return !within(addr, "2000::/3") || within(addr,
		"2001::/23",     // protocol assignments: Teredo, ORCHID, benchmarks
		"2001:db8::/32", // documentation
		"2002::/16",     // 6to4
		"3fff::/20",     // documentation
	)
}

func within(addr netip.Addr, prefixes ...string) bool {
	return slices.ContainsFunc(prefixes, func(p string) bool { return netip.MustParsePrefix(p).Contains(addr) })
}
