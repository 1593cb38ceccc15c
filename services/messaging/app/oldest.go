package app

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"waitlist.internal/libs/loop"
	"waitlist.internal/services/messaging/postgres"
)

// oldestEvery is the pause between two looks at the age of what waits.
const oldestEvery = 10 * time.Second

// watchOldest exports the age of the oldest mail and blast until ctx ends. All replicas export
// the same ages. While Postgres does not answer, there is no age, because an outdated one misleads.
func watchOldest(ctx context.Context, mails *postgres.Mails, reg prometheus.Registerer) error {
	age := promauto.With(reg).NewGaugeVec(prometheus.GaugeOpts{
		Name: "messaging_oldest_seconds", Help: "Age of the oldest mail that waits, and of the oldest blast that has not ended.",
	}, []string{"what"})
	for range loop.Every(ctx, oldestEvery) {
		mail, blast, err := mails.Oldest(ctx)
		if err != nil {
			age.Reset()
			continue
		}
		for what, since := range map[string]time.Time{"mail": mail, "blast": blast} {
			seconds := 0.0
			if !since.IsZero() {
				seconds = max(0, time.Since(since).Seconds())
			}
			age.WithLabelValues(what).Set(seconds)
		}
	}
	return nil
}
