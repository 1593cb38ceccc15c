package main

import (
	"os"
	"testing"
)

func TestScratch(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ name, chosen, memory, want string }{
		{"the caller's choice", "/var/tmp", "/proc", "/var/tmp"},
		{"no such folder", "", "/nowhere", os.TempDir()},
		{"no room", "", "/proc", os.TempDir()},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			if got := scratch(tt.chosen, tt.memory); got != tt.want {
				t.Errorf("scratch(%q, %q) is %s, want %s", tt.chosen, tt.memory, got, tt.want)
			}
		})
	}
}
