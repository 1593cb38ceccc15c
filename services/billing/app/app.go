// Package app wires the billing service.
package app

import (
	"context"
	"net/http"

	"waitlist.internal/libs/service"
	"waitlist.internal/services/billing"
)

// Config is the service's configuration.
type Config struct {
	service.Config
}

// App is the service, ready to run.
type App struct{ runtime *service.Runtime }

// New opens what the service needs. Run or the process' end closes it.
func New(ctx context.Context, cfg Config) (*App, error) {
	r, err := service.New(ctx, billing.Service, cfg.Config, service.Options{HTTP: true})
	if err != nil {
		return nil, err
	}
	return &App{r}, nil
}

// Run serves until ctx ends, then drains.
func (a *App) Run(ctx context.Context) error { return a.runtime.Run(ctx) }

// Handler is the public interface.
func (a *App) Handler() http.Handler { return a.runtime.Handler() }

// Ready is nil while the service can do its work.
func (a *App) Ready(ctx context.Context) error { return a.runtime.Ready(ctx) }

// Close closes what New opened, for an app that never runs.
func (a *App) Close(ctx context.Context) error { return a.runtime.Close(ctx) }
