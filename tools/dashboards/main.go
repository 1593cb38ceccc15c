// Command dashboards shows a running suite at a loopback address: the chart's dashboards,
// its alerts and traces. With -run it starts the suite, too; make dashboards does.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"waitlist.internal/tools/dashboards/viewer"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends this process at once
	if err := run(ctx); err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "dashboards:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	cfg := viewer.Config{Log: slog.New(slog.NewTextHandler(os.Stderr, nil))}
	flags := flag.NewFlagSet("dashboards", flag.ContinueOnError)
	flags.StringVar(&cfg.Root, "root", ".", "folder of the repository")
	flags.StringVar(&cfg.Data, "data", ".data/dashboards", "folder of the samples, which are kept for a day")
	flags.StringVar(&cfg.Listen, "listen", "127.0.0.1:9090", "loopback address of the page")
	flags.StringVar(&cfg.OTLP, "otlp", "127.0.0.1:4317", "loopback address that takes traces, OTLP by gRPC")
	flags.DurationVar(&cfg.Interval, "interval", 5*time.Second, "time between scrapes")
	metrics := flags.String("metrics", "http://127.0.0.1:8081/metrics", "addresses to scrape, with commas between them")
	program := flags.String("run", "", "the standalone program to start, too; its metrics are those to scrape")
	if err := flags.Parse(os.Args[1:]); err != nil {
		return err
	}
	cfg.Metrics = strings.Split(*metrics, ",")
	if _, err := os.Stat(filepath.Join(cfg.Root, "tools/dashboards/page/node_modules/uplot")); err != nil {
		return fmt.Errorf("the page has no charts (make dashboards fetches them): %w", err)
	}
	v, err := viewer.New(ctx, cfg)
	if err != nil {
		return err
	}
	fmt.Println("The dashboards are at", v.URL())
	if *program == "" {
		return v.Run(ctx)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	// The viewer ends after the suite, which sends its last traces while it drains.
	viewing, stop := context.WithCancel(context.WithoutCancel(ctx))
	viewed := make(chan error, 1)
	go func() {
		viewed <- v.Run(viewing)
		cancel()
	}()
	err = suite(ctx, *program, cfg.Metrics[0], v.Endpoint())
	stop()
	return errors.Join(err, <-viewed)
}

// suite runs the standalone program until ctx ends, with every request traced.
func suite(ctx context.Context, program, metrics, otlp string) error {
	u, err := url.Parse(metrics)
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, program)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.Env = append(os.Environ(), "INTERNAL_ADDR="+u.Host, "OTEL_EXPORTER_OTLP_ENDPOINT="+otlp, "OTEL_BSP_SCHEDULE_DELAY=1000")
	if os.Getenv("TRACE_RATIO") == "" {
		cmd.Env = append(cmd.Env, "TRACE_RATIO=1")
	}
	// A group of its own: Ctrl-C reaches this program alone, which then asks the suite to
	// drain. It would take a second signal as an order to die.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	if err := cmd.Run(); ctx.Err() == nil {
		return fmt.Errorf("the suite ended: %w", err)
	}
	return nil
}
