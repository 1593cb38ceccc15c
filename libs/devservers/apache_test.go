package devservers_test

import (
	"os"
	"path/filepath"
	"testing"

	"waitlist.internal/libs/devservers"
)

// The embedded broker stands in for this one; a run on Apache Kafka
// (TEST_KAFKA=apache) shows that the real one starts, keeps its log and starts
// again.
func TestApacheKafkaKeepsItsLog(t *testing.T) {
	t.Parallel()
	if os.Getenv("TEST_KAFKA") != "apache" {
		return
	}
	dir := t.TempDir()
	keepsItsLog(t, func() (*devservers.Kafka, error) {
		dist := filepath.Join("..", "..", ".data", "kafka-dist")
		return devservers.StartApacheKafka(t.Context(), devservers.ApacheOptions{Dir: dir, Dist: dist})
	})
}
