// Command stripesim runs the payment simulator until it is interrupted. A flag
// overrides its environment variable.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"waitlist.internal/tools/internal/stripesim"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := stripesim.Main(ctx, os.Args[1:], os.Getenv, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "stripesim:", err)
		os.Exit(1)
	}
}
