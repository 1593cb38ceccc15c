package messaging_test

import (
	"errors"
	"testing"
	"time"

	"waitlist.internal/libs/apierr"
	"waitlist.internal/services/messaging"
)

func TestWithinTrial(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)
	uses := func(pairs ...int64) (out []messaging.TrialUse) { // pairs of hours ago and mails
		for i := 0; i < len(pairs); i += 2 {
			out = append(out, messaging.TrialUse{At: now.Add(-time.Duration(pairs[i]) * time.Hour), Mails: pairs[i+1]})
		}
		return out
	}
	for _, tt := range []struct {
		name    string
		reserve int64
		uses    []messaging.TrialUse
		wait    time.Duration // 0 means that the blast fits
	}{
		{"the whole cap at once", 100, nil, 0},
		{"exactly the rest", 60, uses(20, 30, 1, 10), 0},
		{"the oldest use has to leave", 61, uses(20, 30, 1, 10), 4 * time.Hour},
		{"both uses have to leave", 91, uses(20, 30, 1, 10), 23 * time.Hour},
		{"more than the cap never fits", 101, uses(20, 30), 24 * time.Hour},
		{"more than the cap without uses", 101, nil, 24 * time.Hour},
		{"a wait lasts at least a second", 1, uses(24, 100), time.Second},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			b := messaging.NewBlast{Reserve: tt.reserve, TrialCap: 100, CreatedAt: now}
			err := b.WithinTrial(tt.uses)
			if tt.wait == 0 {
				if err != nil {
					t.Errorf("got %v, want no error", err)
				}
				return
			}
			e, ok := errors.AsType[*apierr.Error](err)
			if !ok || e.Code != apierr.RateLimited || e.RetryAfter != tt.wait {
				t.Errorf("got %+v, want RATE_LIMITED with a wait of %s", e, tt.wait)
			}
		})
	}
}
