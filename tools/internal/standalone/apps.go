package standalone

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"waitlist.internal/libs/httpapi"
	"waitlist.internal/libs/ratelimit"
	"waitlist.internal/libs/service"
	"waitlist.internal/libs/telemetry"
	account "waitlist.internal/services/account/app"
	admin "waitlist.internal/services/admin-analytics/app"
	billing "waitlist.internal/services/billing/app"
	messaging "waitlist.internal/services/messaging/app"
	notifier "waitlist.internal/services/notifier/app"
	pages "waitlist.internal/services/pages/app"
	signup "waitlist.internal/services/signup/app"
)

// Suite has everything that the services need to run elsewhere.
type Suite struct {
	// Env is their common environment: addresses of real servers, keys, settings.
	Env map[string]string
	// Seeds has the SERVICE_KEY of each service.
	Seeds map[string]string
	// DataDir is the data folder of the standalone process.
	DataDir string
	// Output receives the services' log lines.
	Output io.Writer
	Log    *slog.Logger
}

// Deployed controls services that run elsewhere.
type Deployed interface {
	// Handler forwards requests to their public interfaces.
	Handler() http.Handler
	// Ready returns nil while all services are ready.
	Ready(ctx context.Context) error
	// Stop stops the services.
	Stop() error
}

// launcher opens the services in this process.
type launcher struct {
	env       map[string]string // common environment
	seeds     map[string]string // SERVICE_KEY by service
	listeners map[string]net.Listener
	limiter   ratelimit.Limiter
	capacity  *httpapi.Capacity
	output    io.Writer
}

// startApps opens and runs the services and returns their public interfaces. Stop
// drains pages first, then the others side by side.
func (s *Standalone) startApps(ctx context.Context, output io.Writer) (map[string]http.Handler, error) {
	shared, seeds, err := Keys(filepath.Join(s.cfg.DataDir, "keys"))
	if err != nil {
		return nil, err
	}
	l := &launcher{
		env: shared, seeds: seeds, output: output, listeners: map[string]net.Listener{}, limiter: s.limiter, capacity: s.capacity,
	}
	// The operator's environment wins over generated values, except for the
	// addresses, which are resolved already.
	for _, kv := range s.cfg.Environ {
		if k, v, ok := strings.Cut(kv, "="); ok && v != "" {
			l.env[k] = v
		}
	}
	maps.Copy(l.env, map[string]string{
		"POSTGRES_URL": s.cfg.PostgresURL, "REDIS_URL": s.cfg.RedisURL, "KAFKA_BROKERS": strings.Join(s.cfg.KafkaBrokers, ","),
		"DATA_DIR": s.cfg.DataDir, "MAIL_DIR": s.cfg.MailDir,
		"HTTP_ADDR": "", "GRPC_ADDR": "", "INTERNAL_ADDR": "",
	})
	l.env["MAIL_PROVIDER"] = s.cfg.MailProvider
	setDefault(l.env, "TRUSTED_PROXIES", "none")
	setDefault(l.env, "PUBLIC_FORM_URL", s.URL)
	setDefault(l.env, "PUBLIC_API_URL", s.URL+"/v1")
	setDefault(l.env, "PAGES_API_URL", s.URL+"/v1")
	payments, err := s.startPayments(ctx)
	if err != nil {
		return nil, err
	}
	s.withPayments(l.env, payments)
	if s.cfg.Deploy != nil {
		s.deployed, err = s.cfg.Deploy(ctx, Suite{
			Env: l.env, Seeds: seeds, DataDir: s.cfg.DataDir, Output: output, Log: s.log,
		})
		if err != nil {
			return nil, err
		}
		s.onStop(s.deployed.Stop)
		return nil, nil
	}
	for name, variable := range map[string]string{
		"account": "ACCOUNT_GRPC", "signup": "SIGNUP_GRPC", "messaging": "MESSAGING_GRPC", "admin-analytics": "ADMIN_ANALYTICS_GRPC",
	} {
		listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
		if err != nil {
			return nil, fmt.Errorf("listen for the gRPC of %s: %w", name, err)
		}
		s.onStop(func() error { _ = listener.Close(); return nil })
		l.listeners[name], l.env[variable] = listener, listener.Addr().String()
	}

	running, stop := context.WithCancel(context.WithoutCancel(ctx))
	// Pages report their last views to signup, so they stop before it.
	paging, stopPages := context.WithCancel(running)
	var apps, paged sync.WaitGroup
	var mu sync.Mutex
	var errs []error
	s.onStop(func() error {
		stopPages()
		paged.Wait()
		stop()
		apps.Wait()
		for _, a := range s.apps {
			errs = append(errs, a.Telemetry.Close(context.WithoutCancel(running)))
		}
		return errors.Join(errs...)
	})
	handlers := map[string]http.Handler{}
	for _, name := range ServiceNames() {
		if name == pages.Name && !s.cfg.Pages {
			continue
		}
		a, err := l.launch(ctx, name)
		if err != nil {
			return nil, fmt.Errorf("start %s: %w", name, err)
		}
		handlers[name] = a.Handler()
		s.apps = append(s.apps, a)
		ctx, group := running, &apps
		if name == pages.Name {
			ctx, group = paging, &paged
		}
		group.Go(func() {
			err := a.Run(ctx)
			mu.Lock()
			defer mu.Unlock()
			switch {
			case ctx.Err() != nil && err != nil:
				errs = append(errs, fmt.Errorf("stop %s: %w", name, err))
			case ctx.Err() == nil:
				s.fail(fmt.Errorf("%s ended: %w", name, err))
			}
		})
	}
	return handlers, nil
}

// launch opens one service.
func (l *launcher) launch(ctx context.Context, name string) (*service.Runtime, error) {
	switch name {
	case "account":
		return launch(ctx, l, name, account.New, func(c *account.Config) *service.Config { return &c.Config })
	case "signup":
		return launch(ctx, l, name, signup.New, func(c *signup.Config) *service.Config { return &c.Config })
	case "messaging":
		return launch(ctx, l, name, messaging.New, func(c *messaging.Config) *service.Config { return &c.Config })
	case "admin-analytics":
		return launch(ctx, l, name, admin.New, func(c *admin.Config) *service.Config { return &c.Config })
	case "billing":
		return launch(ctx, l, name, billing.New, func(c *billing.Config) *service.Config { return &c.Config })
	case "notifier":
		return launch(ctx, l, name, notifier.New, func(c *notifier.Config) *service.Config { return &c.Config })
	case pages.Name:
		return launch(ctx, l, name, pages.New, func(c *pages.Config) *service.Config { return &c.Config })
	}
	return nil, errors.New("no such service")
}

// launch loads the service's Config, whose common part base returns, and opens it.
// The caller closes the telemetry after the service has stopped.
func launch[C any](
	ctx context.Context, l *launcher, name string,
	open func(context.Context, C) (*service.Runtime, error), base func(*C) *service.Config,
) (*service.Runtime, error) {
	environ := []string{"SERVICE_KEY=" + l.seeds[name]}
	for _, k := range slices.Sorted(maps.Keys(l.env)) {
		environ = append(environ, k+"="+l.env[k])
	}
	cfg, err := service.Load[C](environ)
	if err != nil {
		return nil, err
	}
	b := base(&cfg)
	tel, err := telemetry.New(ctx, telemetry.Options{
		Service: name, Output: l.output, Level: b.LogLevel, Format: b.LogFormat, OTLPEndpoint: b.OTLPEndpoint,
		TraceRatio: b.TraceRatio, TracesPerSecond: b.TracesPerSecond,
	})
	if err != nil {
		return nil, err
	}
	tel.Install()
	b.Telemetry, b.Limiter, b.GRPCListener = tel, l.limiter, l.listeners[name]
	if name != pages.Name {
		b.Capacity = l.capacity
	}
	rt, err := open(ctx, cfg)
	if err != nil {
		return nil, errors.Join(err, tel.Close(ctx))
	}
	return rt, nil
}

func setDefault(env map[string]string, name, value string) {
	if env[name] == "" {
		env[name] = value
	}
}
