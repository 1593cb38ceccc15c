package account

import (
	"context"
	"errors"
	"fmt"
	"time"

	"waitlist.internal/libs/apierr"
	"waitlist.internal/libs/audit"
	"waitlist.internal/libs/token"
)

const (
	// ResetTTL is the lifetime of a reset token.
	ResetTTL = time.Hour
	// ResetInterval is the minimum time between two reset mails to one account.
	// Requests within it are accepted but send nothing.
	ResetInterval = time.Minute
)

// resetStore queues requests for resets.
type resetStore interface {
	// QueueReset queues a password reset for an address, which may have no account.
	QueueReset(ctx context.Context, email string, at time.Time) error
}

// resetTx takes requests for resets.
type resetTx interface {
	// TakeReset removes and returns the oldest queued reset that no other
	// transaction holds.
	TakeReset(ctx context.Context) (email string, at time.Time, err error)
}

// ForgotPassword queues a password reset, which RunResets processes. It does the
// same work for every valid address, so its timing does not reveal accounts.
func (s *Service) ForgotPassword(ctx context.Context, email string) error {
	address, fields := parseEmail(email)
	if len(fields) > 0 {
		return apierr.Validation(fields...)
	}
	if err := s.Store.QueueReset(ctx, address, s.now()); err != nil {
		return fmt.Errorf("queue a password reset: %w", err)
	}
	s.resets.Send()
	return nil
}

// RunResets turns queued resets into events until ctx is done.
func (s *Service) RunResets(ctx context.Context) error {
	return s.work(ctx, "password resets", s.resets, 2*time.Second, s.requestReset)
}

// requestReset processes one queued reset and reports whether there was one.
func (s *Service) requestReset(ctx context.Context) (bool, error) {
	err := s.Store.InTx(ctx, func(tx Tx) error {
		email, at, err := tx.TakeReset(ctx)
		if err != nil {
			return err
		}
		a, err := tx.LockAccountByEmail(ctx, email)
		if errors.Is(err, ErrNotFound) {
			return nil
		}
		if err != nil {
			return err
		}
		if at.Before(a.ResetSentAt.Add(ResetInterval)) {
			return nil
		}
		a.ResetSentAt = at
		if err := tx.UpdateAccount(ctx, a); err != nil {
			return err
		}
		return tx.Publish(ctx, a.ID, resetRequested(a, at))
	})
	if errors.Is(err, ErrNotFound) {
		return false, nil
	}
	return err == nil, err
}

// ResetPassword redeems the token of a reset mail and stores a new password. It
// ends every session and invalidates every other reset token of the account. The
// token proves that its holder has the mailbox, so the address counts as verified
// from now on. If it was not verified before, a stranger may have registered it, so
// the API key and the team end, too. It returns VALIDATION_ERROR on password, and INVALID_TOKEN
// if the token is malformed, expired or used.
func (s *Service) ResetPassword(ctx context.Context, raw, password string) error {
	if fields := s.CheckPassword(password, ""); len(fields) > 0 {
		return apierr.Validation(fields...)
	}
	now := s.now()
	accountID, generation, err := s.mailToken(token.ResetPassword, raw, now)
	if err != nil {
		return err
	}
	hash, err := s.passwords.hash(ctx, password)
	if err != nil {
		return err
	}
	err = s.Store.InTx(ctx, func(tx Tx) error {
		a, err := tx.LockAccount(ctx, accountID)
		if err != nil {
			return err
		}
		if a.PasswordGeneration != generation {
			return errToken()
		}
		if fields := s.CheckPassword(password, a.Email); len(fields) > 0 {
			return apierr.Validation(fields...)
		}
		a = a.withPassword(hash)
		if a.EmailVerifiedAt.IsZero() {
			a = a.verified(now)
			a.APIKey.Hash = []byte{}
			if err := dismissTeam(ctx, tx, a.ID); err != nil {
				return err
			}
		}
		if err := tx.UpdateAccount(ctx, a); err != nil {
			return err
		}
		if err := tx.DeleteSessions(ctx, a.ID, ""); err != nil {
			return err
		}
		if err := notify(ctx, tx, a, passwordRecovered, now); err != nil {
			return err
		}
		return tx.Record(ctx, own(a.ID, "", audit.PasswordReset, ""))
	})
	if errors.Is(err, ErrNotFound) {
		return errToken()
	}
	if err != nil {
		return fmt.Errorf("reset a password: %w", err)
	}
	return nil
}

// dismissTeam deletes an account's team.
func dismissTeam(ctx context.Context, tx Tx, accountID string) error {
	members, err := tx.DeleteTeam(ctx, accountID)
	if err != nil {
		return err
	}
	for _, id := range members {
		if err := tx.Record(ctx, own(accountID, "", audit.MemberRemoved, id)); err != nil {
			return err
		}
	}
	return nil
}
