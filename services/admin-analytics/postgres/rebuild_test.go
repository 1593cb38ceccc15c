package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"waitlist.internal/libs/apierr"
	adminanalytics "waitlist.internal/services/admin-analytics"
	"waitlist.internal/services/admin-analytics/postgres"
)

// TestRebuildSignups: the sums become the tally's, views stay, and of the events
// that come afterwards those count that the tally did not have.
func TestRebuildSignups(t *testing.T) {
	t.Parallel()
	pool := database(t)
	s := postgres.New(pool)
	id, other := uuid.NewString(), uuid.NewString()
	for _, id := range []string{id, other} {
		count(t, pool,
			adminanalytics.Count{WaitlistID: id, Day: day("2026-02-28"), Signups: 3, Number: 3, Source: "wrong"},
			adminanalytics.Count{WaitlistID: id, Day: day("2026-03-01"), Signups: 3, Number: 3, Source: "mail"},
			adminanalytics.Count{WaitlistID: id, Day: day("2026-03-01"), Views: 5})
	}
	of := func(id string) (out []string) {
		for _, line := range sums(t, pool) {
			if parts := strings.Fields(line); parts[1] == id {
				out = append(out, line)
			}
		}
		return out
	}
	before := of(other)
	tally := func(next func(adminanalytics.Tally) error) error {
		var values []adminanalytics.OriginTally
		for i := range 3 {
			values = append(values, adminanalytics.OriginTally{Field: "utm_campaign", Value: fmt.Sprint("c", i), Count: 2, LastNumber: 8})
		}
		return errors.Join(
			next(adminanalytics.Tally{LastNumber: 10}),
			next(adminanalytics.Tally{Days: []adminanalytics.Day{
				{Day: day("2026-03-01"), Signups: 8, ReferralSignups: 2},
				{Day: day("2026-03-02"), Signups: 2},
			}}),
			next(adminanalytics.Tally{Values: values[:2]}), next(adminanalytics.Tally{Values: values[2:]}),
		)
	}
	want := []string{
		"day " + id + " 2026-03-01 5 8 2", "day " + id + " 2026-03-02 0 2 0",
		"total " + id + " utm_campaign 6",
		"value " + id + " utm_campaign c0 2 8", "value " + id + " utm_campaign c1 2 8", "value " + id + " utm_campaign c2 2 8",
	}
	for range 2 { // again is the same
		if err := s.RebuildSignups(t.Context(), id, tally); err != nil {
			t.Fatal(err)
		}
		if got := of(id); !slices.Equal(got, want) {
			t.Fatalf("got %q", got)
		}
	}
	if got := of(other); !slices.Equal(got, before) {
		t.Errorf("the other waitlist has %q", got)
	}
	count(t, pool,
		adminanalytics.Count{WaitlistID: id, Day: day("2026-03-02"), Signups: 1, Number: 9, Campaign: "c0"},
		adminanalytics.Count{WaitlistID: id, Day: day("2026-03-02"), Signups: 1, Number: 10, Campaign: "c0"})
	if got := of(id); !slices.Equal(got, want) {
		t.Errorf("events that the tally had counted again: %q", got)
	}
	count(t, pool,
		adminanalytics.Count{WaitlistID: id, Day: day("2026-03-02"), Signups: 1, Number: 11, Campaign: "c0"},
		adminanalytics.Count{WaitlistID: id, Day: day("2026-03-02"), Views: 1})
	want[1], want[2], want[3] = "day "+id+" 2026-03-02 1 3 0", "total "+id+" utm_campaign 7", "value "+id+" utm_campaign c0 3 11"
	if got := of(id); !slices.Equal(got, want) {
		t.Errorf("later events: %q, want %q", got, want)
	}

	// A tally that breaks off changes nothing; one of a waitlist that has gone ends it.
	broken := errors.New("broken")
	err := s.RebuildSignups(t.Context(), id, func(next func(adminanalytics.Tally) error) error {
		return errors.Join(next(adminanalytics.Tally{LastNumber: 20}), broken)
	})
	if got := of(id); !errors.Is(err, broken) || !slices.Equal(got, want) {
		t.Errorf("%v, then %q", err, got)
	}
	var known []string
	if err := s.WaitlistIDs(t.Context(), func(id string) error { known = append(known, id); return nil }); err != nil {
		t.Fatal(err)
	}
	slices.Sort(known)
	both := []string{id, other}
	slices.Sort(both)
	if known = slices.Compact(known); !slices.Equal(known, both) {
		t.Errorf("waitlists %v", known)
	}
	if err := s.RebuildSignups(t.Context(), other,
		func(func(adminanalytics.Tally) error) error { return apierr.NotFoundf("gone") }); err != nil {
		t.Fatal(err)
	}
	if err := s.PurgeOnce(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := of(other); len(got) != 0 {
		t.Errorf("of the waitlist that has gone: %q", got)
	}
}

// viewLog gives its pieces, one Read each.
type viewLog struct {
	reads [][]adminanalytics.ViewEvent
	since time.Time
	// reading is called before each Read.
	reading func(n int)
	n       int
}

// Read implements adminanalytics.ViewLog.
func (l *viewLog) Read(_ context.Context, next func([]adminanalytics.ViewEvent) error) error {
	if l.reading != nil {
		l.reading(l.n)
	}
	events := l.reads[l.n]
	l.n++
	return next(events)
}

// Since implements adminanalytics.ViewLog.
func (l *viewLog) Since() time.Time { return l.since }

// TestRebuildViews: the views of whole days become what the log has of the
// events that were counted; other days keep what is more.
func TestRebuildViews(t *testing.T) {
	t.Parallel()
	const full = "2026-03-02"
	one, two := uuid.NewString(), uuid.NewString()
	event := func(id, on string, n int64) adminanalytics.ViewEvent {
		return adminanalytics.ViewEvent{ID: uuid.NewString(), WaitlistID: id, Day: day(on), Views: n}
	}
	lost, more := event(one, "2026-03-01", 4), event(two, "2026-03-01", 3)
	first, again, second := event(one, full, 1), event(one, full, 2), event(two, full, 7)
	uncounted, late, later := event(one, full, 100), event(one, "2026-03-03", 5), event(one, "2026-03-03", 6)
	for _, tt := range []struct {
		name, only string
		want       []string
	}{
		{"all", "", []string{
			"day " + one + " 2026-03-01 4 0 0", // its sum was lost
			"day " + one + " 2026-03-02 3 1 0",
			"day " + one + " 2026-03-03 11 0 0",
			"day " + two + " 2026-03-01 50 0 0", // the log has a part
			"day " + two + " 2026-03-02 7 0 0",
		}},
		{"one", one, []string{
			"day " + one + " 2026-03-01 4 0 0",
			"day " + one + " 2026-03-02 3 1 0",
			"day " + one + " 2026-03-03 11 0 0",
			"day " + two + " 2026-03-01 50 0 0",
			"day " + two + " 2026-03-02 1000 0 0",
			"day " + two + " 2026-03-05 8 0 0",
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			pool := database(t)
			s := postgres.New(pool)
			count(t, pool,
				adminanalytics.Count{WaitlistID: two, Day: day("2026-03-01"), Views: 50},
				adminanalytics.Count{WaitlistID: one, Day: day(full), Views: 999},
				adminanalytics.Count{WaitlistID: one, Day: day(full), Signups: 1, Number: 1},
				adminanalytics.Count{WaitlistID: two, Day: day(full), Views: 1000},
				adminanalytics.Count{WaitlistID: two, Day: day("2026-03-05"), Views: 8}) // nobody knows them
			know := func(events ...adminanalytics.ViewEvent) {
				for _, e := range events {
					if _, err := pool.Exec(t.Context(), `INSERT INTO inbox (consumer, event_id) VALUES ($1, $2)`, adminanalytics.Name, e.ID); err != nil {
						t.Fatal(err)
					}
				}
			}
			know(lost, more, first, again, second)
			log := &viewLog{since: day(full), reads: [][]adminanalytics.ViewEvent{
				{lost, more, first, again, uncounted, first, second}, {again, late, later},
			}}
			log.reading = func(n int) {
				if n == 0 {
					// Counted after the first read, before the lock: one is folded,
					// the other not yet.
					know(late, later)
					count(t, pool, adminanalytics.Count{WaitlistID: one, Day: late.Day, Views: late.Views})
					in(t, pool, func(tx pgx.Tx) error {
						return s.Count(t.Context(), tx, adminanalytics.Count{
							EventID: later.ID, WaitlistID: one, Day: later.Day, Views: later.Views,
						})
					})
				}
			}
			err := s.RebuildViews(t.Context(), tt.only, log, func(since time.Time) time.Time { return since })
			if err != nil {
				t.Fatal(err)
			}
			if err := s.Fold(t.Context()); err != nil {
				t.Fatal(err)
			}
			if got := sums(t, pool); !slices.Equal(got, sorted(tt.want)) {
				t.Errorf("got %q\nwant %q", got, sorted(tt.want))
			}
		})
	}
}

func sorted(s []string) []string { return slices.Sorted(slices.Values(s)) }
