package service

import (
	"context"
	"errors"
	"log/slog"
)

// Reseal is the command that seals a service's stored secrets again with the first key of
// the ring, so that the others can be removed. The service may run at the same time.
type Reseal struct {
	rt     *Runtime
	reseal func(ctx context.Context, rt *Runtime) (values int, err error)
}

// NewReseal opens the command's connection. reseal returns how many values it sealed again.
// It leaves a value that no key of the ring opens as it is, and returns an error that names
// all of these.
func NewReseal(
	ctx context.Context, d Definition, cfg Config, reseal func(ctx context.Context, rt *Runtime) (values int, err error),
) (*Reseal, error) {
	d.Options = Options{Seal: true}
	rt, err := d.Open(ctx, cfg, nil, func(*Runtime) error { return nil })
	if err != nil {
		return nil, err
	}
	return &Reseal{rt, reseal}, nil
}

// Run logs how many values it sealed again, and closes the connection.
func (r *Reseal) Run(ctx context.Context) (err error) {
	defer func() { err = errors.Join(err, r.rt.Close(context.WithoutCancel(ctx))) }()
	n, err := r.reseal(ctx, r.rt)
	r.rt.Log.LogAttrs(ctx, slog.LevelInfo, "sealed again with the first key", slog.Int("values", n))
	return err
}
