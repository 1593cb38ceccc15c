package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
)

// Reconcile is the command that compares all accounts with the payment provider. The
// service may run at the same time.
type Reconcile struct {
	parts *parts
	out   io.Writer
}

// NewReconcile opens the command's connections.
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

// Run compares and repairs, prints a summary, and closes the connections. It returns an
// error if it could not check an account.
func (r *Reconcile) Run(ctx context.Context) (err error) {
	defer func() { err = errors.Join(err, r.parts.rt.Close(context.WithoutCancel(ctx))) }()
	report, err := r.parts.svc.Reconcile(ctx)
	fmt.Fprintf(r.out, "customers %d, accounts %d, deleted %d; repaired %d, adopted %d, removed %d, left alone %d, failed %d\n",
		report.Customers, report.Accounts, report.Deleted, report.Repaired, report.Adopted, report.Removed, report.Strange, report.Failed)
	if err == nil && report.Failed > 0 {
		return fmt.Errorf("reconcile: %d accounts failed", report.Failed)
	}
	return err
}
