package deploy

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"

	"waitlist.internal/libs/testenv"
)

// nameServer is a DNS server that returns the addresses of the ready replicas, as a
// cluster does for a headless service.
type nameServer struct {
	addr string

	mu    sync.Mutex
	hosts map[string][]string
}

func newNameServer(t *testing.T) *nameServer {
	t.Helper()
	conn, err := (&net.ListenConfig{}).ListenPacket(t.Context(), "udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	n := &nameServer{addr: conn.LocalAddr().String(), hosts: map[string][]string{}}
	started := make(chan struct{})
	server := &dns.Server{PacketConn: conn, Handler: n, NotifyStartedFunc: func() { close(started) }}
	var serving sync.WaitGroup
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
		serving.Wait()
	})
	return n
}

// ServeDNS implements dns.Handler.
func (n *nameServer) ServeDNS(w dns.ResponseWriter, q *dns.Msg) {
	r := new(dns.Msg).SetReply(q)
	hosts := n.get(strings.TrimSuffix(q.Question[0].Name, "."))
	if len(hosts) == 0 {
		r.Rcode = dns.RcodeNameError
	}
	for _, host := range hosts {
		if q.Question[0].Qtype == dns.TypeA {
			r.Answer = append(r.Answer, &dns.A{
				Hdr: dns.RR_Header{Name: q.Question[0].Name, Rrtype: dns.TypeA, Class: dns.ClassINET}, A: net.ParseIP(host),
			})
		}
	}
	_ = w.WriteMsg(r)
}

func (n *nameServer) get(name string) []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.hosts[name]
}

// set replaces the addresses of a name.
func (n *nameServer) set(name string, hosts ...string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.hosts[name] = hosts
}

// fleet tracks the running replicas. names holds those that were ready at the last probe.
type fleet struct {
	d *deployment

	mu      sync.Mutex
	running []*process
}

func (f *fleet) add(p *process) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.running = append(f.running, p)
}

func (f *fleet) remove(p *process) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.running = slices.DeleteFunc(f.running, func(q *process) bool { return q == p })
}

// probe checks all replicas and publishes the ready ones in DNS.
func (f *fleet) probe() {
	f.mu.Lock()
	running := slices.Clone(f.running)
	f.mu.Unlock()
	ready := make([]bool, len(running))
	var asking sync.WaitGroup
	for i, p := range running {
		asking.Go(func() { ready[i] = p.ready(f.d.t) })
	}
	asking.Wait()
	for _, s := range services() {
		var hosts []string
		for i, p := range running {
			if ready[i] && p.service == s {
				hosts = append(hosts, p.host)
			}
		}
		f.d.names.set(name(s), hosts...)
	}
}

// has reports whether p was ready at the last probe.
func (f *fleet) has(p *process) bool { return slices.Contains(f.d.names.get(name(p.service)), p.host) }

const (
	probeEvery = 200 * time.Millisecond
	// askEvery is the pause between two requests of one client.
	askEvery = 20 * time.Millisecond
)

// testRollingRestart replaces both replicas of all services, several at once, as an
// upgrade of the whole suite does. No request of the clients may fail meanwhile.
func testRollingRestart(t *testing.T, programs string) {
	db := newDatabase(t)
	db.applyRoles(t, "postgres")
	d := newDeployment(t, db, programs)
	d.migrate()
	f := &fleet{d: d}
	old := map[string][]*process{}
	for _, s := range services() {
		for replica := range 2 {
			p := d.start(s, replica)
			old[s] = append(old[s], p)
			f.add(p)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	var people, probing sync.WaitGroup
	defer probing.Wait()
	defer cancel()
	every := func(pause time.Duration, do func()) {
		tick := time.NewTicker(pause)
		defer tick.Stop()
		for ctx.Err() == nil {
			do()
			select {
			case <-ctx.Done():
			case <-tick.C:
			}
		}
	}
	probing.Go(func() { every(probeEvery, f.probe) })
	testenv.Within(d.t, patience, "all are ready", func() bool {
		for _, s := range services() {
			if !f.has(old[s][0]) || !f.has(old[s][1]) {
				return false
			}
		}
		return true
	})
	key, list := d.owner()

	// Keep connections open, as a gateway does.
	transport := &http.Transport{MaxIdleConnsPerHost: 16}
	defer transport.CloseIdleConnections()
	var turn, sent, signups atomic.Int64
	ask := func(method, service, path, body string, want int) bool {
		hosts := d.names.get(name(service))
		if len(hosts) == 0 {
			t.Errorf("no replica of %s is ready", service)
			return false
		}
		host := hosts[int(turn.Add(1))%len(hosts)]
		status, answer, err := send(context.WithoutCancel(ctx), transport, method, "http://"+host+":8080"+path, key, body)
		sent.Add(1)
		if err != nil || status != want {
			t.Errorf("%s %s at %s: %d %v %v", method, path, host, status, answer, err)
		}
		return err == nil && status == want
	}
	for _, do := range []func(){
		func() {
			n := turn.Add(1)
			person := fmt.Sprintf(`{"email":"p%d@example.com"}`, n)
			if ask(http.MethodPost, "signup", "/v1/public/waitlists/"+list+"/signups", person, http.StatusCreated) {
				signups.Add(1)
			}
		},
		func() { ask(http.MethodGet, "signup", "/v1/waitlists/"+list, "", http.StatusOK) },
		func() { ask(http.MethodGet, "messaging", "/v1/templates", "", http.StatusOK) },
		func() { ask(http.MethodGet, "billing", "/v1/billing/info", "", http.StatusOK) },
		func() { ask(http.MethodGet, "account", "/v1/auth/me", "", http.StatusOK) },
	} {
		people.Go(func() { every(askEvery, do) })
	}

	// Restart the called services first, so that their callers know both old replicas.
	for _, wave := range [][]string{{"account", "signup", "messaging"}, {"admin-analytics", "billing", "notifier"}} {
		var rollouts sync.WaitGroup
		for _, s := range wave {
			rollouts.Go(func() {
				for replica, leaving := range old[s] {
					p := d.start(s, 2+replica)
					f.add(p)
					if !await(ctx, func() bool { return f.has(p) }) {
						t.Errorf("%s at %s is not ready", s, p.host)
					}
					leaving.stop(t)
					f.remove(leaving)
				}
			})
		}
		rollouts.Wait()
	}
	cancel()
	people.Wait()
	t.Logf("%d requests, %d signups", sent.Load(), signups.Load())
	drained := time.Now()
	testenv.Within(d.t, patience, "every signup in the sums", func() bool {
		return d.counted(d.host("signup", 2), key, list) == int(signups.Load())
	})
	t.Logf("all of them counted after %v", time.Since(drained))
}

// await waits until ok returns true.
func await(ctx context.Context, ok func() bool) bool {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	tick := time.NewTicker(probeEvery / 4)
	defer tick.Stop()
	for !ok() {
		select {
		case <-ctx.Done():
			return false
		case <-tick.C:
		}
	}
	return true
}
