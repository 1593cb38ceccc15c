package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"

	"waitlist.internal/libs/loop"
)

const (
	// idleRest is how long the suite stays alone before its idleness is measured: longer than its consumers, pools and
	// caches need to come to rest.
	idleRest = 30 * time.Second
	// idleCPU is the share of one core that an idle suite may take, idleMemory the bytes.
	idleCPU    = .005
	idleMemory = 70 << 20
)

// idle measures B15.
func (b *bench) idle(ctx context.Context) (err error) {
	sides, stop, err := b.launches(ctx, "b15", 0)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stop()) }()
	if _, err := sides[0].saturate(ctx, 1, time.Second); err != nil { // so that every part has worked once
		return fmt.Errorf("B15: %w", err)
	}
	if err := b.followed(ctx, sides); err != nil {
		return err
	}
	if !loop.Wait(ctx, idleRest) {
		return ctx.Err()
	}
	spent := make([]time.Duration, 2)
	start := time.Now()
	for i := range spent {
		if spent[i], err = sides[0].srv.cpu(); err != nil {
			return err
		}
		if i == 0 && !loop.Wait(ctx, 3*b.slice) {
			return ctx.Err()
		}
	}
	share := (spent[1] - spent[0]).Seconds() / time.Since(start).Seconds()
	if err := sides[0].srv.resetPeak(); err != nil {
		return err
	}
	memory, err := sides[0].srv.peak()
	if err != nil {
		return err
	}
	b.add(row{
		id: "B15", goal: "≤ 1 ×", ratio: share / idleCPU, met: share <= idleCPU,
		what: "Share of a core that the whole suite in one process takes while nobody uses it, against the goal.",
		ours: fmt.Sprintf("%.1f %%", 100*share), theirs: fmt.Sprintf("%.1f %%", 100*idleCPU),
	})
	b.add(row{
		id: "B15 memory", goal: "≤ 1 ×", ratio: float64(memory) / idleMemory, met: memory <= idleMemory,
		what: "Memory of that process, against the goal.",
		ours: fmt.Sprintf("%d MiB", memory>>20), theirs: fmt.Sprintf("%d MiB", idleMemory>>20),
	})
	return nil
}

// cpu returns the processor time that the process has taken.
func (s *server) cpu() (time.Duration, error) { return processorTime(s.cmd.Process.Pid) }

// processorTime returns what a process has taken.
func processorTime(pid int) (time.Duration, error) {
	const perSecond = 100 // USER_HZ, which is the same on every Linux
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, fmt.Errorf("read the processor time: %w", err)
	}
	// The name in brackets may contain anything; 11 fields on are the ticks in user mode and those in the kernel.
	fields := bytes.Fields(raw[bytes.LastIndexByte(raw, ')')+1:])
	var ticks int
	for _, f := range fields[11:13] {
		n, err := strconv.Atoi(string(f))
		if err != nil {
			return 0, fmt.Errorf("read the processor time: %w", err)
		}
		ticks += n
	}
	return time.Duration(ticks) * time.Second / perSecond, nil
}
