package lab

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	corelisters "k8s.io/client-go/listers/core/v1"
	discoverylisters "k8s.io/client-go/listers/discovery/v1"
	networkinglisters "k8s.io/client-go/listers/networking/v1"
	"k8s.io/client-go/tools/cache"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
	gateway "sigs.k8s.io/gateway-api/pkg/client/clientset/versioned"
	gatewayinformers "sigs.k8s.io/gateway-api/pkg/client/informers/externalversions"
	gatewaylisters "sigs.k8s.io/gateway-api/pkg/client/listers/apis/v1"
)

// GatewayLag is how long a change of routes or pods takes to affect requests: real gateways also collect changes before they
// load them.
const GatewayLag = time.Second

// Gateway routes requests to the ready pods of one namespace, following its HTTPRoutes and Ingresses. It never retries a
// request.
type Gateway struct {
	log       *slog.Logger
	routes    gatewaylisters.HTTPRouteLister
	ingresses networkinglisters.IngressLister
	services  corelisters.ServiceLister
	slices    discoverylisters.EndpointSliceLister
	transport *http.Transport

	table   atomic.Pointer[[]rule]
	changed chan struct{}
	cancel  context.CancelFunc
	done    chan struct{}
	stop    []func()
}

// rule is a path prefix and its backends.
type rule struct {
	prefix   string
	timeout  time.Duration // limit of a whole request; 0: none
	backends []backend
	next     *atomic.Uint64
}

// backend is a pod's address and its share of the requests.
type backend struct {
	address string
	weight  int32
}

// StartGateway watches the namespace until Stop.
func StartGateway(ctx context.Context, kubeconfig, namespace string, log *slog.Logger) (*Gateway, error) {
	cfg, client, err := connect(kubeconfig)
	if err != nil {
		return nil, err
	}
	gatewayClient, err := gateway.NewForConfig(cfg)
	if err != nil {
		return nil, fmt.Errorf("create a client of the Gateway API: %w", err)
	}
	core := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithNamespace(namespace))
	own := gatewayinformers.NewSharedInformerFactoryWithOptions(gatewayClient, 0, gatewayinformers.WithNamespace(namespace))
	g := &Gateway{
		log: log, routes: own.Gateway().V1().HTTPRoutes().Lister(), ingresses: core.Networking().V1().Ingresses().Lister(),
		services: core.Core().V1().Services().Lister(), slices: core.Discovery().V1().EndpointSlices().Lister(),
		transport: &http.Transport{
			// The services trust this source address to name the client.
			DialContext:         (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)}, Timeout: 5 * time.Second}).DialContext,
			MaxIdleConnsPerHost: 64, IdleConnTimeout: 30 * time.Second, DisableCompression: true,
		},
		changed: make(chan struct{}, 1), done: make(chan struct{}),
	}
	for _, informer := range []cache.SharedIndexInformer{
		own.Gateway().V1().HTTPRoutes().Informer(), core.Networking().V1().Ingresses().Informer(),
		core.Core().V1().Services().Informer(), core.Discovery().V1().EndpointSlices().Informer(),
	} {
		if _, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
			AddFunc: func(any) { g.poke() }, UpdateFunc: func(any, any) { g.poke() }, DeleteFunc: func(any) { g.poke() },
		}); err != nil {
			return nil, fmt.Errorf("watch routes: %w", err)
		}
	}
	running, cancel := context.WithCancel(context.WithoutCancel(ctx))
	g.cancel = cancel
	core.Start(running.Done())
	own.Start(running.Done())
	core.WaitForCacheSync(ctx.Done())
	own.WaitForCacheSync(ctx.Done())
	g.stop = []func(){core.Shutdown, own.Shutdown, g.transport.CloseIdleConnections}
	g.load()
	go g.follow(running)
	return g, nil
}

// Stop ends the watch. No request may be in progress.
func (g *Gateway) Stop() {
	g.cancel()
	<-g.done
	for _, stop := range g.stop {
		stop()
	}
}

func (g *Gateway) poke() {
	select {
	case g.changed <- struct{}{}:
	default:
	}
}

func (g *Gateway) follow(ctx context.Context) {
	defer close(g.done)
	for {
		select {
		case <-ctx.Done():
			return
		case <-g.changed:
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(GatewayLag):
		}
		g.load()
	}
}

// load rebuilds the routing table, longest prefix first, as both kinds of routes require.
func (g *Gateway) load() {
	var table []rule
	routes, err1 := g.routes.List(labels.Everything())
	ingresses, err2 := g.ingresses.List(labels.Everything())
	if err := errors.Join(err1, err2); err != nil {
		g.log.Error("routes not listed", "error", err)
		return
	}
	for _, r := range routes {
		table = append(table, g.fromRoute(r)...)
	}
	for _, i := range ingresses {
		table = append(table, g.fromIngress(i)...)
	}
	slices.SortStableFunc(table, func(a, b rule) int { return len(b.prefix) - len(a.prefix) })
	g.table.Store(&table)
}

func (g *Gateway) fromRoute(r *gatewayv1.HTTPRoute) []rule {
	var out []rule
	for _, r := range r.Spec.Rules {
		made := rule{next: new(atomic.Uint64)}
		if r.Timeouts != nil && r.Timeouts.Request != nil {
			made.timeout, _ = time.ParseDuration(string(*r.Timeouts.Request))
		}
		for _, ref := range r.BackendRefs {
			weight := int32(1)
			if ref.Weight != nil {
				weight = *ref.Weight
			}
			if ref.Port == nil || weight == 0 {
				continue
			}
			made.backends = append(made.backends, g.backends(string(ref.Name), *ref.Port, "", weight)...)
		}
		for _, m := range r.Matches {
			if m.Path != nil && m.Path.Type != nil && *m.Path.Type == gatewayv1.PathMatchPathPrefix && m.Path.Value != nil {
				made.prefix = *m.Path.Value
				out = append(out, made)
			}
		}
	}
	return out
}

func (g *Gateway) fromIngress(i *networkingv1.Ingress) []rule {
	var out []rule
	for _, r := range i.Spec.Rules {
		if r.HTTP == nil {
			continue
		}
		for _, p := range r.HTTP.Paths {
			if p.PathType == nil || *p.PathType != networkingv1.PathTypePrefix || p.Backend.Service == nil {
				continue
			}
			port := p.Backend.Service.Port
			out = append(out, rule{
				prefix: p.Path, backends: g.backends(p.Backend.Service.Name, port.Number, port.Name, 1), next: new(atomic.Uint64),
			})
		}
	}
	return out
}

// backends returns the ready pods behind a port of a service, given by number or name.
func (g *Gateway) backends(service string, number int32, name string, weight int32) []backend {
	all, err := g.services.List(labels.Everything())
	if err != nil {
		return nil
	}
	i := slices.IndexFunc(all, func(s *corev1.Service) bool { return s.Name == service })
	if i < 0 {
		return nil
	}
	j := slices.IndexFunc(all[i].Spec.Ports, func(p corev1.ServicePort) bool { return p.Port == number || (name != "" && p.Name == name) })
	if j < 0 {
		return nil
	}
	found, err := g.slices.List(labels.SelectorFromSet(labels.Set{discoveryv1.LabelServiceName: service}))
	if err != nil {
		return nil
	}
	var out []backend
	for _, s := range found {
		for _, p := range s.Ports {
			if p.Port == nil || p.Name == nil || *p.Name != all[i].Spec.Ports[j].Name {
				continue
			}
			for _, a := range readyAddresses(s) {
				out = append(out, backend{net.JoinHostPort(a, strconv.Itoa(int(*p.Port))), weight})
			}
		}
	}
	slices.SortFunc(out, func(a, b backend) int { return strings.Compare(a.address, b.address) })
	return out
}

// Ready returns nil if every route has a ready pod.
func (g *Gateway) Ready() error {
	table := *g.table.Load()
	if len(table) == 0 {
		return errors.New("the gateway has no routes")
	}
	if i := slices.IndexFunc(table, func(r rule) bool { return len(r.backends) == 0 }); i >= 0 {
		return fmt.Errorf("route %s has no ready pod", table[i].prefix)
	}
	return nil
}

// ServeHTTP answers 404 if no route matches and 503 if no pod is ready.
func (g *Gateway) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	path := r.URL.EscapedPath()
	table := *g.table.Load()
	i := slices.IndexFunc(table, func(x rule) bool {
		prefix := strings.TrimSuffix(x.prefix, "/")
		return path == prefix || strings.HasPrefix(path, prefix+"/")
	})
	if i < 0 {
		http.Error(w, "no route", http.StatusNotFound)
		return
	}
	address := table[i].pick()
	if address == "" {
		http.Error(w, "no pod is ready", http.StatusServiceUnavailable)
		return
	}
	if table[i].timeout > 0 {
		ctx, cancel := context.WithTimeout(r.Context(), table[i].timeout)
		defer cancel()
		r = r.WithContext(ctx)
	}
	// A client that is still sending must be able to read an early error.
	if err := http.NewResponseController(w).EnableFullDuplex(); err != nil {
		g.log.WarnContext(r.Context(), "cannot answer before the request is read", "error", err)
	}
	proxy := &httputil.ReverseProxy{
		Transport: g.transport, FlushInterval: -1, ErrorLog: slog.NewLogLogger(g.log.Handler(), slog.LevelDebug),
		Rewrite: func(p *httputil.ProxyRequest) {
			p.Out.URL.Scheme, p.Out.URL.Host, p.Out.Host = "http", address, p.In.Host
			p.Out.Header["X-Forwarded-For"] = p.In.Header["X-Forwarded-For"]
			p.SetXForwarded()
		},
		ErrorHandler: func(w http.ResponseWriter, r *http.Request, err error) {
			if r.Context().Err() == nil {
				g.log.ErrorContext(r.Context(), "pod did not answer", "pod", address, "path", path, "error", err)
			}
			w.WriteHeader(http.StatusBadGateway)
		},
	}
	proxy.ServeHTTP(w, r)
}

// pick selects the pods in turn, by weight.
func (r *rule) pick() string {
	var total uint64
	for _, b := range r.backends {
		total += uint64(b.weight)
	}
	if total == 0 {
		return ""
	}
	at := r.next.Add(1) % total
	for _, b := range r.backends {
		if at < uint64(b.weight) {
			return b.address
		}
		at -= uint64(b.weight)
	}
	return ""
}
