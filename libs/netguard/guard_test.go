package netguard_test

import (
	"errors"
	"net/netip"
	"testing"

	"waitlist.internal/libs/netguard"
)

func TestGuard(t *testing.T) {
	t.Parallel()
	allowed, err := netguard.ParseNetworks([]string{"10.1.0.0/16", "127.0.0.1", "fd00::/8", "::ffff:192.168.0.7"})
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		network, address string
		public, own      bool // whether the guard lets it through without and with Allowed
	}{
		{"tcp4", "8.8.8.8:443", true, true},
		{"tcp6", "[2606:4700::1111]:8443", true, true},
		{"tcp6", "[::ffff:8.8.8.8]:443", true, true},
		{"tcp4", "127.0.0.1:443", false, true},
		{"tcp6", "[::ffff:127.0.0.1]:443", false, true},
		{"tcp4", "127.0.0.2:443", false, false},
		{"tcp4", "10.1.2.3:443", false, true},
		{"tcp4", "10.2.0.0:443", false, false},
		{"tcp4", "192.168.0.7:443", false, true},
		{"tcp6", "[fd00::1]:443", false, true},
		{"tcp6", "[fd00::1%eth0]:443", false, false},
		{"tcp6", "[fe80::1%eth0]:443", false, false},
		{"tcp4", "169.254.169.254:80", false, false},
		{"tcp6", "[64:ff9b::7f00:1]:443", false, false},
		{"udp4", "8.8.8.8:443", false, false},
		{"unix", "/var/run/docker.sock", false, false},
		{"tcp", "8.8.8.8:443", false, false},
		{"tcp4", "example.com:443", false, false},
		{"tcp4", "8.8.8.8", false, false},
		{"tcp4", "", false, false},
	} {
		for want, g := range map[*bool]netguard.Guard{&tc.public: {}, &tc.own: {Allowed: allowed}} {
			err := g.Control(t.Context(), tc.network, tc.address, nil)
			if (err == nil) != *want {
				t.Errorf("%s %s: %v", tc.network, tc.address, err)
			}
			if err != nil && !errors.Is(err, netguard.ErrBlocked) {
				t.Errorf("%s %s: %v is not ErrBlocked", tc.network, tc.address, err)
			}
		}
	}
}

func TestParseNetworks(t *testing.T) {
	t.Parallel()
	for _, bad := range []string{"", "x", "10.0.0.0/33", "10.0.0/8", "localhost", "::1/129", "fe80::1%eth0/64"} {
		if got, err := netguard.ParseNetworks([]string{bad}); err == nil {
			t.Errorf("%q is %v", bad, got)
		}
	}
	got, err := netguard.ParseNetworks([]string{"10.9.8.7/8"})
	if err != nil || len(got) != 1 || got[0] != netip.MustParsePrefix("10.0.0.0/8") {
		t.Errorf("%v, %v", got, err)
	}
	if got, err := netguard.ParseNetworks(nil); err != nil || len(got) != 0 {
		t.Errorf("%v, %v", got, err)
	}
}
