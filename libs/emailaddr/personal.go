package emailaddr

import (
	_ "embed"
	"strings"
)

// freeProviders has one domain per line, sorted bytewise: the npm package
// free-email-domains (MIT, see LICENSE.free-email-domains) and the domains of
// extra.txt. update.sh fetches the newest list; make generate does not, so
// that its result is reproducible.
//
//go:embed free_providers.txt
var freeProviders string

// Personal reports whether domain, in the form that ParseDomain returns, belongs
// to a free mail provider, which gives anybody an address. A subdomain of such a
// domain does not count.
func Personal(domain string) bool { return listed(freeProviders, domain) }

// listed reports whether a line of list, whose lines are sorted bytewise, is domain. A
// binary search over the text needs no index.
func listed(list, domain string) bool {
	lo, hi := 0, len(list)
	for lo < hi {
		mid := (lo + hi) / 2
		start := strings.LastIndexByte(list[lo:mid], '\n') + 1 + lo
		line, _, _ := strings.Cut(list[start:hi], "\n")
		switch strings.Compare(line, domain) {
		case 0:
			return true
		case -1:
			lo = min(start+len(line)+1, hi)
		default:
			hi = start
		}
	}
	return false
}
