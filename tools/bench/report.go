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
	"unicode/utf8"
)

// These lines enclose the part of docs/performance.md that a run replaces.
const (
	tableBegins = "<!-- written by make bench: begin -->"
	tableEnds   = "<!-- written by make bench: end -->"
)

// lineWidth is the maximum length of the report's lines, in characters.
const lineWidth = 120

// table returns the run's report in Markdown.
func (b *bench) table(ctx context.Context) string {
	var t strings.Builder
	fmt.Fprintf(&t, "Measured on %s: %d processors, %s %s/%s, %s, %s.\n\n", b.start.UTC().Format("2006-01-02"), runtime.NumCPU(),
		runtime.Version(), runtime.GOOS, runtime.GOARCH, version(ctx, b.pgbench(), "--version"), version(ctx, "redis-server", "--version"))
	t.WriteString("| | Here | Against | Ratio | Goal | |\n|---|---|---|---|---|---|\n")
	var explained strings.Builder
	for _, r := range b.results {
		verdict := "met"
		if !r.met {
			verdict = "**missed**"
		}
		fmt.Fprintf(&t, "| %s | %s | %s | %.2f × | %s | %s |\n", r.id, r.ours, r.theirs, r.ratio, r.goal, verdict)
		explained.WriteString(wrap("- **"+r.id+"**: "+r.what, "  ") + "\n")
	}
	fmt.Fprintf(&t, "\n%s\n", explained.String())
	paragraph := fmt.Sprintf("Medians of %d turns of %s for each side. Settings of Postgres, the same for both sides: %s. "+
		"Settings of the service other than its defaults: %s.", b.pairs, b.slice, listed(settings()), listed(serverSettings()))
	if b.busy != "" {
		paragraph += " Other processes used the machine as well: the load average was " + b.busy + " at the start."
	}
	t.WriteString(wrap(strings.Join(append([]string{paragraph}, b.notes...), " "), ""))
	return t.String()
}

// wrap breaks text at spaces into lines of at most lineWidth characters, where no word is longer. indent starts every
// line but the first.
func wrap(text, indent string) string {
	var out strings.Builder
	width := 0
	for i, word := range strings.Fields(text) {
		n := utf8.RuneCountInString(word)
		switch {
		case i == 0:
		case width+1+n > lineWidth:
			out.WriteString("\n" + indent)
			width = utf8.RuneCountInString(indent)
		default:
			out.WriteByte(' ')
			width++
		}
		out.WriteString(word)
		width += n
	}
	return out.String()
}

func (b *bench) pgbench() string {
	path, err := pgbenchPath()
	if err != nil {
		return "pgbench"
	}
	return path
}

// version returns the first three words of a program's version message.
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

// keep replaces the report in a file, which must contain the markers.
func keep(path, table string) error {
	raw, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("read %s: %w", path, err)
	}
	before, rest, ok1 := strings.Cut(string(raw), tableBegins)
	_, after, ok2 := strings.Cut(rest, tableEnds)
	if !ok1 || !ok2 {
		return fmt.Errorf("%s has no markers for the table", path)
	}
	text := before + tableBegins + "\n\n" + table + "\n\n" + tableEnds + after
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}

// load returns the load average over the last minute, or "" if it is below 0.5 or unknown.
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

// clock returns the time since start in seconds.
func clock(start time.Time) float64 { return time.Since(start).Seconds() }
