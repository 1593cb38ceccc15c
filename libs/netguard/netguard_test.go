package netguard_test

import (
	"net/netip"
	"net/url"
	"strings"
	"testing"

	"waitlist.internal/libs/netguard"
)

func TestCheckURLRefuses(t *testing.T) {
	t.Parallel()
	for _, group := range []struct {
		name string
		urls []string
	}{
		{"loopback", []string{
			"https://127.0.0.1", "https://127.0.0.1/", "https://127.0.0.1:8443/x", "https://127.1.2.3/",
			"https://127.255.255.254/", "https://[::1]/", "https://[::1]:443/", "https://[0:0:0:0:0:0:0:1]/",
			"https://[::]/", "https://0.0.0.0/", "https://0.1.2.3/",
		}},
		{"localhost", []string{
			"https://localhost", "https://LOCALHOST/", "https://localhost:8443/", "https://localhost./",
			"https://a.localhost/", "https://a.b.LocalHost./", "https://localhost.localdomain/", "https://ip6-localhost/",
		}},
		{"private", []string{
			"https://10.0.0.1/", "https://10.255.255.255/", "https://172.16.0.1/", "https://172.31.255.255/",
			"https://192.168.0.1/", "https://100.64.0.1/", "https://100.127.255.255/", "https://169.254.169.254/latest/meta-data/",
		}},
		{"reserved", []string{
			"https://192.0.0.8/", "https://192.0.2.1/", "https://198.51.100.7/", "https://203.0.113.9/", "https://198.18.0.1/",
			"https://198.19.255.255/", "https://192.88.99.1/", "https://224.0.0.1/", "https://239.255.255.255/",
			"https://240.0.0.1/", "https://255.255.255.255/",
		}},
		{"IPv6", []string{
			"https://[fc00::1]/", "https://[fd12:3456:789a::1]/", "https://[fe80::1]/", "https://[fec0::1]/", "https://[ff02::1]/",
			"https://[2001:db8::1]/", "https://[3fff::1]/", "https://[100::1]/", "https://[5f00::1]/", "https://[fd00:ec2::254]/",
			"https://[fe80::1%25eth0]/", "https://[::1%25lo]/", "https://[2606:4700::1111%25eth0]/", "https://[fe80::1%eth0]/",
		}},
		{"IPv4 within IPv6", []string{
			"https://[::ffff:127.0.0.1]/", "https://[::ffff:7f00:1]/", "https://[::ffff:10.0.0.1]/", "https://[::ffff:8.8.8.8]/",
			"https://[0:0:0:0:0:ffff:a9fe:a9fe]/", "https://[::127.0.0.1]/", "https://[::7f00:1]/",
			"https://[64:ff9b::127.0.0.1]/", "https://[64:ff9b::a9fe:a9fe]/", "https://[64:ff9b:1::1]/",
			"https://[2002:7f00:1::]/", "https://[2002:a9fe:a9fe::1]/", "https://[2001::1]/", "https://[2001:0:a00:1::]/",
		}},
		{"numbers", []string{
			"https://2130706433/", "https://017700000001/", "https://0x7f000001/", "https://0x7F000001/", "https://0x7f.1/",
			"https://0x7f.0x0.0x0.0x1/", "https://0177.0.0.1/", "https://0177.0.0.0x1/", "https://127.1/", "https://127.0.1/",
			"https://127.0.0.01/", "https://010.8.8.8/", "https://0/", "https://0x/", "https://134744072/", "https://8.8.2056/",
			"https://8.8.8.8./", "https://8.8.8.0x8/", "https://8.8.8.8.8/", "https://256.256.256.256/", "https://1.2.3/",
			"https://4294967297/", "https://[2606:4700:0:0:0:0:0:1111]/", "https://[2606:4700:0000::1111]/",
		}},
		{"Unicode and percent", []string{
			"https://ｌｏｃａｌｈｏｓｔ/", "https://loc\u00adalhost/", "https://①②⑦.⓪.⓪.①/", "https://127。0。0。1/",
			"https://１２７.0.0.1/", "https://⑩.0.0.1/", "https://ℒocalhost/", "https://%6c%6fcalhost/", "https://127%2e0%2e0%2e1/",
			"https://%31%32%37.0.0.1/", "https://%E2%91%A0%E2%91%A1%E2%91%A6.0.0.1/", "https://127.0.0.1%00.example.com/",
			"https://xn--localhost-.example/", "https://xn--a/", "https://exa\u200bmple.localhost/",
		}},
		{"userinfo", []string{
			"https://user@example.com/", "https://user:pass@example.com/", "https://@example.com/", "https://:@example.com/",
			"https://example.com@127.0.0.1/", "https://example.com%40@127.0.0.1/",
		}},
		{"parsers that differ", []string{
			`https://example.com\@127.0.0.1/`, `https:\\127.0.0.1\`, "https://127.0.0.1\t/", "https://exa\nmple.com/", " https://example.com/",
			"https://example.com/ ", "https://example.com:80:443/", "https://[::1]example.com/", "https://[::1/", "https://::1/",
			"https://exam ple.com/", "https://example.com\x00/", "https://ex\xffample.com/", "https://example..com/", "https://.example.com/",
			"https://exa*mple.com/", "https://a,b/", "https://$(x).example/", "https://" + strings.Repeat("a", 64) + ".com/",
		}},
		{"not https", []string{
			"", "example.com", "/x", "//example.com/x", "http://example.com/", "HTTP://example.com/", "ftp://example.com/", "file:///etc/passwd",
			"gopher://127.0.0.1/", "javascript:alert(1)", "data:text/html,x", "https:example.com", "https:/example.com", "https://",
			"https:///x", "https://:443/", "https://?x", "https://#x", "https",
		}},
		{"ports", []string{
			"https://example.com:/", "https://example.com:0/", "https://example.com:65536/", "https://example.com:-1/", "https://example.com:x/",
			"https://example.com:99999999999999999999/",
		}},
		{"too long", []string{"https://example.com/" + strings.Repeat("a", 481)}},
	} {
		t.Run(group.name, func(t *testing.T) {
			t.Parallel()
			for _, raw := range group.urls {
				if netguard.CheckURL(raw, netguard.Options{MaxLength: 500}) == "" {
					t.Errorf("%q is accepted", raw)
				}
			}
		})
	}
}

func TestCheckURLAccepts(t *testing.T) {
	t.Parallel()
	for _, raw := range []string{
		"https://example.com", "https://example.com/", "HTTPS://Example.COM/Hook?x=1&y=%20#z", "https://example.com:8443/x",
		"https://example.com./x", "https://a_b.example.com/", "https://r3---sn.example.com/", "https://bücher.example/ü",
		"https://xn--bcher-kva.example/", "https://hooks.slack.com/services/T0/B0/x", "https://discord.com/api/webhooks/1/x",
		"https://8.8.8.8/", "https://1.1.1.1:443/", "https://[2606:4700:4700::1111]/", "https://[2606:4700:4700::1111]:8443/x",
		"https://127.0.0.1.example.com/", "https://localhost.example.com/", "https://notlocalhost/", "https://172.15.255.255/",
		"https://172.32.0.1/", "https://11.0.0.1/", "https://100.63.255.255/", "https://100.128.0.1/", "https://0x7f.example/",
		"https://example.com/?u=http://127.0.0.1/", "https://example.com/@127.0.0.1/", "https://example.com#@127.0.0.1/",
		"https://example.com/" + strings.Repeat("ü", 480),
	} {
		if problem := netguard.CheckURL(raw, netguard.Options{MaxLength: 500}); problem != "" {
			t.Errorf("%q: %s", raw, problem)
		}
	}
}

func TestCheckURLOptions(t *testing.T) {
	t.Parallel()
	link := netguard.Options{MaxLength: 30, AllowHTTP: true, AnyHost: true}
	for raw, want := range map[string]bool{
		"http://example.com/x": true, "https://example.com/x": true, "https://localhost:3000/": true,
		"javascript:alert(1)": false, "data:image/png;base64,x": false, "http://user@example.com/": false,
		"http://10.0.0.1/x": true, "http://[fd00::1]:8080/x": true, "http://intranet/x": true, "https://müller.example/": true,
		"https://a;sandbox/x.png": false, "https://a;sandbox;x/": false, "https://a,b/": false, "https://*/": false, "https://a'b/": false,
		"https://[fe80::1%25e;sandbox]/": false, "https://[a;b]/": false, "https://0x7f.1/": false, "https://a..b/": false,
		"ftp://example.com/": false, "http:///x": false, "http://example.com/123456789012": false,
	} {
		if problem := netguard.CheckURL(raw, link); (problem == "") != want {
			t.Errorf("%q: %s", raw, problem)
		}
	}
}

func TestOrigin(t *testing.T) {
	t.Parallel()
	for raw, want := range map[string]string{
		"https://example.com/x.png?y": "https://example.com", "http://LOCALHOST:3000": "http://localhost:3000",
		"https://user@example.com/": "https://example.com", "https://[2001:DB8::1]:443/": "https://[2001:db8::1]:443",
		"https://müller.example/": "https://xn--mller-kva.example", "https://a;sandbox/x.png": "", "https://a;script-src;*/": "",
		"https://[fe80::1%25e;sandbox]/": "", "https://a:;sandbox/": "", "ftp://example.com/": "", "/x.png": "", "": "", "https:///x": "",
	} {
		if got := netguard.Origin(raw); got != want {
			t.Errorf("%q: %q, want %q", raw, got, want)
		}
	}
}

func TestBlocked(t *testing.T) {
	t.Parallel()
	for addr, want := range map[string]bool{
		"8.8.8.8": false, "::ffff:8.8.8.8": false, "2606:4700::1111": false, "2001:4860:4860::8888": false, "2001:200::1": false,
		"192.0.1.1": false, "198.17.255.255": false, "198.20.0.1": false, "223.255.255.255": false,
		"::ffff:127.0.0.1": true, "::ffff:169.254.169.254": true, "fe80::1%eth0": true, "2606:4700::1111%eth0": true,
		"::": true, "::1": true, "64:ff9b::808:808": true, "2002:808:808::": true, "2001:0:808:808::": true, "2001:1ff::1": true,
		"4000::1": true, "3fff:fff::1": true,
	} {
		if got := netguard.Blocked(netip.MustParseAddr(addr)); got != want {
			t.Errorf("Blocked(%s) = %t", addr, got)
		}
	}
	if !netguard.Blocked(netip.Addr{}) {
		t.Error("no address at all is not blocked")
	}
}

// FuzzCheckURL checks that an accepted URL whose host is an address, as Go or
// inet_aton reads it, has a public one.
func FuzzCheckURL(f *testing.F) {
	for _, s := range []string{
		"https://example.com/", "https://127.0.0.1/", "https://[::ffff:7f00:1]/", "https://0x7f.1/", "https://①②⑦.0.0.1/", "https://a@b/",
		"https://a;sandbox/x.png",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, raw string) {
		origin := netguard.Origin(raw)
		if strings.Trim(origin, "abcdefghijklmnopqrstuvwxyz0123456789-_.:/[]") != "" {
			t.Fatalf("%q has the origin %q", raw, origin)
		}
		if netguard.CheckURL(raw, netguard.Options{MaxLength: 500, AnyHost: true}) == "" && origin == "" {
			t.Fatalf("%q is accepted without an origin", raw)
		}
		if netguard.CheckURL(raw, netguard.Options{MaxLength: 500}) != "" {
			return
		}
		u, err := url.Parse(raw)
		if err != nil || u.Scheme != "https" || u.User != nil || u.Hostname() == "" {
			t.Fatalf("%q is accepted", raw)
		}
		if addr, err := netip.ParseAddr(u.Hostname()); err == nil && netguard.Blocked(addr) {
			t.Fatalf("%q is accepted", raw)
		}
		host := strings.ToLower(strings.TrimSuffix(u.Hostname(), "."))
		if strings.HasSuffix(host, "localhost") && (host == "localhost" || strings.HasSuffix(host, ".localhost")) {
			t.Fatalf("%q is accepted", raw)
		}
	})
}
