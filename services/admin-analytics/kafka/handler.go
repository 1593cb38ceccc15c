// Package kafka reads the signup service's events: one by one for the sums, and from
// the beginning for a rebuild.
package kafka

import (
	"context"

	"github.com/jackc/pgx/v5"

	eventv1 "waitlist.internal/proto/gen/waitlist/event/v1"
	adminanalytics "waitlist.internal/services/admin-analytics"
)

// Counts changes sums within the transaction of events. *postgres.Store implements it.
type Counts interface {
	Count(ctx context.Context, tx pgx.Tx, counts ...adminanalytics.Count) error
	Forget(ctx context.Context, tx pgx.Tx, waitlistID string) error
}

// Wants reports whether Handler does anything about an event. The removal of a signup does
// not reduce a count.
func Wants(ev *eventv1.Event) bool {
	switch ev.GetPayload().(type) {
	case *eventv1.Event_SignupCreated, *eventv1.Event_SignupsImported, *eventv1.Event_PageViewsCounted, *eventv1.Event_WaitlistDeleted:
		return true
	}
	return false
}

// Handler counts signups and page views, and forgets deleted waitlists.
func Handler(counts Counts) func(ctx context.Context, tx pgx.Tx, evs []*eventv1.Event) error {
	return func(ctx context.Context, tx pgx.Tx, evs []*eventv1.Event) error {
		var all []adminanalytics.Count
		for _, ev := range evs {
			c := adminanalytics.Count{EventID: ev.GetId(), Day: adminanalytics.DayOf(ev.GetOccurredAt().AsTime())}
			switch p := ev.GetPayload().(type) {
			case *eventv1.Event_SignupCreated:
				e := p.SignupCreated
				c.WaitlistID, c.Signups, c.Number = e.GetWaitlistId(), 1, e.GetNumber()
				c.Source, c.Medium, c.Campaign = e.GetUtmSource(), e.GetUtmMedium(), e.GetUtmCampaign()
				if e.GetReferred() {
					c.ReferralSignups = 1
				}
			case *eventv1.Event_SignupsImported:
				e := p.SignupsImported
				c.WaitlistID, c.Signups, c.Number = e.GetWaitlistId(), e.GetLastNumber()-e.GetFirstNumber()+1, e.GetLastNumber()
			case *eventv1.Event_PageViewsCounted:
				c.WaitlistID, c.Views = p.PageViewsCounted.GetWaitlistId(), p.PageViewsCounted.GetViews()
			case *eventv1.Event_WaitlistDeleted:
				// The fold drops what is counted for a deleted list, before or after.
				if err := counts.Forget(ctx, tx, p.WaitlistDeleted.GetWaitlistId()); err != nil {
					return err
				}
				continue
			default:
				continue
			}
			all = append(all, c)
		}
		if len(all) == 0 {
			return nil
		}
		return counts.Count(ctx, tx, all...)
	}
}
