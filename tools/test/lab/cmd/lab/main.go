// Command lab deploys the suite to a Kubernetes cluster in place of the standalone program. It takes the same environment,
// listens at the same address and stops the same way, so that tests of that program test the chart. Package lab documents
// its additional variables (Settings).
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"waitlist.internal/tools/internal/standalone"
	"waitlist.internal/tools/test/lab"
)

func main() {
	if lab.ContainerMain() {
		os.Exit(lab.ContainerFailed)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop)
	if err := deploy(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "lab:", err)
		os.Exit(1)
	}
}

func deploy(ctx context.Context) error {
	settings, err := lab.LoadSettings(os.Environ())
	if err != nil {
		return err
	}
	cfg, err := standalone.Load(os.Environ())
	if err != nil {
		return err
	}
	cfg.Stdout, cfg.Stderr = os.Stdout, os.Stderr
	cfg.Deploy = func(ctx context.Context, s standalone.Suite) (standalone.Deployed, error) {
		return lab.Deploy(ctx, settings, s)
	}
	return standalone.Run(ctx, cfg)
}
