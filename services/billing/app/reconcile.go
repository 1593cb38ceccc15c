package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
)

// Reconcile is the command that compares everybody with the payment provider,
// while the service runs or not.
type Reconcile struct {
	parts *parts
	out   io.Writer
}

// NewReconcile opens what the command uses.
func NewReconcile(ctx context.Context, cfg Config) (*Reconcile, error) {
	command := definition()
	command.Options.HTTP, command.Options.Kafka = false, false
	var opened *parts
	if _, err := open(ctx, cfg, command, func(p *parts) error { opened = p; return nil }); err != nil {
		return nil, err
	}
	out := cfg.Output
	if out == nil {
		out = os.Stdout
	}
	return &Reconcile{opened, out}, nil
}

// Run reconciles, prints what it did and closes what NewReconcile opened. It fails
// where an account could not be looked at.
func (r *Reconcile) Run(ctx context.Context) (err error) {
	defer func() { err = errors.Join(err, r.parts.rt.Close(context.WithoutCancel(ctx))) }()
	report, err := r.parts.svc.Reconcile(ctx)
	fmt.Fprintf(r.out, "customers %d, accounts %d, deleted %d; repaired %d, adopted %d, removed %d, left alone %d, failed %d\n",
		report.Customers, report.Accounts, report.Deleted, report.Repaired, report.Adopted, report.Removed, report.Strange, report.Failed)
	if err == nil && report.Failed > 0 {
		return fmt.Errorf("%d accounts were not reconciled", report.Failed)
	}
	return err
}
