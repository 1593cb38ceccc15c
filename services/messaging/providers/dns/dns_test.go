package dns_test

import (
	"context"
	"errors"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	mdns "github.com/miekg/dns"
	"go.uber.org/goleak"

	"waitlist.internal/services/messaging/domains"
	"waitlist.internal/services/messaging/providers/dns"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// serve runs a name server on one port, over UDP and TCP.
func serve(t *testing.T, answer func(q *mdns.Msg, tcp bool) *mdns.Msg) string {
	t.Helper()
	packets, streams := listen(t)
	handler := mdns.HandlerFunc(func(w mdns.ResponseWriter, q *mdns.Msg) {
		_, tcp := w.RemoteAddr().(*net.TCPAddr)
		if m := answer(q, tcp); m != nil {
			_ = w.WriteMsg(m)
		}
	})
	var serving sync.WaitGroup
	t.Cleanup(serving.Wait)
	for _, s := range []*mdns.Server{{PacketConn: packets, Handler: handler}, {Listener: streams, Handler: handler}} {
		started := make(chan struct{})
		s.NotifyStartedFunc = func() { close(started) }
		serving.Go(func() {
			if err := s.ActivateAndServe(); err != nil {
				t.Error(err)
			}
		})
		<-started
		t.Cleanup(func() { _ = s.Shutdown() })
	}
	return packets.LocalAddr().String()
}

// listen opens a port that is free for both UDP and TCP.
func listen(t *testing.T) (net.PacketConn, net.Listener) {
	t.Helper()
	for range 50 {
		packets, err := (&net.ListenConfig{}).ListenPacket(t.Context(), "udp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		streams, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", packets.LocalAddr().String())
		if err == nil {
			return packets, streams
		}
		_ = packets.Close() // the port is taken over TCP
	}
	t.Fatal("no port is free")
	return nil, nil
}

func texts(q *mdns.Msg, values ...[]string) *mdns.Msg {
	m := new(mdns.Msg).SetReply(q)
	for _, v := range values {
		m.Answer = append(m.Answer, &mdns.TXT{Hdr: mdns.RR_Header{
			Name: q.Question[0].Name, Rrtype: mdns.TypeTXT, Class: mdns.ClassINET,
			Ttl: 60,
		}, Txt: v})
	}
	return m
}

func TestTexts(t *testing.T) {
	t.Parallel()
	long := []string{
		strings.Repeat("a", 255), strings.Repeat("b", 255), strings.Repeat("c", 255), strings.Repeat("d", 255),
		strings.Repeat("e", 255), "f",
	}
	for _, tc := range []struct {
		name   string
		answer func(q *mdns.Msg, tcp bool) *mdns.Msg
		want   []string
		known  bool
	}{
		{"two", func(q *mdns.Msg, _ bool) *mdns.Msg {
			return texts(q, []string{"one"}, []string{"a piece", " and another"})
		}, []string{"one", "a piece and another"}, true},
		{"no records", func(q *mdns.Msg, _ bool) *mdns.Msg { return texts(q) }, nil, true},
		{"no such name", func(q *mdns.Msg, _ bool) *mdns.Msg { return new(mdns.Msg).SetRcode(q, mdns.RcodeNameError) }, nil, true},
		{"a server that fails", func(q *mdns.Msg, _ bool) *mdns.Msg { return new(mdns.Msg).SetRcode(q, mdns.RcodeServerFailure) }, nil, false},
		{"a server that refuses", func(q *mdns.Msg, _ bool) *mdns.Msg { return new(mdns.Msg).SetRcode(q, mdns.RcodeRefused) }, nil, false},
		{"a server that is silent", func(*mdns.Msg, bool) *mdns.Msg { return nil }, nil, false},
		{"another question's answer", func(q *mdns.Msg, _ bool) *mdns.Msg {
			m := texts(q, []string{"forged"})
			m.Id++
			return m
		}, nil, false},
		{"too long for UDP", func(q *mdns.Msg, tcp bool) *mdns.Msg {
			m := texts(q, long)
			if !tcp {
				m.Answer, m.Truncated = nil, true
			}
			return m
		}, []string{strings.Join(long, "")}, true},
		{"cut off by TCP too", func(q *mdns.Msg, _ bool) *mdns.Msg {
			m := texts(q)
			m.Truncated = true
			return m
		}, nil, false},
		{"behind an alias", func(q *mdns.Msg, _ bool) *mdns.Msg {
			m := texts(q, []string{"there"})
			m.Answer = append([]mdns.RR{&mdns.CNAME{Hdr: mdns.RR_Header{
				Name: q.Question[0].Name, Rrtype: mdns.TypeCNAME, Class: mdns.ClassINET,
				Ttl: 60,
			}, Target: "other.example."}}, m.Answer...)
			return m
		}, []string{"there"}, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			r, err := dns.New(serve(t, tc.answer))
			if err != nil {
				t.Fatal(err)
			}
			began := time.Now()
			got, err := r.Texts(t.Context(), "_waitlist.example.com")
			if !slices.Equal(got, tc.want) || (err == nil) != tc.known || (err != nil && !errors.Is(err, domains.ErrNoAnswer)) {
				t.Errorf("%q, %v", got, err)
			}
			// The owner's request waits for the answer.
			if took := time.Since(began); took > 4500*time.Millisecond {
				t.Errorf("took %s", took)
			}
		})
	}
}

func TestALookupEndsWithItsRequest(t *testing.T) {
	t.Parallel()
	asked := make(chan struct{}, 8)
	r, err := dns.New(serve(t, func(*mdns.Msg, bool) *mdns.Msg { asked <- struct{}{}; return nil }))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	go func() { <-asked; cancel() }()
	if _, err := r.Texts(ctx, "example.com"); !errors.Is(err, domains.ErrNoAnswer) {
		t.Error(err)
	}
}

func TestNoServer(t *testing.T) {
	t.Parallel()
	r, err := dns.New("127.0.0.1:1")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.Texts(t.Context(), "example.com"); !errors.Is(err, domains.ErrNoAnswer) {
		t.Error(err)
	}
	if got, err := r.Texts(t.Context(), strings.Repeat("a23456789.", 26)+"example.com"); err != nil || len(got) != 0 {
		t.Errorf("a name that is too long: %v, %v", got, err)
	}
	if _, err := dns.New("no port"); err == nil {
		t.Error("an address without a port was taken")
	}
	if _, err := dns.New(""); err != nil {
		t.Error(err)
	}
}
