package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"waitlist.internal/libs/pg"
	"waitlist.internal/libs/testenv"
	adminanalytics "waitlist.internal/services/admin-analytics"
	"waitlist.internal/services/admin-analytics/postgres"
)

func day(s string) time.Time {
	t, err := time.Parse(time.DateOnly, s)
	if err != nil {
		panic(err)
	}
	return t
}

// in runs fn in a transaction, as a consumer does.
func in(t testing.TB, pool *pgxpool.Pool, fn func(pgx.Tx) error) {
	t.Helper()
	if err := pg.InTx(t.Context(), pool, fn); err != nil {
		t.Fatal(err)
	}
}

// count counts and folds.
func count(t testing.TB, pool *pgxpool.Pool, counts ...adminanalytics.Count) {
	t.Helper()
	s := postgres.New(pool)
	in(t, pool, func(tx pgx.Tx) error {
		for i := range counts {
			counts[i].EventID = uuid.NewString()
		}
		return s.Count(t.Context(), tx, counts...)
	})
	if err := s.Fold(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// sums is all that is known of every waitlist, as text.
func sums(t testing.TB, pool *pgxpool.Pool) []string {
	t.Helper()
	rows, err := pool.Query(t.Context(), `
		SELECT format('day %s %s %s %s %s', waitlist_id, day, views, signups, referral_signups) FROM day
		UNION ALL SELECT format('value %s %s %s %s %s', waitlist_id, field, value, count, last_number) FROM utm_value
		UNION ALL SELECT format('total %s %s %s', waitlist_id, field, count) FROM utm_total
		ORDER BY 1`)
	if err != nil {
		t.Fatal(err)
	}
	out, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// TestAnyOrder: the sums are the same in whichever order events come and
// whatever shares a transaction.
func TestAnyOrder(t *testing.T) {
	t.Parallel()
	id := uuid.NewString()
	r := rand.New(rand.NewPCG(3, 4))
	var counts []adminanalytics.Count
	for n := range int64(200) {
		c := adminanalytics.Count{WaitlistID: id, Day: day("2026-03-01").AddDate(0, 0, r.IntN(3)), Signups: 1, Number: n + 1}
		switch n % 4 {
		case 0:
			c.Source, c.Campaign, c.ReferralSignups = fmt.Sprint("s", r.IntN(5)), fmt.Sprint("c", r.IntN(50)), 1
		case 1:
			c.Medium = "mail"
		case 2:
			c = adminanalytics.Count{WaitlistID: id, Day: c.Day, Views: 1 + r.Int64N(9)}
		}
		counts = append(counts, c)
	}
	var want []string
	for round := range 4 {
		pool := database(t)
		for rest := counts; len(rest) > 0; {
			n := min(len(rest), 1+r.IntN(50))
			count(t, pool, rest[:n]...)
			rest = rest[n:]
		}
		got := sums(t, pool)
		if round == 0 {
			want = got
		} else if !slices.Equal(got, want) {
			t.Errorf("round %d:\n got %v\nwant %v", round, got, want)
		}
		r.Shuffle(len(counts), func(i, j int) { counts[i], counts[j] = counts[j], counts[i] })
	}
	// Against a plain addition.
	var views, signups, referrals int64
	for _, c := range counts {
		views, signups, referrals = views+c.Views, signups+c.Signups, referrals+c.ReferralSignups
	}
	pool := database(t)
	count(t, pool, counts...)
	var got [3]int64
	if err := pool.QueryRow(t.Context(), `SELECT sum(views)::bigint, sum(signups)::bigint, sum(referral_signups)::bigint
		FROM day`).Scan(&got[0], &got[1], &got[2]); err != nil {
		t.Fatal(err)
	}
	if got != [3]int64{views, signups, referrals} {
		t.Errorf("days add up to %v, want %d, %d, %d", got, views, signups, referrals)
	}
}

func TestDays(t *testing.T) {
	t.Parallel()
	pool := database(t)
	id, other := uuid.NewString(), uuid.NewString()
	count(t, pool,
		adminanalytics.Count{WaitlistID: id, Day: day("2026-02-22"), Views: 1},
		adminanalytics.Count{WaitlistID: id, Day: day("2026-02-23"), Signups: 5, Number: 5},
		adminanalytics.Count{WaitlistID: id, Day: day("2026-03-01"), Views: 3},
		adminanalytics.Count{WaitlistID: id, Day: day("2026-03-01"), Signups: 1, ReferralSignups: 1, Number: 6},
		adminanalytics.Count{WaitlistID: id, Day: day("2026-03-02"), Views: 9},
		adminanalytics.Count{WaitlistID: other, Day: day("2026-03-01"), Views: 100},
	)
	now := time.Date(2026, 3, 1, 23, 59, 59, 0, time.UTC)
	a := adminanalytics.NewAnalytics(postgres.New(pool), func() time.Time { return now })
	got, err := a.Series(t.Context(), id, 7)
	if err != nil {
		t.Fatal(err)
	}
	want := []adminanalytics.Day{
		{Day: day("2026-02-23"), Signups: 5},
		{Day: day("2026-02-24")},
		{Day: day("2026-02-25")},
		{Day: day("2026-02-26")},
		{Day: day("2026-02-27")},
		{Day: day("2026-02-28")},
		{Day: day("2026-03-01"), Views: 3, Signups: 1, ReferralSignups: 1},
	}
	if !slices.EqualFunc(got, want, func(a, b adminanalytics.Day) bool { a.Day, b.Day = a.Day.UTC(), b.Day.UTC(); return a == b }) {
		t.Errorf("got %v", got)
	}
	for days, views := range map[int]int64{7: 3, 30: 4, 90: 4} {
		got, err := a.Series(t.Context(), id, days)
		if err != nil || len(got) != days {
			t.Fatalf("%d days: %d, %v", days, len(got), err)
		}
		var sum int64
		for _, d := range got {
			sum += d.Views
		}
		if sum != views {
			t.Errorf("%d days have %d views, want %d", days, sum, views)
		}
	}
	if got, err = a.Series(t.Context(), uuid.NewString(), 30); err != nil || len(got) != 30 {
		t.Errorf("a waitlist without counts: %v, %v", got, err)
	}
}

// TestOrigins: the most frequent values come first, who got there first before
// who came later; the rest is one value, where its count puts it.
func TestOrigins(t *testing.T) {
	t.Parallel()
	pool := database(t)
	id := uuid.NewString()
	var counts []adminanalytics.Count
	number := int64(0)
	add := func(source, medium, campaign string) {
		number++
		counts = append(counts, adminanalytics.Count{
			WaitlistID: id, Day: day("2026-03-01"), Signups: 1, Number: number, Source: source,
			Medium: medium, Campaign: campaign,
		})
	}
	const many = 1005
	for i := range many {
		add("", "", fmt.Sprint("c", i))
	}
	add("twitter", "", "c1004")
	add("mail", adminanalytics.OtherOrigins, "")
	add("mail", "cpc", "")
	add("twitter", adminanalytics.OtherOrigins, "")
	add("ads", "", "")
	add("", "", "")
	add("news", "", "")
	for rest := range slices.Chunk(counts, 200) {
		count(t, pool, rest...)
	}
	count(t, pool, adminanalytics.Count{WaitlistID: uuid.NewString(), Day: day("2026-03-01"), Signups: 1, Number: 1, Source: "others"})
	a := adminanalytics.NewAnalytics(postgres.New(pool), time.Now)
	got, err := a.Origins(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	if want := []adminanalytics.Origin{
		{Value: "mail", Count: 2},
		{Value: "twitter", Count: 2},
		{Value: "ads", Count: 1},
		{Value: "news", Count: 1},
	}; !slices.Equal(got.Sources, want) {
		t.Errorf("sources %v", got.Sources)
	}
	// The name of the rest is nobody's.
	if want := []adminanalytics.Origin{{Value: adminanalytics.OtherOrigins, Count: 2}, {
		Value: "cpc",
		Count: 1,
	}}; !slices.Equal(got.Mediums, want) {
		t.Errorf("mediums %v", got.Mediums)
	}
	want := []adminanalytics.Origin{{Value: adminanalytics.OtherOrigins, Count: 5}, {Value: "c1004", Count: 2}}
	for i := range 999 {
		want = append(want, adminanalytics.Origin{Value: fmt.Sprint("c", i), Count: 1})
	}
	if !slices.Equal(got.Campaigns, want) {
		t.Errorf("%d campaigns, the first %v, the last %v", len(got.Campaigns), got.Campaigns[:3], got.Campaigns[len(got.Campaigns)-3:])
	}
	if got, err = a.Origins(t.Context(), uuid.NewString()); err != nil || len(got.Sources)+len(got.Mediums)+len(got.Campaigns) != 0 {
		t.Errorf("a waitlist without counts: %v, %v", got, err)
	}
}

// TestForgotten: of a deleted waitlist nothing stays but a hash, whatever comes
// late or again.
func TestForgotten(t *testing.T) {
	t.Parallel()
	pool := database(t)
	s := postgres.New(pool)
	gone, kept := uuid.NewString(), uuid.NewString()
	both := func() {
		for _, id := range []string{gone, kept} {
			count(t, pool,
				adminanalytics.Count{WaitlistID: id, Day: day("2026-03-01"), Signups: 1, Number: 1, Source: "mail", Medium: "m", Campaign: "c"},
				adminanalytics.Count{WaitlistID: id, Day: day("2026-03-01"), Views: 1})
		}
	}
	forget := func() { in(t, pool, func(tx pgx.Tx) error { return s.Forget(t.Context(), tx, gone) }) }
	left := func() (n int) {
		t.Helper()
		rows, err := pool.Query(t.Context(), `
			SELECT d::text FROM day d UNION ALL SELECT v::text FROM utm_value v UNION ALL SELECT u::text FROM utm_total u
			UNION ALL SELECT w::text FROM waitlist w UNION ALL SELECT h::text FROM tombstone h
			UNION ALL SELECT (a.waitlist_id, a.id)::text FROM arrival a`)
		if err != nil {
			t.Fatal(err)
		}
		texts, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			t.Fatal(err)
		}
		for _, text := range texts {
			if len(text) > 36 && slices.Contains([]string{text[1:37], text[:36]}, gone) {
				n++
			}
		}
		return n
	}
	both()
	if left() == 0 {
		t.Fatal("nothing was counted")
	}
	forget()
	before := sums(t, pool)
	both() // late
	if n := left(); n != 1+3+3+1 {
		t.Errorf("%d rows before the purge", n)
	}
	if err := s.PurgeOnce(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := left(); n != 0 {
		t.Errorf("%d rows after the purge", n)
	}
	both() // late
	forget()
	both()
	if err := s.RebuildSignups(t.Context(), gone, func(func(adminanalytics.Tally) error) error {
		t.Error("a buried waitlist is built again")
		return nil
	}); err != nil {
		t.Error(err)
	}
	if n := left(); n != 0 {
		t.Errorf("%d rows after late events", n)
	}
	if after := sums(t, pool); len(after) != len(before)/2 {
		t.Errorf("left of the other: %v", after)
	}
	// A second look finds nothing to do; tombstones go in the end.
	if err := s.PurgeOnce(t.Context()); err != nil {
		t.Fatal(err)
	}
	tombstones := func() (n int) {
		if err := pool.QueryRow(t.Context(), `SELECT count(*) FROM tombstone`).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	if n := tombstones(); n != 1 {
		t.Errorf("%d tombstones", n)
	}
	if _, err := pool.Exec(t.Context(), `UPDATE tombstone SET created_at = now() - interval '36 days'`); err != nil {
		t.Fatal(err)
	}
	if err := s.PurgeOnce(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := tombstones(); n != 0 {
		t.Errorf("%d tombstones after their time", n)
	}
}

// TestPurgeBesideFold: what is being folded while its waitlist is deleted and
// purged, and what was counted before and is folded afterwards, leaves nothing.
func TestPurgeBesideFold(t *testing.T) {
	t.Parallel()
	pool := database(t)
	s := postgres.New(pool)
	id := uuid.NewString()
	c := adminanalytics.Count{EventID: uuid.NewString(), WaitlistID: id, Day: day("2026-03-01"), Signups: 1, Number: 1, Source: "s"}
	counting, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = counting.Rollback(context.WithoutCancel(t.Context())) }()
	if err := s.Count(t.Context(), counting, c); err != nil {
		t.Fatal(err)
	}
	// A fold that has looked for the waitlist and not committed yet.
	folding, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = folding.Rollback(context.WithoutCancel(t.Context())) }()
	for _, sql := range []string{
		`SELECT pg_advisory_xact_lock(hashtextextended('admin_analytics.sums', 0))`,
		`INSERT INTO day SELECT '` + id + `', '2026-03-01', 1, 1, 1 WHERE takes_counts('` + id + `')`,
	} {
		if _, err := folding.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	in(t, pool, func(tx pgx.Tx) error { return s.Forget(t.Context(), tx, id) })
	purged := make(chan error, 1)
	go func() { purged <- s.PurgeOnce(t.Context()) }()
	waitFor(t, pool, "the purge waits", `SELECT count(*) > 0
		FROM pg_stat_activity WHERE wait_event = 'advisory' AND datname = current_database()`)
	if err := folding.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-purged; err != nil {
		t.Fatal(err)
	}
	if err := counting.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := s.Fold(t.Context()); err != nil {
		t.Fatal(err)
	}
	var arrivals int
	if err := pool.QueryRow(t.Context(), `SELECT count(*) FROM arrival`).Scan(&arrivals); err != nil {
		t.Fatal(err)
	}
	if left := sums(t, pool); len(left) != 0 || arrivals != 0 {
		t.Errorf("left: %v and %d arrivals", left, arrivals)
	}
}

// waitFor polls a condition in the database.
func waitFor(t testing.TB, pool *pgxpool.Pool, what, sql string) {
	t.Helper()
	testenv.Eventually(t, what, func() bool {
		var ok bool
		if err := pool.QueryRow(t.Context(), sql).Scan(&ok); err != nil {
			t.Fatal(err)
		}
		return ok
	})
}

// TestPurgeIsResumable: a purge that is cut off goes on where it was, and one of
// many rows takes several transactions.
func TestPurgeIsResumable(t *testing.T) {
	t.Parallel()
	pool := database(t)
	s := postgres.New(pool)
	id := uuid.NewString()
	testenv.Fill(t, pool, `
		INSERT INTO utm_value (waitlist_id, field, value, count, last_number)
		SELECT $1, 'utm_source', 'v' || n, 1, n FROM generate_series(1, 60000) n`, id)
	in(t, pool, func(tx pgx.Tx) error { return s.Forget(t.Context(), tx, id) })
	left := func() (n int) {
		if err := pool.QueryRow(t.Context(), `SELECT count(*) FROM utm_value`).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	ctx, cut := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.PurgeOnce(ctx) }()
	waitFor(t, pool, "a part has gone", `SELECT count(*) < 60000 FROM utm_value`)
	cut()
	if err := <-ended; err == nil && left() > 0 {
		t.Error("cut off without an error")
	}
	if err := s.Purge(canceled(t), time.Hour, slog.New(slog.DiscardHandler)); err != nil {
		t.Fatal(err)
	}
	if err := s.PurgeOnce(t.Context()); err != nil || left() != 0 {
		t.Errorf("%d left, %v", left(), err)
	}
}

func canceled(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	return ctx
}

// TestFoldLetsARebuildBe: during a rebuild events are taken and not folded; what
// the tally had is not added afterwards.
func TestFoldLetsARebuildBe(t *testing.T) {
	t.Parallel()
	pool := database(t)
	s := postgres.New(pool)
	id := uuid.NewString()
	err := s.RebuildSignups(t.Context(), id, func(next func(adminanalytics.Tally) error) error {
		count(t, pool,
			adminanalytics.Count{WaitlistID: id, Day: day("2026-03-01"), Signups: 1, Number: 3, Source: "s"},
			adminanalytics.Count{WaitlistID: id, Day: day("2026-03-01"), Signups: 1, Number: 4, Source: "s"})
		if got := sums(t, pool); len(got) != 0 {
			t.Errorf("folded beside a rebuild: %v", got)
		}
		return errors.Join(next(adminanalytics.Tally{LastNumber: 3}),
			next(adminanalytics.Tally{Days: []adminanalytics.Day{{Day: day("2026-03-01"), Signups: 3}}}))
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Fold(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got, want := sums(t, pool), []string{
		"day " + id + " 2026-03-01 0 4 0", "total " + id + " utm_source 1", "value " + id + " utm_source s 1 4",
	}; !slices.Equal(got, want) {
		t.Errorf("got %q", got)
	}
}

// TestFolding: what commits late with a lower id than what was folded is folded,
// too; a stop loses nothing; two that fold at once add everything once.
func TestFolding(t *testing.T) {
	t.Parallel()
	pool := database(t)
	s := postgres.New(pool)
	quiet := slog.New(slog.DiscardHandler)
	id := uuid.NewString()
	late, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = late.Rollback(context.WithoutCancel(t.Context())) }()
	view := adminanalytics.Count{EventID: uuid.NewString(), WaitlistID: id, Day: day("2026-03-01"), Views: 1}
	if err := s.Count(t.Context(), late, view); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 2)
	folding := func() { ended <- s.Folding(ctx, quiet) }
	const many = 4000 // of several folds
	arrive := func() {
		t.Helper()
		if _, err := pool.Exec(t.Context(), `
			INSERT INTO arrival (event_id, waitlist_id, day, views, signups, referral_signups, source, medium, campaign)
			SELECT gen_random_uuid(), $1, '2026-03-01', 1, 0, 0, '', '', '' FROM generate_series(1, $2::int)`, id, many); err != nil {
			t.Fatal(err)
		}
	}
	counted := func(n int) {
		t.Helper()
		waitFor(t, pool, "all are folded", fmt.Sprintf(`SELECT coalesce(sum(views), 0) = %d FROM day`, n))
	}
	arrive()
	go folding()
	counted(many)
	if err := late.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	counted(many + 1)
	go folding()
	for range 3 {
		arrive()
	}
	counted(4*many + 1)
	stop()
	for range 2 {
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
	waitFor(t, pool, "nothing is left", `SELECT count(*) = 0 FROM arrival`)
}
