package account

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"waitlist.internal/libs/apierr"
)

func TestPasswords(t *testing.T) {
	t.Parallel()
	p := newPasswords(1, time.Minute)
	hash, err := p.hash(t.Context(), "correct horse")
	if err != nil || !strings.HasPrefix(hash, "$argon2id$v=19$m=19456,t=2,p=1$") {
		t.Fatalf("hash %q, %v", hash, err)
	}
	for _, tc := range []struct {
		password, hash string
		match          bool
	}{
		{"correct horse", hash, true},
		{"correct horse ", hash, false},
		{"", hash, false},
		{"correct horse", "", false},
		{"", "", false},
	} {
		match, outdated, err := p.compare(tc.password, tc.hash)
		if err != nil || match != tc.match || outdated {
			t.Errorf("compare(%q, %q) = %v, %v, %v", tc.password, tc.hash, match, outdated, err)
		}
	}
	if _, _, err := p.compare("x", "no hash"); err == nil {
		t.Error("compared a damaged hash without an error")
	}
}

func TestTurnsAreBounded(t *testing.T) {
	t.Parallel()
	never := func() error { return errors.New("called without a turn") }
	p := newPasswords(1, time.Millisecond)
	failed := errors.New("failed")
	err := p.turn(t.Context(), func() error {
		if err := p.turn(t.Context(), never); !apierr.Is(err, apierr.RateLimited) || apierr.From(err).RetryAfter == 0 {
			t.Errorf("out of patience: %v", err)
		}
		p.patience = time.Minute
		late, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		if err := p.turn(late, never); !apierr.Is(err, apierr.RateLimited) {
			t.Errorf("out of time: %v", err)
		}
		gone, leave := context.WithCancel(t.Context())
		leave()
		if err := p.turn(gone, never); !errors.Is(err, context.Canceled) {
			t.Errorf("gone: %v", err)
		}
		return failed
	})
	if !errors.Is(err, failed) {
		t.Errorf("error %v", err)
	}
	// The slot is free again.
	if err := p.turn(t.Context(), func() error { return nil }); err != nil {
		t.Error(err)
	}
}

// TestPasswordsAreComparedInNFC: one keyboard sends ü as one character, another as u with a mark.
func TestPasswordsAreComparedInNFC(t *testing.T) {
	t.Parallel()
	p := newPasswords(1, 0)
	const composed, decomposed = "\u00fcber den Fluss", "u\u0308ber den Fluss"
	for _, pair := range [][2]string{{composed, decomposed}, {decomposed, composed}} {
		hash, err := p.hash(t.Context(), pair[0])
		if err != nil {
			t.Fatal(err)
		}
		if match, _, err := p.compare(pair[1], hash); err != nil || !match {
			t.Errorf("%+q against %+q: %v, %v", pair[1], pair[0], match, err)
		}
	}
}
