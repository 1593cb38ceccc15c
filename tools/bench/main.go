// Command bench measures the suite against its goals. It measures every figure and its reference in the same run, on the
// same machine, in turns. It starts Postgres (durable), Redis, Kafka and the service as separate processes, prints one table
// and writes it to docs/performance.md.
//
// It fails if something is wrong (an error, an inexact position), never because a figure misses its goal.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

type options struct {
	only, which string
	conns       int
	pairs       int
	slice       time.Duration
	rows, small int
	moves       int
	exports     int
	recipients  int
	rate        float64
	profile     string
	former      string
	mixed       int
	mixRate     float64
	write       bool
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	err := func() error {
		if is, err := playRole(ctx, os.Args[1:]); is {
			return err
		}
		return run(ctx, os.Args[1:])
	}()
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	var o options
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.StringVar(&o.only, "only", "", "comma-separated ids of what to measure, such as B1,B3; empty: everything")
	flags.StringVar(&o.which, "program", signupProgram,
		"the program under test: "+signupProgram+", or "+standaloneProgram+" with all services in one process")
	flags.IntVar(&o.conns, "conns", 256, "connections that sign up")
	flags.IntVar(&o.pairs, "pairs", 5, "how often the two sides of a ratio take turns; the median counts")
	flags.DurationVar(&o.slice, "slice", 10*time.Second, "how long one turn of B1 and B2 takes; the others are derived from it")
	flags.IntVar(&o.rows, "rows", 10_000_000, "signups on the large list of B4 and B5")
	flags.IntVar(&o.small, "small", 10_000, "signups on the small list of B4 and B5")
	flags.IntVar(&o.moves, "moves", 20_000, "how many people B5 moves to one spot")
	flags.IntVar(&o.exports, "exports", 5_000_000, "signups on the largest list of B9; the others have a fifth and a fiftieth of it")
	flags.IntVar(&o.recipients, "recipients", 100_000, "recipients of a blast of B11; its memory is compared with one of ten times as many")
	flags.Float64Var(&o.rate, "rate", 200, "requests a second to each list of B4")
	flags.StringVar(&o.profile, "profile", "", "folder for the services' CPU and heap profiles during B1, B13 and FORMER")
	flags.StringVar(&o.former, "former", "",
		"standalone program of a former version, to compare B1, B3, B6 and statuses (-only FORMER), B13 and B14 with")
	flags.Float64Var(&o.mixRate, "mix-rate", 400, "first rate of B14, in requests a second")
	flags.IntVar(&o.mixed, "mixed", 1_000_000, "signups on the large list of B14; the other is empty")
	flags.BoolVar(&o.write, "write", true, "keep the table of a complete run in docs/performance.md")
	if err := flags.Parse(args); err != nil {
		return err
	}
	root, err := repository(ctx)
	if err != nil {
		return err
	}
	busy := load()
	lab, err := newLab(ctx, root)
	if err != nil {
		return err
	}
	b := &bench{lab: lab, options: o, start: time.Now(), busy: busy}
	err = b.measure(ctx)
	if err = errors.Join(err, lab.close()); err != nil {
		return fmt.Errorf("%w (logs are in %s)", err, lab.dir)
	}
	if err := lab.clean(); err != nil {
		return err
	}
	table := b.table(ctx)
	fmt.Println("\n" + table)
	if o.write && o.only == "" && o.which == signupProgram {
		return keep(filepath.Join(root, "docs", "performance.md"), table)
	}
	return nil
}

// repository returns the directory of go.work.
func repository(ctx context.Context) (string, error) {
	out, err := exec.CommandContext(ctx, "go", "env", "GOWORK").Output()
	if err != nil {
		return "", fmt.Errorf("find the repository: %w", err)
	}
	return filepath.Dir(strings.TrimSpace(string(out))), nil
}

// wants reports whether a row was requested.
func (o options) wants(id string) bool {
	return o.only == "" || slices.Contains(strings.Split(strings.ToUpper(o.only), ","), id)
}
