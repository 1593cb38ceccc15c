package service

import (
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"waitlist.internal/libs/telemetry"
)

// TestKeyAges tells the age of keys whose id begins with a day, and of no others.
func TestKeyAges(t *testing.T) {
	t.Parallel()
	reg := prometheus.NewRegistry()
	r := Runtime{Telemetry: &telemetry.Telemetry{Registerer: reg}, Config: Config{
		TokenKeys: " 2026-03-01-k2:c2VjcmV0,k1:c2VjcmV0", AccountTokenKeys: "a1:c2VjcmV0", SealKeys: "2026-02-30:c2VjcmV0",
	}}
	r.keyAges()
	families, err := reg.Gather()
	if err != nil || len(families) != 1 || len(families[0].GetMetric()) != 1 {
		t.Fatalf("%v, %v", families, err)
	}
	got := families[0].GetMetric()[0]
	want := time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC)
	if got.GetGauge().GetValue() != float64(want.Unix()) || got.GetLabel()[0].GetValue() != "TOKEN_KEYS" {
		t.Errorf("%v", got)
	}
}
