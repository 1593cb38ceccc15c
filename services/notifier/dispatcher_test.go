package notifier_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"waitlist.internal/libs/pg"
	"waitlist.internal/libs/testenv"
	"waitlist.internal/services/notifier"
	"waitlist.internal/services/notifier/postgres"
)

func TestMain(m *testing.M) { testenv.Main(m) }

const (
	waitlistID = "0197f0c4-6d0e-7cc1-a2a3-bbbbbbbbbbbb"
	ownerID    = "0197f0c4-6d0e-7cc1-a2a3-aaaaaaaaaaaa"
)

// post is one attempt that a test saw.
type post struct {
	url  string
	body string
}

// env is a database with a source and a poster that do as they are told.
type env struct {
	testing.TB
	pool *pgxpool.Pool

	mu sync.Mutex
	// notice answers the source; nil: a notice with all channels.
	notice func(waitlistID string, number int64) (notifier.Notice, error)
	// answer makes the attempt; nil: delivered.
	answer func(ctx context.Context, url string) (notifier.Outcome, string, int)
	posts  []post
}

func newEnv(t testing.TB) *env {
	t.Helper()
	pool := testenv.Migrated(t, notifier.Name, 20, postgres.Migrations)
	return &env{TB: t, pool: pool}
}

func allChannels(waitlistID string) notifier.Notice {
	return notifier.Notice{
		URLs: map[notifier.Channel]string{
			notifier.Webhook: "https://hooks.example.com/" + waitlistID, notifier.Slack: "https://slack.example.com/" + waitlistID,
			notifier.Discord: "https://discord.example.com/" + waitlistID,
		},
		WebhookEvents: []notifier.Event{notifier.SignupCreated, notifier.ReferralCredited},
		Email:         "ada@example.com", FirstName: "Ada", LastName: "Lovelace", ReferralToken: "0123456789abcdef0123456789abcdef", Position: 3,
	}
}

// Notice implements notifier.Source.
func (e *env) Notice(_ context.Context, waitlistID string, number int64, _ bool) (notifier.Notice, error) {
	e.mu.Lock()
	fn := e.notice
	e.mu.Unlock()
	if fn == nil {
		return allChannels(waitlistID), nil
	}
	return fn(waitlistID, number)
}

// Post implements notifier.Poster.
func (e *env) Post(ctx context.Context, url string, body []byte) (notifier.Outcome, string, int) {
	e.mu.Lock()
	e.posts = append(e.posts, post{url, string(body)})
	fn := e.answer
	e.mu.Unlock()
	if fn == nil {
		return notifier.Delivered, "", 200
	}
	return fn(ctx, url)
}

func (e *env) count() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.posts)
}

// process is a dispatcher with a holder of its own.
type process struct {
	*notifier.Dispatcher
	deliveries *postgres.Deliveries
	stop       func()
}

// start runs a dispatcher.
func (e *env) start(limits notifier.Limits) *process {
	e.Helper()
	p := e.process(limits)
	e.run(p)
	return p
}

func (e *env) run(p *process) {
	e.Helper()
	p.stop = testenv.Run(e, p.Run)
}

func (e *env) process(limits notifier.Limits) *process {
	e.Helper()
	deliveries := postgres.New(e.pool)
	d := notifier.New(notifier.Config{
		Deliveries: deliveries, Source: e, Poster: e, Limits: limits, Log: slog.New(slog.NewTextHandler(e.Output(), nil)), Now: time.Now,
	})
	return &process{Dispatcher: d, deliveries: deliveries}
}

// created is a delivery about a new signup.
func created(channel notifier.Channel, number int64) notifier.Delivery {
	return notifier.Delivery{
		Key: notifier.Key{EventID: uuid.Must(uuid.NewV7()).String(), Channel: channel}, Event: notifier.SignupCreated,
		WaitlistID: waitlistID, OwnerID: ownerID, Number: number, Position: number, OccurredAt: time.Now(),
	}
}

// of gives d to another waitlist and owner.
func of(d notifier.Delivery, waitlistID, ownerID string) notifier.Delivery {
	d.WaitlistID, d.OwnerID = waitlistID, ownerID
	return d
}

// queue writes deliveries as the consumer does.
func (e *env) queue(p *process, ds ...notifier.Delivery) {
	e.Helper()
	if err := pg.InTx(e.Context(), e.pool, func(tx pgx.Tx) error { return p.deliveries.Queue(e.Context(), tx, ds...) }); err != nil {
		e.Fatal(err)
	}
	p.Stage(ds...)
	p.Commit()
}

// outcomes counts rows; those that have not ended are "queued" and "attempting".
func (e *env) outcomes() map[string]int {
	e.Helper()
	rows, err := e.pool.Query(context.Background(), `
		SELECT CASE WHEN ended_at IS NOT NULL THEN outcome || CASE WHEN reason <> '' THEN ': ' || reason ELSE '' END
		WHEN attempted_at IS NULL THEN 'queued' ELSE 'attempting' END AS what, count(*) FROM delivery GROUP BY what`)
	if err != nil {
		e.Fatal(err)
	}
	out := map[string]int{}
	var what string
	var n int
	if _, err := pgx.ForEachRow(rows, []any{&what, &n}, func() error { out[what] = n; return nil }); err != nil {
		e.Fatal(err)
	}
	return out
}

func (e *env) eventually(what string, cond func() bool) {
	e.Helper()
	deadline := time.After(time.Minute)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !cond() {
		select {
		case <-deadline:
			e.Fatalf("not within 30 s: %s; %v", what, e.outcomes())
		case <-tick.C:
		}
	}
}

func (e *env) want(outcomes map[string]int) {
	e.Helper()
	e.eventually(fmt.Sprint(outcomes), func() bool { return maps.Equal(e.outcomes(), outcomes) })
}

// update writes golden files anew.
var update = flag.Bool("update", false, "write testdata anew")

func TestBodiesAreTheContracts(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 11, 20, 21, 47, 3, 45_678_000, time.FixedZone("", 3600))
	strange := allChannels(waitlistID)
	strange.Email, strange.FirstName = "*_~`|a&b{x}#@exa-mple.com", "<b>\"Ada\\\n</b>\u2028"
	for _, tc := range []struct {
		file    string
		channel notifier.Channel
		event   notifier.Event
		notice  notifier.Notice
	}{
		{"webhook_signup_created", notifier.Webhook, notifier.SignupCreated, allChannels(waitlistID)},
		{"webhook_referral_credited", notifier.Webhook, notifier.ReferralCredited, allChannels(waitlistID)},
		{"slack", notifier.Slack, notifier.SignupCreated, allChannels(waitlistID)},
		{"discord", notifier.Discord, notifier.SignupCreated, allChannels(waitlistID)},
		{"webhook_strange", notifier.Webhook, notifier.SignupCreated, strange},
		{"slack_strange", notifier.Slack, notifier.SignupCreated, strange},
		{"discord_strange", notifier.Discord, notifier.SignupCreated, strange},
	} {
		t.Run(tc.file, func(t *testing.T) {
			t.Parallel()
			e := newEnv(t)
			e.notice = func(string, int64) (notifier.Notice, error) { return tc.notice, nil }
			d := created(tc.channel, 12)
			d.OccurredAt = at
			if d.Event = tc.event; d.Event == notifier.ReferralCredited {
				d.Position, d.ReferralCount = 0, 7
			}
			// The event is of another day than the test's.
			p := e.process(notifier.Limits{})
			p.Now = func() time.Time { return at.Add(time.Minute) }
			stop := testenv.Run(t, p.Run)
			e.queue(p, d)
			e.want(map[string]int{"delivered": 1})
			stop()
			golden := filepath.Join("testdata", tc.file+".json")
			if *update {
				if err := os.WriteFile(golden, []byte(e.posts[0].body+"\n"), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if got := e.posts[0].body + "\n"; got != string(want) {
				t.Errorf("%s\nwant %s", got, want)
			}
			if want := tc.notice.URLs[tc.channel]; e.posts[0].url != want {
				t.Errorf("sent to %s, want %s", e.posts[0].url, want)
			}
		})
	}
}

func TestWhatIsNotSent(t *testing.T) {
	t.Parallel()
	off := func(change func(*notifier.Notice)) func(string, int64) (notifier.Notice, error) {
		return func(id string, _ int64) (notifier.Notice, error) {
			n := allChannels(id)
			change(&n)
			return n, nil
		}
	}
	for _, tc := range []struct {
		name   string
		age    time.Duration
		notice func(string, int64) (notifier.Notice, error)
		want   map[string]int
	}{
		{"channel off", 0, off(func(n *notifier.Notice) { n.URLs = nil }), map[string]int{"skipped: channel is off": 1}},
		{
			"event off", 0, off(func(n *notifier.Notice) { n.WebhookEvents = []notifier.Event{notifier.ReferralCredited} }),
			map[string]int{"skipped: event is off": 1},
		},
		{"no events", 0, off(func(n *notifier.Notice) { n.WebhookEvents = nil }), map[string]int{"skipped: event is off": 1}},
		{"signup gone", 0, func(string, int64) (notifier.Notice, error) { return notifier.Notice{}, notifier.ErrGone }, map[string]int{}},
		{
			"unreadable", 0, func(string, int64) (notifier.Notice, error) { return notifier.Notice{}, errors.New("broken") },
			map[string]int{"failed: settings": 1},
		},
		{"panic", 0, func(string, int64) (notifier.Notice, error) { panic("x") }, map[string]int{"failed: panic": 1}},
		{"old", notifier.MaxAge + time.Second, nil, map[string]int{"expired": 1}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			e := newEnv(t)
			e.notice = tc.notice
			p := e.start(notifier.Limits{})
			d := created(notifier.Webhook, 1)
			d.OccurredAt = time.Now().Add(-tc.age)
			e.queue(p, d)
			e.want(tc.want)
			p.stop()
			if n := e.count(); n != 0 {
				t.Errorf("%d attempts", n)
			}
		})
	}
}

// The endpoint's answers are all final, and kept for support.
func TestResultsAreKept(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	e.answer = func(context.Context, string) (notifier.Outcome, string, int) { return notifier.Rejected, "", 500 }
	p := e.start(notifier.Limits{})
	e.queue(p, created(notifier.Slack, 1))
	e.want(map[string]int{"rejected": 1})
	var host string
	var status int
	var inOrder bool
	err := e.pool.QueryRow(t.Context(), `
		SELECT host, status, occurred_at <= attempted_at AND attempted_at <= ended_at FROM delivery`).Scan(&host, &status, &inOrder)
	if err != nil || host != "slack.example.com" || status != 500 || !inOrder {
		t.Errorf("%s %d %t, %v", host, status, inOrder, err)
	}
	if n := e.count(); n != 1 {
		t.Errorf("%d attempts", n)
	}
}

// Whatever is staged, in vain or twice, is attempted once where there is a row.
func TestStagingIsOnlyAHint(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	p := e.start(notifier.Limits{})
	never, twice := created(notifier.Webhook, 1), created(notifier.Webhook, 2)
	p.Stage(never, twice, twice)
	p.Stage(twice)
	e.queue(p, twice)
	e.queue(p, twice)
	e.want(map[string]int{"delivered": 1})
	p.Stage(twice, never)
	p.Commit()
	e.queue(p, created(notifier.Webhook, 3))
	e.want(map[string]int{"delivered": 2})
	p.stop()
	if n := e.count(); n != 2 {
		t.Errorf("%d attempts", n)
	}
}
