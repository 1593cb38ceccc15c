package signup_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"testing"
	"time"

	"waitlist.internal/libs/apierr"
	"waitlist.internal/libs/testenv"
	"waitlist.internal/services/signup/join"
	"waitlist.internal/services/signup/postgres"
	"waitlist.internal/services/signup/queue"
)

// answer is what one caller got.
type answer struct {
	receipt join.Receipt
	err     error
}

// call is a request under way; done is closed when the answer is there.
type call struct {
	answer
	done chan struct{}
}

// hold locks the world's waitlist until the returned function is called, so
// that whatever arrives meanwhile becomes one batch.
func (w *world) hold(t *testing.T) (release func()) {
	t.Helper()
	tx, err := w.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), `SELECT FROM waitlist WHERE id = $1 FOR NO KEY UPDATE`, w.list.ID); err != nil {
		t.Fatal(err)
	}
	release = sync.OnceFunc(func() {
		if err := tx.Rollback(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(release) // a test that fails must not leave the row locked
	return release
}

func (w *world) request(ctx context.Context, email string) answer {
	r, err := w.svc.Join(ctx, w.list.ID, fmt.Appendf(nil, `{"email": %q}`, email), join.Header{})
	return answer{receipt: r, err: err}
}

func (w *world) count(t *testing.T, sql string) int {
	t.Helper()
	var n int
	if err := w.pool.QueryRow(t.Context(), sql, w.list.ID).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

// TestBatchIsolation (R5): in one batch, a row that Postgres refuses, an address
// that is there twice, one that was there before and a caller that went away
// each get their own answer, and the others theirs.
func TestBatchIsolation(t *testing.T) {
	w := newWorld(t, 1)
	if _, err := w.pool.Exec(t.Context(), `ALTER TABLE signup ADD CHECK (email <> 'poison@example.com')`); err != nil {
		t.Fatal(err)
	}
	if a := w.request(t.Context(), "before@example.com"); a.err != nil || !a.receipt.Created {
		t.Fatalf("first signup: %+v", a)
	}
	release := w.hold(t)
	var wg sync.WaitGroup
	answers := map[string]*call{}
	start := func(key, email string, ctx context.Context) {
		a := &call{done: make(chan struct{})}
		answers[key] = a
		wg.Go(func() {
			defer close(a.done)
			a.answer = w.request(ctx, email)
		})
	}
	start("head", "head@example.com", t.Context())
	testenv.Eventually(t, "head is taken", func() bool { return w.svc.QueueDepth() == 0 && w.locked(t) })
	const good = 251
	for i := range good {
		start(fmt.Sprint("good", i), fmt.Sprintf("good%d@example.com", i), t.Context())
	}
	start("poison", "poison@example.com", t.Context())
	start("twice", "twice@example.com", t.Context())
	start("twice again", "twice@example.com", t.Context())
	start("existing", "before@example.com", t.Context())
	gone, leave := context.WithCancel(t.Context())
	start("gone", "gone@example.com", gone)
	testenv.Eventually(t, "all are queued", func() bool { return w.svc.QueueDepth() == good+5 })
	leave()
	<-answers["gone"].done
	release()
	wg.Wait()

	if e := apierr.From(answers["poison"].err); e == nil || e.Code != apierr.InternalError {
		t.Errorf("poison: %+v", answers["poison"].answer)
	}
	if a := answers["existing"]; a.err != nil || a.receipt.Created || a.receipt.Position != 1 {
		t.Errorf("existing: %+v", a)
	}
	if a, b := answers["twice"], answers["twice again"]; a.err != nil || b.err != nil ||
		a.receipt.Created == b.receipt.Created || a.receipt.Position != b.receipt.Position || a.receipt.Token != b.receipt.Token {
		t.Errorf("twice: %+v and %+v", a, b)
	}
	const live = 1 + 1 + good + 1
	positions := map[int64]bool{}
	for key, a := range answers {
		if key == "poison" || key == "gone" || !a.receipt.Created {
			continue
		}
		if a.err != nil || a.receipt.Position < 2 || a.receipt.Position > live || positions[a.receipt.Position] {
			t.Errorf("%s: %+v", key, a)
		}
		positions[a.receipt.Position] = true
		s, err := w.svc.Status(t.Context(), w.list.ID, a.receipt.Email)
		if err != nil || s.Position != a.receipt.Position || s.Total != live {
			t.Errorf("%s: status %+v, %v; was told %d", key, s, err, a.receipt.Position)
		}
	}
	if len(positions) != live-1 {
		t.Errorf("%d positions were handed out, want %d", len(positions), live-1)
	}
	if n := w.count(t, `SELECT count(*) FROM signup WHERE waitlist_id = $1`); n != live {
		t.Errorf("%d rows, want %d", n, live)
	}
	if n := w.count(t, `SELECT coalesce(sum(cardinality(payloads)), 0) FROM outbox WHERE key = $1`); n != live {
		t.Errorf("%d events, want %d", n, live)
	}
}

// locked reports whether somebody waits for the waitlist's row.
func (w *world) locked(t *testing.T) bool {
	t.Helper()
	return w.count(t, `SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database() AND $1 <> `+
		`''`) > 0
}

// uncertain answers the first Join of a store with an error after it was
// committed, as a connection does that breaks at COMMIT.
type uncertain struct {
	*postgres.Signups
	once sync.Once
}

func (u *uncertain) Join(
	ctx context.Context, id string, joins []*queue.Join, decide func(*queue.Locked) *queue.Batch,
) (*queue.Batch, error) {
	b, err := u.Signups.Join(ctx, id, joins, decide)
	u.once.Do(func() { err = &join.RetryError{Err: io.ErrUnexpectedEOF} })
	return b, err
}

// TestUnknownOutcome: a commit whose answer was lost is recognised by the next
// attempt, which still answers as for a new signup.
func TestUnknownOutcome(t *testing.T) {
	w := newWorld(t, 1)
	quiet := slog.New(slog.DiscardHandler)
	svc := join.New(join.Config{Store: &uncertain{Signups: w.store}, Tokens: w.ring, Now: time.Now, Log: quiet})
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { _ = svc.Run(ctx) })
	defer func() { cancel(); wg.Wait() }()
	w.svc = svc
	a := w.request(t.Context(), "one@example.com")
	if a.err != nil || !a.receipt.Created || a.receipt.Position != 1 || a.receipt.Total != 1 {
		t.Fatalf("answer %+v", a)
	}
	if n := w.count(t, `SELECT count(*) FROM signup WHERE waitlist_id = $1`); n != 1 {
		t.Errorf("%d rows, want 1", n)
	}
}

// TestSettingsAreCurrent: what is kept of a waitlist in process neither lets in
// nor refuses anybody once the stored settings are others.
func TestSettingsAreCurrent(t *testing.T) {
	w := newWorld(t, 1)
	set := func(settings string) {
		t.Helper()
		if _, err := w.pool.Exec(t.Context(), `UPDATE waitlist SET settings = $2, version = version + 1 WHERE id = $1`, w.list.ID,
			settings); err != nil {
			t.Fatal(err)
		}
	}
	for i, step := range []struct {
		settings string
		code     apierr.Code
	}{
		{`{}`, ""},
		{`{"status": "closed"}`, apierr.WaitlistClosed},
		{`{}`, ""},
		{`{"name_field": "required"}`, apierr.ValidationError},
		{`{"allowed_email_domains": ["other.example"]}`, apierr.DomainRestricted},
		{`{}`, ""},
	} {
		set(step.settings)
		a := w.request(t.Context(), fmt.Sprintf("p%d@example.com", i))
		if step.code == "" && a.err != nil || step.code != "" && !apierr.Is(a.err, step.code) {
			t.Errorf("step %d with %s: %v, want %q", i, step.settings, a.err, step.code)
		}
	}
}

// TestStopAnswersAll: a stop in the middle of many requests answers each, and
// what was acknowledged is stored.
func TestStopAnswersAll(t *testing.T) {
	w := newWorld(t, 1)
	quiet := slog.New(slog.DiscardHandler)
	svc := join.New(join.Config{MaxBatch: 8, Store: w.store, Tokens: w.ring, Now: time.Now, Log: quiet})
	ctx, cancel := context.WithCancel(context.Background())
	stopped := make(chan struct{})
	go func() { defer close(stopped); _ = svc.Run(ctx) }()
	w.svc = svc
	answers := make([]answer, 200)
	var wg sync.WaitGroup
	for i := range answers {
		wg.Go(func() {
			answers[i] = w.request(t.Context(), fmt.Sprintf("p%d@example.com", i))
			if i == 50 {
				cancel()
			}
		})
	}
	wg.Wait()
	cancel()
	<-stopped
	acknowledged := 0
	for _, a := range answers {
		if a.err == nil {
			acknowledged++
		}
	}
	if n := w.count(t, `SELECT count(*) FROM signup WHERE waitlist_id = $1`); n != acknowledged {
		t.Errorf("%d rows, %d acknowledged", n, acknowledged)
	}
}
