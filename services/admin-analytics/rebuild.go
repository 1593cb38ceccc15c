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
	// inboxKnown is how long the inbox is sure to remember a counted event. It is
	// pruned after 14 days.
	inboxKnown = 13 * 24 * time.Hour
)

// Tally is a part of a waitlist's counts.
type Tally struct {
	// LastNumber is set in the first part. The tally includes every signup up to it.
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

// Signups reads tallies from the signup service.
type Signups interface {
	// WaitlistIDs calls next with the ids of all waitlists, in several parts.
	WaitlistIDs(ctx context.Context, next func(ids []string) error) error
	// Tally calls next with the parts of a waitlist's tally, all of the same moment. It
	// returns NOT_FOUND if the waitlist was deleted.
	Tally(ctx context.Context, waitlistID string, next func(Tally) error) error
}

// ViewEvent is a published count of page views.
type ViewEvent struct {
	ID         string
	WaitlistID string
	Day        time.Time
	Views      int64
}

// ViewLog reads the published page views that Kafka still holds.
type ViewLog interface {
	// Read calls next with the events since the last Read, up to the newest at the
	// time of the call; the first Read begins with the oldest. An event may occur more
	// than once.
	Read(ctx context.Context, next func([]ViewEvent) error) error
	// Since returns a time after which the log is complete. Call it after Read.
	Since() time.Time
}

// RebuildStore replaces sums. Events that arrive meanwhile are added afterwards,
// unless the new sums include them.
type RebuildStore interface {
	// RebuildSignups replaces a waitlist's sums, except views, by the tally. If tally
	// finds that the waitlist was deleted, its sums are deleted, too.
	RebuildSignups(ctx context.Context, waitlistID string, tally func(next func(Tally) error) error) error
	// RebuildViews replaces the views of one waitlist (of all for "") by those events
	// of the log that were counted before. A day before full(log.Since()) keeps its
	// views if they are more.
	RebuildViews(ctx context.Context, waitlistID string, log ViewLog, full func(since time.Time) time.Time) error
	// WaitlistIDs calls next with the ids of the waitlists that have sums.
	WaitlistIDs(ctx context.Context, next func(id string) error) error
}

// Rebuild computes sums again from their sources.
type Rebuild struct {
	Store   RebuildStore
	Signups Signups
	Log     *slog.Logger
	Now     func() time.Time
}

// All counts the signups of every waitlist again and deletes the sums of deleted
// waitlists.
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
	r.Log.InfoContext(ctx, "sums rebuilt", slog.Int("waitlists", len(done)))
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

// Views counts the page views of one waitlist (of all for "") again.
func (r *Rebuild) Views(ctx context.Context, waitlistID string, log ViewLog) error {
	return r.Store.RebuildViews(ctx, waitlistID, log, func(since time.Time) time.Time {
		if known := r.Now().Add(-inboxKnown); known.After(since) {
			since = known
		}
		return firstFullDay(since)
	})
}

// firstFullDay returns the first day whose events were all published after since,
// by any process's clock.
func firstFullDay(since time.Time) time.Time {
	since = since.Add(clockSkew)
	day := DayOf(since)
	if day.Before(since) {
		day = day.AddDate(0, 0, 1)
	}
	return day
}

// Gone reports whether err says that the waitlist was deleted.
func Gone(err error) bool { return apierr.Is(err, apierr.NotFound) }
