// Command judge compares a candidate's pods with the stable version's while both serve, and ends with the verdict:
//
//	judge -candidate http://10.0.0.7:8081/metrics -stable http://10.0.0.5:8081/metrics,http://10.0.0.6:8081/metrics
//
// It reads their metrics every second and compares the share of answers with status 5xx, by http_server_responses_total, and latency,
// by http_server_request_duration_seconds. Exit codes: 0, no sign that the candidate is worse; 1, it is worse; 2, wrong use; 3, not enough
// requests to tell.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"waitlist.internal/k8s/canary/judge"
	"waitlist.internal/k8s/canary/scrape"
)

const every = time.Second

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// run returns the exit code. When ctx ends, the verdict is what has been seen by then.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet("judge", flag.ContinueOnError)
	flags.SetOutput(stderr)
	candidate := flags.String("candidate", "", "addresses of the candidate's metrics, separated by commas")
	stable := flags.String("stable", "", "addresses of the stable version's metrics")
	alpha := flags.Float64("alpha", 0.01, "share of good candidates that may fail")
	sample := flags.Uint64("sample", 50, "requests that each side must have answered before a candidate passes")
	limit := flags.Duration("for", 2*time.Minute, "how long to watch, unless the candidate fails earlier")
	if err := flags.Parse(args); errors.Is(err, flag.ErrHelp) {
		return 0
	} else if err != nil {
		return 2
	}
	if *candidate == "" || *stable == "" || flags.NArg() > 0 {
		fmt.Fprintln(stderr, "Name the pods of both sides with -candidate and -stable.")
		return 2
	}
	checks, judged := scrape.HTTPServer()
	j, err := judge.New(judge.Spec{Alpha: *alpha, MinSample: *sample, Checks: judged})
	if err != nil {
		fmt.Fprintln(stderr, err)
		return 2
	}
	w, err := scrape.New(checks, judged)
	if err != nil {
		fmt.Fprintln(stderr, err)
		return 2
	}
	defer w.Close()
	return watch(ctx, *limit, j, w, strings.Split(*candidate, ","), strings.Split(*stable, ","), stdout, stderr)
}

func watch(
	ctx context.Context, limit time.Duration, j *judge.Judge, w *scrape.Watch, candidate, stable []string, stdout, stderr io.Writer,
) int {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	ticks := time.NewTicker(every)
	defer ticks.Stop()
	var verdict judge.Verdict
	for {
		c, s, err := w.Look(ctx, candidate, stable)
		if err != nil && ctx.Err() == nil {
			fmt.Fprintln(stderr, err)
		}
		if c != nil {
			if verdict, err = j.Look(c, s); err != nil {
				fmt.Fprintln(stderr, err)
				return 2
			}
			fmt.Fprintf(stdout, "%s: %d requests on the candidate, %d on the stable version. Evidence %.3g of %.3g; %s\n",
				verdict.State, verdict.Candidate, verdict.Stable, verdict.Evidence, verdict.Limit, verdict.Reason)
		}
		if verdict.State == judge.Failed {
			return 1
		}
		select {
		case <-ctx.Done():
			if verdict.State == judge.Passing {
				return 0
			}
			return 3
		case <-ticks.C:
		}
	}
}
