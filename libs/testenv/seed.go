package testenv

import (
	"cmp"
	"os"
	"strconv"
	"testing"
)

// Seed returns CHAOS_SEED, or 1: the seed of whatever the test leaves to chance. If the
// test fails, its log names the seed.
func Seed(t testing.TB) uint64 {
	t.Helper()
	n, err := strconv.ParseUint(cmp.Or(os.Getenv("CHAOS_SEED"), "1"), 10, 64)
	if err != nil {
		t.Fatalf("CHAOS_SEED: %v", err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("run it again with CHAOS_SEED=%d; the seed decides about faults, victims, moments and what clients ask", n)
		}
	})
	return n
}
