package messaging_test

import (
	"cmp"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"

	"waitlist.internal/libs/loop"
	"waitlist.internal/libs/pg"
	"waitlist.internal/libs/testenv"
	"waitlist.internal/libs/token"
	"waitlist.internal/libs/work"
	"waitlist.internal/services/messaging"
	"waitlist.internal/services/messaging/mails"
	"waitlist.internal/services/messaging/postgres"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// env is a mail queue and a scripted provider.
type env struct {
	testing.TB
	pool  *pgxpool.Pool
	store *postgres.Mails
	// world stands in for signup; nil means that no mail needs it.
	world *world
	noSMS bool
	// limits applies to mails about signups.
	limits mails.Limits
	lease  time.Duration
	// pause is the first pause while something is away; 0 means 20 ms.
	pause time.Duration
	facts mails.Facts
	clock func() time.Time
	// metrics are those of the senders; nil means none.
	metrics *prometheus.Registry

	scripted
}

// scripted is a scripted mail provider.
type scripted struct {
	mu    sync.Mutex
	calls int
	mails []mails.Mail
	// reply, if set, decides the outcome of a mail.
	reply func(call int, m mails.Mail) error
}

func (s *scripted) Send(_ context.Context, m mails.Mail) error {
	s.mu.Lock()
	s.calls++
	call, reply := s.calls, s.reply
	s.mu.Unlock()
	if reply != nil {
		if err := reply(call, m); err != nil {
			return err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mails = append(s.mails, m)
	return nil
}

func (s *scripted) Close() error { return nil }

func newComposer(t testing.TB) *mails.Composer {
	t.Helper()
	ring, err := token.ParseRing("k1:" + base64.StdEncoding.EncodeToString([]byte(strings.Repeat("k", 32))))
	if err != nil {
		t.Fatal(err)
	}
	composer, err := mails.NewComposer(ring, ring, "https://join.example.com", "https://join.example.com/v1")
	if err != nil {
		t.Fatal(err)
	}
	return composer
}

func newEnv(t testing.TB) *env {
	t.Helper()
	pool := testenv.Migrated(t, messaging.Name, 20, postgres.Migrations)
	return &env{TB: t, pool: pool, store: postgres.NewMails(pool), clock: time.Now}
}

// stopClock keeps an hour from ending during a test that counts by the hour.
func (e *env) stopClock() {
	now := time.Now()
	e.clock = func() time.Time { return now }
}

// start runs a sender and returns a function that stops it.
func (e *env) start() (*mails.Sender, func()) {
	e.Helper()
	return e.startOn(e.store, e)
}

func (e *env) startOn(queue mails.Queue, provider mails.Provider) (*mails.Sender, func()) {
	e.Helper()
	cfg := mails.SenderConfig{
		Queue: queue, Provider: provider, Composer: newComposer(e), Log: slog.New(slog.NewTextHandler(e.Output(), nil)), Now: e.clock,
		Limits: e.limits, Facts: e.facts, DeferMin: 20 * time.Millisecond, PauseMin: cmp.Or(e.pause, 20*time.Millisecond),
		Lease: e.lease, Poll: 50 * time.Millisecond,
	}
	if e.metrics != nil {
		cfg.Registerer = e.metrics
	}
	if e.world != nil {
		cfg.Mailings, cfg.Suppressions, cfg.Senders, cfg.Templates = e.world, e.world, e.world, postgres.NewTemplates(e.pool, func() {})
		if !e.noSMS {
			cfg.SMS = e.world
		}
	}
	s := mails.NewSender(cfg)
	return s, testenv.Run(e, s.Run)
}

const (
	accountID  = "0197f0c4-6d0e-7cc1-a2a3-aaaaaaaaaaaa"
	waitlistID = "0197f0c4-6d0e-7cc1-a2a3-bbbbbbbbbbbb"
)

func signupMail(number int64) mails.Request {
	return mails.Request{
		EventID: uuid.NewString(), Kind: mails.SignupVerification, Recipient: fmt.Sprintf("p%d@example.com", number),
		WaitlistID: waitlistID, WaitlistName: "List", Number: number, RequestedAt: time.Now(),
	}
}

func accountMail() mails.Request {
	return mails.Request{
		EventID: uuid.NewString(), Kind: mails.PasswordReset, Recipient: "owner@example.com",
		AccountID: accountID, Generation: 1, ExpiresAt: time.Now().Add(time.Hour), RequestedAt: time.Now(),
	}
}

func (e *env) tx(fn func(tx pgx.Tx) error) {
	e.Helper()
	if err := pg.InTx(e.Context(), e.pool, fn); err != nil {
		e.Fatal(err)
	}
}

func (e *env) queue(requests ...mails.Request) {
	e.Helper()
	e.tx(func(tx pgx.Tx) error {
		for _, r := range requests {
			if err := e.store.Queue(e.Context(), tx, r); err != nil {
				return err
			}
		}
		return nil
	})
}

func (e *env) states() map[string]int {
	e.Helper()
	rows, err := e.pool.Query(context.Background(), "SELECT state, count(*) FROM sent_mail GROUP BY state")
	if err != nil {
		e.Fatal(err)
	}
	out := map[string]int{}
	var state string
	var n int
	if _, err := pgx.ForEachRow(rows, []any{&state, &n}, func() error { out[state] = n; return nil }); err != nil {
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
			e.Fatalf("not within a minute: %s; %v", what, e.states())
		case <-tick.C:
		}
	}
}

func (e *env) ended(n int) {
	e.Helper()
	e.eventually("all mails have ended", func() bool {
		s := e.states()
		return s["queued"] == 0 && s["sent"]+s["failed"]+s["canceled"] == n
	})
}

// sentOnce checks that every queued mail was sent exactly once.
func (e *env) sentOnce(n int) {
	e.Helper()
	e.mu.Lock()
	defer e.mu.Unlock()
	seen := map[string]int{}
	for _, m := range e.mails {
		seen[m.ID]++
	}
	if len(seen) != n || len(e.mails) != n {
		e.Fatalf("%d mails with %d ids, want %d", len(e.mails), len(seen), n)
	}
}

func TestEachRequestIsSentOnceByManySenders(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	var requests []mails.Request
	for i := range 300 {
		requests = append(requests, signupMail(int64(i)))
	}
	e.queue(requests...)
	e.start()
	s, _ := e.start()
	e.queue(requests[:100]...) // redelivered events
	e.queue(accountMail())
	s.Wake()
	e.ended(301)
	e.sentOnce(301)
	var left int
	if err := e.pool.QueryRow(t.Context(), "SELECT count(*) FROM sent_mail WHERE recipient <> '' OR waitlist_name <> "+
		"''").Scan(&left); err != nil || left != 0 {
		t.Fatalf("%d addresses are kept, %v", left, err)
	}
}

func TestARefusedMailFailsAlone(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	e.reply = func(_ int, m mails.Mail) error {
		if m.To == "p3@example.com" {
			return &mails.RefusedError{Reason: "550 5.1.1"}
		}
		return nil
	}
	for i := range 10 {
		e.queue(signupMail(int64(i)))
	}
	e.start()
	e.ended(10)
	e.sentOnce(9)
	var reason string
	if err := e.pool.QueryRow(t.Context(), "SELECT error FROM sent_mail WHERE state = 'failed'").Scan(&reason); err != nil ||
		!strings.Contains(reason, "550 5.1.1") {
		t.Fatalf("%q, %v", reason, err)
	}
}

func TestADeferredMailComesAgain(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	tries := map[string]int{}
	e.reply = func(_ int, m mails.Mail) error {
		e.mu.Lock()
		defer e.mu.Unlock()
		if tries[m.ID]++; tries[m.ID] <= 2 {
			return &mails.DeferredError{Reason: "451 4.7.1"}
		}
		return nil
	}
	old := signupMail(99)
	old.RequestedAt = time.Now().Add(-80 * time.Hour) // deferred for three days
	e.queue(signupMail(1), signupMail(2), old)
	e.start()
	e.ended(3)
	e.sentOnce(2)
	if s := e.states(); s["failed"] != 1 {
		t.Fatal(s)
	}
}

// A provider that refuses one recipient after the other refuses us: all mails wait, and none fails.
func TestAProviderThatRefusesUsIsWaitedFor(t *testing.T) {
	t.Parallel()
	const n, attempts = 50, 12
	e := newEnv(t)
	e.reply = func(call int, _ mails.Mail) error {
		if call <= attempts {
			return &mails.DoubtfulError{Reason: "554 5.7.1"}
		}
		return nil
	}
	for i := range n {
		r := signupMail(int64(i))
		if i >= 5 {
			r.RequestedAt = time.Now().Add(-80 * time.Hour) // it refuses us for days
		}
		e.queue(r)
	}
	e.start()
	e.ended(n)
	e.sentOnce(n)
	if deferred := e.count("SELECT count(*) FROM sent_mail WHERE deferrals > 0"); deferred > 2 {
		t.Errorf("%d mails were deferred, want at most two before all wait", deferred)
	}
}

// An unknown mailbox that is refused like that holds nobody up, and its mails end some day.
func TestARecipientThatIsRefusedHoldsNobodyUp(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	var refused int
	e.reply = func(_ int, m mails.Mail) error {
		if m.To == "p0@example.com" {
			e.mu.Lock()
			defer e.mu.Unlock()
			refused++
			return &mails.DoubtfulError{Reason: "550 5.7.1"}
		}
		return nil
	}
	for range 8 {
		e.queue(signupMail(0))
	}
	old := signupMail(0)
	old.RequestedAt = time.Now().Add(-80 * time.Hour)
	e.queue(old)
	e.metrics = prometheus.NewRegistry()
	e.start()
	e.eventually("each was tried twice, and the old one failed", func() bool {
		e.mu.Lock()
		defer e.mu.Unlock()
		return refused > 17
	})
	for i := range 30 {
		e.queue(signupMail(int64(i) + 1))
	}
	e.eventually("the others are sent", func() bool { return e.states()["sent"] == 30 })
	if s := e.states(); s["failed"] != 1 || s["queued"] != 8 {
		t.Error(s)
	}
	if got := e.outcomes(); got["away"] != 0 || got["deferred"] < 16 || got["sent"] != 30 {
		t.Errorf("attempts: %v", got)
	}
}

// outcomes counts the attempts by outcome.
func (e *env) outcomes() map[string]float64 {
	e.Helper()
	families, err := e.metrics.Gather()
	if err != nil {
		e.Fatal(err)
	}
	out := map[string]float64{}
	for _, f := range families {
		if f.GetName() == "messaging_mails_total" {
			for _, m := range f.GetMetric() {
				for _, l := range m.GetLabel() {
					if l.GetName() == "outcome" {
						out[l.GetValue()] += m.GetCounter().GetValue()
					}
				}
			}
		}
	}
	return out
}

func TestAProviderThatIsAwayIsWaitedFor(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	var gone, back time.Time
	e.reply = func(call int, _ mails.Mail) error {
		e.mu.Lock()
		defer e.mu.Unlock()
		switch call {
		case 1:
			gone = time.Now()
		case 21:
			back = time.Now()
		}
		if call <= 20 {
			return errors.New("connection refused")
		}
		return nil
	}
	const n = 100
	for i := range n {
		e.queue(signupMail(int64(i)))
	}
	s, _ := e.start()
	s.Wake()
	e.ended(n)
	e.sentOnce(n)
	// Four workers fail twenty times in five rounds at least, with pauses of 20, 40,
	// 80 and 160 ms between them, each shortened by up to a half.
	if d := back.Sub(gone); d < 150*time.Millisecond {
		t.Fatalf("tried again and again within %v", d)
	}
}

// If the process dies after the provider accepted the mail, the lease ends and the mail is sent again with
// the same Message-ID.
func TestAMailUnderWayAtACrashIsSentAgainWithItsID(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	r := signupMail(1)
	e.queue(r)
	claimed, err := e.store.ClaimMails(t.Context(), 10, time.Hour)
	if err != nil || len(claimed) != 1 {
		t.Fatal(claimed, err)
	}
	if again, err := e.store.ClaimMails(t.Context(), 10, time.Hour); err != nil || len(again) != 0 {
		t.Fatalf("claimed twice: %v, %v", again, err)
	}
	if _, err := e.pool.Exec(t.Context(), "UPDATE sent_mail SET due_at = now()"); err != nil {
		t.Fatal(err)
	}
	e.start()
	e.ended(1)
	e.sentOnce(1)
	if e.mails[0].ID != r.EventID {
		t.Fatalf("id %s, want %s", e.mails[0].ID, r.EventID)
	}
}

// TestLease: the mails of a process that lives stay its own, however slow the provider is, and those of one
// that has died are sent by another one when the lease ends.
func TestLease(t *testing.T) {
	t.Parallel()
	const lease = 600 * time.Millisecond
	e := newEnv(t)
	e.lease = lease
	slow, held := make(chan struct{}), make(chan struct{})
	release := sync.OnceFunc(func() { close(held) })
	e.reply = func(call int, _ mails.Mail) error {
		if call == 1 {
			close(slow)
			<-held
		}
		return nil
	}
	// A dead process has claimed this one.
	dead := signupMail(1)
	e.queue(dead)
	if claimed, err := e.store.ClaimMails(t.Context(), 10, lease); err != nil || len(claimed) != 1 {
		t.Fatal(claimed, err)
	}
	e.queue(accountMail())
	e.start()
	<-slow
	e.start()
	t.Cleanup(release)
	e.eventually("the dead process' mail is sent", func() bool { return e.states()["sent"] == 1 })
	// Several leases go by.
	begin := time.Now()
	e.eventually("time passes", func() bool {
		if n := e.count("SELECT count(*) FROM sent_mail WHERE state = 'queued' AND due_at <= now()"); n != 0 {
			t.Fatal("a mail that is being sent is due")
		}
		return time.Since(begin) > 3*lease
	})
	release()
	e.ended(2)
	e.sentOnce(2)
}

// unrenewedMails is a queue whose leases cannot be renewed.
type unrenewedMails struct{ mails.Queue }

func (unrenewedMails) Renew(ctx context.Context, _ time.Duration, _ []mails.Claimed) ([]bool, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

// A process that was held up for longer than its leases sends only what was under way.
func TestNothingIsSentAfterItsLease(t *testing.T) {
	t.Parallel()
	const workers, total = 4, 16 // so many are claimed at once
	e := newEnv(t)
	e.lease = 300 * time.Millisecond
	for i := range total {
		e.queue(signupMail(int64(i)))
	}
	release := make(chan struct{})
	slow := &scripted{reply: func(int, mails.Mail) error { <-release; return nil }}
	e.startOn(unrenewedMails{e.store}, slow)
	e.eventually("the first are under way", func() bool {
		slow.mu.Lock()
		defer slow.mu.Unlock()
		return slow.calls == workers
	})
	e.start()
	e.ended(total)
	close(release)
	e.eventually("the first have ended", func() bool {
		slow.mu.Lock()
		defer slow.mu.Unlock()
		return len(slow.mails) >= workers
	})
	// What the process had claimed as well would follow at once.
	loop.Wait(t.Context(), 100*time.Millisecond)
	slow.mu.Lock()
	defer slow.mu.Unlock()
	if len(slow.mails) != workers {
		t.Errorf("%d mails were sent twice, %d were under way", len(slow.mails), workers)
	}
}

// A process whose lease has ended changes nothing of a mail that another one has claimed since.
func TestALapsedClaimDecidesNothing(t *testing.T) {
	t.Parallel()
	for name, do := range map[string]func(q mails.Queue, ctx context.Context, c mails.Claimed) error{
		"sent": func(q mails.Queue, ctx context.Context, c mails.Claimed) error { return q.Sent(ctx, c) },
		"failed": func(q mails.Queue, ctx context.Context, c mails.Claimed) error {
			return q.Failed(ctx, c, "x")
		},
		"canceled": func(q mails.Queue, ctx context.Context, c mails.Claimed) error {
			return q.Canceled(ctx, c, "x")
		},
		"deferred": func(q mails.Queue, ctx context.Context, c mails.Claimed) error {
			return q.Defer(ctx, c, 2*time.Hour, "x")
		},
		"returned": func(q mails.Queue, ctx context.Context, c mails.Claimed) error {
			return q.Return(ctx, 2*time.Hour, []mails.Claimed{c})
		},
		"renewed": func(q mails.Queue, ctx context.Context, c mails.Claimed) error {
			_, err := q.Renew(ctx, 2*time.Hour, []mails.Claimed{c})
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := newEnv(t)
			e.queue(signupMail(1))
			claim := func() mails.Claimed {
				t.Helper()
				claimed, err := e.store.ClaimMails(t.Context(), 10, time.Hour)
				if err != nil || len(claimed) != 1 {
					t.Fatal(claimed, err)
				}
				return claimed[0]
			}
			row := func() (r string) {
				t.Helper()
				if err := e.pool.QueryRow(t.Context(), "SELECT m::text FROM sent_mail m").Scan(&r); err != nil {
					t.Fatal(err)
				}
				return r
			}
			lapsed := claim()
			if _, err := e.pool.Exec(t.Context(), "UPDATE sent_mail SET due_at = now()"); err != nil {
				t.Fatal(err)
			}
			present := claim()
			before := row()
			err := do(e.store, t.Context(), lapsed)
			if lost := name != "returned" && name != "renewed"; errors.Is(err, work.ErrLost) != lost || (err != nil && !lost) {
				t.Errorf("the lapsed claim: %v", err)
			}
			if after := row(); after != before {
				t.Errorf("the lapsed claim changed the mail:\n%s\n%s", before, after)
			}
			if err := do(e.store, t.Context(), present); err != nil {
				t.Fatal(err)
			}
			if row() == before {
				t.Error("the present claim changed nothing")
			}
		})
	}
}

// renewedMails is a queue that announces each renewal.
type renewedMails struct {
	mails.Queue
	renewed chan struct{}
}

func (q renewedMails) Renew(ctx context.Context, lease time.Duration, claimed []mails.Claimed) ([]bool, error) {
	holds, err := q.Queue.Renew(ctx, lease, claimed)
	q.renewed <- struct{}{}
	return holds, err
}

// A process that learns from a renewal that its claims are gone sends only what was under way.
func TestNothingIsSentAfterItsClaim(t *testing.T) {
	t.Parallel()
	const workers, total = 4, 16 // so many are claimed at once
	e := newEnv(t)
	e.lease = 2 * time.Second // longer than the renewals below take
	e.metrics = prometheus.NewRegistry()
	for i := range total {
		e.queue(signupMail(int64(i)))
	}
	entered, release := make(chan string, total), make(chan struct{})
	free := sync.OnceFunc(func() { close(release) })
	e.reply = func(_ int, m mails.Mail) error { entered <- m.To; <-release; return nil }
	q := renewedMails{e.store, make(chan struct{}, 100)}
	e.startOn(q, e)
	t.Cleanup(free)
	kept := <-entered
	for range workers - 1 {
		<-entered
	}
	if _, err := e.pool.Exec(t.Context(), "UPDATE sent_mail SET due_at = now() WHERE recipient <> $1", kept); err != nil {
		t.Fatal(err)
	}
	if claimed, err := e.store.ClaimMails(t.Context(), total, time.Hour); err != nil || len(claimed) != total-1 {
		t.Fatal(len(claimed), err)
	}
	before := len(q.renewed)
	e.eventually("two renewals, of which the first may have been under way", func() bool { return len(q.renewed) >= before+2 })
	free()
	e.eventually("all are decided", func() bool { o := e.outcomes(); return o["sent"]+o["lapsed"] == total })
	if got := e.outcomes(); got["sent"] != workers {
		t.Errorf("%v, %d were under way", got, workers)
	}
	if s := e.states(); s["sent"] != 1 || s["queued"] != total-1 {
		t.Errorf("the other process' claims were changed: %v", s)
	}
}

func TestStoppingFinishesWhatIsUnderWay(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	entered, release := make(chan struct{}, 100), make(chan struct{})
	e.reply = func(int, mails.Mail) error {
		entered <- struct{}{}
		<-release
		return nil
	}
	for i := range 50 {
		e.queue(signupMail(int64(i)))
	}
	_, stop := e.start()
	for range 4 { // one for every worker
		<-entered
	}
	stopped := make(chan struct{})
	go func() { defer close(stopped); stop() }()
	// The sender returns the rest while those four are in flight.
	e.eventually("handed back", func() bool {
		var n int
		if err := e.pool.QueryRow(context.Background(), "SELECT count(*) FROM sent_mail WHERE state = 'queued' AND due_at <= "+
			"now()").Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n == 46
	})
	close(release)
	<-stopped
	if s := e.states(); s["sent"] != 4 || s["queued"] != 46 {
		t.Fatal(s)
	}
	e.sentOnce(4)
}

// A mail in flight stays with its process while that stops, however slow the mail server is.
func TestLeaseWhileStopping(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	e.lease = 600 * time.Millisecond
	slow, held := make(chan struct{}), make(chan struct{})
	release := sync.OnceFunc(func() { close(held) })
	t.Cleanup(release)
	e.reply = func(call int, _ mails.Mail) error {
		if call == 1 {
			close(slow)
			<-held
		}
		return nil
	}
	e.queue(accountMail())
	_, stop := e.start()
	<-slow
	stopped := make(chan struct{})
	go func() { defer close(stopped); stop() }()
	e.start()
	begin := time.Now()
	e.eventually("several leases go by", func() bool { return time.Since(begin) > 3*e.lease })
	if s := e.states(); s["queued"] != 1 {
		t.Errorf("another process sent it: %v", s)
	}
	release()
	<-stopped
	e.ended(1)
	e.sentOnce(1)
}

func TestNoMailAfterItsTimeOrWhenItsSubjectHasGone(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	expired := accountMail()
	expired.ExpiresAt, expired.AccountID = time.Now().Add(-time.Second), uuid.NewString()
	kept := signupMail(8)
	kept.WaitlistID = uuid.NewString()
	e.queue(accountMail(), signupMail(1), signupMail(2), kept, expired)
	e.tx(func(tx pgx.Tx) error {
		return errors.Join(e.store.Forget(t.Context(), tx, accountID), e.store.Forget(t.Context(), tx, waitlistID))
	})
	// Late events queue nothing.
	e.queue(accountMail(), signupMail(3), teamMail())
	e.start()
	e.eventually("the others have ended", func() bool {
		s := e.states()
		return s["failed"] == 1 && s["sent"] == 1
	})
	e.sentOnce(1)
	if s := e.states(); s["queued"] != 3 {
		t.Fatal(s)
	}
	if n, err := e.store.Prune(t.Context(), time.Now()); err != nil || n != 2 {
		t.Fatalf("pruned %d, %v", n, err)
	}
}

func teamMail() mails.Request {
	return mails.Request{
		EventID: uuid.NewString(), Kind: mails.TeamInvite, Recipient: "member@example.com", AccountID: accountID,
		OwnerEmail: "owner@example.com", Role: "viewer", RequestedAt: time.Now(),
	}
}

func (e *env) purge() error {
	return (&postgres.Purge{Pool: e.pool, Every: time.Minute, Log: slog.New(slog.NewTextHandler(e.Output(), nil))}).Once(e.Context())
}

func (e *env) count(query string) (n int) {
	e.Helper()
	if err := e.pool.QueryRow(e.Context(), query).Scan(&n); err != nil {
		e.Fatal(err)
	}
	return n
}

func TestPurge(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	kept := signupMail(1)
	kept.WaitlistID = uuid.NewString()
	e.queue(accountMail(), teamMail(), signupMail(1), kept)
	// More chunks than there are replicas, of mails in every state.
	testenv.Fill(t, e.pool, `
		INSERT INTO sent_mail (event_id, kind, state, recipient, generation, waitlist_id, waitlist_name, number, requested_at, traceparent)
		SELECT gen_random_uuid(), 'signup_verification', (ARRAY['queued', 'sent', 'failed', 'canceled'])[i % 4 + 1], '', 0, $1, '', i, now(), ''
		FROM generate_series(1, 16100) i`, waitlistID)
	for range 2 { // a repeated deletion changes nothing
		e.tx(func(tx pgx.Tx) error {
			return errors.Join(e.store.Forget(t.Context(), tx, accountID), e.store.Forget(t.Context(), tx, waitlistID))
		})
	}
	// A first purge was interrupted.
	if _, err := e.pool.Exec(t.Context(), "DELETE FROM sent_mail WHERE number > 16000"); err != nil {
		t.Fatal(err)
	}
	// Replicas purge concurrently.
	var replicas sync.WaitGroup
	for range 3 {
		replicas.Go(func() {
			if err := e.purge(); err != nil {
				t.Error(err)
			}
		})
	}
	replicas.Wait()
	if n := e.count("SELECT count(*) FROM sent_mail"); n != 1 {
		t.Fatalf("%d mails left, want the other waitlist's", n)
	}
	if n := e.count("SELECT (SELECT count(*) FROM tombstone) - (SELECT count(*) FROM gone)"); n != 2 {
		t.Fatalf("%d tombstones, want two and no ids", n)
	}
	e.queue(accountMail(), signupMail(2), teamMail())
	if n := e.count("SELECT count(*) FROM sent_mail"); n != 1 {
		t.Fatalf("%d mails, want none for what has gone", n)
	}
	if _, err := e.pool.Exec(t.Context(), "UPDATE tombstone SET created_at = now() - interval '36 days'"); err != nil {
		t.Fatal(err)
	}
	if err := e.purge(); err != nil {
		t.Fatal(err)
	}
	if n := e.count("SELECT count(*) FROM tombstone"); n != 0 {
		t.Fatalf("%d tombstones left after their time", n)
	}
}

// A mail in flight whose row is purged is sent, and leaves no row.
func TestPurgeWhileAMailIsUnderWay(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	entered, release := make(chan struct{}, 10), make(chan struct{})
	replies := map[int64]error{
		1: nil, 2: &mails.RefusedError{Reason: "550"}, 3: &mails.DeferredError{Reason: "451"},
		4: errors.New("connection refused"),
	}
	e.reply = func(call int, _ mails.Mail) error {
		entered <- struct{}{}
		<-release
		return replies[int64(call)]
	}
	for number := range replies {
		e.queue(signupMail(number))
	}
	_, stop := e.start()
	for range replies {
		<-entered
	}
	e.tx(func(tx pgx.Tx) error { return e.store.Forget(t.Context(), tx, waitlistID) })
	if err := e.purge(); err != nil {
		t.Fatal(err)
	}
	close(release)
	stop()
	e.sentOnce(1)
	if n := e.count("SELECT (SELECT count(*) FROM sent_mail) + (SELECT count(*) FROM gone)"); n != 0 {
		t.Fatalf("%d rows left", n)
	}
}

// Thousands of mails of deleted accounts do not delay the others.
func TestPlans(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	for name, sql := range map[string]string{
		"told": "SELECT FROM sent_mail WHERE waitlist_id = '" + waitlistID +
			"' AND number = 1 AND kind = 'sms' AND kind IN ('referral_notification', 'sms') AND state IN ('queued', 'sent') AND ended_at > " +
			"now() - interval '1 hour'",
		"claim": "SELECT event_id FROM sent_mail s WHERE state = 'queued' AND kind <> 'sms' AND due_at <= now() " +
			"AND NOT EXISTS (SELECT FROM gone g WHERE " +
			"g.id = ANY (ARRAY[s.account_id, s.waitlist_id])) ORDER BY due_at LIMIT 16 FOR UPDATE OF s SKIP LOCKED",
		"signup": "SELECT event_id FROM sent_mail WHERE waitlist_id = '" + waitlistID + "' LIMIT 10",
		"owner":  "SELECT event_id FROM sent_mail WHERE account_id = '" + accountID + "' LIMIT 10",
		"gone":   "SELECT id FROM gone ORDER BY gone_at LIMIT 1",
		"over":   "SELECT hash FROM tombstone WHERE created_at < now() ORDER BY created_at LIMIT 10",
	} {
		rows, err := e.pool.Query(t.Context(), "EXPLAIN "+sql)
		if err != nil {
			t.Fatal(name, err)
		}
		lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			t.Fatal(name, err)
		}
		if plan := strings.Join(lines, "\n"); strings.Contains(plan, "Seq Scan") || strings.Contains(plan, "Sort") {
			t.Errorf("%s:\n%s", name, plan)
		}
	}
}
