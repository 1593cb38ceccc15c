package main

import (
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"waitlist.internal/libs/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

func TestWrap(t *testing.T) {
	long := strings.Repeat("x", lineWidth)
	for _, c := range []struct{ name, text, want string }{
		{"empty", "", ""},
		{"fits exactly", long[:lineWidth-2] + " y", long[:lineWidth-2] + " y"},
		{"one character too many", long[:lineWidth-1] + " y", long[:lineWidth-1] + "\n  y"},
		{"the indent counts", "aaa " + long[:lineWidth-2] + " b", "aaa\n  " + long[:lineWidth-2] + "\n  b"},
		{"characters, not bytes", strings.Repeat("×", lineWidth-2) + " y", strings.Repeat("×", lineWidth-2) + " y"},
		{"a long word", "a " + long + " b", "a\n  " + long + "\n  b"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := wrap(c.text, "  "); got != c.want {
				t.Errorf("wrap gave\n%s\nwant\n%s", got, c.want)
			}
		})
	}
}

// Every line of the report ends before column 140, however long its sentences are.
func TestTableIsNarrow(t *testing.T) {
	sentence := strings.TrimSpace(strings.Repeat("words ", 60))
	b := &bench{start: time.Now(), busy: "3.56", notes: []string{sentence}, results: []row{{
		id: "B9 first byte", what: sentence, ours: "11616/s (p50 21.7, p99 40.1 ms)", theirs: "1121/s (p50 38.3, p99 265.1 ms)",
		goal: "≥ 8 ×", ratio: 10.32,
	}}}
	table := b.table(t.Context())
	for line := range strings.Lines(table) {
		if n := utf8.RuneCountInString(line); n > 140 {
			t.Errorf("%d characters: %s", n, line)
		}
	}
	if n := strings.Count(table, "words"); n != 120 {
		t.Errorf("the report has %d of the 120 words", n)
	}
}
