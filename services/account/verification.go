package account

import (
	"context"
	"errors"
	"fmt"
	"time"

	"waitlist.internal/libs/access"
	"waitlist.internal/libs/apierr"
	"waitlist.internal/libs/token"
)

// The limits on verification mails.
const (
	// VerificationTTL is how long a verification token, and a cycle, lasts.
	VerificationTTL = 24 * time.Hour
	// ResendInterval is the least time between two mails asked for.
	ResendInterval = time.Minute
	// ResendLimit is how many mails can be asked for in one cycle.
	ResendLimit = 10
)

// Verification is how far the proof of an address has come. A cycle ends when
// the address is verified or VerificationTTL after its start; the next mail
// then begins another.
type Verification struct {
	// Cycle numbers the cycles from 1. Tokens are bound to it.
	Cycle          int64
	CycleStartedAt time.Time
	// Resends counts the mails asked for in this cycle; that of the
	// registration is not among them.
	Resends int
	// ResentAt is when the last of them was asked for; zero: never.
	ResentAt time.Time
}

// next returns the state after another mail at now, or RATE_LIMITED.
func (v Verification) next(now time.Time) (Verification, error) {
	if wait := v.ResentAt.Add(ResendInterval).Sub(now); wait > 0 {
		return v, apierr.New(apierr.RateLimited, "A verification mail was just sent. Please wait a moment.").WithRetryAfter(wait)
	}
	if end := v.CycleStartedAt.Add(VerificationTTL); !now.Before(end) {
		v = Verification{Cycle: v.Cycle + 1, CycleStartedAt: now}
	} else if v.Resends >= ResendLimit {
		return v, apierr.New(apierr.RateLimited, "Too many verification mails. Please try again later.").WithRetryAfter(end.Sub(now))
	}
	v.Resends++
	v.ResentAt = now
	return v, nil
}

// ResendVerification asks for another verification mail. It reports false,
// and sends nothing, where the address is verified already. RATE_LIMITED
// beyond one in ResendInterval and ResendLimit in a cycle.
func (s *Service) ResendVerification(ctx context.Context, actor access.Actor) (sent bool, err error) {
	now := s.now()
	err = s.Store.InTx(ctx, func(tx Tx) error {
		sent = false
		a, err := tx.LockAccount(ctx, actor.AccountID)
		if err != nil {
			return err
		}
		if !a.EmailVerifiedAt.IsZero() {
			return nil
		}
		if a.Verification, err = a.Verification.next(now); err != nil {
			return err
		}
		if err := tx.UpdateVerification(ctx, a.ID, time.Time{}, a.Verification); err != nil {
			return err
		}
		sent = true
		return tx.Publish(ctx, a.ID, verificationRequested(a, now))
	})
	if errors.Is(err, ErrNotFound) {
		return false, errCredentials()
	}
	if err != nil {
		return false, fmt.Errorf("resend verification: %w", err)
	}
	return sent, nil
}

// VerifyEmail takes the token of a verification mail. INVALID_TOKEN where it
// is damaged, expired or was used.
func (s *Service) VerifyEmail(ctx context.Context, raw string) error {
	now := s.now()
	accountID, cycle, err := s.mailToken(token.VerifyAccount, raw, now)
	if err != nil {
		return err
	}
	err = s.Store.InTx(ctx, func(tx Tx) error {
		a, err := tx.LockAccount(ctx, accountID)
		if err != nil {
			return err
		}
		// The mails of the cycle before may be younger than a token's lifetime.
		// Those of earlier ones have expired.
		if !a.EmailVerifiedAt.IsZero() || cycle > a.Verification.Cycle || cycle < a.Verification.Cycle-1 {
			return errToken()
		}
		return tx.UpdateVerification(ctx, a.ID, now, Verification{Cycle: a.Verification.Cycle + 1, CycleStartedAt: now})
	})
	if errors.Is(err, ErrNotFound) {
		return errToken()
	}
	if err != nil {
		return fmt.Errorf("verify an address: %w", err)
	}
	return nil
}

// mailToken returns the account and the generation that a mail link's token is
// for, or INVALID_TOKEN.
func (s *Service) mailToken(p token.Purpose, raw string, now time.Time) (accountID string, generation int64, err error) {
	accountID, generation, inner, err := token.ParseAccount(raw)
	if err != nil {
		return "", 0, errToken()
	}
	if err := s.Tokens.Verify(p, token.AccountSubject(accountID, generation), inner, now); err != nil {
		return "", 0, errToken()
	}
	return accountID, generation, nil
}

func errToken() *apierr.Error {
	return apierr.New(apierr.InvalidToken, "The token is invalid, expired or already used.")
}
