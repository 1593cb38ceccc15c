package emailaddr

import (
	_ "embed"
	"strings"
)

// disposableDomains has one domain per line, sorted bytewise: the package
// disposable-email-domains of PyPI (MIT, see LICENSE.disposable-email-domains), which
// mirrors a list of the same name whose entries people review. update.sh fetches the
// newest one.
//
//go:embed disposable_domains.txt
var disposableDomains string

// Disposable reports whether domain, in the form that ParseDomain returns, or a domain
// above it belongs to a provider of throwaway addresses.
func Disposable(domain string) bool {
	for below := true; below; _, domain, below = strings.Cut(domain, ".") {
		if listed(disposableDomains, domain) {
			return true
		}
	}
	return false
}
