package account

import (
	"context"
	"errors"
	"fmt"
	"time"

	"waitlist.internal/libs/access"
	"waitlist.internal/libs/apierr"
	"waitlist.internal/libs/audit"
	"waitlist.internal/libs/token"
)

// The limits on verification mails.
const (
	// VerificationTTL is the lifetime of a verification token and of a cycle.
	VerificationTTL = 24 * time.Hour
	// ResendInterval is the minimum time between two requested mails.
	ResendInterval = time.Minute
	// ResendLimit is how many mails an account can request per cycle.
	ResendLimit = 10
)

// Verification is the state of an address verification. A cycle ends when the
// address is verified, or VerificationTTL after it started. The next mail then
// starts another cycle.
type Verification struct {
	// Cycle counts the cycles from 1. Tokens are bound to it.
	Cycle          int64
	CycleStartedAt time.Time
	// Resends counts the mails requested in this cycle. The mail after registration
	// does not count.
	Resends int
	// ResentAt is when the last of them was requested; zero if never.
	ResentAt time.Time
}

// next returns the state after another mail at now or RATE_LIMITED.
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

// ResendVerification requests another verification mail. It reports false and
// sends nothing if the address is already verified. It returns RATE_LIMITED above
// one mail per ResendInterval or ResendLimit per cycle.
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
		if err := tx.UpdateAccount(ctx, a); err != nil {
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

// verified returns the account after its address was verified at now.
func (a Account) verified(now time.Time) Account {
	a.EmailVerifiedAt, a.Verification = now, Verification{Cycle: a.Verification.Cycle + 1, CycleStartedAt: now}
	return a
}

// Proof shows that whoever redeems a verification token controls the account as well
// as its mailbox: by the request's credential, or by the password.
type Proof struct {
	// Actor is zero if the request has no credential.
	Actor    access.Actor
	Password string
	ClientIP string
}

// VerifyEmail redeems the token of a verification mail. The token alone does not
// suffice: otherwise, the owner of a mailbox could be tricked into verifying an account
// to which a stranger has the credentials. Errors: INVALID_TOKEN if the token is
// malformed, expired or used; AUTHENTICATION_REQUIRED without a proof of the token's
// account; RATE_LIMITED after too many wrong passwords.
func (s *Service) VerifyEmail(ctx context.Context, raw string, proof Proof) error {
	now := s.now()
	accountID, cycle, err := s.mailToken(token.VerifyAccount, raw, now)
	if err != nil {
		return err
	}
	if err := s.prove(ctx, accountID, proof); err != nil {
		return err
	}
	err = s.Store.InTx(ctx, func(tx Tx) error {
		a, err := tx.LockAccount(ctx, accountID)
		if err != nil {
			return err
		}
		// Mails of the previous cycle may still be valid. Mails of earlier cycles have
		// expired.
		if !a.EmailVerifiedAt.IsZero() || cycle > a.Verification.Cycle || cycle < a.Verification.Cycle-1 {
			return errToken()
		}
		if err := tx.UpdateAccount(ctx, a.verified(now)); err != nil {
			return err
		}
		e := own(a.ID, "", audit.AddressVerified, "")
		if proof.Actor.AccountID == a.ID {
			e.Credential = proof.Actor.CredentialID
		}
		return tx.Record(ctx, e)
	})
	if errors.Is(err, ErrNotFound) {
		return errToken()
	}
	if err != nil {
		return fmt.Errorf("verify an address: %w", err)
	}
	return nil
}

// prove returns AUTHENTICATION_REQUIRED unless proof belongs to the account.
func (s *Service) prove(ctx context.Context, accountID string, proof Proof) error {
	if proof.Actor.AccountID == accountID {
		return nil
	}
	if proof.Password == "" {
		return apierr.New(apierr.AuthenticationRequired, "Log in to the account with this address, or send the account's password.")
	}
	a, err := s.Store.Account(ctx, accountID)
	if errors.Is(err, ErrNotFound) {
		return errToken()
	}
	if err != nil {
		return fmt.Errorf("look for an account: %w", err)
	}
	_, err = s.checkPassword(ctx, proof.Actor, a.Email, proof.Password, proof.ClientIP)
	return err
}

// mailToken verifies the token of a mail link and returns its account and its
// generation or cycle, or INVALID_TOKEN.
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
	return apierr.New(apierr.InvalidToken, "The token is invalid, has expired or was already used.")
}
