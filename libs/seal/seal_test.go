package seal

import (
	"encoding/base64"
	"errors"
	"strings"
	"testing"
)

func pair(id, fill string) string {
	return id + ":" + base64.StdEncoding.EncodeToString([]byte(strings.Repeat(fill, 32)))
}

func ring(t *testing.T, s string) *Ring {
	t.Helper()
	r, err := ParseRing(s)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestOpen(t *testing.T) {
	r := ring(t, pair("a", "x"))
	sealed := r.Seal([]byte("secret"), "here")
	if strings.Contains(sealed, "secret") || sealed == r.Seal([]byte("secret"), "here") {
		t.Fatalf("sealed: %q", sealed)
	}
	for name, open := range map[string]func() ([]byte, error){
		"same ring":        func() ([]byte, error) { return r.Open(sealed, "here") },
		"key added before": func() ([]byte, error) { return ring(t, pair("b", "y")+","+pair("a", "x")).Open(sealed, "here") },
	} {
		if got, err := open(); err != nil || string(got) != "secret" {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
	for name, open := range map[string]func() ([]byte, error){
		"other place": func() ([]byte, error) { return r.Open(sealed, "there") },
		"key removed": func() ([]byte, error) { return ring(t, pair("b", "x")).Open(sealed, "here") },
		"other key":   func() ([]byte, error) { return ring(t, pair("a", "y")).Open(sealed, "here") },
		"plain text":  func() ([]byte, error) { return r.Open("https://example.com", "here") },
		"cut":         func() ([]byte, error) { return r.Open(sealed[:len(sealed)-2], "here") },
		"no box":      func() ([]byte, error) { return r.Open("s1.a.", "here") },
	} {
		if _, err := open(); !errors.Is(err, ErrCorrupt) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestParseRing(t *testing.T) {
	short := base64.StdEncoding.EncodeToString(make([]byte, 31))
	for _, bad := range []string{"", "a", "a:" + short, pair("a", "x") + "," + pair("a", "y"), "a:%"} {
		if _, err := ParseRing(bad); err == nil {
			t.Errorf("%q is accepted", bad)
		}
	}
}
