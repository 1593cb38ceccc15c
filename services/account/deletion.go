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
	// closeTimeout bounds one attempt to close an account's waitlists.
	closeTimeout = 3 * time.Second
	// closeLease reserves a closing for one attempt. The deleting request makes the
	// first one.
	closeLease = 2 * closeTimeout
)

// closingStore remembers deleted accounts until nothing is left of them.
type closingStore interface {
	// TakeClosing claims one closing that is due at now, until retryAt, and returns the
	// deleted account's id.
	TakeClosing(ctx context.Context, retryAt, now time.Time) (accountID string, err error)
	// ForgetTrail deletes the audit trail of a deleted account.
	ForgetTrail(ctx context.Context, accountID string) error
	// DeleteClosing removes a completed closing.
	DeleteClosing(ctx context.Context, accountID string) error
	// Sweep deletes a bounded number of sessions and tokens that expired by now and of
	// login failures no newer than failures. It reports whether more may remain.
	Sweep(ctx context.Context, now, failures time.Time) (more bool, err error)
}

// Delete deletes the actor's account with its credentials, sessions, team and
// memberships, and publishes the deletion in the same transaction. It then closes
// the account's waitlists and deletes its audit trail; RunClosings retries what fails.
// Only a keyed hash of the address remains, to remember that its trial was used. Only
// the log says who deleted the account.
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
	s.Logger.LogAttrs(ctx, slog.LevelInfo, "account deleted",
		slog.String("account_id", actor.AccountID), slog.String("credential_id", actor.CredentialID))
	// Close the waitlists even if the client hangs up: it cannot repeat the request.
	if err := s.close(context.WithoutCancel(ctx), actor.AccountID); err != nil {
		s.Logger.LogAttrs(ctx, slog.LevelWarn, "failed to close a deleted account's waitlists; retrying later",
			slog.String("account_id", actor.AccountID), telemetry.Err(err))
	}
	return nil
}

// close hides an account's waitlists, deletes its audit trail and removes its closing.
// Every transaction that adds an entry to the trail locks the account or a row that is
// deleted with it, so no entry follows the deletion.
func (s *Service) close(ctx context.Context, accountID string) error {
	ctx, cancel := context.WithTimeout(ctx, closeTimeout)
	defer cancel()
	if err := s.Owner.CloseOwner(ctx, accountID); err != nil {
		return fmt.Errorf("close owner: %w", err)
	}
	if err := s.Store.ForgetTrail(ctx, accountID); err != nil {
		return err
	}
	return s.Store.DeleteClosing(ctx, accountID)
}

// RunClosings retries failed closings until ctx is done.
func (s *Service) RunClosings(ctx context.Context) error {
	return s.work(ctx, "closings of deleted accounts", nil, 5*time.Second, func(ctx context.Context) (bool, error) {
		now := s.now()
		accountID, err := s.Store.TakeClosing(ctx, now.Add(closeLease), now)
		if errors.Is(err, ErrNotFound) {
			return false, nil
		}
		if err != nil {
			return false, err
		}
		return true, s.close(ctx, accountID)
	})
}

// RunSweep deletes expired rows until ctx is done.
func (s *Service) RunSweep(ctx context.Context) error {
	return s.work(ctx, "sweep", nil, time.Minute, func(ctx context.Context) (bool, error) {
		now := s.now()
		return s.Store.Sweep(ctx, now, now.Add(-FailureWindow))
	})
}
