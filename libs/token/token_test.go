package token

import (
	"bytes"
	"encoding/base64"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"waitlist.internal/libs/token/tokentest"
)

func ring(t *testing.T, keys ...string) *Ring {
	t.Helper()
	var parts []string
	for _, k := range keys {
		parts = append(parts, k+":"+base64.StdEncoding.EncodeToString([]byte(strings.Repeat(k, 32)[:32])))
	}
	r, err := ParseRing(strings.Join(parts, ","))
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestVerify(t *testing.T) {
	now := time.Unix(1_000_000, 0)
	subject := SignupSubject("list", 7)
	r := ring(t, "a")
	good := r.Mint(Unsubscribe, subject, now.Add(time.Hour))
	for _, tt := range []struct {
		name    string
		ring    *Ring
		purpose Purpose
		subject string
		token   string
		now     time.Time
		ok      bool
	}{
		{"good", r, Unsubscribe, subject, good, now, true},
		{"last second", r, Unsubscribe, subject, good, now.Add(time.Hour - time.Second), true},
		{"expired", r, Unsubscribe, subject, good, now.Add(time.Hour), false},
		{"without end", r, Unsubscribe, subject, r.Mint(Unsubscribe, subject, time.Time{}), now.Add(100 * 365 * 24 * time.Hour), true},
		{"other purpose", r, DeleteData, subject, good, now, false},
		{"purpose rewritten", r, DeleteData, subject, strings.Replace(good, "unsub", "delete", 1), now, false},
		{"other signup", r, Unsubscribe, SignupSubject("list", 8), good, now, false},
		{"other list", r, Unsubscribe, SignupSubject("lisu", 7), good, now, false},
		{"expiry removed", r, Unsubscribe, subject, strings.Replace(good, "1003600", "0", 1), now, false},
		{"key added before", ring(t, "b", "a"), Unsubscribe, subject, good, now, true},
		{"key removed", ring(t, "b"), Unsubscribe, subject, good, now, false},
		{"empty", r, Unsubscribe, subject, "", now, false},
		{"long", r, Unsubscribe, subject, good + strings.Repeat("A", 300), now, false},
		{"padded", r, Unsubscribe, subject, good + "=", now, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			err := tt.ring.Verify(tt.purpose, tt.subject, tt.token, tt.now)
			if tt.ok && err != nil || !tt.ok && !errors.Is(err, ErrInvalid) {
				t.Errorf("%q: %v", tt.token, err)
			}
		})
	}
}

// A hash is found with every ring that still has its key, and tells subjects, purposes and keys apart.
func TestHasher(t *testing.T) {
	t.Parallel()
	stored := ring(t, "a").Hasher(Departed)("list:ada")[0]
	found := func(r *Ring, p Purpose, subject string) bool {
		return slices.ContainsFunc(r.Hasher(p)(subject), func(h []byte) bool { return bytes.Equal(h, stored) })
	}
	for name, tt := range map[string]struct {
		ring    *Ring
		purpose Purpose
		subject string
		want    bool
	}{
		"same ring":        {ring(t, "a"), Departed, "list:ada", true},
		"key added before": {ring(t, "b", "a"), Departed, "list:ada", true},
		"key removed":      {ring(t, "b"), Departed, "list:ada", false},
		"other subject":    {ring(t, "a"), Departed, "list:bob", false},
		"other purpose":    {ring(t, "a"), Unsubscribe, "list:ada", false},
	} {
		if got := found(tt.ring, tt.purpose, tt.subject); got != tt.want {
			t.Errorf("%s: found %v", name, got)
		}
	}
}

// TestVerifyTampered: no kind of token is valid with a byte changed, left out, doubled or added, or cut.
func TestVerifyTampered(t *testing.T) {
	r, tried := ring(t, "a"), 0
	for _, kind := range []Purpose{VerifySignup, Unsubscribe, DeleteData, VerifyAccount, ResetPassword} {
		good := r.Mint(kind, "s", time.Time{})
		if err := r.Verify(kind, "s", good, time.Now()); err != nil {
			t.Fatalf("%s: %v", kind, err)
		}
		for bad := range tokentest.Tampered(good, tokentest.Bytes()) {
			if tried++; r.Verify(kind, "s", bad, time.Now()) == nil {
				t.Errorf("%s: %q is accepted for %q", kind, bad, good)
			}
		}
	}
	t.Logf("%d refused", tried)
}

func TestParseRing(t *testing.T) {
	long := base64.StdEncoding.EncodeToString(make([]byte, 32))
	short := base64.StdEncoding.EncodeToString(make([]byte, 31))
	for _, bad := range []string{"", "a", "a:", ":" + long, "a:%%", "a:" + short, "a:" + long + ",a:" + long, "a.b:" + long} {
		if _, err := ParseRing(bad); err == nil {
			t.Errorf("%q is accepted", bad)
		}
	}
}

func FuzzVerify(f *testing.F) {
	r, err := ParseRing("a:" + base64.StdEncoding.EncodeToString(make([]byte, 32)))
	if err != nil {
		f.Fatal(err)
	}
	good := r.Mint(Unsubscribe, "s", time.Time{})
	f.Add(good)
	f.Add("v1.a.unsub.0.")
	f.Fuzz(func(t *testing.T, tok string) {
		if r.Verify(Unsubscribe, "s", tok, time.Now()) == nil && tok != good {
			t.Errorf("forged: %q", tok)
		}
	})
}

// TestPseudonym: a pseudonym tells addresses apart within a deployment, and two
// deployments give one address different ones.
func TestPseudonym(t *testing.T) {
	r := ring(t, "a", "b")
	one := r.Pseudonym("a@example.com")
	if one != r.Pseudonym("a@example.com") || one == r.Pseudonym("b@example.com") || len(one) != 12 {
		t.Errorf("%q, %q", one, r.Pseudonym("b@example.com"))
	}
	if one != ring(t, "a").Pseudonym("a@example.com") || one == ring(t, "b").Pseudonym("a@example.com") {
		t.Error("not by the first key")
	}
}
