// Package app wires the notifier service.
package app

import (
	"context"
	"net/http"

	"waitlist.internal/libs/service"
	"waitlist.internal/services/notifier"
)

// Config is the service's configuration.
type Config struct {
	service.Config
}

// App is the service, ready to run.
type App struct{ runtime *service.Runtime }

// New opens what the service needs. Run or the process' end closes it.
func New(ctx context.Context, cfg Config) (*App, error) {
	r, err := service.New(ctx, notifier.Service, cfg.Config, service.Options{})
	if err != nil {
		return nil, err
	}
	return &App{r}, nil
}

// Run works until ctx ends.
func (a *App) Run(ctx context.Context) error { return a.runtime.Run(ctx) }

// Handler is the public interface: none.
func (a *App) Handler() http.Handler { return a.runtime.Handler() }

// Ready is nil while the service can do its work.
func (a *App) Ready(ctx context.Context) error { return a.runtime.Ready(ctx) }

// Close closes what New opened, for an app that never runs.
func (a *App) Close(ctx context.Context) error { return a.runtime.Close(ctx) }
