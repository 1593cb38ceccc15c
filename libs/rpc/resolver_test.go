package rpc_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"
	"google.golang.org/grpc"

	"waitlist.internal/libs/rpc"
	"waitlist.internal/libs/testenv"
	accountv1 "waitlist.internal/proto/gen/waitlist/account/v1"
)

// nameServer answers every query with the same addresses, or with NXDOMAIN.
type nameServer struct {
	addr string

	mu    sync.Mutex
	hosts map[string]bool
	asked int
}

func newNameServer(t *testing.T) *nameServer {
	t.Helper()
	conn, err := (&net.ListenConfig{}).ListenPacket(t.Context(), "udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	n := &nameServer{addr: conn.LocalAddr().String(), hosts: map[string]bool{}}
	var serving sync.WaitGroup
	serving.Go(func() {
		buf := make([]byte, 512)
		for {
			size, from, err := conn.ReadFrom(buf)
			if err != nil {
				return
			}
			if answer, err := n.answer(buf[:size]); err != nil {
				t.Error(err)
			} else if _, err := conn.WriteTo(answer, from); err != nil {
				t.Error(err)
			}
		}
	})
	t.Cleanup(func() {
		_ = conn.Close()
		serving.Wait()
	})
	return n
}

func (n *nameServer) answer(query []byte) ([]byte, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.asked++
	var m dnsmessage.Message
	if err := m.Unpack(query); err != nil {
		return nil, err
	}
	m.Response, m.Additionals = true, nil
	if len(n.hosts) == 0 {
		m.RCode = dnsmessage.RCodeNameError
	}
	if q := m.Questions[0]; q.Type == dnsmessage.TypeA {
		for host := range n.hosts {
			m.Answers = append(m.Answers, dnsmessage.Resource{
				Header: dnsmessage.ResourceHeader{Name: q.Name, Class: q.Class},
				Body:   &dnsmessage.AResource{A: [4]byte(net.ParseIP(host).To4())},
			})
		}
	}
	return m.Pack()
}

// set replaces the addresses.
func (n *nameServer) set(hosts ...string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	clear(n.hosts)
	for _, h := range hosts {
		n.hosts[h] = true
	}
}

func (n *nameServer) questions() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.asked
}

// patience is shorter than the 30 s of gRPC's own resolver.
const patience = 15 * time.Second

// replica is one process of a service.
type replica struct {
	addr  *net.TCPAddr
	calls atomic.Int64
	srv   *grpc.Server
	done  chan error
}

func startReplica(t *testing.T, keys rpc.Keys, addr string) *replica {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	r := &replica{addr: l.Addr().(*net.TCPAddr), srv: rpc.NewServer("account", keys, slog.New(slog.DiscardHandler)), done: make(chan error, 1)}
	accountv1.RegisterAccountServiceServer(r.srv, &account{authorize: func(context.Context) error { r.calls.Add(1); return nil }})
	go func() { r.done <- r.srv.Serve(l) }()
	t.Cleanup(r.srv.Stop)
	return r
}

// stop lets calls in flight finish, as a service does.
func (r *replica) stop(t *testing.T) {
	t.Helper()
	r.srv.GracefulStop()
	if err := <-r.done; err != nil && !errors.Is(err, grpc.ErrServerStopped) {
		t.Error(err)
	}
}

// TestReplicasComeAndGo replaces two replicas by two at other addresses, as a
// rolling update does, then adds one, all under calls.
func TestReplicasComeAndGo(t *testing.T) {
	id := identity(t, "billing")
	keys := rpc.Keys{"billing": {id.Public()}}
	dns := newNameServer(t)
	a := startReplica(t, keys, "127.0.0.2:0")
	start := func(host string) *replica {
		return startReplica(t, keys, (&net.TCPAddr{IP: net.ParseIP(host), Port: a.addr.Port}).String())
	}
	b := start("127.0.0.3")

	// There is no replica at first: the first calls wait.
	conn, err := rpc.Dial(fmt.Sprintf("dns://%s/account.test:%d", dns.addr, a.addr.Port), id, "account")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	client := accountv1.NewAccountServiceClient(conn)
	ctx, cancel := context.WithCancel(t.Context())
	var callers sync.WaitGroup
	defer callers.Wait()
	defer cancel()
	for range 8 {
		callers.Go(func() {
			pace := time.NewTicker(2 * time.Millisecond)
			defer pace.Stop()
			for ; ctx.Err() == nil; <-pace.C {
				if _, err := client.Authorize(context.WithoutCancel(ctx), &accountv1.AuthorizeRequest{}); err != nil {
					t.Errorf("a call failed: %v", err)
				}
			}
		})
	}
	testenv.Within(t, patience, "a question", func() bool { return dns.questions() > 0 })
	dns.set("127.0.0.2", "127.0.0.3")
	testenv.Within(t, patience, "calls to both", func() bool { return a.calls.Load() > 100 && b.calls.Load() > 100 })

	c := start("127.0.0.4")
	dns.set("127.0.0.3", "127.0.0.4")
	a.stop(t)
	d := start("127.0.0.5")
	dns.set("127.0.0.4", "127.0.0.5")
	b.stop(t)
	testenv.Within(t, patience, "calls to the new ones", func() bool { return c.calls.Load() > 100 && d.calls.Load() > 100 })

	// A name server that has lost the name does not remove known addresses.
	dns.set()
	asked := dns.questions()
	testenv.Within(t, patience, "more questions", func() bool { return dns.questions() >= asked+4 })

	e := start("127.0.0.6")
	dns.set("127.0.0.4", "127.0.0.5", "127.0.0.6")
	added := time.Now()
	testenv.Within(t, patience, "calls to the third", func() bool { return e.calls.Load() > 0 })
	t.Logf("the third replica was called after %v", time.Since(added))
	before := [3]int64{c.calls.Load(), d.calls.Load(), e.calls.Load()}
	testenv.Eventually(t, "many calls", func() bool { return e.calls.Load() > before[2]+1000 })
	gained := [3]int64{c.calls.Load() - before[0], d.calls.Load() - before[1], e.calls.Load() - before[2]}
	if total := gained[0] + gained[1] + gained[2]; gained[2] < total/4 || gained[2] > total/2 {
		t.Errorf("the third replica got %d of %d calls", gained[2], total)
	}
}

func TestTargets(t *testing.T) {
	n := serve(t)
	_, port, err := net.SplitHostPort(n.addr)
	if err != nil {
		t.Fatal(err)
	}
	for _, target := range []string{n.addr, "dns:///" + n.addr, "passthrough:///" + n.addr, "localhost:" + port} {
		conn, err := rpc.Dial(target, n.ids["billing"], "account")
		if err != nil {
			t.Fatalf("%s: %v", target, err)
		}
		if _, err := accountv1.NewAccountServiceClient(conn).Authorize(t.Context(), &accountv1.AuthorizeRequest{}); err != nil {
			t.Errorf("%s: %v", target, err)
		}
		_ = conn.Close()
	}
	if conn, err := rpc.Dial("dns:///:9090", n.ids["billing"], "account"); err == nil {
		_, err = accountv1.NewAccountServiceClient(conn).Authorize(t.Context(), &accountv1.AuthorizeRequest{}, rpc.Deadline(time.Second))
		if err == nil {
			t.Error("a call to nobody")
		}
		_ = conn.Close()
	}
}
