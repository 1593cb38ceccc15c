package e2e

import (
	"net"
	"strings"
	"sync"
	"testing"

	"github.com/miekg/dns"
)

// nameServer is a DNS server that the test controls.
type nameServer struct {
	// addr is its host:port.
	addr string

	mu sync.Mutex
	// texts are the TXT records by lower-case name without the trailing dot.
	texts map[string][]string
	// silent makes it answer nothing; broken makes it fail.
	silent, broken bool
	asked          int
}

func newNameServer(t testing.TB) *nameServer {
	t.Helper()
	n := &nameServer{texts: map[string][]string{}}
	packets, streams := listenBoth(t)
	n.addr = packets.LocalAddr().String()
	var serving sync.WaitGroup
	t.Cleanup(serving.Wait) // after the shutdowns
	for _, server := range []*dns.Server{{PacketConn: packets, Handler: n}, {Listener: streams, Handler: n}} {
		started := make(chan struct{})
		server.NotifyStartedFunc = func() { close(started) }
		serving.Go(func() {
			if err := server.ActivateAndServe(); err != nil {
				t.Error(err)
			}
		})
		<-started
		t.Cleanup(func() {
			if err := server.Shutdown(); err != nil {
				t.Error(err)
			}
		})
	}
	return n
}

// listenBoth listens on one port for UDP and TCP: resolvers repeat truncated queries over TCP.
func listenBoth(t testing.TB) (net.PacketConn, net.Listener) {
	t.Helper()
	var listen net.ListenConfig
	for tries := 0; ; tries++ {
		streams, err := listen.Listen(t.Context(), "tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		packets, err := listen.ListenPacket(t.Context(), "udp", streams.Addr().String())
		if err == nil {
			return packets, streams
		}
		_ = streams.Close()
		if tries == 10 {
			t.Fatal(err)
		}
	}
}

// ServeDNS implements dns.Handler.
func (n *nameServer) ServeDNS(w dns.ResponseWriter, q *dns.Msg) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.asked++
	if n.silent {
		return
	}
	r := new(dns.Msg).SetReply(q)
	name := strings.ToLower(strings.TrimSuffix(q.Question[0].Name, "."))
	texts := n.texts[name]
	switch {
	case n.broken:
		r.Rcode = dns.RcodeServerFailure
	case len(texts) == 0:
		r.Rcode = dns.RcodeNameError
	case q.Question[0].Qtype == dns.TypeTXT:
		for _, text := range texts {
			r.Answer = append(r.Answer, &dns.TXT{
				Hdr: dns.RR_Header{Name: q.Question[0].Name, Rrtype: dns.TypeTXT, Class: dns.ClassINET, Ttl: 60}, Txt: pieces(text),
			})
		}
	}
	if opt := q.IsEdns0(); w.LocalAddr().Network() == "udp" {
		size := dns.MinMsgSize
		if opt != nil {
			size = int(opt.UDPSize())
		}
		r.Truncate(size)
	}
	_ = w.WriteMsg(r)
}

// pieces splits a text into the strings of a TXT record, of at most 255 bytes each.
func pieces(text string) []string {
	var out []string
	for len(text) > 255 {
		out, text = append(out, text[:255]), text[255:]
	}
	return append(out, text)
}

// change changes the records or the behavior.
func (n *nameServer) change(f func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	f()
}

// publish adds the records that the API listed.
func (n *nameServer) publish(t testing.TB, records []record) {
	t.Helper()
	n.change(func() {
		for _, r := range records {
			if r.Type == "TXT" {
				name := strings.ToLower(strings.TrimSuffix(r.Name, "."))
				n.texts[name] = append(n.texts[name], r.Value)
			}
		}
	})
}

// withdraw removes every record.
func (n *nameServer) withdraw() { n.change(func() { clear(n.texts) }) }
