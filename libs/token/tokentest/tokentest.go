// Package tokentest makes invalid tokens of valid ones, for tests.
package tokentest

import "iter"

// Base64URL are the characters of the tokens' parts and what stands between and behind such parts.
const Base64URL = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_.="

// Bytes are all bytes.
func Bytes() string {
	b := make([]byte, 256)
	for i := range b {
		b[i] = byte(i)
	}
	return string(b)
}

// Tampered returns good with each byte replaced by each other one of alphabet, each byte left out or doubled, everything from
// each byte on left out, each one of alphabet in front or behind, and good twice. None of them is good, but two may be the same.
func Tampered(good, alphabet string) iter.Seq[string] {
	return func(yield func(string) bool) {
		try := func(bad string) bool { return bad == good || yield(bad) }
		for i := range len(good) {
			before, at, after := good[:i], good[i:i+1], good[i+1:]
			if !try(before) || !try(before+after) || !try(before+at+at+after) {
				return
			}
			for j := range len(alphabet) {
				if !try(before + alphabet[j:j+1] + after) {
					return
				}
			}
		}
		for j := range len(alphabet) {
			if !try(alphabet[j:j+1]+good) || !try(good+alphabet[j:j+1]) {
				return
			}
		}
		try(good + good)
	}
}
