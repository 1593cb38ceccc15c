package emailaddr

import "strings"

// ignored says what a provider ignores in the local part of an address.
type ignored struct {
	// dots says whether the provider ignores dots, besides everything from the first plus
	// sign on.
	dots bool
	// domain is the provider's main domain.
	domain string
}

// aliases has the providers that are known to ignore parts of a local part, by domain.
// Anywhere else, addresses that differ belong to different people.
var aliases = map[string]ignored{
	"gmail.com": {true, "gmail.com"}, "googlemail.com": {true, "gmail.com"},
	"outlook.com": {false, "outlook.com"}, "hotmail.com": {false, "hotmail.com"},
	"live.com": {false, "live.com"}, "msn.com": {false, "msn.com"},
	"icloud.com": {false, "icloud.com"}, "me.com": {false, "icloud.com"}, "mac.com": {false, "icloud.com"},
	"fastmail.com": {false, "fastmail.com"}, "fastmail.fm": {false, "fastmail.fm"},
	"proton.me": {true, "proton.me"}, "protonmail.com": {true, "proton.me"}, "pm.me": {true, "proton.me"},
}

// Person returns the form that the addresses of one mailbox share: without the plus
// part, and without dots where the provider ignores them. The address must be one that
// Parse returned; at other domains than those of the large providers it stays as it is.
func Person(addr string) string {
	local, domain, _ := strings.Cut(addr, "@")
	p, known := aliases[domain]
	if !known {
		return addr
	}
	if i := strings.IndexByte(local, '+'); i > 0 {
		local = local[:i]
	}
	if p.dots {
		local = strings.ReplaceAll(local, ".", "")
	}
	return local + "@" + p.domain
}
