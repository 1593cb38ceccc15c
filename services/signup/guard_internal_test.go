package signup

import (
	"testing"

	"waitlist.internal/libs/token"
)

func TestReasons(t *testing.T) {
	t.Parallel()
	here := Evidence{Network: Network{1}}
	fast := Evidence{TooFast: true, Network: Network{1}}
	for _, tc := range []struct {
		name            string
		e               Evidence
		email, referrer string
		seen            Seen
		want            string
	}{
		{"nothing", here, "a@x.io", "b@x.io", Seen{}, ""},
		{"tag", here, "a+1@x.io", "a@x.io", Seen{}, "same_person"},
		{"two tags", here, "a+1@x.io", "a+2@x.io", Seen{}, "same_person"},
		{"dots that count", here, "a.b@x.io", "ab@x.io", Seen{}, ""},
		{"dots that do not", here, "a.b@gmail.com", "ab+2@googlemail.com", Seen{}, "same_person"},
		{"other domain", here, "a@x.io", "a@y.io", Seen{}, ""},
		{"only a tag", here, "+a@x.io", "+b@x.io", Seen{}, ""},
		{"referred before", here, "a@x.io", "b@x.io", Seen{Again: true}, "same_person"},
		{"disposable", Evidence{Disposable: true}, "a@x.io", "b@x.io", Seen{}, "disposable_domain"},
		{"second of a network", here, "a@x.io", "b@x.io", Seen{FromNetwork: 1}, ""},
		{"third of a network", here, "a@x.io", "b@x.io", Seen{FromNetwork: 2}, "same_network"},
		{"third of no network", Evidence{}, "a@x.io", "b@x.io", Seen{FromNetwork: 2}, ""},
		{"30 before", here, "a@x.io", "b@x.io", Seen{Lately: 30}, "velocity"},
		{"29 before", here, "a@x.io", "b@x.io", Seen{Lately: 29}, ""},
		{"fast", Evidence{TooFast: true}, "a@x.io", "b@x.io", Seen{}, ""},
		{"fast, second of a network", fast, "a@x.io", "b@x.io", Seen{FromNetwork: 1}, "same_network,too_fast"},
		{
			"everything",
			Evidence{Disposable: true, TooFast: true, Network: Network{1}},
			"a@x.io", "a@x.io",
			Seen{FromNetwork: 9, Lately: 30},
			"same_person,disposable_domain,same_network,velocity,too_fast",
		},
	} {
		if got := tc.e.reasons(tc.email, tc.referrer, tc.seen); got != tc.want {
			t.Errorf("%s: %q, want %q", tc.name, got, tc.want)
		}
	}
}

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
		if s.network("list", none) != (Network{}) {
			t.Errorf("%q is a network", none)
		}
	}
}
