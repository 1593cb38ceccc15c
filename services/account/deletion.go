package account

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"waitlist.internal/libs/access"
	"waitlist.internal/libs/telemetry"
)

const (
	// closeTimeout bounds one call.
	closeTimeout = 3 * time.Second
	// closeLease keeps others away from a closing while one tries, the deleting
	// request first of all.
	closeLease = 2 * closeTimeout
)

// Delete removes the actor's account with its credentials, sessions, team and
// memberships, in the transaction that tells the other services, and then
// closes what it owned. Where the closing fails it is tried again until it is
// done; the account is gone all the same. Only a keyed hash of the address
// stays, for the trial that was used.
func (s *Service) Delete(ctx context.Context, actor access.Actor) error {
	now := s.now()
	err := s.Store.InTx(ctx, func(tx Tx) error {
		a, err := tx.LockAccount(ctx, actor.AccountID)
		if err != nil {
			return err
		}
		if err := tx.DeleteAccount(ctx, a, now.Add(closeLease)); err != nil {
			return err
		}
		return tx.Publish(ctx, a.ID, accountDeleted(a.ID, now))
	})
	if errors.Is(err, ErrNotFound) {
		return errCredentials()
	}
	if err != nil {
		return fmt.Errorf("delete an account: %w", err)
	}
	// The client may hang up; this is its last request either way.
	if err := s.close(context.WithoutCancel(ctx), actor.AccountID); err != nil {
		s.Logger.LogAttrs(ctx, slog.LevelWarn, "closing a deleted account's waitlists failed; it is tried again",
			slog.String("account_id", actor.AccountID), telemetry.Err(err))
	}
	return nil
}

// close makes what an account owned invisible, and ends its closing.
func (s *Service) close(ctx context.Context, accountID string) error {
	ctx, cancel := context.WithTimeout(ctx, closeTimeout)
	defer cancel()
	if err := s.Owner.CloseOwner(ctx, accountID); err != nil {
		return fmt.Errorf("close owner: %w", err)
	}
	return s.Store.DeleteClosing(ctx, accountID)
}

// RunClosings repeats failed closings until ctx is done.
func (s *Service) RunClosings(ctx context.Context) error {
	return s.work(ctx, "closings of deleted accounts", nil, time.Second, func(ctx context.Context) (bool, error) {
		now := s.now()
		accountID, err := s.Store.TakeClosing(ctx, now, now.Add(closeLease))
		if errors.Is(err, ErrNotFound) {
			return false, nil
		}
		if err != nil {
			return false, err
		}
		return true, s.close(ctx, accountID)
	})
}

// RunSweep deletes what has expired, until ctx is done.
func (s *Service) RunSweep(ctx context.Context) error {
	return s.work(ctx, "sweep", nil, time.Minute, func(ctx context.Context) (bool, error) {
		return s.Store.Sweep(ctx, s.now())
	})
}
