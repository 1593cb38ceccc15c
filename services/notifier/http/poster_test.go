package http_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"

	"waitlist.internal/libs/testenv"
	"waitlist.internal/services/notifier"
	notifierhttp "waitlist.internal/services/notifier/http"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// zone answers name lookups as a test says.
type zone struct {
	mu sync.Mutex
	// records by name, without the last dot; each lookup takes the next answer, the
	// last one stays.
	records map[string][][]string
	lookups int
}

// resolver starts a name server with z.
func (z *zone) resolver(t testing.TB) *net.Resolver {
	t.Helper()
	conn, err := (&net.ListenConfig{}).ListenPacket(t.Context(), "udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	started := make(chan struct{})
	srv := &dns.Server{PacketConn: conn, Handler: z, NotifyStartedFunc: func() { close(started) }}
	done := make(chan error, 1)
	go func() { done <- srv.ActivateAndServe() }()
	<-started
	t.Cleanup(func() {
		if err := errors.Join(srv.Shutdown(), <-done); err != nil {
			t.Error(err)
		}
	})
	return &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "udp", conn.LocalAddr().String())
	}}
}

// ServeDNS implements dns.Handler. One lookup asks for A, then for AAAA.
func (z *zone) ServeDNS(w dns.ResponseWriter, q *dns.Msg) {
	m := new(dns.Msg).SetReply(q)
	z.mu.Lock()
	defer z.mu.Unlock()
	name, kind := strings.TrimSuffix(q.Question[0].Name, "."), q.Question[0].Qtype
	answers := z.records[name]
	if len(answers) == 0 {
		m.Rcode = dns.RcodeNameError
		_ = w.WriteMsg(m)
		return
	}
	for _, a := range answers[0] {
		addr := netip.MustParseAddr(a)
		header := dns.RR_Header{Name: q.Question[0].Name, Rrtype: kind, Class: dns.ClassINET}
		switch {
		case kind == dns.TypeA && addr.Is4():
			m.Answer = append(m.Answer, &dns.A{Hdr: header, A: addr.AsSlice()})
		case kind == dns.TypeAAAA && addr.Is6():
			m.Answer = append(m.Answer, &dns.AAAA{Hdr: header, AAAA: addr.AsSlice()})
		}
	}
	if kind == dns.TypeA {
		z.lookups++
		if len(answers) > 1 {
			z.records[name] = answers[1:]
		}
	}
	_ = w.WriteMsg(m)
}

// receiver is an owner's server, with a certificate for example.com.
type receiver struct {
	*httptest.Server
	port  string
	roots *x509.CertPool
	hits  atomic.Int64
}

func newReceiver(t testing.TB, h http.HandlerFunc) *receiver {
	t.Helper()
	r := new(receiver)
	r.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		r.hits.Add(1)
		// Only then does the server see that the other side has gone.
		b, err := io.ReadAll(req.Body)
		if err != nil {
			t.Errorf("read a request: %v", err)
		}
		req.Body = io.NopCloser(bytes.NewReader(b))
		h(w, req)
	}))
	r.EnableHTTP2 = true
	r.StartTLS()
	t.Cleanup(r.Close)
	_, r.port, _ = net.SplitHostPort(r.Listener.Addr().String())
	r.roots = x509.NewCertPool()
	r.roots.AddCert(r.Certificate())
	return r
}

var loopback = netip.MustParsePrefix("127.0.0.0/8")

// poster reaches example.com at the receiver.
func poster(t testing.TB, r *receiver, allowed ...netip.Prefix) *notifierhttp.Poster {
	t.Helper()
	z := &zone{records: map[string][][]string{"example.com": {{"127.0.0.1"}}}}
	p := notifierhttp.New(notifierhttp.Config{Allowed: allowed, Roots: r.roots, Resolver: z.resolver(t)})
	t.Cleanup(p.Close)
	return p
}

func (r *receiver) url(path string) string { return "https://example.com:" + r.port + path }

func TestAnAttemptSendsTheBodyOnce(t *testing.T) {
	t.Parallel()
	got := make(chan string, 1)
	r := newReceiver(t, func(w http.ResponseWriter, req *http.Request) {
		b, _ := io.ReadAll(req.Body)
		got <- fmt.Sprint(req.Proto, req.Method, req.URL, req.Header["Content-Type"], req.Header["Traceparent"], string(b))
		w.WriteHeader(http.StatusAccepted)
	})
	o, reason, status := poster(t, r, loopback).Post(t.Context(), r.url("/x?y=1"), []byte(`{"a":1}`))
	if o != notifier.Delivered || reason != "" || status != 202 {
		t.Errorf("%s %q %d", o, reason, status)
	}
	if g := <-got; g != `HTTP/1.1POST/x?y=1 [application/json] []{"a":1}` {
		t.Error(g)
	}
}

func TestAnswersAreFinal(t *testing.T) {
	t.Parallel()
	hijack := func(fn func(net.Conn)) http.HandlerFunc {
		return func(w http.ResponseWriter, req *http.Request) {
			_, _ = io.Copy(io.Discard, req.Body)
			conn, _, err := w.(http.Hijacker).Hijack()
			if err != nil {
				panic(err)
			}
			defer conn.Close()
			fn(conn)
		}
	}
	raw := func(answer string) http.HandlerFunc {
		return hijack(func(c net.Conn) { _, _ = io.WriteString(c, answer) })
	}
	for _, tc := range []struct {
		name   string
		answer http.HandlerFunc
		want   notifier.Outcome
		reason string
		status int
	}{
		{"204", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(204) }, notifier.Delivered, "", 204},
		{"500", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(500) }, notifier.Rejected, "", 500},
		{
			"503 with Retry-After", func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("Retry-After", "0"); w.WriteHeader(503) },
			notifier.Rejected, "", 503,
		},
		{"301", func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "/again", http.StatusMovedPermanently)
		}, notifier.Rejected, "", 301},
		{"307", func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "/again", http.StatusTemporaryRedirect)
		}, notifier.Rejected, "", 307},
		{"308 to private", func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "http://127.0.0.1/", http.StatusPermanentRedirect)
		}, notifier.Rejected, "", 308},
		{"reset", hijack(func(c net.Conn) {
			_ = c.(*tls.Conn).NetConn().(*net.TCPConn).SetLinger(0)
			_ = c.(*tls.Conn).NetConn().Close()
		}), notifier.Unreachable, "connection", 0},
		{"closed", hijack(func(net.Conn) {}), notifier.Unreachable, "connection", 0},
		{"no HTTP", raw("hello\r\n\r\n"), notifier.Unreachable, "connection", 0},
		{"half a head", raw("HTTP/1.1 200 OK\r\nA: b"), notifier.Unreachable, "connection", 0},
		{"a head without end", hijack(func(c net.Conn) {
			_, err := io.WriteString(c, "HTTP/1.1 200 OK\r\n")
			for err == nil {
				_, err = io.WriteString(c, "A: "+strings.Repeat("b", 1000)+"\r\n")
			}
		}), notifier.Unreachable, "connection", 0},
		{"early hints for ever", hijack(func(c net.Conn) {
			var err error
			for err == nil {
				_, err = io.WriteString(c, "HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n")
			}
		}), notifier.Unreachable, "connection", 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			r := newReceiver(t, tc.answer)
			ctx, cancel := context.WithTimeout(t.Context(), notifier.Timeout)
			defer cancel()
			o, reason, status := poster(t, r, loopback).Post(ctx, r.url("/"), []byte(`{}`))
			if o != tc.want || reason != tc.reason || status != tc.status {
				t.Errorf("%s %q %d, want %s %q %d", o, reason, status, tc.want, tc.reason, tc.status)
			}
			if n := r.hits.Load(); n != 1 {
				t.Errorf("%d requests", n)
			}
		})
	}
}

// Answers of any size or slowness cost a few KiB, and no more than the time
// there is.
func TestAnswersAreBounded(t *testing.T) {
	t.Parallel()
	t.Run("10 GB", func(t *testing.T) {
		t.Parallel()
		const size = 10 << 30
		var sent atomic.Int64
		over := make(chan struct{})
		r := newReceiver(t, func(w http.ResponseWriter, _ *http.Request) {
			defer close(over)
			w.Header().Set("Content-Length", fmt.Sprint(size))
			chunk := make([]byte, 64<<10)
			for range size / len(chunk) {
				n, err := w.Write(chunk)
				sent.Add(int64(n))
				if err != nil {
					return
				}
			}
		})
		start := time.Now()
		o, _, status := poster(t, r, loopback).Post(t.Context(), r.url("/"), []byte(`{}`))
		<-over
		// What the kernel's buffers take is out of our hands.
		if o != notifier.Delivered || status != 200 || sent.Load() > 64<<20 || time.Since(start) > notifier.Timeout {
			t.Errorf("%s %d, %d bytes in %s", o, status, sent.Load(), time.Since(start))
		}
	})
	for name, answer := range map[string]http.HandlerFunc{
		"hangs":               func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() },
		"a byte now and then": nil,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newReceiver(t, answer)
			if answer == nil {
				r = rawReceiver(t, r)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
			defer cancel()
			start := time.Now()
			o, reason, status := poster(t, r, loopback).Post(ctx, r.url("/"), []byte(`{}`))
			if o != notifier.TimedOut || reason != "" || status != 0 || time.Since(start) > 3*time.Second {
				t.Errorf("%s %q %d in %s", o, reason, status, time.Since(start))
			}
			if n := r.hits.Load(); n != 1 {
				t.Errorf("%d requests", n)
			}
		})
	}
	t.Run("a body without end", func(t *testing.T) {
		t.Parallel()
		r := newReceiver(t, func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(200)
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
		})
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		defer cancel()
		if o, _, status := poster(t, r, loopback).Post(ctx, r.url("/"), []byte(`{}`)); o != notifier.Delivered || status != 200 {
			t.Errorf("%s %d", o, status)
		}
	})
}

// rawReceiver is like r, but speaks a head that comes byte by byte.
func rawReceiver(t testing.TB, r *receiver) *receiver {
	t.Helper()
	l, err := tls.Listen("tcp", "127.0.0.1:0", r.TLS)
	if err != nil {
		t.Fatal(err)
	}
	raw := &receiver{roots: r.roots}
	_, raw.port, _ = net.SplitHostPort(l.Addr().String())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			raw.hits.Add(1)
			_, err = http.ReadRequest(bufio.NewReader(conn))
			tick := time.NewTicker(10 * time.Millisecond)
			for _, b := range "HTTP/1.1 200 OK\r\nA: " + strings.Repeat("b", 10_000) {
				if err != nil {
					break
				}
				<-tick.C
				_, err = conn.Write([]byte{byte(b)})
			}
			tick.Stop()
			conn.Close()
		}
	}()
	t.Cleanup(func() { l.Close(); <-done })
	return raw
}

func TestNobodyThere(t *testing.T) {
	t.Parallel()
	r := newReceiver(t, func(http.ResponseWriter, *http.Request) {})
	other := newReceiver(t, func(http.ResponseWriter, *http.Request) {})
	plain := httptest.NewServer(http.NotFoundHandler())
	defer plain.Close()
	closed, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	closed.Close()
	p := poster(t, r, loopback)
	for _, tc := range []struct{ name, url, reason string }{
		{"no such name", "https://nobody.example.com/", "name"},
		{"refused", "https://example.com:" + strings.Split(closed.Addr().String(), ":")[1] + "/", "connect"},
		{"no TLS", "https://example.com:" + strings.Split(plain.URL, ":")[2] + "/", "tls"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if o, reason, _ := p.Post(t.Context(), tc.url, nil); o != notifier.Unreachable || reason != tc.reason {
				t.Errorf("%s %q", o, reason)
			}
		})
	}
	t.Run("a certificate from nobody", func(t *testing.T) {
		z := &zone{records: map[string][][]string{"example.com": {{"127.0.0.1"}}, "example.org": {{"127.0.0.1"}}}}
		p := notifierhttp.New(notifierhttp.Config{Allowed: []netip.Prefix{loopback}, Roots: x509.NewCertPool(), Resolver: z.resolver(t)})
		defer p.Close()
		if o, reason, _ := p.Post(t.Context(), other.url("/"), nil); o != notifier.Unreachable || reason != "certificate" {
			t.Errorf("%s %q", o, reason)
		}
	})
	t.Run("another's certificate", func(t *testing.T) {
		z := &zone{records: map[string][][]string{"hooks.example.org": {{"127.0.0.1"}}}}
		p := notifierhttp.New(notifierhttp.Config{Allowed: []netip.Prefix{loopback}, Roots: r.roots, Resolver: z.resolver(t)})
		defer p.Close()
		if o, reason, _ := p.Post(t.Context(), "https://hooks.example.org:"+r.port+"/",
			nil); o != notifier.Unreachable || reason != "certificate" {
			t.Errorf("%s %q", o, reason)
		}
	})
	if n := r.hits.Load() + other.hits.Load(); n != 0 {
		t.Errorf("%d requests", n)
	}
}

// Names are judged by the address that is dialled, however they resolve.
func TestNamesOfPrivateAddressesAreRefused(t *testing.T) {
	t.Parallel()
	for _, addr := range []string{
		"127.0.0.1", "127.255.255.254", "0.0.0.0", "0.1.2.3", "10.0.0.1", "10.255.255.255", "100.64.0.1", "100.127.255.255", "169.254.169.254",
		"172.16.0.1", "172.31.255.255", "192.0.0.8", "192.0.2.1", "192.88.99.1", "192.168.0.1", "198.18.0.1", "198.19.255.255", "198.51.100.7",
		"203.0.113.9", "224.0.0.1", "239.255.255.255", "240.0.0.1", "255.255.255.255",
		"::", "::1", "::127.0.0.1", "::7f00:1", "::ffff:127.0.0.1", "::ffff:10.0.0.1", "::ffff:169.254.169.254", "64:ff9b::7f00:1",
		"64:ff9b::a9fe:a9fe",
		"64:ff9b:1::1", "100::1", "2001::1", "2001:0:a00:1::", "2001:10::1", "2001:20::1", "2001:db8::1", "2002:7f00:1::",
		"2002:a9fe:a9fe::1", "3fff::1", "4000::1",
		"5f00::1", "fc00::1", "fd00:ec2::254", "fd12:3456:789a::1", "fe80::1", "fec0::1", "ff02::1",
	} {
		t.Run(addr, func(t *testing.T) {
			t.Parallel()
			z := &zone{records: map[string][][]string{"hooks.example.com": {{addr}}}}
			p := notifierhttp.New(notifierhttp.Config{Resolver: z.resolver(t)})
			defer p.Close()
			if o, reason, _ := p.Post(t.Context(), "https://hooks.example.com/", nil); o != notifier.Blocked || reason != "address" {
				t.Errorf("%s %q", o, reason)
			}
		})
	}
}

// Forms that a save refuses are refused again here: settings may be older than
// the rules.
func TestFormsAreRefusedAgain(t *testing.T) {
	t.Parallel()
	p := notifierhttp.New(notifierhttp.Config{})
	defer p.Close()
	for _, raw := range []string{
		"http://example.com/", "https://127.0.0.1/", "https://localhost/", "https://a.localhost/", "https://[::1]/",
		"https://[::ffff:7f00:1]/", "https://2130706433/",
		"https://0x7f.1/", "https://017700000001/", "https://127.1/", "https://①②⑦.0.0.1/", "https://user@example.com/",
		"https://127%2e0%2e0%2e1/", "ftp://example.com/",
		"https://169.254.169.254/latest/meta-data/", "", "%", "https://", "https://[fe80::1%25eth0]/",
	} {
		if o, reason, _ := p.Post(t.Context(), raw, nil); o != notifier.Blocked || reason != "url" {
			t.Errorf("%q: %s %q", raw, o, reason)
		}
	}
}

// A name that is public at one lookup and private at the next gains nothing, and
// is not looked up a second time between the check and the dial.
func TestRebinding(t *testing.T) {
	t.Parallel()
	r := newReceiver(t, func(http.ResponseWriter, *http.Request) {})
	z := &zone{records: map[string][][]string{"example.com": {{"127.0.0.2"}, {"127.0.0.1"}}}}
	resolver := z.resolver(t)
	// 127.0.0.2 stands for a public address here.
	p := notifierhttp.New(notifierhttp.Config{
		Allowed: []netip.Prefix{netip.MustParsePrefix("127.0.0.2/32")}, Roots: r.roots,
		Resolver: resolver,
	})
	defer p.Close()
	if o, reason, _ := p.Post(t.Context(), r.url("/"), nil); o != notifier.Unreachable || reason != "connect" {
		t.Errorf("first: %s %q", o, reason)
	}
	for range 3 {
		if o, reason, _ := p.Post(t.Context(), r.url("/"), nil); o != notifier.Blocked || reason != "address" {
			t.Errorf("then: %s %q", o, reason)
		}
	}
	z.mu.Lock()
	defer z.mu.Unlock()
	if z.lookups != 4 || r.hits.Load() != 0 {
		t.Errorf("%d lookups, %d requests", z.lookups, r.hits.Load())
	}
}

// Of mixed records only the public ones are tried.
func TestMixedRecords(t *testing.T) {
	t.Parallel()
	r := newReceiver(t, func(http.ResponseWriter, *http.Request) {})
	public := netip.MustParsePrefix("127.0.0.1/32") // stands for one
	for _, tc := range []struct {
		name    string
		records []string
		want    notifier.Outcome
	}{
		{"private first", []string{"10.0.0.1", "127.0.0.1"}, notifier.Delivered},
		{"private last", []string{"127.0.0.1", "192.168.0.1"}, notifier.Delivered},
		{"private of the other kind", []string{"::1", "127.0.0.1", "fd00::1"}, notifier.Delivered},
		{"only private", []string{"10.0.0.1", "127.0.0.9", "::1"}, notifier.Blocked},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			z := &zone{records: map[string][][]string{"example.com": {tc.records}}}
			p := notifierhttp.New(notifierhttp.Config{Allowed: []netip.Prefix{public}, Roots: r.roots, Resolver: z.resolver(t)})
			defer p.Close()
			if o, reason, _ := p.Post(t.Context(), r.url("/"), nil); o != tc.want {
				t.Errorf("%s %q", o, reason)
			}
		})
	}
}

// An operator's proxy stands where it stands; what goes through it is judged by
// its URL.
func TestProxy(t *testing.T) {
	t.Parallel()
	r := newReceiver(t, func(http.ResponseWriter, *http.Request) {})
	asked := make(chan string, 10)
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		asked <- req.Method + " " + req.Host
		to, err := new(net.Dialer).DialContext(req.Context(), "tcp", r.Listener.Addr().String())
		if err != nil {
			panic(err)
		}
		defer to.Close()
		from, _, err := w.(http.Hijacker).Hijack()
		if err != nil {
			panic(err)
		}
		defer from.Close()
		_, _ = io.WriteString(from, "HTTP/1.1 200 OK\r\n\r\n")
		var both sync.WaitGroup
		both.Go(func() { _, _ = io.Copy(to, from); _ = to.(*net.TCPConn).CloseWrite() })
		both.Go(func() { _, _ = io.Copy(from, to); _ = from.(*net.TCPConn).CloseWrite() })
		both.Wait()
	}))
	t.Cleanup(proxy.Close)
	via, err := url.Parse(proxy.URL)
	if err != nil {
		t.Fatal(err)
	}
	p := notifierhttp.New(notifierhttp.Config{Roots: r.roots, Proxy: func(u *url.URL) (*url.URL, error) {
		if u.Hostname() == "direct.example.com" {
			return nil, nil
		}
		return via, nil
	}, Resolver: (&zone{records: map[string][][]string{"direct.example.com": {{"127.0.0.1"}}}}).resolver(t)})
	t.Cleanup(p.Close)
	if o, reason, status := p.Post(t.Context(), "https://example.com/hook", []byte(`{}`)); o != notifier.Delivered || status != 200 {
		t.Errorf("%s %q %d", o, reason, status)
	}
	if a := <-asked; a != "CONNECT example.com:443" {
		t.Error(a)
	}
	for target, want := range map[string]string{
		"https://127.0.0.1/": "url", "https://0x7f.1/": "url",
		"https://direct.example.com/": "address",
	} {
		if o, reason, _ := p.Post(t.Context(), target, nil); o != notifier.Blocked || reason != want {
			t.Errorf("%s: %s %q", target, o, reason)
		}
	}
	if len(asked) != 0 {
		t.Errorf("the proxy was asked for %q", <-asked)
	}
}

// A connection that is used again carries messages one after the other.
func TestConnectionsAreUsedAgain(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	from := map[string]int{}
	r := newReceiver(t, func(w http.ResponseWriter, req *http.Request) {
		mu.Lock()
		from[req.RemoteAddr]++
		mu.Unlock()
		_, _ = w.Write(make([]byte, 3000))
	})
	p := poster(t, r, loopback)
	for range 20 {
		if o, reason, _ := p.Post(t.Context(), r.url("/"), []byte(`{}`)); o != notifier.Delivered {
			t.Fatalf("%s %q", o, reason)
		}
	}
	if len(from) != 1 {
		t.Errorf("%d connections", len(from))
	}
}
