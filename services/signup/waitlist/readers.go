package waitlist

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"waitlist.internal/libs/body"
	"waitlist.internal/libs/netguard"
)

// Bounds of what is said about unknown keys: how many are named, and how many bytes of each.
const (
	maxUnknownNamed   = 10
	maxUnknownNameLen = 64
)

// failKeysBut reports the keys of o that are not in known, at most maxUnknownNamed
// of them.
func failKeysBut(o *body.Object, known ...string) {
	named := 0
	for _, key := range o.Keys() {
		if slices.Contains(known, key) {
			continue
		}
		if named++; named > maxUnknownNamed {
			return
		}
		if len(key) > maxUnknownNameLen {
			key = strings.ToValidUTF8(key[:maxUnknownNameLen], "") + "…"
		}
		o.Fail(key, "There is no such setting.")
	}
}

func boolean(o *body.Object, name string) any {
	b, _ := o.Bool(name)
	return b
}

func integer(lowest, highest int64) func(*body.Object, string) any {
	return func(o *body.Object, name string) any {
		n, _ := o.IntIn(name, lowest, highest)
		return n
	}
}

func text(maxLen int) func(*body.Object, string) any {
	return func(o *body.Object, name string) any {
		s, _ := o.String(name, maxLen)
		return s
	}
}

// oneOf reads one of words.
func oneOf[T ~string](words ...T) func(*body.Object, string) any {
	return func(o *body.Object, name string) any {
		s, ok := o.String(name, 0)
		if ok && !slices.Contains(words, T(s)) {
			o.Fail(name, "Choose "+choices(words)+".")
		}
		return T(s)
	}
}

// choices joins words for a sentence: "a, b or c".
func choices[T ~string](words []T) string {
	var b strings.Builder
	for i, w := range words {
		switch {
		case i > 0 && i == len(words)-1:
			b.WriteString(" or ")
		case i > 0:
			b.WriteString(", ")
		}
		b.WriteString(string(w))
	}
	return b.String()
}

// link reads a URL; "" means no URL.
func link(opts netguard.Options) func(*body.Object, string) any {
	return func(o *body.Object, name string) any {
		s, _ := o.String(name, opts.MaxLength)
		if s != "" {
			if problem := netguard.CheckURL(s, opts); problem != "" {
				o.Fail(name, problem)
			}
		}
		return s
	}
}

func element(name string, i int) string { return fmt.Sprintf("%s[%d]", name, i) }

// marshal is json.Marshal that leaves <, > and & as they are.
func marshal(v any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), nil
}
