package outbox

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	kafkago "github.com/segmentio/kafka-go"

	"waitlist.internal/libs/pg"
	"waitlist.internal/libs/testenv"
	eventv1 "waitlist.internal/proto/gen/waitlist/event/v1"
)

// written are the keys that were published.
type written struct {
	mu   sync.Mutex
	keys []string
}

func (w *written) WriteMessages(_ context.Context, msgs ...kafkago.Message) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, m := range msgs {
		w.keys = append(w.keys, string(m.Key))
	}
	return nil
}

func (w *written) all() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.keys)
}

// The name of the server may stand for another one meanwhile.
func TestAnOldSessionEnds(t *testing.T) {
	pool, err := pg.Open(t.Context(), testenv.Postgres(t), "renewed", 4)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	if _, err := pool.Exec(t.Context(), "CREATE SCHEMA renewed; "+Schema); err != nil {
		t.Fatal(err)
	}
	var w written
	r := NewRelay(pool, &w, "renewed", slog.New(slog.DiscardHandler), nil)
	r.life = 300 * time.Millisecond
	t.Cleanup(testenv.Run(t, r.Run))
	session := func() (pid int) {
		if err := pool.QueryRow(t.Context(), "SELECT coalesce(max(pid), 0) FROM pg_stat_activity WHERE application_name = $1",
			"renewed outbox relay").Scan(&pid); err != nil {
			t.Fatal(err)
		}
		return pid
	}
	var want []string
	seen := map[int]bool{}
	testenv.Eventually(t, "five sessions", func() bool {
		key := fmt.Sprint(len(want))
		want = append(want, key)
		if err := pg.InTx(t.Context(), pool, func(tx pgx.Tx) error {
			return Insert(t.Context(), tx, Message{Topic: "t", Key: key, Events: []*eventv1.Event{{Id: key}}})
		}); err != nil {
			t.Fatal(err)
		}
		r.Wake()
		seen[session()] = true
		return len(seen) >= 5
	})
	testenv.Eventually(t, "all is published", func() bool { return len(w.all()) >= len(want) })
	if got := w.all(); !slices.Equal(got, want) {
		t.Errorf("published %v, want %v", got, want)
	}
}
