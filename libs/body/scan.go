package body

import (
	"bytes"
	"encoding/json"
	"iter"
)

// The functions in this file take JSON apart without copying it. They rely on
// Parse, which has validated the whole body.

// members yields the names of an object, still quoted, and the values.
func members(v []byte) iter.Seq2[[]byte, json.RawMessage] {
	return func(yield func([]byte, json.RawMessage) bool) {
		for i := blank(v, 1); v[i] != '}'; i = next(v, i) {
			end := valueEnd(v, i)
			name := v[i:end]
			i = blank(v, blank(v, end)+len(":"))
			end = valueEnd(v, i)
			if !yield(name, v[i:end:end]) {
				return
			}
			i = end
		}
	}
}

// elements yields the elements of an array.
func elements(v []byte) iter.Seq[json.RawMessage] {
	return func(yield func(json.RawMessage) bool) {
		for i := blank(v, 1); v[i] != ']'; i = next(v, i) {
			end := valueEnd(v, i)
			if !yield(v[i:end:end]) {
				return
			}
			i = end
		}
	}
}

// next returns the index of the value, or closing bracket, that follows the value
// ending before i.
func next(v []byte, i int) int {
	if i = blank(v, i); v[i] == ',' {
		i = blank(v, i+1)
	}
	return i
}

// blank skips whitespace from i on.
func blank(v []byte, i int) int {
	for v[i] == ' ' || v[i] == '\t' || v[i] == '\n' || v[i] == '\r' {
		i++
	}
	return i
}

// valueEnd returns the index after the value that begins at i.
func valueEnd(v []byte, i int) int {
	switch v[i] {
	case '"':
		return stringEnd(v, i)
	case '{', '[':
		for depth := 0; ; i++ {
			switch v[i] {
			case '"':
				i = stringEnd(v, i) - 1
			case '{', '[':
				depth++
			case '}', ']':
				if depth--; depth == 0 {
					return i + 1
				}
			}
		}
	default: // a number or a word
		for i < len(v) {
			switch v[i] {
			case ' ', '\t', '\n', '\r', ',', ']', '}':
				return i
			}
			i++
		}
		return i
	}
}

func stringEnd(v []byte, i int) int {
	for i++; v[i] != '"'; i++ {
		if v[i] == '\\' {
			i++
		}
	}
	return i + 1
}

// says reports whether the quoted string v has the text s.
func says(v []byte, s string) bool {
	if bytes.IndexByte(v, '\\') < 0 {
		return string(v[1:len(v)-1]) == s
	}
	return unquote(v) == s
}

// unquote returns the text of a quoted string. Lone surrogates become U+FFFD.
func unquote(v []byte) string {
	plain := v[1 : len(v)-1]
	if bytes.IndexByte(plain, '\\') < 0 {
		return string(plain)
	}
	var s string
	if err := json.Unmarshal(v, &s); err != nil {
		return "" // cannot happen: v is valid
	}
	return s
}
