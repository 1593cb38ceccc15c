package rpc

import (
	"context"
	"fmt"
	"net"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc/resolver"

	"waitlist.internal/libs/loop"
)

const (
	// lookupEvery is the pause between two lookups of a name, and so how long a new
	// replica may get no calls. A replica that stops keeps serving for longer
	// (SHUTDOWN_DELAY).
	lookupEvery = 3 * time.Second
	// lookupPause is the shortest pause, used when connections break.
	lookupPause = 200 * time.Millisecond
	// lookupTimeout bounds one lookup.
	lookupTimeout = 5 * time.Second
	// defaultPort is the port of a target that names none.
	defaultPort = "443"
)

// names resolves dns:// targets like gRPC's own resolver, but looks names up every
// few seconds. gRPC looks a name up again only when a connection breaks, and at
// most every 30 s: new replicas would get no calls while the old ones live, and if
// all replicas were replaced within that time, no known address would be left.
// names also keeps the known addresses when a name has none: during a restart, the
// replicas may still serve when their DNS records have gone.
type names struct{}

// Scheme implements resolver.Builder.
func (names) Scheme() string { return "dns" }

// Build implements resolver.Builder for dns://[server[:port]]/host[:port].
func (names) Build(target resolver.Target, cc resolver.ClientConn, _ resolver.BuildOptions) (resolver.Resolver, error) {
	host, port := split(target.Endpoint(), defaultPort)
	if host == "" {
		return nil, fmt.Errorf("target %s has no host", target.URL.String())
	}
	if net.ParseIP(host) != nil {
		return still{}, cc.UpdateState(state([]string{host}, port))
	}
	lookup := net.DefaultResolver
	if target.URL.Host != "" {
		server, serverPort := split(target.URL.Host, "53")
		lookup = &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, network, net.JoinHostPort(server, serverPort))
		}}
	}
	ctx, stop := context.WithCancel(context.Background())
	w := &watch{cc: cc, lookup: lookup, host: host, port: port, now: loop.NewSignal(), stop: stop}
	w.running.Go(func() { w.run(ctx) })
	return w, nil
}

// split splits an address into host and port, with port as the default.
func split(address, port string) (host, p string) {
	if h, p, err := net.SplitHostPort(address); err == nil && p != "" {
		return h, p
	}
	return address, port
}

func state(hosts []string, port string) resolver.State {
	var s resolver.State
	for _, h := range hosts {
		s.Endpoints = append(s.Endpoints, resolver.Endpoint{Addresses: []resolver.Address{{Addr: net.JoinHostPort(h, port)}}})
	}
	return s
}

// still is the resolver of an IP address.
type still struct{}

// ResolveNow implements resolver.Resolver.
func (still) ResolveNow(resolver.ResolveNowOptions) {}

// Close implements resolver.Resolver.
func (still) Close() {}

// watch is the resolver of a name.
type watch struct {
	cc         resolver.ClientConn
	lookup     *net.Resolver
	host, port string
	now        loop.Signal
	stop       context.CancelFunc
	running    sync.WaitGroup
}

// ResolveNow implements resolver.Resolver.
func (w *watch) ResolveNow(resolver.ResolveNowOptions) { w.now.Send() }

// Close implements resolver.Resolver.
func (w *watch) Close() {
	w.stop()
	w.running.Wait()
}

func (w *watch) run(ctx context.Context) {
	var known []string
	for {
		asking, cancel := context.WithTimeout(ctx, lookupTimeout)
		hosts, err := w.lookup.LookupHost(asking, w.host)
		cancel()
		slices.Sort(hosts)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			// This fails calls that wait for a first address; later calls use the known ones.
			w.cc.ReportError(fmt.Errorf("look up %s: %w", w.host, err))
		case !slices.Equal(hosts, known):
			if w.cc.UpdateState(state(hosts, w.port)) == nil {
				known = hosts
			}
		}
		if !loop.Wait(ctx, lookupPause) {
			return
		}
		pause := lookupEvery - lookupPause
		if len(known) == 0 {
			pause = lookupPause // calls are waiting for an address
		}
		if !loop.Idle(ctx, pause, w.now) {
			return
		}
	}
}
