// Command standalone runs the whole suite in one process. docs/settings.md lists its
// environment variables.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"waitlist.internal/tools/internal/standalone"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends the process at once
	cfg, err := standalone.Load(os.Environ())
	if err == nil {
		cfg.Stdout, cfg.Stderr = os.Stdout, os.Stderr
		err = standalone.Run(ctx, cfg)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "standalone:", err)
		os.Exit(1)
	}
}
