package signup_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	goredis "github.com/redis/go-redis/v9"
	"pgregory.net/rapid"

	"waitlist.internal/libs/access"
	"waitlist.internal/libs/apierr"
	"waitlist.internal/libs/audit"
	"waitlist.internal/libs/testenv"
	"waitlist.internal/libs/token"
	"waitlist.internal/services/signup/index"
	"waitlist.internal/services/signup/join"
	"waitlist.internal/services/signup/owners"
	"waitlist.internal/services/signup/postgres"
	"waitlist.internal/services/signup/queue"
	"waitlist.internal/services/signup/waitlist"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// modelSteps is the approximate number of random steps of the model test,
// shortModelSteps that with -short. MODEL_STEPS overrides both: make test-long takes
// more than 10^5 steps.
const (
	modelSteps      = 20_000
	shortModelSteps = 3_000
)

// member is one signup of the oracle, in queue order.
type member struct {
	number    int64
	email     string
	token     queue.Token
	referrals int64
	// referred: the referrer has the credit. owed: it does not have it yet.
	referred, owed bool
	referrer       queue.Token
	verified       bool
}

// tester is what a test of one package and one of the other have in common.
type tester interface {
	Context() context.Context
	Fatal(args ...any)
	Fatalf(format string, args ...any)
}

// world is a service on real servers beside its oracle.
type world struct {
	t      testing.TB
	pool   *pgxpool.Pool
	rdb    *goredis.Client
	store  *postgres.Signups
	index  *index.Index
	sets   *index.Redis
	svc    *join.Service
	admin  *owners.Admin
	owners *owners.Owners
	ring   *token.Ring

	list *waitlist.Waitlist
	// owner is the list's.
	owner access.Actor
	queue []member
	total int64
	// lastNumber is the newest signup's.
	lastNumber int64
	names      int
	// checks counts calls of check.
	checks int
	reader reader
	// flagged has the reasons of the live signups that the guard flagged, by number.
	flagged map[int64]string
	// seen has the networks of each referrer's guarded referrals.
	seen map[queue.Token][]queue.Network
	// people has the persons of each referrer's guarded referrals.
	people map[queue.Token]map[queue.Person]bool
	// snapshot is an older copy of the index, as a restored Redis would have it.
	snapshot [2]string
}

func database(t testing.TB) *pgxpool.Pool {
	t.Helper()
	return testenv.Migrated(t, "signup", 16, postgres.Migrations)
}

func newWorld(t testing.TB, boost int) *world {
	t.Helper()
	options, err := goredis.ParseURL(testenv.Redis(t))
	if err != nil {
		t.Fatal(err)
	}
	rdb := goredis.NewClient(options)
	t.Cleanup(func() { _ = rdb.Close() })
	ring, err := token.ParseRing("k1:MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=")
	if err != nil {
		t.Fatal(err)
	}
	w := &world{t: t, pool: database(t), rdb: rdb, sets: index.NewRedis(rdb), ring: ring}
	quiet := slog.New(slog.DiscardHandler)
	w.store = postgres.NewSignups(w.pool, ring, func() {}, time.Now)
	w.index = index.New(w.sets, w.store, quiet)
	w.svc = join.New(join.Config{SmallList: -1, Store: w.store, Index: w.index, Tokens: ring, Now: time.Now, Log: quiet})
	w.owners = owners.NewOwners(postgres.NewWaitlists(w.pool, func() {}, time.Now), nil, nil, owners.Bounds{}, time.Now)
	w.admin = w.adminOf(w.svc)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	svc := w.svc // tests may put another in its place
	go func() { defer close(done); _ = svc.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	w.open(boost)
	return w
}

// adminOf returns the owners' side of svc.
func (w *world) adminOf(svc *join.Service) *owners.Admin {
	return owners.NewAdmin(w.owners, svc, w.store, nil, time.Now, slog.New(slog.DiscardHandler))
}

// open makes a new, empty waitlist the world's one. more holds further settings.
func (w *world) open(boost int, more ...string) {
	w.t.Helper()
	owner, list := uuid.NewString(), uuid.NewString()
	settings := fmt.Sprintf(`{%s}`, strings.Join(append(more, fmt.Sprintf(`"referral_boost": %d`, boost)), ", "))
	for _, sql := range []string{
		fmt.Sprintf(`INSERT INTO owner (id, tier, status, trial, version) VALUES ('%s', 'pro', 'active', false, 1)`, owner),
		fmt.Sprintf(`INSERT INTO waitlist (id, owner_id, name, settings, created_at) VALUES ('%s', '%s', 'Launch', '%s', now())`, list, owner,
			settings),
	} {
		if _, err := w.pool.Exec(w.t.Context(), sql); err != nil {
			w.t.Fatal(err)
		}
	}
	var err error
	if w.list, err = w.store.Waitlist(w.t.Context(), list); err != nil {
		w.t.Fatal(err)
	}
	w.owner = access.Actor{AccountID: owner, Grants: []access.Grant{{
		OwnerID: owner, Role: access.Owner, Entitlement: access.Entitlement{Tier: access.Pro, Status: access.Active, Version: 1},
	}}}
	w.queue, w.total, w.lastNumber, w.names, w.snapshot, w.reader = nil, 0, 0, 0, [2]string{}, newReader()
	w.flagged, w.seen = map[int64]string{}, map[queue.Token][]queue.Network{}
	w.people = map[queue.Token]map[queue.Person]bool{}
}

func (w *world) newJoin(referrer queue.Token, referred bool) *queue.Join {
	w.names++
	email := fmt.Sprintf("p%d@example.com", w.names)
	return &queue.Join{
		Waitlist: w.list, Email: email, Token: queue.NewToken(),
		ReferredBy: referrer, HasReferrer: referred, CreatedAt: time.Now(), Evidence: queue.Evidence{Person: personOf(email)},
	}
}

// join commits a batch and tells the oracle, which credits one by one.
func (w *world) join(t tester, joins []*queue.Join) {
	b, err := w.store.Join(t.Context(), w.list.ID, joins, func(l *queue.Locked) *queue.Batch {
		return l.Decide(joins, nil, queue.NewEventID)
	})
	if err != nil {
		t.Fatalf("join: %v", err)
	}
	before := map[queue.Token]int{} // guarded referrals before the batch
	for tok, seen := range w.seen {
		before[tok] = len(seen)
	}
	// The oracle takes one signup at a time: it appends the signup, then credits and moves its referrer.
	for i, o := range b.Outcomes {
		j := joins[i]
		if at := w.byEmail(j.Email); at >= 0 {
			if !o.Existing {
				t.Fatalf("join of a present address: %+v", o)
			}
			continue
		}
		w.total++
		w.lastNumber++
		w.queue = append(w.queue, member{number: o.Number, email: j.Email, token: j.Token})
		if o.Err != nil || o.Existing || o.Number != w.lastNumber || o.Position != int64(len(w.queue)) || o.Total != w.total {
			t.Fatalf("join %d: %+v, want position %d of %d", i, o, len(w.queue), w.total)
		}
		at := w.byToken(j.ReferredBy)
		// A batch does not know the tokens that it makes.
		if !j.HasReferrer || at < 0 || slices.ContainsFunc(joins, func(k *queue.Join) bool { return k.Token == j.ReferredBy }) {
			continue
		}
		m := &w.queue[len(w.queue)-1]
		m.referrer = j.ReferredBy
		mode := w.list.Settings.ReferralGuard
		if mode != waitlist.GuardOff {
			if why := w.doubts(j, before[j.ReferredBy]); why != "" {
				w.flagged[m.number] = why
			}
			w.seen[j.ReferredBy] = append(w.seen[j.ReferredBy], j.Evidence.Network)
			if w.people[j.ReferredBy] == nil {
				w.people[j.ReferredBy] = map[queue.Person]bool{}
			}
			w.people[j.ReferredBy][j.Evidence.Person] = true
		}
		later := w.list.Settings.CreditAfterVerification
		if m.owed = (later != nil && *later) || (mode == waitlist.GuardWithhold && w.flagged[m.number] != ""); m.owed {
			continue
		}
		m.referred = true
		w.queue[at].referrals++
		w.place(at, max(0, at-w.list.Settings.ReferralBoost))
	}
}

// doubts returns why the guard flags j, whose referrer had before guarded referrals when
// the batch began.
func (w *world) doubts(j *queue.Join, before int) string {
	seen := w.seen[j.ReferredBy]
	recent := seen[max(0, before-30):]
	alike := 0
	for _, n := range recent {
		if n == j.Evidence.Network && n != (queue.Network{}) {
			alike++
		}
	}
	same := personOf(j.Email) == personOf(w.queue[w.byToken(j.ReferredBy)].email)
	var names []string
	sum := 0
	for _, s := range []struct {
		name  string
		found bool
		adds  int
	}{
		{"same_person", same || w.people[j.ReferredBy][j.Evidence.Person], 2},
		{"disposable_domain", j.Evidence.Disposable, 2},
		{"same_network", alike > 0, min(alike, 2)},
		{"velocity", len(recent) >= 30, 2},
		{"too_fast", j.Evidence.TooFast, 1},
	} {
		if s.found {
			names, sum = append(names, s.name), sum+s.adds
		}
	}
	if sum < 2 {
		return ""
	}
	return strings.Join(names, ",")
}

// pay gives the credit for a member, if it is owed and the referrer is still there.
func (w *world) pay(number int64) {
	at := slices.IndexFunc(w.queue, func(m member) bool { return m.number == number })
	from := w.byToken(w.queue[at].referrer)
	if !w.queue[at].owed || from < 0 {
		return
	}
	w.queue[at].owed, w.queue[at].referred = false, true
	w.queue[from].referrals++
	w.place(from, max(0, from-w.list.Settings.ReferralBoost))
}

// credit asks as the owner for the credit for a member.
func (w *world) credit(t tester, at int) {
	m := w.queue[at]
	_, err := w.admin.Credit(t.Context(), w.owner, w.list.ID, m.email, []byte(`{"credit": true}`))
	if possible := m.referred || (m.owed && w.byToken(m.referrer) >= 0); (err == nil) != possible ||
		(err != nil && !apierr.Is(err, apierr.ValidationError)) {
		t.Fatalf("credit for %+v: %v", m, err)
	}
	w.pay(m.number)
}

// verify verifies the address of a member.
func (w *world) verify(t tester, at int) {
	m := w.queue[at]
	tok := w.ring.Mint(token.VerifySignup, token.SignupSubject(w.list.ID, m.number), time.Time{})
	already, err := w.svc.Verify(t.Context(), w.list.ID, m.email, tok)
	if err != nil || already != m.verified {
		t.Fatalf("verify %+v: %t, %v", m, already, err)
	}
	w.queue[at].verified = true
	if !m.verified {
		w.pay(m.number)
	}
}

// importRows imports rows and tells the oracle.
func (w *world) importRows(t tester, rows []queue.ImportRow) {
	imported, err := w.admin.ImportRows(t.Context(), w.list, rows, audit.Entry{})
	if err != nil {
		t.Fatalf("import: %v", err)
	}
	before := len(w.queue)
	for _, r := range rows {
		if w.byEmail(r.Email) < 0 {
			w.lastNumber++
			w.queue = append(w.queue, member{number: w.lastNumber, email: r.Email, token: r.Token})
		}
	}
	w.total += int64(len(w.queue) - before)
	if imported != int64(len(w.queue)-before) {
		t.Fatalf("imported %d, want %d", imported, len(w.queue)-before)
	}
}

// place moves a member of the oracle.
func (w *world) place(from, to int) {
	m := w.queue[from]
	w.reader.moved[m.number] = true
	w.queue = slices.Insert(slices.Delete(w.queue, from, from+1), to, m)
}

func (w *world) byEmail(email string) int {
	return slices.IndexFunc(w.queue, func(m member) bool { return m.email == email })
}

func (w *world) byToken(tok queue.Token) int {
	return slices.IndexFunc(w.queue, func(m member) bool { return m.token == tok })
}

// pick draws a member; there must be one.
func (w *world) pick(t *rapid.T) int { return rapid.IntRange(0, len(w.queue)-1).Draw(t, "member") }

// suspect gives a referral a random part of what the guard looks for.
func (w *world) suspect(t *rapid.T, j *queue.Join) {
	j.Evidence.Network[0] = rapid.ByteRange(0, 9).Draw(t, "network")
	j.Evidence.TooFast = rapid.IntRange(0, 3).Draw(t, "fast") == 0
	switch rapid.IntRange(0, 7).Draw(t, "suspect") {
	case 0:
		j.Evidence.Disposable = true
	case 1:
		j.Email = fmt.Sprintf("%s+%d@example.com", nameOf(w.queue[w.byToken(j.ReferredBy)].email), w.names)
	case 2:
		j.Email = fmt.Sprintf("%s+%d@example.com", nameOf(w.queue[w.pick(t)].email), w.names)
	}
	j.Evidence.Person = personOf(j.Email)
}

// nameOf returns the part of an address before a tag.
func nameOf(email string) string {
	name, _, _ := strings.Cut(strings.Split(email, "@")[0], "+")
	return name
}

// personOf returns what tells people apart in the model.
func personOf(email string) (p queue.Person) {
	sum := sha256.Sum256([]byte(nameOf(email)))
	copy(p[:], sum[:])
	return p
}

func (w *world) move(t tester, at, position int) {
	_, got, err := w.svc.Move(t.Context(), w.list.ID, w.queue[at].email, int64(position), audit.Entry{})
	if err != nil {
		t.Fatalf("move: %v", err)
	}
	to := min(position, len(w.queue)) - 1
	w.place(at, to)
	if got != int64(to+1) {
		t.Fatalf("move to %d of %d: position %d", position, len(w.queue), got)
	}
}

// check compares Postgres, the index and the API with the oracle.
func (w *world) check(t tester) {
	ctx := t.Context()
	var numbers []int64
	var ranks []*int64
	var live, total, credited int64
	// Every rank of a list costs its square: a seventh of them a step, and all in
	// seven.
	w.checks++
	err := testenv.Unhurried(ctx, w.pool, func(tx pgx.Tx) error {
		return tx.QueryRow(ctx, `
			SELECT coalesce(array_agg(number ORDER BY queue_key), '{}'),
			       coalesce(array_agg(CASE WHEN number % 7 = $2 THEN queue_rank(waitlist_id, queue_key) END ORDER BY queue_key), '{}'),
			       coalesce((SELECT live FROM change WHERE waitlist_id = $1 ORDER BY no DESC LIMIT 1), 0),
			       coalesce((SELECT total FROM change WHERE waitlist_id = $1 ORDER BY no DESC LIMIT 1), 0),
			       coalesce((SELECT credited FROM change WHERE waitlist_id = $1 ORDER BY no DESC LIMIT 1), 0)
			FROM signup WHERE waitlist_id = $1`, w.list.ID, w.checks%7).Scan(&numbers, &ranks, &live, &total, &credited)
	})
	if err != nil {
		t.Fatal(err)
	}
	flagged := map[int64]string{}
	rows, err := w.pool.Query(ctx, `SELECT number, reasons FROM flagged WHERE waitlist_id = $1`, w.list.ID)
	if err != nil {
		t.Fatal(err)
	}
	var number int64
	var reasons string
	if _, err := pgx.ForEachRow(rows, []any{&number, &reasons}, func() error { flagged[number] = reasons; return nil }); err != nil {
		t.Fatal(err)
	}
	if !maps.Equal(flagged, w.flagged) {
		t.Fatalf("flagged %v, want %v", flagged, w.flagged)
	}
	var wantCredited int64
	for i, m := range w.queue {
		if i >= len(numbers) || numbers[i] != m.number || (ranks[i] != nil && *ranks[i] != int64(i+1)) {
			t.Fatalf("Postgres has %v, or a wrong rank at place %d; want %v", numbers, i+1, w.queue)
		}
		if m.referred {
			wantCredited++
		}
	}
	if len(numbers) != len(w.queue) || live != int64(len(w.queue)) || total != w.total || credited != wantCredited {
		t.Fatalf("Postgres counts %d rows, live %d, total %d, credited %d; want %d, %d, %d",
			len(numbers), live, total, credited, len(w.queue), w.total, wantCredited)
	}
	if len(w.queue) == 0 {
		return
	}
	w.checkStatuses(t)
	w.checkIndex(t, numbers)
}

// checkStatuses compares the API's answers about some signups and somebody who is on no list, all at the same time, with the
// oracle. They go through the index, wherever that stands, and must be right also while it is rebuilt.
func (w *world) checkStatuses(t tester) {
	const crowd = 6
	wrong := make(chan string, crowd)
	for i := range crowd {
		at := (w.names + i/2) % len(w.queue)
		go func() {
			if i == 0 {
				if s, err := w.svc.Status(t.Context(), w.list.ID, "nobody@example.com"); !apierr.Is(err, apierr.NotFound) {
					wrong <- fmt.Sprintf("status of nobody: %+v, %v", s, err)
					return
				}
			}
			m := w.queue[at]
			s, err := w.svc.Status(t.Context(), w.list.ID, m.email)
			if err != nil || s.Email != m.email || s.Position != int64(at+1) || s.Total != w.total || s.ReferralCount != m.referrals {
				wrong <- fmt.Sprintf("status of %s: %+v, %v; want position %d, total %d, referrals %d",
					m.email, s, err, at+1, w.total, m.referrals)
				return
			}
			wrong <- ""
		}()
	}
	for range crowd {
		if why := <-wrong; why != "" {
			t.Fatal(why)
		}
	}
}

// checkIndex brings the index up to date, by changes or anew, and compares it.
func (w *world) checkIndex(t tester, want []int64) {
	ctx := t.Context()
	for {
		err := w.index.CatchUp(ctx, w.list.ID)
		if err == nil {
			break
		}
		if !errors.Is(err, index.ErrUnusable) {
			t.Fatalf("catch up: %v", err)
		}
		if err := w.index.Rebuild(ctx, w.list.ID); err != nil {
			t.Fatalf("rebuild: %v", err)
		}
	}
	members, err := w.rdb.ZRange(ctx, index.KeysOf(w.list.ID)[0], 0, -1).Result()
	if err != nil {
		t.Fatal(err)
	}
	got := make([]int64, len(members))
	for i, m := range members {
		if got[i], err = strconv.ParseInt(m, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	if !slices.Equal(got, want) {
		t.Fatalf("index has %v; want %v", got, want)
	}
}

// damage does to the index what can happen to a Redis.
func (w *world) damage(t *rapid.T) {
	ctx := context.Background()
	keys := index.KeysOf(w.list.ID)
	set, mark := keys[0], keys[1]
	switch rapid.SampledFrom([]string{"flush", "evict", "forget", "lose", "save", "restore"}).Draw(t, "damage") {
	case "flush":
		w.rdb.FlushDB(ctx)
	case "evict": // the set goes, its mark stays
		w.rdb.Del(ctx, set)
	case "forget":
		w.rdb.Del(ctx, mark)
	case "lose": // one member goes
		w.rdb.ZPopMin(ctx, set)
	case "save":
		for i, k := range keys[:2] {
			w.snapshot[i] = w.rdb.Dump(ctx, k).Val()
		}
	case "restore": // an old snapshot of both
		for i, k := range keys[:2] {
			w.rdb.Del(ctx, k)
			if w.snapshot[i] != "" {
				w.rdb.RestoreReplace(ctx, k, 0, w.snapshot[i])
			}
		}
	}
}

// TestModel compares the queue with a slice after every random step (R1). A
// step mostly waits for the servers, so several walks go side by side.
func TestModel(t *testing.T) {
	steps := modelSteps
	if testing.Short() {
		steps = shortModelSteps
	}
	if s := os.Getenv("MODEL_STEPS"); s != "" {
		var err error
		if steps, err = strconv.Atoi(s); err != nil {
			t.Fatal(err)
		}
	}
	// The longer a list, the longer a step: many lists of a hundred or two.
	const walks, checks = 4, 150
	for name, value := range map[string]int{"rapid.checks": checks, "rapid.steps": max(1, steps/walks/checks)} {
		if err := flag.Set(name, strconv.Itoa(value)); err != nil {
			t.Fatal(err)
		}
	}
	for range walks {
		t.Run("walk", func(t *testing.T) {
			t.Parallel()
			walk(t)
		})
	}
}

func walk(t *testing.T) {
	t.Helper()
	w := newWorld(t, 1)
	taken := 0
	rapid.Check(t, func(rt *rapid.T) {
		w.open(rapid.SampledFrom([]int{1, 2, 7, 100}).Draw(rt, "boost"), fmt.Sprintf(
			`"referral_guard": %q, "require_email_verification": true, "credit_after_verification": %t`,
			rapid.SampledFrom([]string{"off", "off", "flag", "withhold"}).Draw(rt, "guard"), rapid.IntRange(0, 4).Draw(rt, "verified first") == 0))
		here := func(rt *rapid.T) {
			if len(w.queue) == 0 {
				rt.Skip("nobody is on the list")
			}
		}
		rt.Repeat(map[string]func(*rapid.T){
			"join": func(rt *rapid.T) {
				joins := make([]*queue.Join, rapid.IntRange(1, 4).Draw(rt, "batch"))
				for i := range joins {
					var referrer queue.Token
					referred := len(w.queue) > 0 && rapid.Bool().Draw(rt, "referred")
					if referred {
						referrer = w.queue[w.pick(rt)].token
					}
					joins[i] = w.newJoin(referrer, referred)
					if referred {
						w.suspect(rt, joins[i])
					}
				}
				w.join(rt, joins)
			},
			// A few referrers share all credits of a batch.
			"rush": func(rt *rapid.T) {
				here(rt)
				referrers := []queue.Token{w.queue[w.pick(rt)].token, w.queue[w.pick(rt)].token, w.queue[w.pick(rt)].token}
				joins := make([]*queue.Join, rapid.IntRange(5, 12).Draw(rt, "batch"))
				for i := range joins {
					joins[i] = w.newJoin(rapid.SampledFrom(referrers).Draw(rt, "referrer"), true)
				}
				w.join(rt, joins)
			},
			"give": func(rt *rapid.T) {
				here(rt)
				w.credit(rt, w.pick(rt))
			},
			"verify": func(rt *rapid.T) {
				here(rt)
				w.verify(rt, w.pick(rt))
			},
			"credit": func(rt *rapid.T) {
				here(rt)
				w.join(rt, []*queue.Join{w.newJoin(w.queue[w.pick(rt)].token, true)})
			},
			"again": func(rt *rapid.T) {
				here(rt)
				j := w.newJoin(queue.NewToken(), true)
				j.Email = w.queue[w.pick(rt)].email
				w.join(rt, []*queue.Join{j, w.newJoin(queue.Token{}, false)})
			},
			"import": func(rt *rapid.T) {
				rows := make([]queue.ImportRow, rapid.IntRange(0, 4).Draw(rt, "rows"))
				for i := range rows {
					j := w.newJoin(queue.Token{}, false)
					rows[i] = queue.ImportRow{Email: j.Email, Token: j.Token}
				}
				if len(w.queue) > 0 && rapid.Bool().Draw(rt, "present") {
					rows = append(rows, queue.ImportRow{Email: w.queue[w.pick(rt)].email, Token: queue.NewToken()})
				}
				if len(rows) > 0 && rapid.Bool().Draw(rt, "twice") {
					rows = append(rows, queue.ImportRow{Email: rows[0].Email, Token: queue.NewToken()})
				}
				w.importRows(rt, rows)
			},
			"move": func(rt *rapid.T) {
				here(rt)
				w.move(rt, w.pick(rt), rapid.IntRange(1, len(w.queue)+2).Draw(rt, "position"))
			},
			"remove": func(rt *rapid.T) {
				here(rt)
				at := w.pick(rt)
				if err := w.svc.Remove(rt.Context(), w.list.ID, w.queue[at].email, audit.Entry{}); err != nil {
					rt.Fatalf("remove: %v", err)
				}
				delete(w.flagged, w.queue[at].number)
				w.queue = slices.Delete(w.queue, at, at+1)
			},
			"page":         func(rt *rapid.T) { w.page(rt, rapid.IntRange(1, 20).Draw(rt, "limit")) },
			"damage index": w.damage,
			"": func(rt *rapid.T) {
				taken++
				w.check(rt)
			},
		})
	})
	t.Logf("%d steps", taken)
}

// TestOneSpot puts more signups into one gap than a key has bits, between the
// same two and always next to the last one, and at the front.
func TestOneSpot(t *testing.T) {
	for _, tt := range []struct {
		name     string
		position func(step int) int
	}{
		{"behind one signup", func(int) int { return 3 }},
		{"before one signup", func(step int) int { return 3 + step%200 }},
		{"front", func(int) int { return 1 }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t, 1)
			var joins []*queue.Join
			for range 250 {
				joins = append(joins, w.newJoin(queue.Token{}, false))
			}
			w.join(t, joins)
			for step := range 600 {
				w.move(t, len(w.queue)-1, tt.position(step))
				w.page(t, 1+step%7)
			}
			w.check(t)
		})
	}
}

// TestOtherHistory: an index that follows a history which Postgres no longer
// has, since it was restored from the past, is found out and built anew.
func TestOtherHistory(t *testing.T) {
	const (
		other = `UPDATE change SET nonce = nonce + 1 WHERE waitlist_id = $1 AND no = (SELECT max(no) FROM change WHERE waitlist_id = $1)`
		fewer = `DELETE FROM change WHERE waitlist_id = $1 AND no = (SELECT max(no) FROM change WHERE waitlist_id = $1)`
	)
	for _, tt := range []struct {
		name, sql string
		goesOn    bool
	}{
		{"same number, other change", other, false},
		{"other change, and more", other, true},
		{"fewer changes", fewer, false},
		{"fewer changes, and more", fewer, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t, 1)
			w.join(t, []*queue.Join{w.newJoin(queue.Token{}, false), w.newJoin(queue.Token{}, false), w.newJoin(queue.Token{}, false)})
			w.move(t, 2, 1)
			w.move(t, 2, 2)
			w.check(t)
			// The other history: the first stands behind the second, whose own key
			// tells nothing.
			if _, err := w.pool.Exec(t.Context(), `
				UPDATE signup SET queue_key = (SELECT queue_key + 1 FROM signup WHERE waitlist_id = $1 AND number = $3)
				WHERE waitlist_id = $1 AND number = $2`, w.list.ID, w.queue[0].number, w.queue[1].number); err != nil {
				t.Fatal(err)
			}
			if _, err := w.pool.Exec(t.Context(), tt.sql, w.list.ID); err != nil {
				t.Fatal(err)
			}
			w.place(0, 1)
			if tt.goesOn {
				w.join(t, []*queue.Join{w.newJoin(queue.Token{}, false)})
				var numbers []int64
				for _, m := range w.queue {
					numbers = append(numbers, m.number)
				}
				w.checkIndex(t, numbers)
			}
			// The first answer is right already, and so are those beside the rebuild.
			for i, m := range w.queue {
				if s, err := w.svc.Status(t.Context(), w.list.ID, m.email); err != nil || s.Position != int64(i+1) {
					t.Errorf("the status of place %d: %+v, %v", i+1, s, err)
				}
			}
			w.check(t)
		})
	}
}
