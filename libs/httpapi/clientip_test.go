package httpapi_test

import (
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"

	"github.com/gin-gonic/gin"

	"waitlist.internal/libs/httpapi"
)

// clientIP returns the address that an engine behind proxies takes for the client's.
func clientIP(t *testing.T, proxies []string, peer string, header http.Header) string {
	t.Helper()
	g, err := httpapi.NewEngine(httpapi.Config{TrustedProxies: proxies, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	g.GET("/ip", func(c *gin.Context) { c.String(http.StatusOK, httpapi.ClientIP(c)) })
	r := httptest.NewRequest(http.MethodGet, "/ip", nil)
	r.RemoteAddr, r.Header = peer, header
	w := httptest.NewRecorder()
	g.ServeHTTP(w, r)
	return w.Body.String()
}

func TestClientIP(t *testing.T) {
	t.Parallel()
	trusted := []string{"10.0.0.0/8", "2001:db8:ffff::/48", "192.0.2.1"}
	const peer = "10.0.0.1:4000"
	for name, c := range map[string]struct {
		trusted   []string
		peer      string
		forwarded []string
		want      string
	}{
		"nobody trusted":             {nil, peer, []string{"203.0.113.7"}, "10.0.0.1"},
		"none":                       {[]string{"none"}, peer, []string{"203.0.113.7"}, "10.0.0.1"},
		"another peer":               {trusted, "192.0.2.2:4000", []string{"203.0.113.7"}, "192.0.2.2"},
		"a peer by its address":      {trusted, "192.0.2.1:4000", []string{"203.0.113.7"}, "203.0.113.7"},
		"a mapped peer":              {trusted, "[::ffff:10.0.0.1]:4000", []string{"203.0.113.7"}, "203.0.113.7"},
		"a peer with a zone":         {trusted, "[fe80::1%eth0]:4000", nil, "fe80::1"},
		"a peer without an address":  {trusted, "@", []string{"203.0.113.7"}, ""},
		"no header":                  {trusted, peer, nil, "10.0.0.1"},
		"IPv4":                       {trusted, peer, []string{"203.0.113.7"}, "203.0.113.7"},
		"IPv4 with a port":           {trusted, peer, []string{"203.0.113.7:51234"}, "203.0.113.7"},
		"mapped IPv4":                {trusted, peer, []string{"::ffff:203.0.113.7"}, "203.0.113.7"},
		"IPv6":                       {trusted, peer, []string{"2001:DB8:0::1"}, "2001:db8::1"},
		"IPv6 in brackets":           {trusted, peer, []string{"[2001:db8::1]"}, "2001:db8::1"},
		"IPv6 with a port":           {trusted, peer, []string{"[2001:db8::1]:443"}, "2001:db8::1"},
		"a zone":                     {trusted, peer, []string{"[fe80::1%eth0]:443"}, "fe80::1"},
		"the client's own entries":   {trusted, peer, []string{"198.51.100.1, 203.0.113.7:1"}, "203.0.113.7"},
		"the client's own nonsense":  {trusted, peer, []string{"unknown,203.0.113.7"}, "203.0.113.7"},
		"the client's own line":      {trusted, peer, []string{"198.51.100.1", "203.0.113.7"}, "203.0.113.7"},
		"through proxies":            {trusted, peer, []string{"203.0.113.7", "10.0.0.3:80,\t[2001:db8:ffff::2]:80"}, "203.0.113.7"},
		"proxies alone":              {trusted, peer, []string{"10.0.0.2, 10.0.0.3"}, "10.0.0.2"},
		"unreadable":                 {trusted, peer, []string{"203.0.113.7, unknown"}, "10.0.0.1"},
		"unreadable behind a proxy":  {trusted, peer, []string{"203.0.113.7, _hidden, 10.0.0.2"}, "10.0.0.1"},
		"nothing":                    {trusted, peer, []string{""}, "10.0.0.1"},
		"an empty last entry":        {trusted, peer, []string{"203.0.113.7,"}, "10.0.0.1"},
		"a port that is none":        {trusted, peer, []string{"203.0.113.7:x"}, "10.0.0.1"},
		"a port too high":            {trusted, peer, []string{"203.0.113.7:65536"}, "10.0.0.1"},
		"a bracket that is not shut": {trusted, peer, []string{"[2001:db8::1"}, "10.0.0.1"},
		"a name":                     {trusted, peer, []string{"client.example.com"}, "10.0.0.1"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			header := http.Header{"X-Real-Ip": {"198.51.100.9"}, "Forwarded": {"for=198.51.100.9"}}
			if c.forwarded != nil {
				header["X-Forwarded-For"] = c.forwarded
			}
			if got := clientIP(t, c.trusted, c.peer, header); got != c.want {
				t.Errorf("%q, want %q", got, c.want)
			}
		})
	}
	for _, bad := range []string{"x", "10.0.0.0/33", "10.0.0.1:80", "::ffff:10.0.0.0/104", ""} {
		if _, err := httpapi.NewEngine(httpapi.Config{TrustedProxies: []string{bad}}); err == nil {
			t.Errorf("the proxy %q passed", bad)
		}
	}
}

// FuzzClientIP: whatever a client sends, the entry that the proxy appends decides, and what the proxy cannot name is the proxy.
func FuzzClientIP(f *testing.F) {
	for _, s := range []string{
		"", "198.51.100.1", "203.0.113.7:51234", "[2001:db8::1]:443", "fe80::1%eth0", "10.0.0.2, unknown", ",", "::ffff:1.2.3.4",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, sent string) {
		const peer = "10.0.0.1"
		ask := func(lines ...string) string {
			return clientIP(t, []string{"10.0.0.0/8"}, peer+":4000", http.Header{"X-Forwarded-For": lines})
		}
		for _, lines := range [][]string{{sent + ", 203.0.113.7:9"}, {sent, "203.0.113.7"}, {sent, "203.0.113.7,10.0.0.2"}} {
			if got := ask(lines...); got != "203.0.113.7" {
				t.Errorf("%q: %s", lines, got)
			}
		}
		if got := ask(sent, "unknown"); got != peer {
			t.Errorf("%q before what cannot be read: %s", sent, got)
		}
		got := ask(sent)
		addr, err := netip.ParseAddr(got)
		if err != nil || addr.String() != got || addr.Zone() != "" || addr.Is4In6() || got != peer && !strings.Contains(sent, ".") && addr.Is4() {
			t.Errorf("%q: %q", sent, got)
		}
	})
}
