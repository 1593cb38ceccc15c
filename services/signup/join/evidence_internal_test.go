package join

import (
	"testing"

	"waitlist.internal/libs/token"
	"waitlist.internal/services/signup/queue"
)

// TestNetwork: one hash for a /24 or a /48, and another for another list.
func TestNetwork(t *testing.T) {
	t.Parallel()
	ring, err := token.ParseRing("k1:MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=")
	if err != nil {
		t.Fatal(err)
	}
	s := New(Config{Tokens: ring})
	for _, tc := range []struct {
		a, b string
		same bool
	}{
		{"192.0.2.1", "192.0.2.254", true},
		{"192.0.2.1", "::ffff:192.0.2.9", true},
		{"192.0.2.1", "192.0.3.1", false},
		{"2001:db8:1::1", "2001:db8:1:ffff::2", true},
		{"2001:db8:1::1", "2001:db8:2::1", false},
		{"fe80::1%eth0", "fe80::2%eth1", true},
	} {
		if got := s.network("list", tc.a) == s.network("list", tc.b); got != tc.same {
			t.Errorf("%s and %s: %t", tc.a, tc.b, got)
		}
	}
	if s.network("list", "192.0.2.1") == s.network("other", "192.0.2.1") {
		t.Error("two lists can be compared")
	}
	for _, none := range []string{"", "unknown"} {
		if s.network("list", none) != (queue.Network{}) {
			t.Errorf("%q is a network", none)
		}
	}
}
