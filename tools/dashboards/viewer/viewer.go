// Package viewer shows a running suite on one machine: it scrapes metrics with Prometheus'
// engine, evaluates the chart's rules, receives traces by OTLP, and serves a page that draws
// the generated Grafana dashboards.
//
//	suite  /metrics ──► scraper ──► engine ──► rules
//	       OTLP ──────► traces       │            │
//	                      └──────────┴──► HTTP ◄──┘ ◄── page
package viewer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/config"
	"github.com/prometheus/prometheus/discovery/targetgroup"
	"github.com/prometheus/prometheus/scrape"
	collectorv1 "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"

	"waitlist.internal/tools/dashboards/engine"
)

// Namespace is the value of the label namespace, which a cluster would add to scraped
// metrics.
const Namespace = "local"

// retention is how long samples are kept.
const retention = 24 * time.Hour

// Config says what to watch. Root is the repository, Data a folder for samples.
type Config struct {
	Root, Data string
	// Metrics are the addresses to scrape, http://127.0.0.1:8081/metrics.
	Metrics []string
	// Listen and OTLP are loopback addresses of the page and of the receiver of traces.
	Listen, OTLP string
	// Interval is the time between scrapes, and between evaluations of the rules.
	Interval time.Duration
	Log      *slog.Logger
}

// Viewer is the program without its process.
type Viewer struct {
	cfg    Config
	engine *engine.Engine
	traces *traces
	page   net.Listener
	otlp   net.Listener
}

// New listens at both addresses and opens the storage. The caller must call Run.
func New(ctx context.Context, cfg Config) (_ *Viewer, err error) {
	v := &Viewer{cfg: cfg, traces: newTraces()}
	defer func() {
		if err != nil {
			v.close()
		}
	}()
	if v.page, err = loopback(ctx, cfg.Listen); err != nil {
		return nil, err
	}
	if v.otlp, err = loopback(ctx, cfg.OTLP); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(cfg.Data, 0o755); err != nil {
		return nil, err
	}
	v.engine, err = engine.Open(ctx, cfg.Data, cfg.Root, Namespace, retention)
	return v, err
}

// URL is the address of the page.
func (v *Viewer) URL() string { return "http://" + v.page.Addr().String() }

// Endpoint is the value of OTEL_EXPORTER_OTLP_ENDPOINT for what is watched.
func (v *Viewer) Endpoint() string { return "http://" + v.otlp.Addr().String() }

func (v *Viewer) close() {
	for _, l := range []net.Listener{v.page, v.otlp} {
		if l != nil {
			l.Close()
		}
	}
}

// ErrNotLoopback is returned for an address that other machines can reach.
var ErrNotLoopback = errors.New("not a loopback address; to let others see the page, put a proxy with a password in front of it")

// loopback listens at an address of this machine alone: whoever reaches the page reads
// everything that the suite measures.
func loopback(ctx context.Context, addr string) (net.Listener, error) {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	if tcp, ok := l.Addr().(*net.TCPAddr); !ok || !tcp.IP.IsLoopback() {
		l.Close()
		return nil, fmt.Errorf("listen at %s: %w", addr, ErrNotLoopback)
	}
	return l, nil
}

// Run serves until ctx ends.
func (v *Viewer) Run(ctx context.Context) error {
	defer v.close()
	all, ctx := errgroup.WithContext(ctx)
	receiver := grpc.NewServer()
	collectorv1.RegisterTraceServiceServer(receiver, v.traces)
	all.Go(func() error { return receiver.Serve(v.otlp) })
	page := &http.Server{Handler: v.handler(), ReadHeaderTimeout: 5 * time.Second}
	all.Go(func() error {
		if err := page.Serve(v.page); !errors.Is(err, http.ErrServerClosed) {
			return err
		}
		return nil
	})
	stopScraping, err := v.scrape(all)
	if err != nil {
		return errors.Join(err, v.engine.Close())
	}
	all.Go(func() error {
		tick := time.NewTicker(v.cfg.Interval)
		defer tick.Stop()
		for {
			select {
			case now := <-tick.C:
				if err := v.engine.Eval(ctx, now); err != nil && ctx.Err() == nil {
					v.cfg.Log.WarnContext(ctx, "rules not evaluated", slog.String("error", err.Error()))
				}
			case <-ctx.Done():
				return nil
			}
		}
	})
	<-ctx.Done()
	stopScraping()
	receiver.Stop()
	return errors.Join(page.Close(), all.Wait(), v.engine.Close())
}

// scrape begins to scrape all addresses.
func (v *Viewer) scrape(all *errgroup.Group) (stop func(), err error) {
	var conf strings.Builder
	fmt.Fprintf(&conf, "global: {scrape_interval: %[1]s, scrape_timeout: %[1]s}\nscrape_configs:\n", model.Duration(v.cfg.Interval))
	targets := map[string][]*targetgroup.Group{}
	for _, address := range v.cfg.Metrics {
		u, err := url.Parse(address)
		if err != nil || u.Host == "" {
			return nil, fmt.Errorf("%q is not an address of metrics", address)
		}
		fmt.Fprintf(&conf, "- {job_name: %q, scheme: %q, metrics_path: %q}\n", address, u.Scheme, u.Path)
		targets[address] = []*targetgroup.Group{{
			Targets: []model.LabelSet{{model.AddressLabel: model.LabelValue(u.Host)}},
			Labels:  model.LabelSet{"namespace": Namespace, "pod": model.LabelValue(u.Host)}, Source: address,
		}}
	}
	quiet := slog.New(slog.DiscardHandler)
	cfg, err := config.Load(conf.String(), quiet)
	if err != nil {
		return nil, err
	}
	m, err := scrape.NewManager(&scrape.Options{DiscoveryReloadOnStartup: true}, quiet, nil, nil, v.engine.DB, prometheus.NewRegistry())
	if err != nil {
		return nil, err
	}
	if err := m.ApplyConfig(cfg); err != nil {
		return nil, err
	}
	sets := make(chan map[string][]*targetgroup.Group, 1)
	sets <- targets
	all.Go(func() error { return m.Run(sets) })
	return m.Stop, nil
}

// The page needs nothing but its own files.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; " +
	"base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

// files are the page's files, below tools/dashboards/page.
var files = map[string]string{ // a constant
	"/{$}": "index.html", "/page.js": "page.js", "/page.css": "page.css", "/favicon.ico": "icon.svg",
	"/uplot.js": "node_modules/uplot/dist/uPlot.iife.min.js", "/uplot.css": "node_modules/uplot/dist/uPlot.min.css",
}

func (v *Viewer) handler() http.Handler {
	mux := http.NewServeMux()
	for path, file := range files {
		name := filepath.Join(v.cfg.Root, "tools/dashboards/page", file)
		mux.HandleFunc("GET "+path, func(w http.ResponseWriter, r *http.Request) {
			if filepath.Ext(name) == ".svg" {
				w.Header().Set("Content-Type", "image/svg+xml")
			}
			http.ServeFile(w, r, name)
		})
	}
	get := func(path string, answer func(r *http.Request) (any, error)) {
		mux.HandleFunc("GET /api/"+path, func(w http.ResponseWriter, r *http.Request) {
			body, err := answer(r)
			if errors.Is(err, errNotFound) || errors.Is(err, errValue) {
				http.Error(w, err.Error(), http.StatusNotFound)
				return
			}
			if err != nil {
				v.cfg.Log.WarnContext(r.Context(), "request not answered", slog.String("error", err.Error()))
				http.Error(w, err.Error(), http.StatusInternalServerError)
				return
			}
			w.Header().Set("Content-Type", "application/json")
			_ = json.NewEncoder(w).Encode(body)
		})
	}
	get("dashboards", v.index)
	get("dashboards/{uid}", v.dashboard)
	get("alerts", func(*http.Request) (any, error) { return v.alerts(), nil })
	get("traces", func(r *http.Request) (any, error) {
		return v.traces.list(r.FormValue("name"), r.FormValue("order") != "newest", 100), nil
	})
	get("traces/{id}", func(r *http.Request) (any, error) {
		if t, ok := v.traces.waterfall(r.PathValue("id")); ok {
			return t, nil
		}
		return nil, fmt.Errorf("trace %s: %w", r.PathValue("id"), errNotFound)
	})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// Refuse other names that resolve to this machine: a stranger's page could use one to read
		// this page.
		host, _, _ := net.SplitHostPort(r.Host)
		if ip := net.ParseIP(host); host != "localhost" && (ip == nil || !ip.IsLoopback()) {
			http.Error(w, "open this page by its loopback address", http.StatusMisdirectedRequest)
			return
		}
		w.Header().Set("Content-Security-Policy", policy)
		w.Header().Set("X-Content-Type-Options", "nosniff")
		w.Header().Set("Referrer-Policy", "no-referrer")
		w.Header().Set("Cache-Control", "no-store")
		mux.ServeHTTP(w, r)
	})
}

var errNotFound = errors.New("not found")

// index returns what the page shows above every view.
func (v *Viewer) index(r *http.Request) (any, error) {
	boards, err := v.boards()
	if err != nil {
		return nil, err
	}
	answered, all, err := v.up(r.Context())
	if err != nil {
		return nil, err
	}
	type entry struct {
		UID   string `json:"uid"`
		Title string `json:"title"`
	}
	list := []entry{}
	for _, b := range boards {
		list = append(list, entry{b.UID, b.Title})
	}
	// The suite's dashboard comes first, since people look at it first.
	slices.SortStableFunc(list, func(a, b entry) int {
		if (a.UID == "waitlist-suite") != (b.UID == "waitlist-suite") {
			if a.UID == "waitlist-suite" {
				return -1
			}
			return 1
		}
		return strings.Compare(a.Title, b.Title)
	})
	active := map[string]int{}
	for _, a := range v.alerts() {
		active[a.State]++
	}
	return map[string]any{
		"dashboards": list, "up": answered, "targets": all, "firing": active["firing"], "pending": active["pending"],
		"interval": v.cfg.Interval.Seconds(),
	}, nil
}

func (v *Viewer) dashboard(r *http.Request) (any, error) {
	boards, err := v.boards()
	if err != nil {
		return nil, err
	}
	i := slices.IndexFunc(boards, func(b board) bool { return b.UID == r.PathValue("uid") })
	if i < 0 {
		return nil, fmt.Errorf("dashboard %s: %w", r.PathValue("uid"), errNotFound)
	}
	long, err := time.ParseDuration(r.FormValue("range"))
	if err != nil || long < time.Minute || long > retention {
		return nil, fmt.Errorf("range %q: %w", r.FormValue("range"), errValue)
	}
	now := time.Now()
	return v.draw(r.Context(), boards[i], r.URL.Query(), now.Add(-long), now)
}
