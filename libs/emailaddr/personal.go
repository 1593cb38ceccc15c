package emailaddr

import (
	_ "embed"
	"strings"
)

// freeProviders holds one domain a line, sorted bytewise. It is the npm package
// free-email-domains (MIT, see LICENSE.free-email-domains) with the domains of
// extra.txt added. make providers fetches the newest; make generate does not,
// since it has to give the same result each time.
//
//go:embed free_providers.txt
var freeProviders string

// Personal reports whether domain, as ParseDomain returns it, belongs to a free
// mail provider, where anybody can have an address. Subdomains are other
// domains.
func Personal(domain string) bool {
	// Binary search over the text itself: no index to build or keep.
	lo, hi := 0, len(freeProviders)
	for lo < hi {
		mid := (lo + hi) / 2
		start := strings.LastIndexByte(freeProviders[lo:mid], '\n') + 1 + lo
		line, _, _ := strings.Cut(freeProviders[start:hi], "\n")
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
