package account

import (
	"context"
	"errors"
	"time"
)

const (
	// TrialNotice is how long before the end of a trial its reminder is sent.
	TrialNotice = 24 * time.Hour
	// shortestTrial is the shortest trial that gets a reminder. Owners of shorter
	// trials still remember the end date.
	shortestTrial = 2 * TrialNotice
	// trialInterval is the pause between queries for trials that end soon.
	trialInterval = time.Minute
)

// trialTx remembers trials.
type trialTx interface {
	// UseTrial marks an address's trial as used and reports whether it was unused
	// before.
	UseTrial(ctx context.Context, addressHash []byte, at time.Time) (bool, error)
	// TakeTrialEnding marks a trial as reminded and returns it: the earliest that
	// ends after now and no later than until, and that no other transaction holds.
	// It skips trials that end less than shortest after registration.
	TakeTrialEnding(ctx context.Context, now, until time.Time, shortest time.Duration) (TrialEnding, error)
}

// RunTrialEndings publishes one reminder for each trial that ends within
// TrialNotice, until ctx is done. A trial that has ended gets none, nor does an address
// that is not verified. Several replicas may run it.
func (s *Service) RunTrialEndings(ctx context.Context) error {
	return s.work(ctx, "trial reminders", nil, trialInterval, s.remindOfTrialEnd)
}

// remindOfTrialEnd publishes one reminder and reports whether more may be due.
func (s *Service) remindOfTrialEnd(ctx context.Context) (bool, error) {
	now := s.now()
	err := s.Store.InTx(ctx, func(tx Tx) error {
		e, err := tx.TakeTrialEnding(ctx, now, now.Add(TrialNotice), shortestTrial)
		if err != nil || !e.Verified {
			return err
		}
		return tx.Publish(ctx, e.AccountID, trialEnding(e, now))
	})
	if errors.Is(err, ErrNotFound) {
		return false, nil
	}
	return err == nil, err
}
