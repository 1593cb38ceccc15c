package account

import (
	"context"
	"errors"
	"time"
)

const (
	// TrialNotice is how long before the end of a trial its account is told.
	TrialNotice = 24 * time.Hour
	// shortestTrial is that of which anybody is told: the end of a shorter one is
	// still in mind from its beginning.
	shortestTrial = 2 * TrialNotice
	// trialLook is the pause between looks for trials that end soon.
	trialLook = time.Minute
)

// RunTrialEndings tells, until ctx is done, the accounts whose trial ends within
// TrialNotice: once a trial, and only while it lasts. Several may run at once.
func (s *Service) RunTrialEndings(ctx context.Context) error {
	return s.work(ctx, "trials that end", nil, trialLook, s.tellTrialEnding)
}

// tellTrialEnding tells one account and reports whether there may be more.
func (s *Service) tellTrialEnding(ctx context.Context) (bool, error) {
	now := s.now()
	err := s.Store.InTx(ctx, func(tx Tx) error {
		e, err := tx.TakeTrialEnding(ctx, now, now.Add(TrialNotice), shortestTrial)
		if err != nil {
			return err
		}
		return tx.Publish(ctx, e.AccountID, trialEnding(e, now))
	})
	if errors.Is(err, ErrNotFound) {
		return false, nil
	}
	return err == nil, err
}
