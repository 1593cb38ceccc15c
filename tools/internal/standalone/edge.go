package standalone

import (
	"fmt"
	"net/http"
	"net/http/pprof"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"waitlist.internal/libs/httpapi"
	"waitlist.internal/libs/telemetry"
	"waitlist.internal/proto/routes"
	pages "waitlist.internal/services/pages/app"
	"waitlist.internal/tools/internal/devkey"
)

// edge replaces the ingress: it passes each request to the service behind its path
// prefix. It answers 404 for paths without a service, as the API specifies.
func (s *Standalone) edge(services map[string]http.Handler, tel *telemetry.Telemetry) (http.Handler, error) {
	table, err := routes.Table()
	if err != nil {
		return nil, err
	}
	for _, line := range table {
		if s.deployed == nil && services[line.Service] == nil && line.Service != pages.Name { // which PAGES=false leaves out
			return nil, fmt.Errorf("unknown service %q in the route table", line.Service)
		}
	}
	rest, err := httpapi.NewEngine(httpapi.Config{
		Service: "edge", Limiter: s.limiter, Capacity: s.capacity, AllowedOrigins: s.cfg.AllowedOrigins, TrustedProxies: s.cfg.TrustedProxies,
		Log: tel.Log, Registerer: tel.Registerer, Tracers: tel.Tracers,
	})
	if err != nil {
		return nil, err
	}
	var shown http.Handler
	if s.cfg.showsMails() {
		mails, err := newMails(s.cfg.MailDir)
		if err != nil {
			return nil, err
		}
		shown = devkey.Guard(s.cfg.DevKey, mails)
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if shown != nil && (r.URL.Path == mailsPath || strings.HasPrefix(r.URL.Path, mailsPath+"/")) {
			shown.ServeHTTP(w, r)
			return
		}
		if r.URL.Path == "/readyz" {
			s.readyz(w, r)
			return
		}
		if s.page(w, r) {
			return
		}
		if s.deployed != nil {
			s.deployed.Handler().ServeHTTP(w, r)
			return
		}
		if h := services[routes.Service(table, r.URL.EscapedPath())]; h != nil {
			h.ServeHTTP(w, r)
			return
		}
		rest.ServeHTTP(w, r)
	}), nil
}

// readyz answers 200 while every part is usable, else 503 with the parts that are not.
func (s *Standalone) readyz(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("Cache-Control", "no-store")
	if err := s.Ready(r.Context()); err != nil {
		w.WriteHeader(http.StatusServiceUnavailable)
		_, _ = fmt.Fprintln(w, err)
		return
	}
	_, _ = fmt.Fprintln(w, "ready")
}

// internal serves the health, metrics and profiles of the whole process.
func (s *Standalone) internal(tel *telemetry.Telemetry) http.Handler {
	all, levels := prometheus.Gatherers{tel.Registry}, []*telemetry.Level{tel.Level}
	for _, a := range s.apps {
		levels = append(levels, a.Telemetry.Level)
		all = append(all, a.Telemetry.Registry)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /livez", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("ok\n")) })
	mux.HandleFunc("GET /readyz", s.readyz)
	mux.Handle("GET /metrics", telemetry.MetricsHandler(all))
	mux.Handle("PUT /log/level", telemetry.LevelHandler(levels...))
	for path, profile := range map[string]http.HandlerFunc{"": pprof.Index, "profile": pprof.Profile, "trace": pprof.Trace} {
		mux.Handle("GET /debug/pprof/"+path, devkey.Guard(s.cfg.DevKey, profile))
	}
	return mux
}
