package lab

import (
	"context"
	"fmt"
	"net"
	"strings"

	"github.com/miekg/dns"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/labels"
	discoverylisters "k8s.io/client-go/listers/discovery/v1"
)

const (
	clusterDomain = "cluster.local"
	// nameTTL is how long an answer may be cached, in seconds.
	nameTTL = 1
)

// names answers DNS queries for the services of all namespaces. Every name resolves to the addresses of the service's ready
// pods, even if the service has a cluster address, because nothing would answer at that address here.
type names struct {
	slices discoverylisters.EndpointSliceLister
	server *dns.Server
}

// startNames listens on addr, a host:53.
func startNames(ctx context.Context, addr string, slices discoverylisters.EndpointSliceLister) (*names, error) {
	conn, err := (&net.ListenConfig{}).ListenPacket(ctx, "udp", addr)
	if err != nil {
		return nil, fmt.Errorf("listen for DNS queries: %w", err)
	}
	n := &names{slices: slices}
	n.server = &dns.Server{PacketConn: conn, Handler: dns.HandlerFunc(n.answer)}
	go func() { _ = n.server.ActivateAndServe() }()
	return n, nil
}

func (n *names) stop() error { return n.server.Shutdown() }

func (n *names) answer(w dns.ResponseWriter, q *dns.Msg) {
	m := new(dns.Msg).SetReply(q)
	m.Authoritative = true
	if len(q.Question) == 1 {
		question := q.Question[0]
		addresses, known := n.lookup(question.Name)
		if !known {
			m.Rcode = dns.RcodeNameError
		}
		if question.Qtype == dns.TypeA {
			for _, a := range addresses {
				m.Answer = append(m.Answer, &dns.A{
					Hdr: dns.RR_Header{Name: question.Name, Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: nameTTL}, A: net.ParseIP(a),
				})
			}
		}
	}
	_ = w.WriteMsg(m)
}

// lookup returns the addresses of service.namespace.svc.cluster.local.
func (n *names) lookup(name string) (addresses []string, known bool) {
	service, found := strings.CutSuffix(strings.ToLower(name), ".svc."+clusterDomain+".")
	service, namespace, both := strings.Cut(service, ".")
	if !found || !both {
		return nil, false
	}
	slices, err := n.slices.EndpointSlices(namespace).List(labels.SelectorFromSet(labels.Set{discoveryv1.LabelServiceName: service}))
	if err != nil || len(slices) == 0 {
		return nil, false
	}
	for _, s := range slices {
		addresses = append(addresses, readyAddresses(s)...)
	}
	return addresses, true
}

// readyAddresses returns the endpoints that accept new connections.
func readyAddresses(s *discoveryv1.EndpointSlice) []string {
	var addresses []string
	for _, e := range s.Endpoints {
		if e.Conditions.Ready == nil || *e.Conditions.Ready {
			addresses = append(addresses, e.Addresses...)
		}
	}
	return addresses
}
