package queue

import (
	"testing"
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
