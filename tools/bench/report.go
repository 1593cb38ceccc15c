package main

import (
	"context"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"
)

// The part of docs/performance.md that a run replaces stands between these.
const (
	tableBegins = "<!-- written by make bench: begin -->"
	tableEnds   = "<!-- written by make bench: end -->"
)

// table is the run's report in Markdown.
func (b *bench) table(ctx context.Context) string {
	var t strings.Builder
	fmt.Fprintf(&t, "Measured on %s: %d processors, %s %s/%s, %s, %s.\n\n", b.start.UTC().Format("2006-01-02"), runtime.NumCPU(),
		runtime.Version(), runtime.GOOS, runtime.GOARCH, version(ctx, b.pgbench(), "--version"), version(ctx, "redis-server", "--version"))
	t.WriteString("| | What | Here | Against | Ratio | Goal | |\n|---|---|---|---|---|---|---|\n")
	for _, r := range b.results {
		verdict := "met"
		if !r.met {
			verdict = "**missed**"
		}
		fmt.Fprintf(&t, "| %s | %s | %s | %s | %.2f × | %s | %s |\n", r.id, r.what, r.ours, r.theirs, r.ratio, r.goal, verdict)
	}
	fmt.Fprintf(&t, "\nMedians of %d turns of %s each a side. Settings of Postgres, the same for both sides: %s. Of the service, where they are not its defaults: %s.",
		b.pairs, b.slice, listed(settings()), listed(serverSettings()))
	if b.busy != "" {
		fmt.Fprintf(&t, " The machine was not the run's alone: load average %s at its start.", b.busy)
	}
	for _, n := range b.notes {
		t.WriteString(" " + n)
	}
	return t.String()
}

func (b *bench) pgbench() string {
	path, err := pgbenchPath()
	if err != nil {
		return "pgbench"
	}
	return path
}

// version is the first words of what a program says about itself.
func version(ctx context.Context, program string, args ...string) string {
	out, err := exec.CommandContext(ctx, program, args...).Output()
	if err != nil {
		return filepath.Base(program) + " of unknown version"
	}
	words := strings.Fields(string(out))
	return strings.Join(words[:min(len(words), 3)], " ")
}

func listed(settings map[string]string) string {
	var items []string
	for _, k := range slices.Sorted(maps.Keys(settings)) {
		items = append(items, "`"+k+"="+settings[k]+"`")
	}
	return strings.Join(items, ", ")
}

// keep replaces the report in a file, which must have its place.
func keep(path, table string) error {
	raw, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("read %s: %w", path, err)
	}
	before, rest, ok1 := strings.Cut(string(raw), tableBegins)
	_, after, ok2 := strings.Cut(rest, tableEnds)
	if !ok1 || !ok2 {
		return fmt.Errorf("%s has no place for the table", path)
	}
	text := before + tableBegins + "\n\n" + table + "\n\n" + tableEnds + after
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}

// load is how many processes wanted a processor over the last minute, "" where
// the system does not say or it was less than half of one.
func load() string {
	raw, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return ""
	}
	one, _, _ := strings.Cut(string(raw), " ")
	if n, err := strconv.ParseFloat(one, 64); err != nil || n < 0.5 {
		return ""
	}
	return one
}

// clock is how long something took, in seconds.
func clock(start time.Time) float64 { return time.Since(start).Seconds() }
