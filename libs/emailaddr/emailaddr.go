// Package emailaddr parses email addresses into the one form that is stored,
// compared and returned, and knows the domains of free providers.
//
// It accepts an ASCII dot-atom as the local part and a domain of at least two
// labels; internationalized labels become A-labels. It refuses display names,
// comments, quoted local parts and IP literals.
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

// ErrInvalid means that the text is not an acceptable address or domain.
var ErrInvalid = errors.New("not a valid email address")

// Parse returns s in its stored form: trimmed, lower case, the domain in ASCII. It
// is idempotent.
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

// ParseDomain returns a mail domain in its stored form: at least two A-labels in
// lower case, the last of them not a number.
func ParseDomain(s string) (string, error) {
	// A character has at most four bytes, so a longer domain exceeds maxDomain.
	if len(s) > 4*maxDomain || !utf8.ValidString(s) {
		return "", ErrInvalid
	}
	domain := strings.ToLower(s)
	// ASCII labels are checked below: Lookup would refuse some names in use, such as
	// those with hyphens in the third and fourth position.
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

// Domain returns the domain of a parsed address.
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

// label reports whether s is a valid label of a host name.
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
