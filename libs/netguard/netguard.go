// Package netguard keeps customers' URLs from reaching private networks. CheckURL
// checks a URL when it is saved, without resolving its name; Guard checks the
// address when it is dialled, which also covers names that resolve to private
// addresses.
package netguard

import (
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
	// AllowHTTP accepts http as well as https.
	AllowHTTP bool
	// AnyHost accepts private hosts too. It is for URLs that the platform never calls.
	AnyHost bool
}

// The problems that CheckURL finds, as field errors for people.
const (
	badURL      = "Enter a valid URL."
	wantHTTPS   = "This must start with https://."
	wantHTTP    = "This must start with https:// or http://."
	hasUserinfo = "This must not contain a user name or password."
	privateHost = "This must have a public host."
)

// CheckURL returns "" if raw is an absolute URL that opts allow, or else a field
// error for people. A host must be a name or a canonical address literal. Names
// are mapped to ASCII (IDNA) first, so that a look-alike of a blocked name is
// blocked too.
func CheckURL(raw string, opts Options) (problem string) {
	if utf8.RuneCountInString(raw) > opts.MaxLength {
		return fmt.Sprintf("This must have at most %d characters.", opts.MaxLength)
	}
	// Browsers and other parsers drop or replace these characters.
	if !utf8.ValidString(raw) || strings.ContainsFunc(raw, func(r rune) bool {
		return r == '\\' || unicode.IsSpace(r) || unicode.IsControl(r)
	}) {
		return badURL
	}
	u, err := url.Parse(raw)
	if err != nil {
		return badURL // the parser's error quotes the URL, which may be secret
	}
	switch {
	case u.Scheme == "https":
	case !opts.AllowHTTP:
		return wantHTTPS
	case u.Scheme != "http":
		return wantHTTP
	}
	if u.User != nil {
		return hasUserinfo
	}
	if u.Hostname() == "" || !validPort(u) {
		return badURL
	}
	host, addr, ok := readHost(u)
	switch {
	case !ok && opts.AnyHost:
		return badURL
	case !opts.AnyHost && (!ok || !public(host, addr)):
		return privateHost
	}
	return ""
}

// validPort reports whether u has no port, or one from 1 to 65535.
func validPort(u *url.URL) bool {
	if u.Port() == "" {
		return !strings.HasSuffix(u.Host, ":")
	}
	n, err := strconv.ParseUint(u.Port(), 10, 16)
	return err == nil && n > 0
}

// Origin returns the origin of an http or https URL as browsers write it, with an ASCII name, or "" if raw is no such URL or has
// no valid host. What it returns may stand in a header or a Content-Security-Policy.
func Origin(raw string) string {
	u, err := url.Parse(raw)
	if err != nil || u.Scheme != "https" && u.Scheme != "http" || !validPort(u) {
		return ""
	}
	host, _, ok := readHost(u)
	if !ok {
		return ""
	}
	if port := u.Port(); port != "" {
		host += ":" + port
	}
	return u.Scheme + "://" + host
}

// readHost returns u's host as browsers write it, and its address unless it is a name.
// ok reports whether it is a name of DNS labels or a canonical address without a zone.
func readHost(u *url.URL) (host string, addr netip.Addr, ok bool) {
	host = strings.ToLower(u.Hostname())
	if strings.HasPrefix(u.Host, "[") {
		addr, err := netip.ParseAddr(host)
		return "[" + host + "]", addr, err == nil && addr.Is6() && !addr.Is4In6() && addr.Zone() == "" && addr.String() == host
	}
	if strings.ContainsFunc(host, func(r rune) bool { return r >= utf8.RuneSelf }) || strings.Contains(host, "xn--") {
		var err error
		if host, err = idna.Lookup.ToASCII(host); err != nil {
			return "", addr, false
		}
	}
	labels := strings.Split(strings.TrimSuffix(host, "."), ".")
	if len(host) > 253 || slices.ContainsFunc(labels, func(l string) bool { return !label(l) }) {
		return "", addr, false
	}
	// Parsers read a host that ends in a number as an IPv4 address, in any base and
	// with one to four parts. Only the canonical form is unambiguous.
	if numeric(labels[len(labels)-1]) {
		addr, err := netip.ParseAddr(host)
		return host, addr, err == nil && addr.Is4()
	}
	return host, addr, true
}

// public reports whether what readHost returned is a public address or may be a public name.
func public(host string, addr netip.Addr) bool {
	if addr.IsValid() {
		return !Blocked(addr)
	}
	name := strings.TrimSuffix(host, ".")
	last := name[strings.LastIndexByte(name, '.')+1:]
	return last != "localhost" && last != "localdomain" && host != "ip6-localhost" && host != "ip6-loopback"
}

// label reports whether s is a valid DNS label.
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

// Blocked reports whether addr is not a public unicast address. An IPv4-mapped
// IPv6 address counts as its IPv4 address. Translation prefixes (NAT64, 6to4,
// Teredo) are blocked entirely, since they may lead anywhere.
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
	// All public addresses are in 2000::/3. Loopback, unique local, link-local,
	// site-local, multicast, NAT64 and IPv4-compatible addresses are outside.
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
