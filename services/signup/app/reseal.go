package app

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"waitlist.internal/libs/service"
	"waitlist.internal/services/signup/postgres"
)

// Reseal is the command that seals the channels' URLs again with the first key of the ring,
// so that the others can be removed. The service may run at the same time.
type Reseal struct{ rt *service.Runtime }

// NewReseal opens the command's connection.
func NewReseal(ctx context.Context, cfg service.Config) (*Reseal, error) {
	command := definition()
	command.Options = service.Options{Seal: true}
	rt, err := command.Open(ctx, cfg, nil, func(*service.Runtime) error { return nil })
	if err != nil {
		return nil, err
	}
	return &Reseal{rt}, nil
}

// Run logs how many values it sealed again, and closes the connection. A value that no key
// of the ring opens stays as it is; Run returns an error that names all of these.
func (r *Reseal) Run(ctx context.Context) (err error) {
	defer func() { err = errors.Join(err, r.rt.Close(context.WithoutCancel(ctx))) }()
	n, err := postgres.NewWaitlists(r.rt.Pool, nil, time.Now).Reseal(ctx, r.rt.Seal.Renew)
	r.rt.Log.LogAttrs(ctx, slog.LevelInfo, "sealed again with the first key", slog.Int("values", n))
	return err
}
