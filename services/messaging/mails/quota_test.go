package mails_test

import (
	"testing"
	"time"

	"waitlist.internal/services/messaging/mails"
)

func TestUseWaits(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)
	past := func(pairs ...int64) (out []mails.PastUse) { // pairs of hours ago and mails
		for i := 0; i < len(pairs); i += 2 {
			out = append(out, mails.PastUse{At: now.Add(-time.Duration(pairs[i]) * time.Hour), Used: pairs[i+1]})
		}
		return out
	}
	for _, tt := range []struct {
		name string
		n    int64
		past []mails.PastUse
		wait time.Duration
	}{
		{"the whole quota at once", 100, nil, 0},
		{"exactly the rest", 60, past(20, 30, 1, 10), 0},
		{"the oldest use has to leave", 61, past(20, 30, 1, 10), 4 * time.Hour},
		{"both uses have to leave", 91, past(20, 30, 1, 10), 23 * time.Hour},
		{"more than the quota never fits", 101, past(20, 30), 24 * time.Hour},
		{"more than the quota without uses", 101, nil, 24 * time.Hour},
		{"a wait lasts at least a second", 1, past(24, 100), time.Second},
	} {
		if got := (mails.Use{N: tt.n, Most: 100}).Wait(tt.past, now); got != tt.wait {
			t.Errorf("%s: got %s, want %s", tt.name, got, tt.wait)
		}
	}
}
