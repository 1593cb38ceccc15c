// Package emailaddr reads e-mail addresses: one form in which they are stored,
// compared and returned, and whether a domain belongs to a free provider.
//
// Accepted is what people's addresses look like: a dot-atom local part in
// ASCII and a domain of two labels or more, internationalized ones as A-labels.
// Display names, comments, quoted local parts and IP literals are refused.
package emailaddr

import (
	"errors"
	"strings"
	"unicode/utf8"

	"golang.org/x/net/idna"
)

const (
	// MaxLength is the longest address, in characters of its stored form.
	MaxLength = 254
	// maxLocal and maxDomain are the bounds of RFC 5321, section 4.5.3.1.
	maxLocal  = 64
	maxDomain = 253
	maxLabel  = 63
)

// ErrInvalid is returned for whatever is no acceptable address or domain.
var ErrInvalid = errors.New("not a valid e-mail address")

// Parse returns s as it is stored: trimmed, lower-cased, its domain in ASCII.
// Parsing a result again returns the same.
func Parse(s string) (string, error) {
	s = strings.TrimSpace(s)
	at := strings.LastIndexByte(s, '@')
	if at < 1 || at > maxLocal || !dotAtom(s[:at]) {
		return "", ErrInvalid
	}
	domain, err := ParseDomain(s[at+1:])
	if err != nil {
		return "", err
	}
	addr := strings.ToLower(s[:at]) + "@" + domain
	if len(addr) > MaxLength {
		return "", ErrInvalid
	}
	return addr, nil
}

// ParseDomain returns a mail domain as it is stored: lower-cased A-labels, two
// or more, the last of them no number.
func ParseDomain(s string) (string, error) {
	// Four bytes a character are more than any domain within its bound needs.
	if len(s) > 4*maxDomain || !utf8.ValidString(s) {
		return "", ErrInvalid
	}
	domain := strings.ToLower(s)
	// ASCII labels are judged below; Lookup would also refuse names in use,
	// such as those with hyphens in the third and fourth place.
	if !ascii(s) || strings.Contains(domain, "xn--") {
		var err error
		if domain, err = idna.Lookup.ToASCII(s); err != nil {
			return "", ErrInvalid
		}
	}
	if len(domain) > maxDomain || !strings.Contains(domain, ".") {
		return "", ErrInvalid
	}
	last := ""
	for last = range strings.SplitSeq(domain, ".") {
		if !label(last) {
			return "", ErrInvalid
		}
	}
	if strings.Trim(last, "0123456789") == "" {
		return "", ErrInvalid // 192.0.2.1 is an address, not a name
	}
	return domain, nil
}

// Domain returns what follows the last @ of a parsed address.
func Domain(addr string) string {
	return addr[strings.LastIndexByte(addr, '@')+1:]
}

// dotAtom reports whether s is a dot-atom of RFC 5322, section 3.2.3.
func dotAtom(s string) bool {
	for i := range len(s) {
		c := s[i]
		switch {
		case c == '.':
			if i == 0 || i == len(s)-1 || s[i-1] == '.' {
				return false
			}
		case !alphanumeric(c) && strings.IndexByte("!#$%&'*+-/=?^_`{|}~", c) < 0:
			return false
		}
	}
	return s != ""
}

// label reports whether s is a host name's label.
func label(s string) bool {
	for i := range len(s) {
		if !alphanumeric(s[i]) && (s[i] != '-' || i == 0 || i == len(s)-1) {
			return false
		}
	}
	return s != "" && len(s) <= maxLabel
}

func alphanumeric(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9'
}

func ascii(s string) bool {
	for i := range len(s) {
		if s[i] >= 0x80 {
			return false
		}
	}
	return true
}
