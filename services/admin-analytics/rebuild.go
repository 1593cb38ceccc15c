package adminanalytics

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"waitlist.internal/libs/apierr"
)

const (
	// clockSkew is how far apart the clocks of two processes may be.
	clockSkew = 5 * time.Minute
	// inboxKnown is how long the inbox surely knows an event that was counted;
	// it is pruned after 14 days.
	inboxKnown = 13 * 24 * time.Hour
)

// Tally is a piece of what a waitlist's signups add up to.
type Tally struct {
	// LastNumber is set in the first piece: every signup up to it is counted.
	LastNumber int64
	// Days have no views.
	Days   []Day
	Values []OriginTally
}

// OriginTally counts the signups with a value in a field.
type OriginTally struct {
	// Field is utm_source, utm_medium or utm_campaign.
	Field, Value string
	Count        int64
	LastNumber   int64
}

// Signups is where tallies come from.
type Signups interface {
	// WaitlistIDs calls next with the ids of all waitlists, in pieces.
	WaitlistIDs(ctx context.Context, next func(ids []string) error) error
	// Tally calls next with the pieces of one waitlist's tally, which are of one
	// moment. NOT_FOUND where it has gone.
	Tally(ctx context.Context, waitlistID string, next func(Tally) error) error
}

// ViewEvent is a count of page views as it was published.
type ViewEvent struct {
	ID         string
	WaitlistID string
	Day        time.Time
	Views      int64
}

// ViewLog is the page views that were published and are still held.
type ViewLog interface {
	// Read calls next with what came since the last Read, from the oldest that is
	// held to the newest at the time of the call, in pieces. An event may come
	// more than once.
	Read(ctx context.Context, next func([]ViewEvent) error) error
	// Since is a moment after which everything published is held; it is known
	// once Read has returned.
	Since() time.Time
}

// RebuildStore replaces sums. What is counted meanwhile waits, and is counted
// afterwards where it is not in the new sums.
type RebuildStore interface {
	// RebuildSignups replaces all that a waitlist counts, apart from views, by
	// what tally gives. Where tally finds that the waitlist has gone, it is
	// forgotten.
	RebuildSignups(ctx context.Context, waitlistID string, tally func(next func(Tally) error) error) error
	// RebuildViews replaces the views of one waitlist, or of all for "", by those
	// of the log that were counted before. Days before full(log's Since) keep
	// what they have where that is more.
	RebuildViews(ctx context.Context, waitlistID string, log ViewLog, full func(since time.Time) time.Time) error
	// WaitlistIDs calls next with the ids of the waitlists that have sums.
	WaitlistIDs(ctx context.Context, next func(id string) error) error
}

// Rebuild makes sums again, from what they were made of.
type Rebuild struct {
	Store   RebuildStore
	Signups Signups
	Log     *slog.Logger
	Now     func() time.Time
}

// All counts the signups of every waitlist again, and forgets the waitlists that
// are no more.
func (r *Rebuild) All(ctx context.Context) error {
	done := map[string]struct{}{}
	one := func(id string) error {
		if _, ok := done[id]; ok {
			return nil
		}
		done[id] = struct{}{}
		return r.One(ctx, id)
	}
	if err := r.Signups.WaitlistIDs(ctx, func(ids []string) error {
		for _, id := range ids {
			if err := one(id); err != nil {
				return err
			}
		}
		return nil
	}); err != nil {
		return err
	}
	if err := r.Store.WaitlistIDs(ctx, one); err != nil {
		return err
	}
	r.Log.InfoContext(ctx, "rebuilt", slog.Int("waitlists", len(done)))
	return nil
}

// One counts the signups of one waitlist again.
func (r *Rebuild) One(ctx context.Context, waitlistID string) error {
	err := r.Store.RebuildSignups(ctx, waitlistID, func(next func(Tally) error) error {
		return r.Signups.Tally(ctx, waitlistID, next)
	})
	if err != nil {
		return fmt.Errorf("rebuild waitlist %s: %w", waitlistID, err)
	}
	return nil
}

// Views adds up again the page views of one waitlist, or of all for "".
func (r *Rebuild) Views(ctx context.Context, waitlistID string, log ViewLog) error {
	return r.Store.RebuildViews(ctx, waitlistID, log, func(since time.Time) time.Time {
		if known := r.Now().Add(-inboxKnown); known.After(since) {
			since = known
		}
		return firstFullDay(since)
	})
}

// firstFullDay is the first day of which everything was published after since,
// whichever process's clock that was.
func firstFullDay(since time.Time) time.Time {
	since = since.Add(clockSkew)
	day := DayOf(since)
	if day.Before(since) {
		day = day.AddDate(0, 0, 1)
	}
	return day
}

// Gone tells whether err says that a waitlist is no more.
func Gone(err error) bool { return apierr.Is(err, apierr.NotFound) }
