package messaging_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"waitlist.internal/libs/apierr"
	"waitlist.internal/libs/loop"
	"waitlist.internal/libs/pg"
	"waitlist.internal/libs/testenv"
	"waitlist.internal/services/messaging"
	"waitlist.internal/services/messaging/blasts"
	"waitlist.internal/services/messaging/mails"
	"waitlist.internal/services/messaging/postgres"
)

// crowd is a store of blasts, the people on waitlists, and a scripted provider.
type crowd struct {
	testing.TB
	pool   *pgxpool.Pool
	blasts *postgres.Blasts

	scripted
	// people are the numbers on each waitlist; false means opted out.
	people map[string]map[int64]bool
	away   error // the error of Lists
	// lapsed is the first number for which Recipients reports that the owner's plan no longer includes blasts;
	// 0 means that the plan includes them.
	lapsed     int64
	suppressed map[string]bool
	// email returns the address of a number.
	email  func(number int64) string
	rate   float64
	limits mails.Limits
	// lease is longer than a busy machine holds a process up, unless a test wants leases to end.
	lease time.Duration
	// asked runs before each look-up of recipients.
	asked func(numbers []int64)
}

func newCrowd(t testing.TB) *crowd {
	t.Helper()
	pool := testenv.Migrated(t, messaging.Name, 20, postgres.Migrations)
	return &crowd{
		TB: t, pool: pool, blasts: postgres.NewBlasts(pool, time.Now), people: map[string]map[int64]bool{},
		suppressed: map[string]bool{}, lease: 10 * time.Second, email: person,
	}
}

// list creates a waitlist with the numbers from 1 to n.
func (c *crowd) list(n int64) (waitlistID string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	waitlistID = uuid.NewString()
	c.people[waitlistID] = map[int64]bool{}
	for i := range n {
		c.people[waitlistID][i+1] = true
	}
	return waitlistID
}

// Numbers implements blasts.Lists.
func (c *crowd) Numbers(_ context.Context, waitlistID string, after int64, limit int) ([]int64, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.away != nil || c.people[waitlistID] == nil {
		return nil, errors.Join(c.away, gone(c.people[waitlistID]))
	}
	var out []int64
	for _, n := range slices.Sorted(maps.Keys(c.people[waitlistID])) {
		if n > after && c.people[waitlistID][n] && len(out) < limit {
			out = append(out, n)
		}
	}
	return out, nil
}

func gone(people map[int64]bool) error {
	if people == nil {
		return apierr.NotFoundf("There is no such waitlist.")
	}
	return nil
}

// Recipients implements blasts.Lists.
func (c *crowd) Recipients(_ context.Context, waitlistID string, numbers []int64) (blasts.Audience, error) {
	if c.asked != nil {
		c.asked(numbers)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.away != nil || c.people[waitlistID] == nil {
		return blasts.Audience{}, errors.Join(c.away, gone(c.people[waitlistID]))
	}
	out := blasts.Audience{WaitlistName: "List", Pro: c.lapsed == 0 || numbers[0] < c.lapsed}
	for _, n := range numbers {
		if c.people[waitlistID][n] {
			out.Recipients = append(out.Recipients, blasts.Recipient{Number: n, Email: c.email(n)})
		}
	}
	return out, nil
}

func person(n int64) string { return fmt.Sprintf("p%d@example.com", n) }

// Suppressed implements mails.Suppressions.
func (c *crowd) Suppressed(_ context.Context, emails []string) (map[string]bool, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := map[string]bool{}
	for _, e := range emails {
		if c.suppressed[e] {
			out[e] = true
		}
	}
	return out, nil
}

// start runs a blaster and returns it with a function that stops it.
func (c *crowd) start(provider mails.Provider) (*blasts.Blaster, func()) {
	c.Helper()
	return c.startOn(c.blasts, provider)
}

func (c *crowd) startOn(queue blasts.Queue, provider mails.Provider) (*blasts.Blaster, func()) {
	c.Helper()
	b := c.blaster(queue, provider)
	plan, send := testenv.Run(c, b.Plan), testenv.Run(c, b.Run)
	return b, func() { plan(); send() }
}

func (c *crowd) blaster(queue blasts.Queue, provider mails.Provider) *blasts.Blaster {
	c.Helper()
	return blasts.NewBlaster(blasts.BlasterConfig{
		Queue: queue, Lists: c, Provider: provider, Composer: newComposer(c), Suppressions: c, Rate: c.rate, Limits: c.limits,
		Log: slog.New(slog.NewTextHandler(c.Output(), nil)), Now: time.Now,
		DeferMin: 10 * time.Millisecond, PauseMin: 10 * time.Millisecond, Lease: c.lease, Poll: 50 * time.Millisecond,
	})
}

const ownerID = "0197f0c4-6d0e-7cc1-a2a3-cccccccccccc"

func (c *crowd) create(waitlistID string) (id string) {
	c.Helper()
	return c.createAt(waitlistID, time.Now())
}

func (c *crowd) createAt(waitlistID string, at time.Time) (id string) {
	c.Helper()
	n := blasts.NewBlast{
		Request: news(waitlistID, ""), ID: uuid.Must(uuid.NewV7()).String(), CreatedAt: at,
	}
	n.HTML = "<p>We are live</p>"
	if _, _, _, err := c.blasts.Create(c.Context(), n); err != nil {
		c.Fatal(err)
	}
	return n.ID
}

func (c *crowd) blast(id string) blasts.Blast {
	c.Helper()
	b, err := c.blasts.Blast(context.Background(), id)
	if err != nil {
		c.Fatal(err)
	}
	return b
}

// ended waits until a blast has ended, and compares its state and counts.
func (c *crowd) ended(id string, state blasts.State, recipients, failed int64) {
	c.Helper()
	testenv.Eventually(c, "the blast ends", func() bool {
		s := c.blast(id).State
		return s == blasts.Sent || s == blasts.Failed
	})
	if b := c.blast(id); b.State != state || b.Recipients != recipients || b.Failed != failed {
		c.Errorf("%s, %d recipients, %d failed; want %s, %d, %d", b.State, b.Recipients, b.Failed, state, recipients, failed)
	}
}

// ledger counts a blast's recipients by state.
func (c *crowd) ledger(id string) map[string]int {
	c.Helper()
	rows, err := c.pool.Query(context.Background(), "SELECT state, count(*) FROM blast_recipient WHERE blast_id = $1 GROUP BY state", id)
	if err != nil {
		c.Fatal(err)
	}
	out := map[string]int{}
	var state string
	var n int
	if _, err := pgx.ForEachRow(rows, []any{&state, &n}, func() error { out[state] = n; return nil }); err != nil {
		c.Fatal(err)
	}
	return out
}

// received counts the mails to each address.
func (c *crowd) received() map[string]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := map[string]int{}
	for _, m := range c.mails {
		out[m.To]++
	}
	return out
}

// once checks that every recipient got exactly one mail, and that the mails' ids differ.
func (c *crowd) once(n int) {
	c.Helper()
	got := c.received()
	for to, times := range got {
		if times != 1 {
			c.Errorf("%s got %d mails", to, times)
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	ids := map[string]bool{}
	for _, m := range c.mails {
		ids[m.ID] = true
	}
	if len(got) != n || len(ids) != n {
		c.Errorf("%d people got mails with %d ids, want %d", len(got), len(ids), n)
	}
}

func TestABlastReachesEverybodyOnce(t *testing.T) {
	t.Parallel()
	for _, n := range []int64{1, 99, 100, 101, 1234, 10_000} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			t.Parallel()
			c := newCrowd(t)
			id := c.create(c.list(n))
			c.start(c)
			c.start(c)
			c.ended(id, blasts.Sent, n, 0)
			c.once(int(n))
			if l := c.ledger(id); l["sent"] != int(n) || len(l) != 1 {
				t.Errorf("ledger: %v", l)
			}
		})
	}
}

// A process that does not plan finds the batches of those that do, though nobody announces them to it.
func TestABlastThatAnotherProcessPlans(t *testing.T) {
	t.Parallel()
	c := newCrowd(t)
	testenv.Run(c, c.blaster(c.blasts, c).Run)
	id := c.create(c.list(250))
	testenv.Run(c, c.blaster(c.blasts, c).Plan)
	c.ended(id, blasts.Sent, 250, 0)
	c.once(250)
}

// When the owner subscribes again, the rest of a paused blast is sent, each mail once. After a day without
// a subscription, the rest fails.
func TestABlastWaitsForALapsedPlan(t *testing.T) {
	t.Parallel()
	c := newCrowd(t)
	var asked atomic.Int64
	c.asked = func([]int64) { asked.Add(1) }
	c.lapsed = 201
	id := c.create(c.list(500))
	c.start(c)
	testenv.Eventually(c, "the first are told and the others put off",
		func() bool { return c.ledger(id)["sent"] == 200 && c.blast(id).Recipients == 200 && asked.Load() > 10 })
	if b := c.blast(id); b.State != blasts.Sending || b.Recipients != 200 || b.Failed != 0 {
		t.Errorf("lapsed: %+v", b)
	}
	if n := len(c.received()); n != 200 {
		t.Errorf("%d mails", n)
	}
	c.mu.Lock()
	c.lapsed = 0
	c.mu.Unlock()
	c.ended(id, blasts.Sent, 500, 0)
	c.once(500)

	c = newCrowd(t)
	c.lapsed = 1
	id = c.createAt(c.list(150), time.Now().Add(-25*time.Hour))
	c.start(c)
	c.ended(id, blasts.Failed, 150, 150)
	if n := len(c.received()); n != 0 {
		t.Errorf("%d mails of a lapsed plan", n)
	}
}

func TestABlastOfHTMLHasATextPart(t *testing.T) {
	t.Parallel()
	c := newCrowd(t)
	n := blasts.NewBlast{
		Request: news(c.list(1), ""), ID: uuid.Must(uuid.NewV7()).String(), CreatedAt: time.Now(),
	}
	n.HTML, n.Text = `<p>Read <a href="https://example.com/">more</a></p>`, ""
	if _, _, _, err := c.blasts.Create(t.Context(), n); err != nil {
		t.Fatal(err)
	}
	c.start(c)
	c.ended(n.ID, blasts.Sent, 1, 0)
	m := c.mails[0]
	if !strings.HasPrefix(m.Text, "Read more (https://example.com/)\n\n-- \n") || !strings.HasPrefix(m.HTML, n.HTML+"\n<hr") {
		t.Errorf("%q, %q", m.Text, m.HTML)
	}
}

func TestABlastToNobodyIsSent(t *testing.T) {
	t.Parallel()
	c := newCrowd(t)
	id := c.create(c.list(0))
	c.start(c)
	c.ended(id, blasts.Sent, 0, 0)
}

func TestABlastSaysItsBodyAndAFooter(t *testing.T) {
	t.Parallel()
	c := newCrowd(t)
	list := c.list(1)
	id := c.create(list)
	c.start(c)
	c.ended(id, blasts.Sent, 1, 0)
	m := c.mails[0]
	if m.Subject != "News" || !strings.HasPrefix(m.Text, "We are live\n\n-- \n") || !strings.HasPrefix(m.HTML, "<p>We are live</p>\n<hr") {
		t.Errorf("%q\n%s\n%s", m.Subject, m.Text, m.HTML)
	}
	page := "https://join.example.com/unsubscribe?waitlist=" + list + "&email=p1%40example.com&token=v1.k1.unsub.0."
	if !strings.Contains(m.Text, page) || !strings.Contains(m.HTML, strings.ReplaceAll(page, "&", "&amp;")) ||
		!strings.Contains(m.HTML, "&ldquo;List&rdquo;") {
		t.Errorf("no footer:\n%s\n%s", m.Text, m.HTML)
	}
	if !strings.HasPrefix(
		m.Unsubscribe,
		"https://join.example.com/v1/public/waitlists/"+list+"/unsubscribe?email=p1%40example.com&token=v1.k1.unsub.0.",
	) {
		t.Errorf("List-Unsubscribe: %s", m.Unsubscribe)
	}
	if b := c.blast(id); b.Subject != "News" {
		t.Errorf("%+v", b)
	}
	var left int
	if err := c.pool.QueryRow(t.Context(), "SELECT length(html_body) + length(text_body) FROM blast").Scan(&left); err != nil || left != 0 {
		t.Errorf("%d bytes of the bodies are left: %v", left, err)
	}
}

// A recipient who opts out or leaves after the plan was made gets no mail and is not counted. A suppressed
// address counts as failed.
func TestWhoOptsOutMeanwhileIsSkipped(t *testing.T) {
	t.Parallel()
	c := newCrowd(t)
	list := c.list(250)
	id := c.create(list)
	c.suppressed[person(7)] = true
	changed := make(chan struct{})
	c.reply = func(call int, _ mails.Mail) error {
		if call == 1 {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.people[list][240] = false
			delete(c.people[list], 250)
			close(changed)
		}
		return nil
	}
	// The third batch is claimed after the first mail was sent.
	c.asked = func(numbers []int64) {
		if numbers[0] > 200 {
			<-changed
		}
	}
	c.start(c)
	c.ended(id, blasts.Sent, 248, 1)
	c.once(247)
	if l := c.ledger(id); l["skipped"] != 2 || l["failed"] != 1 || l["sent"] != 247 {
		t.Errorf("ledger: %v", l)
	}
}

func TestRefusedMailsAreCounted(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name    string
		refused func(m mails.Mail) bool
		state   blasts.State
		failed  int64
	}{
		{"some", func(m mails.Mail) bool { return strings.HasPrefix(m.To, "p1") }, blasts.Sent, 1 + 10 + 51},
		{"all", func(mails.Mail) bool { return true }, blasts.Failed, 150},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			c := newCrowd(t)
			c.reply = func(_ int, m mails.Mail) error {
				if tt.refused(m) {
					return &mails.RefusedError{Reason: "550"}
				}
				return nil
			}
			id := c.create(c.list(150))
			c.start(c)
			c.ended(id, tt.state, 150, tt.failed)
			c.once(int(150 - tt.failed))
		})
	}
}

// Deferred mails are sent again; accepted mails are not.
func TestDeferredMailsAreTriedAgain(t *testing.T) {
	t.Parallel()
	c := newCrowd(t)
	tries := map[string]int{}
	c.reply = func(_ int, m mails.Mail) error {
		c.mu.Lock()
		defer c.mu.Unlock()
		tries[m.To]++
		if tries[m.To] <= len(m.To)%4 {
			return &mails.DeferredError{Reason: "451"}
		}
		return nil
	}
	id := c.create(c.list(150))
	c.start(c)
	c.ended(id, blasts.Sent, 150, 0)
	c.once(150)
}

// A provider that refuses one recipient after the other refuses us: the blast goes on when it accepts mails
// again, even after the day in which deferred mails are tried.
func TestABlastWaitsForAProviderThatRefusesUs(t *testing.T) {
	t.Parallel()
	c := newCrowd(t)
	c.reply = func(call int, _ mails.Mail) error {
		if call <= 40 {
			return &mails.DoubtfulError{Reason: "504 5.5.2"}
		}
		return nil
	}
	id := c.createAt(c.list(150), time.Now().Add(-25*time.Hour))
	c.start(c)
	testenv.Eventually(c, "the blast ends", func() bool { return c.blast(id).State == blasts.Sent })
	// Two fail before the provider counts as away, and perhaps those that it refuses while it accepts the first again.
	l := c.ledger(id)
	if l["failed"] < 2 || l["failed"] > 5 || l["sent"]+l["failed"] != 150 {
		t.Errorf("ledger: %v", l)
	}
	c.once(l["sent"])
}

// A recipient whom the provider refuses like that holds up neither the others nor other blasts, and counts
// as failed after a day.
func TestARefusedRecipientOfABlast(t *testing.T) {
	t.Parallel()
	c := newCrowd(t)
	tries := 0
	c.reply = func(_ int, m mails.Mail) error {
		if m.To != person(7) {
			return nil
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		tries++
		return &mails.DoubtfulError{Reason: "550 5.7.1"}
	}
	list := c.list(150)
	id, old := c.create(list), c.createAt(list, time.Now().Add(-25*time.Hour))
	c.start(c)
	c.ended(old, blasts.Sent, 150, 1)
	testenv.Eventually(c, "the recipient is tried again", func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return tries > 5
	})
	if l := c.ledger(id); l["sent"] != 149 || l["queued"] != 1 {
		t.Errorf("ledger: %v", l)
	}
}

// An outage of the provider pauses all blasts; an outage of signup pauses the blasts that need it.
func TestWhatIsAwayIsWaitedFor(t *testing.T) {
	t.Parallel()
	c := newCrowd(t)
	c.away = context.DeadlineExceeded
	c.reply = func(call int, _ mails.Mail) error {
		if call < 6 {
			return errors.New("connection refused")
		}
		return nil
	}
	id := c.create(c.list(150))
	c.start(c)
	testenv.Eventually(c, "the provider was tried or signup asked", func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.away = nil
		return c.calls > 0
	})
	c.ended(id, blasts.Sent, 150, 0)
	c.once(150)
}

// A short blast does not wait for a long one that started earlier.
func TestAShortBlastIsNotHeldUp(t *testing.T) {
	t.Parallel()
	c := newCrowd(t)
	long := c.create(c.list(3000))
	begun := make(chan struct{})
	go1 := sync.OnceFunc(func() { close(begun) })
	c.reply = func(call int, _ mails.Mail) error {
		if call > 50 {
			go1()
		}
		return nil
	}
	c.rate = 2000
	b, _ := c.start(c)
	<-begun
	short := c.create(c.list(20))
	b.Wake()
	c.ended(short, blasts.Sent, 20, 0)
	if l := c.ledger(long); l["queued"] < 1000 {
		t.Errorf("the long one has only %d left", l["queued"])
	}
	c.ended(long, blasts.Sent, 3000, 0)
}

func TestTheRateHoldsOverProcesses(t *testing.T) {
	t.Parallel()
	c := newCrowd(t)
	c.rate = 400
	id := c.create(c.list(600))
	start := time.Now()
	c.start(c)
	c.start(c)
	c.ended(id, blasts.Sent, 600, 0)
	// 600 mails at 400 a second; the first one does not wait.
	if took := time.Since(start); took < 1490*time.Millisecond {
		t.Errorf("600 mails took %s", took)
	}
	c.once(600)
}

// unrenewed is a queue whose leases cannot be renewed, and that has no more batches once it is
// closed.
type unrenewed struct {
	blasts.Queue
	closed atomic.Bool
}

func (u *unrenewed) Claim(ctx context.Context, after string, limit int, claim string, lease time.Duration) ([]blasts.Batch, error) {
	if u.closed.Load() {
		return nil, nil
	}
	return u.Queue.Claim(ctx, after, limit, claim, lease)
}

func (*unrenewed) Renew(ctx context.Context, _ time.Duration, _ []blasts.Batch) ([]bool, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

// A process that was held up for longer than its leases sends nothing more of its batches, since others do. Only the mails
// that are under way when a lease ends may come twice.
func TestABlastIsNotSentAfterItsLease(t *testing.T) {
	t.Parallel()
	const people, workers = 800, 4
	c := newCrowd(t)
	c.lease = 300 * time.Millisecond
	id := c.create(c.list(people))
	begun := make(chan struct{})
	begin := sync.OnceFunc(func() { close(begun) })
	slow := &scripted{reply: func(int, mails.Mail) error {
		begin()
		loop.Wait(context.Background(), 20*time.Millisecond)
		return nil
	}}
	queue := &unrenewed{Queue: c.blasts}
	c.startOn(queue, slow)
	<-begun
	queue.closed.Store(true) // each of its leases ends once
	c.start(c)
	c.ended(id, blasts.Sent, people, 0)
	// The rest of its batches would follow at 200 a second.
	loop.Wait(t.Context(), 500*time.Millisecond)
	slow.mu.Lock()
	defer slow.mu.Unlock()
	twice, got := 0, c.received()
	for _, m := range slow.mails {
		if got[m.To]++; got[m.To] > 1 {
			twice++
		}
	}
	t.Logf("%d people got mails, %d from the one that was held up, %d two", len(got), len(slow.mails), twice)
	if len(got) != people || len(slow.mails) == 0 || twice > 3*workers {
		t.Errorf("%d people got mails, %d from the one that was held up, %d two", len(got), len(slow.mails), twice)
	}
}

// Deleting a waitlist or account ends its blasts, and the purge deletes all their rows.
func TestABlastEndsWithItsWaitlist(t *testing.T) {
	t.Parallel()
	for _, column := range []string{"waitlist", "owner", "not found"} {
		t.Run(column, func(t *testing.T) {
			t.Parallel()
			c := newCrowd(t)
			list, other := c.list(1500), c.list(3)
			kept := blasts.Sent
			goneID := map[string]string{"waitlist": list, "owner": ownerID}[column]
			if column == "owner" {
				kept = blasts.Failed
			}
			first := sync.OnceFunc(func() {
				if goneID == "" {
					c.mu.Lock()
					delete(c.people, list)
					c.mu.Unlock()
					return
				}
				if err := pg.InTx(context.Background(), c.pool, func(tx pgx.Tx) error {
					return postgres.NewMails(c.pool).Forget(context.Background(), tx, goneID)
				}); err != nil {
					t.Error(err)
				}
			})
			c.reply = func(call int, _ mails.Mail) error {
				if call == 20 {
					first()
				}
				return nil
			}
			c.rate = 500
			id := c.create(list)
			c.start(c)
			testenv.Eventually(c, "it failed", func() bool { return c.blast(id).State == blasts.Failed })
			if column != "owner" {
				c.ended(c.create(other), kept, 3, 0)
			}
			purge := &postgres.Purge{Pool: c.pool, Every: time.Hour, Log: slog.New(slog.DiscardHandler)}
			if err := purge.Once(t.Context()); err != nil {
				t.Fatal(err)
			}
			var left int
			if err := c.pool.QueryRow(t.Context(), `
				SELECT (SELECT count(*) FROM blast WHERE id = $1)
					+ (SELECT count(*) FROM blast_batch WHERE blast_id = $1)
					+ (SELECT count(*) FROM blast_recipient WHERE blast_id = $1)`, id).Scan(&left); err != nil || left != 0 {
				t.Errorf("%d rows are left: %v", left, err)
			}
			if sent := len(c.received()); sent > 1000 {
				t.Errorf("%d people got it", sent)
			}
		})
	}
}

// A stopping process finishes its mails in flight and returns the rest at once.
func TestABlasterHandsOverAtItsEnd(t *testing.T) {
	t.Parallel()
	c := newCrowd(t)
	id := c.create(c.list(500))
	release := make(chan struct{})
	c.reply = func(call int, _ mails.Mail) error {
		if call > 30 {
			<-release
		}
		return nil
	}
	_, stop := c.start(c)
	testenv.Eventually(c, "some are sent", func() bool { c.mu.Lock(); defer c.mu.Unlock(); return c.calls > 32 })
	stopped := make(chan struct{})
	go func() { defer close(stopped); stop() }()
	close(release)
	<-stopped
	if l := c.ledger(id); l["sent"] != len(c.received()) || l["queued"] == 0 {
		t.Errorf("%v, %d received", l, len(c.received()))
	}
	c.start(c)
	c.ended(id, blasts.Sent, 500, 0)
	c.once(500)
}

// A process whose lease has ended changes nothing of a batch that another one has claimed since.
func TestALapsedClaimDecidesNoBatch(t *testing.T) {
	t.Parallel()
	for name, do := range map[string]func(q blasts.Queue, ctx context.Context, b blasts.Batch) error{
		"ended": func(q blasts.Queue, ctx context.Context, b blasts.Batch) error { return q.End(ctx, b) },
		"returned": func(q blasts.Queue, ctx context.Context, b blasts.Batch) error {
			return q.Return(ctx, b, 2*time.Hour, false)
		},
		"deferred": func(q blasts.Queue, ctx context.Context, b blasts.Batch) error {
			return q.Return(ctx, b, 2*time.Hour, true)
		},
		"charged": func(q blasts.Queue, ctx context.Context, b blasts.Batch) error {
			_, err := q.Charge(ctx, b, 1, []blasts.Recipient{{Number: 1, Email: person(1)}})
			return err
		},
		"renewed": func(q blasts.Queue, ctx context.Context, b blasts.Batch) error {
			_, err := q.Renew(ctx, 2*time.Hour, []blasts.Batch{b})
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCrowd(t)
			id := c.create(c.list(1))
			testenv.Run(c, c.blaster(c.blasts, c).Plan)
			claim := func() (b blasts.Batch) {
				t.Helper()
				testenv.Eventually(c, "the batch is claimed", func() bool {
					claimed, err := c.blasts.Claim(t.Context(), uuid.Nil.String(), 10, uuid.NewString(), time.Hour)
					if err != nil {
						t.Fatal(err)
					}
					if len(claimed) == 1 {
						b = claimed[0]
					}
					return len(claimed) == 1
				})
				return b
			}
			row := func() (r string) {
				t.Helper()
				const sql = "SELECT (b, t)::text FROM blast b JOIN blast_batch t ON t.blast_id = b.id"
				if err := c.pool.QueryRow(t.Context(), sql).Scan(&r); err != nil {
					t.Fatal(err)
				}
				return r
			}
			lapsed := claim()
			if _, err := c.pool.Exec(t.Context(), "UPDATE blast_batch SET due_at = now()"); err != nil {
				t.Fatal(err)
			}
			present := claim()
			if err := c.blasts.Record(t.Context(), []blasts.Result{{BlastID: id, Number: 1, Outcome: blasts.MailSent}}); err != nil {
				t.Fatal(err)
			}
			before := row()
			if err := do(c.blasts, t.Context(), lapsed); err != nil {
				t.Fatal(err)
			}
			if after := row(); after != before {
				t.Errorf("the lapsed claim changed the batch:\n%s\n%s", before, after)
			}
			if err := do(c.blasts, t.Context(), present); err != nil {
				t.Fatal(err)
			}
			if row() == before {
				t.Error("the present claim changed nothing")
			}
		})
	}
}
