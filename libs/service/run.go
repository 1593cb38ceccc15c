package service

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof"
	"os"
	"os/signal"
	"runtime/debug"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/KimMachineGun/automemlimit/memlimit"
	"github.com/gin-gonic/gin"
	"google.golang.org/grpc"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"

	"waitlist.internal/libs/httpapi"
	"waitlist.internal/libs/telemetry"
)

// Main is the main function of a service and returns the exit code of the process.
// Without arguments it is Command(newApp). With the argument migrate it calls migrate
// and reads only Config from the environment; the service's other variables may be
// unset. A nil migrate means that there is nothing to migrate. With check STATUS=URL…
// it waits for these answers and reads no environment.
func Main[C any, A interface {
	Run(ctx context.Context) error
}](newApp func(ctx context.Context, cfg C) (A, error), migrate func(ctx context.Context, cfg Config) error) int {
	switch args := os.Args[1:]; {
	case len(args) == 0:
		return Command(newApp)
	case len(args) == 1 && args[0] == "migrate" && migrate != nil:
		return process(func(ctx context.Context) error {
			cfg, err := Load[Config](os.Environ())
			if err != nil {
				return err
			}
			return migrate(ctx, cfg)
		})
	case len(args) > 1 && args[0] == "check":
		return process(func(ctx context.Context) error { return checkAnswers(ctx, args[1:]) })
	}
	fmt.Fprintf(os.Stderr, "usage: %s [migrate | check STATUS=URL…]\n", os.Args[0])
	return 2
}

// Command loads C from the environment, creates the app and runs it. It returns the exit
// code of the process. The app reads the command-line arguments itself.
func Command[C any, A interface {
	Run(ctx context.Context) error
}](newApp func(ctx context.Context, cfg C) (A, error)) int {
	return process(func(ctx context.Context) error {
		cfg, err := Load[C](os.Environ())
		if err != nil {
			return err
		}
		app, err := newApp(ctx, cfg)
		if err != nil {
			return err
		}
		return app.Run(ctx)
	})
}

// process runs fn. SIGINT or SIGTERM ends fn's context; a second signal kills the
// process.
func process(fn func(ctx context.Context) error) int {
	// Near the container's limit Go's collector works harder, instead of the kernel killing the process. A tenth is left to
	// what the kernel keeps for the process. An error means that there are no control groups.
	_, _ = memlimit.Set()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop)
	if err := fn(ctx); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// Run serves until ctx ends, which is not an error, or until a server or goroutine
// fails. It returns after everything has stopped and is closed.
func (r *Runtime) Run(ctx context.Context) error {
	s := &servers{r: r, failed: make(chan error, 1)}
	// Goroutines outlive ctx, because draining requests may need them.
	work, stopWork := context.WithCancel(context.WithoutCancel(ctx))
	defer stopWork()
	err := r.checkLong()
	if err == nil {
		err = s.listen(ctx)
	}
	if err == nil {
		for _, w := range r.workers {
			s.workers.Go(func() { s.work(work, w) })
		}
		s.serve()
		r.setServing(true)
		r.Log.LogAttrs(ctx, slog.LevelInfo, "serving")
		if len(r.left) > 0 {
			r.Log.LogAttrs(ctx, slog.LevelInfo, "running as a candidate; other replicas do the shared work", slog.Any("left", r.left))
		}
		select {
		case <-ctx.Done():
		case err = <-s.failed:
			r.Log.LogAttrs(ctx, slog.LevelError, "stopping after a failure", telemetry.Err(err))
		}
	}
	return errors.Join(err, s.stop(context.WithoutCancel(ctx), stopWork))
}

// checkLong returns an error for a long route that the engine lacks: it would be bounded like the others.
func (r *Runtime) checkLong() error {
	for _, long := range r.long {
		served := func(i gin.RouteInfo) bool { return i.Method == long.Method && i.Path == long.Path }
		if !slices.ContainsFunc(r.Engine.Routes(), served) {
			return fmt.Errorf("there is no route %s %s", long.Method, long.Path)
		}
	}
	return nil
}

func (r *Runtime) setServing(yes bool) {
	r.serving.Store(yes)
	if r.health == nil {
		return
	}
	state := healthv1.HealthCheckResponse_NOT_SERVING
	if yes {
		state = healthv1.HealthCheckResponse_SERVING
	}
	r.health.SetServingStatus("", state)
}

// servers is the state of one Run.
type servers struct {
	r                  *Runtime
	http, internal     *httpapi.Server
	httpL, grpcL, intL net.Listener
	workers            sync.WaitGroup
	serving            sync.WaitGroup
	failed             chan error
}

// fail stops the run; only the first failure counts.
func (s *servers) fail(err error) {
	select {
	case s.failed <- err:
	default:
	}
}

func (s *servers) work(ctx context.Context, w worker) {
	defer func() {
		if p := recover(); p != nil {
			s.r.Log.LogAttrs(ctx, slog.LevelError, "panic in goroutine", slog.String("goroutine", w.name),
				telemetry.Panic(p), slog.String("stack", string(debug.Stack())))
			s.fail(fmt.Errorf("%s panicked", w.name))
		}
	}()
	if err := w.run(ctx); err != nil && ctx.Err() == nil {
		s.fail(fmt.Errorf("%s: %w", w.name, err))
	}
}

func (s *servers) listen(ctx context.Context) error {
	r := s.r
	open := func(name, addr string, given net.Listener) (net.Listener, error) {
		if given != nil || addr == "" {
			return given, nil
		}
		l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", addr)
		if err != nil {
			return nil, fmt.Errorf("listen for %s: %w", name, err)
		}
		return l, nil
	}
	var errs [3]error
	if r.Engine != nil {
		s.httpL, errs[0] = open("HTTP", r.Config.HTTPAddr, r.Config.HTTPListener)
	}
	if r.GRPC != nil {
		s.grpcL, errs[1] = open("gRPC", r.Config.GRPCAddr, r.Config.GRPCListener)
	}
	s.intL, errs[2] = open("internal HTTP", r.Config.InternalAddr, r.Config.InternalListener)
	if err := errors.Join(errs[:]...); err != nil {
		for _, l := range []net.Listener{s.httpL, s.grpcL, s.intL} {
			if l != nil {
				_ = l.Close()
			}
		}
		s.httpL, s.grpcL, s.intL = nil, nil, nil // nothing serves, so stop has nobody to wait for
		return err
	}
	return nil
}

// leaving asks clients to reconnect to another replica once the service is about to
// stop. Closing idle connections instead would cut off a client that has just started to
// send a request.
func (r *Runtime) leaving(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if !r.serving.Load() {
			w.Header().Set("Connection", "close")
		}
		next.ServeHTTP(w, req)
	})
}

func (s *servers) serve() {
	start := func(name string, fn func() error) {
		s.serving.Go(func() {
			if err := fn(); err != nil && !errors.Is(err, http.ErrServerClosed) && !errors.Is(err, grpc.ErrServerStopped) {
				s.fail(fmt.Errorf("serve %s: %w", name, err))
			}
		})
	}
	if s.httpL != nil {
		s.http = httpapi.NewServer(s.r.leaving(s.r.Handler()), httpapi.ServerConfig{
			Log: s.r.Log, MaxConns: s.r.Config.HTTPMaxConns, Registerer: s.r.Telemetry.Registerer,
		})
		start("HTTP", func() error { return s.http.Serve(s.httpL) })
	}
	if s.grpcL != nil {
		start("gRPC", func() error { return s.r.GRPC.Serve(s.grpcL) })
	}
	if s.intL != nil {
		s.internal = httpapi.NewServer(s.r.InternalHandler(), httpapi.ServerConfig{Log: s.r.Log})
		start("internal HTTP", func() error { return s.internal.Serve(s.intL) })
	}
}

// stop ends the run in order. It aborts and reports what takes longer than
// SHUTDOWN_DRAIN.
func (s *servers) stop(ctx context.Context, stopWork context.CancelFunc) error {
	r := s.r
	r.setServing(false)
	if r.health != nil {
		r.health.Shutdown()
	}
	if r.Config.ShutdownDelay > 0 && (s.http != nil || s.grpcL != nil) {
		time.Sleep(r.Config.ShutdownDelay)
	}
	ctx, cancel := context.WithTimeout(ctx, r.Config.ShutdownDrain)
	defer cancel()

	var mu sync.Mutex
	var errs []error
	report := func(err error) {
		mu.Lock()
		defer mu.Unlock()
		errs = append(errs, err)
	}
	var drain sync.WaitGroup
	if s.http != nil {
		drain.Go(func() {
			if err := s.http.Shutdown(ctx); err != nil {
				report(fmt.Errorf("drain HTTP: %w", err))
				_ = s.http.Close()
			}
		})
	}
	if s.grpcL != nil {
		drain.Go(func() {
			if err := within(ctx, r.GRPC.GracefulStop); err != nil {
				report(fmt.Errorf("drain gRPC: %w", err))
				r.GRPC.Stop()
			}
		})
	}
	drain.Wait()
	stopWork()
	if err := within(ctx, s.workers.Wait); err != nil {
		report(fmt.Errorf("wait for goroutines: %w", err))
	}
	if s.internal != nil {
		_ = s.internal.Close()
	}
	if err := within(ctx, s.serving.Wait); err != nil {
		report(fmt.Errorf("wait for servers: %w", err))
	}
	r.Log.LogAttrs(ctx, slog.LevelInfo, "stopped")
	if err := within(ctx, func() {
		if err := r.Close(ctx); err != nil {
			report(err)
		}
	}); err != nil {
		report(fmt.Errorf("close: %w", err))
	}
	mu.Lock()
	defer mu.Unlock()
	return errors.Join(errs...)
}

// within waits for fn until ctx ends. After that, fn continues in the background.
func within(ctx context.Context, fn func()) error {
	done := make(chan struct{})
	go func() { defer close(done); fn() }()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// InternalHandler serves /livez, /readyz, /metrics, /log/level and /debug/pprof.
func (r *Runtime) InternalHandler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /livez", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("ok\n")) })
	mux.HandleFunc("GET /readyz", r.readyz)
	mux.Handle("GET /metrics", telemetry.MetricsHandler(r.Telemetry.Registry))
	mux.Handle("PUT /log/level", telemetry.LevelHandler(r.Telemetry.Level))
	mux.HandleFunc("GET /debug/pprof/", pprof.Index)
	mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	return mux
}

// readyz answers 200 or 503 with the state of each check. A failed soft check does not
// change the status.
func (r *Runtime) readyz(w http.ResponseWriter, req *http.Request) {
	serving := r.serving.Load()
	status, state := http.StatusOK, map[string]string{}
	if !serving {
		status = http.StatusServiceUnavailable
		state["serving"] = "no"
	}
	all := append(append([]check(nil), r.checks...), r.soft...)
	for i, err := range run(req.Context(), all) {
		state[all[i].name] = "ok"
		if err == nil {
			continue
		}
		state[all[i].name] = "away"
		if i < len(r.checks) {
			status = http.StatusServiceUnavailable
		}
		r.Log.LogAttrs(req.Context(), slog.LevelWarn, "readiness check failed", slog.String("check", all[i].name), telemetry.Err(err))
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(map[string]any{"ready": status == http.StatusOK, "checks": state})
}
