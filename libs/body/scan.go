package body

import (
	"bytes"
	"encoding/json"
	"iter"
)

// What follows takes valid JSON apart without copying it. Whether it is valid,
// Parse has found out for the whole body.

// members returns an object's values by name. Of equal names the last counts.
func members(v []byte) map[string]json.RawMessage {
	out := map[string]json.RawMessage{}
	for i := blank(v, 1); v[i] != '}'; i = next(v, i) {
		end := valueEnd(v, i)
		name := unquote(v[i:end])
		i = blank(v, blank(v, end)+len(":"))
		end = valueEnd(v, i)
		out[name] = v[i:end:end]
		i = end
	}
	return out
}

// elements goes through an array.
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

// next goes from behind a value to the one after it, or to the closing bracket.
func next(v []byte, i int) int {
	if i = blank(v, i); v[i] == ',' {
		i = blank(v, i+1)
	}
	return i
}

// blank returns the first place from i on that is not blank.
func blank(v []byte, i int) int {
	for v[i] == ' ' || v[i] == '\t' || v[i] == '\n' || v[i] == '\r' {
		i++
	}
	return i
}

// valueEnd returns the place behind the value that begins at i.
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

// unquote returns the text of a string. Lone surrogates become U+FFFD.
func unquote(v []byte) string {
	plain := v[1 : len(v)-1]
	if bytes.IndexByte(plain, '\\') < 0 {
		return string(plain)
	}
	var s string
	if err := json.Unmarshal(v, &s); err != nil {
		return "" // it is valid
	}
	return s
}
