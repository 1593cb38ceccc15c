package lab

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httputil"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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
// request. It counts them, and says in a route's status which generation of it is in effect.
type Gateway struct {
	log       *slog.Logger
	routes    gatewaylisters.HTTPRouteLister
	ingresses networkinglisters.IngressLister
	services  corelisters.ServiceLister
	slices    discoverylisters.EndpointSliceLister
	transport *http.Transport
	status    gateway.Interface
	namespace string

	mu   sync.Mutex
	sent map[string]Sent // by service

	table   atomic.Pointer[[]rule]
	changed chan struct{}
	cancel  context.CancelFunc
	done    chan struct{}
	stop    []func()
}

// Sent says what a service has got from the gateway.
type Sent struct {
	Requests int
	// ByWeight are the requests by the weight that the service had.
	ByWeight map[int32]int
	// First and Last are when the first and the last of them were sent.
	First, Last time.Time
}

// rule is a path prefix and its backends.
type rule struct {
	prefix   string
	timeout  time.Duration // limit of a whole request; 0: none
	backends []backend
}

// backend is a service with its ready pods and its share of the requests. Requests to a backend without a ready pod fail.
type backend struct {
	service   string
	addresses []string
	weight    int32
	next      *atomic.Uint64
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
		status: gatewayClient, namespace: namespace, sent: map[string]Sent{},
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
	g.accept(ctx, g.load())
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
		g.accept(ctx, g.load())
	}
}

// accept writes into the status of each route, for all its parents, that its current generation is in effect.
func (g *Gateway) accept(ctx context.Context, routes []*gatewayv1.HTTPRoute) {
	for _, r := range routes {
		status := gatewayv1.RouteStatus{}
		for _, ref := range r.Spec.ParentRefs {
			parent := gatewayv1.RouteParentStatus{ParentRef: ref, ControllerName: "waitlist.internal/lab"}
			for _, kind := range []gatewayv1.RouteConditionType{gatewayv1.RouteConditionAccepted, gatewayv1.RouteConditionResolvedRefs} {
				parent.Conditions = append(parent.Conditions, metav1.Condition{
					Type: string(kind), Status: metav1.ConditionTrue, Reason: string(kind), ObservedGeneration: r.Generation,
					LastTransitionTime: r.CreationTimestamp,
				})
			}
			status.Parents = append(status.Parents, parent)
		}
		if equality.Semantic.DeepEqual(r.Status.RouteStatus, status) {
			continue
		}
		r = r.DeepCopy()
		r.Status.RouteStatus = status
		// If it has changed meanwhile, the next load writes it.
		_, err := g.status.GatewayV1().HTTPRoutes(g.namespace).UpdateStatus(ctx, r, metav1.UpdateOptions{})
		if err != nil && ctx.Err() == nil && !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) {
			g.log.WarnContext(ctx, "status of a route not written", "route", r.Name, "error", err)
		}
	}
}

// Sent returns what a service has got so far.
func (g *Gateway) Sent(service string) Sent {
	g.mu.Lock()
	defer g.mu.Unlock()
	s := g.sent[service]
	s.ByWeight = maps.Clone(s.ByWeight)
	return s
}

// Forget begins the count of a service anew.
func (g *Gateway) Forget(service string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.sent, service)
}

func (g *Gateway) count(service string, weight int32) {
	g.mu.Lock()
	defer g.mu.Unlock()
	s, now := g.sent[service], time.Now()
	if s.Requests == 0 {
		s.First, s.ByWeight = now, map[int32]int{}
	}
	s.ByWeight[weight]++
	s.Requests, s.Last = s.Requests+1, now
	g.sent[service] = s
}

// load rebuilds the routing table, longest prefix first, as both kinds of routes require. It returns the HTTPRoutes in it.
func (g *Gateway) load() []*gatewayv1.HTTPRoute {
	var table []rule
	routes, err1 := g.routes.List(labels.Everything())
	ingresses, err2 := g.ingresses.List(labels.Everything())
	if err := errors.Join(err1, err2); err != nil {
		g.log.Error("routes not listed", "error", err)
		return nil
	}
	for _, r := range routes {
		table = append(table, g.fromRoute(r)...)
	}
	for _, i := range ingresses {
		table = append(table, g.fromIngress(i)...)
	}
	slices.SortStableFunc(table, func(a, b rule) int { return len(b.prefix) - len(a.prefix) })
	g.table.Store(&table)
	return routes
}

func (g *Gateway) fromRoute(r *gatewayv1.HTTPRoute) []rule {
	var out []rule
	for _, r := range r.Spec.Rules {
		var made rule
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
			made.backends = append(made.backends, g.backend(string(ref.Name), *ref.Port, "", weight))
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
				prefix: p.Path, backends: []backend{g.backend(p.Backend.Service.Name, port.Number, port.Name, 1)},
			})
		}
	}
	return out
}

// backend returns a service with the ready pods behind a port, given by number or name.
func (g *Gateway) backend(service string, number int32, name string, weight int32) backend {
	return backend{service, g.addresses(service, number, name), weight, new(atomic.Uint64)}
}

func (g *Gateway) addresses(service string, number int32, name string) []string {
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
	var out []string
	for _, s := range found {
		for _, p := range s.Ports {
			if p.Port == nil || p.Name == nil || *p.Name != all[i].Spec.Ports[j].Name {
				continue
			}
			for _, a := range readyAddresses(s) {
				out = append(out, net.JoinHostPort(a, strconv.Itoa(int(*p.Port))))
			}
		}
	}
	slices.Sort(out)
	return out
}

// Ready returns nil if every route has a ready pod.
func (g *Gateway) Ready() error {
	table := *g.table.Load()
	if len(table) == 0 {
		return errors.New("the gateway has no routes")
	}
	if i := slices.IndexFunc(table, func(r rule) bool {
		return !slices.ContainsFunc(r.backends, func(b backend) bool { return len(b.addresses) > 0 })
	}); i >= 0 {
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
	service, address, weight := table[i].pick()
	g.count(service, weight)
	if address == "" {
		http.Error(w, "no pod is ready", http.StatusServiceUnavailable)
		return
	}
	ctx, cancel := r.Context(), func() {}
	if table[i].timeout > 0 {
		ctx, cancel = context.WithTimeout(ctx, table[i].timeout)
	}
	defer cancel()
	// A client that is still sending must be able to read an early error.
	control := http.NewResponseController(w)
	if err := control.EnableFullDuplex(); err != nil {
		g.log.WarnContext(ctx, "cannot answer before the request is read", "error", err)
	}
	sent := &sentBody{ReadCloser: r.Body}
	sent.ended.Store(r.ContentLength == 0)
	r = r.WithContext(ctx) // a copy: net/http looks at the original's body
	r.Body = sent
	proxy := &httputil.ReverseProxy{
		Transport: g.transport, FlushInterval: -1, ErrorLog: slog.NewLogLogger(g.log.Handler(), slog.LevelDebug),
		Rewrite: func(p *httputil.ProxyRequest) {
			p.Out.URL.Scheme, p.Out.URL.Host, p.Out.Host = "http", address, p.In.Host
			p.Out.Header["X-Forwarded-For"] = p.In.Header["X-Forwarded-For"]
			p.SetXForwarded()
		},
		ModifyResponse: func(res *http.Response) error {
			sent.closeAfter(res.Header)
			return nil
		},
		ErrorHandler: func(w http.ResponseWriter, r *http.Request, err error) {
			if r.Context().Err() == nil {
				g.log.ErrorContext(r.Context(), "pod did not answer", "pod", address, "path", path, "error", err)
			}
			sent.closeAfter(w.Header())
			w.WriteHeader(http.StatusBadGateway)
		},
	}
	proxy.ServeHTTP(w, r)
	if !sent.ended.Load() {
		// net/http also waits for the rest, and forgets the deadline of a read that it breaks off.
		_ = control.SetReadDeadline(time.Now().Add(time.Second))
		_ = sent.Close()
	}
}

// sentBody knows whether a request was read to its end. In full duplex, net/http waits for another request on a connection
// whose request was not.
type sentBody struct {
	io.ReadCloser
	ended atomic.Bool
}

func (b *sentBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if errors.Is(err, io.EOF) {
		b.ended.Store(true)
	}
	return n, err
}

// closeAfter lets the answer with these headers close the connection, unless the request has ended.
func (b *sentBody) closeAfter(h http.Header) {
	if !b.ended.Load() {
		h.Set("Connection", "close")
	}
}

// pick selects a service by weight, at random, and one of its pods in turn. The address is empty if there is none.
func (r *rule) pick() (service, address string, weight int32) {
	var total int32
	for _, b := range r.backends {
		total += b.weight
	}
	if total == 0 {
		return "", "", 0
	}
	at := rand.Int32N(total)
	for _, b := range r.backends {
		if at -= b.weight; at >= 0 {
			continue
		}
		if len(b.addresses) == 0 {
			return b.service, "", b.weight
		}
		return b.service, b.addresses[int(b.next.Add(1)%uint64(len(b.addresses)))], b.weight
	}
	return "", "", 0
}
