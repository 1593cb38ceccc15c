package account

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/google/uuid"

	"waitlist.internal/libs/access"
	"waitlist.internal/libs/apierr"
	"waitlist.internal/libs/audit"
	"waitlist.internal/libs/telemetry"
)

// Tokens are the result of a login or a refresh.
type Tokens struct {
	IDToken   string
	ExpiresIn time.Duration
	// RefreshToken is valid for one refresh.
	RefreshToken string
}

// recordTimeout bounds writes that continue after the client hangs up.
const recordTimeout = 3 * time.Second

// Login exchanges an email address and a password for tokens. It returns
// AUTHENTICATION_REQUIRED for a wrong pair, with the same message and after the
// same time whether the account exists or not. It returns RATE_LIMITED after too
// many failures.
func (s *Service) Login(ctx context.Context, email, password string, from Client) (Tokens, error) {
	address, fields := parseEmail(email)
	if len(password) > MaxPassword {
		fields = append(fields, s.CheckPassword(password, "")...)
	}
	if len(fields) > 0 {
		return Tokens{}, apierr.Validation(fields...)
	}
	a, err := s.checkPassword(ctx, access.Actor{}, address, password, from.IP)
	if err != nil {
		return Tokens{}, err
	}
	sid, err := uuid.NewV7()
	if err != nil {
		return Tokens{}, fmt.Errorf("make a session id: %w", err)
	}
	now := s.now()
	session := Session{ID: sid.String(), AccountID: a.ID, CreatedAt: now, LastUsedAt: now, UserAgent: userAgent(from.UserAgent)}
	session.ExpiresAt = s.expiry(session, now)
	refresh := rand.Text() + rand.Text()
	err = s.Store.InTx(ctx, func(tx Tx) error {
		if err := tx.InsertSession(ctx, session, a.PasswordGeneration); err != nil {
			return err
		}
		if err := tx.InsertRefreshToken(ctx, session.ID, refreshHash(refresh), now, session.ExpiresAt); err != nil {
			return err
		}
		return tx.Record(ctx, own(session.AccountID, session.ID, audit.Login, session.ID))
	})
	if errors.Is(err, ErrNotFound) { // the account was deleted or its password reset meanwhile
		return Tokens{}, errPassword()
	}
	if err != nil {
		return Tokens{}, fmt.Errorf("begin a session: %w", err)
	}
	return s.tokens(session, refresh, now)
}

// checkPassword returns the account of a normalized address and its password. Every
// failure counts towards the limits; see Login for the errors. actor is the caller, if the
// request has a credential beside the password.
func (s *Service) checkPassword(ctx context.Context, actor access.Actor, address, password, clientIP string) (Account, error) {
	a, err := s.comparePassword(ctx, actor, address, password, clientIP)
	if s.Checked != nil {
		switch {
		case err == nil:
			s.Checked("accepted")
		case apierr.Is(err, apierr.AuthenticationRequired):
			s.Checked("refused")
		case errors.Is(err, errLocked):
			s.Checked("locked")
		case apierr.Is(err, apierr.RateLimited):
			s.Checked("busy")
		}
	}
	return a, err
}

func (s *Service) comparePassword(ctx context.Context, actor access.Actor, address, password, clientIP string) (Account, error) {
	attempt := s.attempt(address, clientIP)
	slow, err := s.admit(ctx, attempt)
	if err != nil {
		return Account{}, err
	}
	if !s.Wait(ctx, slow) {
		return Account{}, ctx.Err()
	}
	var a Account
	var match, outdated bool
	err = s.passwords.turn(ctx, func() error {
		// Check again: others may have failed while this attempt waited. A burst of
		// guesses gets no further than a sequence.
		slow, err := s.admit(ctx, attempt)
		if err != nil {
			return err
		}
		a, err = s.Store.AccountByEmail(ctx, address)
		if err != nil && !errors.Is(err, ErrNotFound) {
			return fmt.Errorf("look for an account: %w", err)
		}
		match, outdated, err = s.passwords.compare(password, a.PasswordHash)
		if err != nil {
			return fmt.Errorf("compare a password: %w", err)
		}
		if match {
			return nil
		}
		// Record the failure even if the client hangs up.
		record, cancel := context.WithTimeout(context.WithoutCancel(ctx), recordTimeout)
		defer cancel()
		return s.refuse(record, attempt, slow < slowMax, audit.By(actor, a.ID, audit.LoginRefused, ""))
	})
	if err != nil {
		return Account{}, err
	}
	if !match {
		return Account{}, errPassword()
	}
	if outdated {
		s.rehash(ctx, a, password)
	}
	return a, nil
}

// refuse counts a failed attempt and, if entered, enters it in the account's audit trail.
// Without an account there is no trail.
func (s *Service) refuse(ctx context.Context, attempt Attempt, entered bool, e audit.Entry) error {
	err := s.Store.InTx(ctx, func(tx Tx) error {
		if err := tx.AddLoginFailure(ctx, attempt.Account, attempt.Address, s.now()); err != nil {
			return err
		}
		err := tx.HoldAccount(ctx, e.OwnerID)
		if errors.Is(err, ErrNotFound) || err == nil && !entered {
			return nil
		}
		if err != nil {
			return err
		}
		return tx.Record(ctx, e)
	})
	if err != nil {
		return fmt.Errorf("record a login failure: %w", err)
	}
	return nil
}

func errPassword() *apierr.Error {
	return apierr.New(apierr.AuthenticationRequired, "The email address or the password is wrong.")
}

// Refresh exchanges a refresh token for new tokens. A token that is used twice has
// been copied, so the second use ends the session. Refresh returns
// AUTHENTICATION_REQUIRED for every token but the newest of a session.
func (s *Service) Refresh(ctx context.Context, refreshToken string) (Tokens, error) {
	now := s.now()
	hash := refreshHash(refreshToken)
	next := rand.Text() + rand.Text()
	var session Session
	var good bool
	err := s.Store.InTx(ctx, func(tx Tx) (err error) {
		// Lock the session before the token, in the same order as session deletion.
		if session, err = tx.LockSessionByToken(ctx, hash); err != nil {
			return err
		}
		if good, err = tx.SpendRefreshToken(ctx, now, hash); err != nil {
			return err
		}
		if !good {
			if err := tx.DeleteSession(ctx, session.AccountID, session.ID); err != nil {
				return err
			}
			// Whoever presents the token need not be the account's owner.
			return tx.Record(ctx, audit.Entry{OwnerID: session.AccountID, Action: audit.RefreshRefused, Target: session.ID})
		}
		session.ExpiresAt = s.expiry(session, now)
		if err := tx.ExtendSession(ctx, now, session.ExpiresAt, session.ID); err != nil {
			return err
		}
		return tx.InsertRefreshToken(ctx, session.ID, refreshHash(next), now, session.ExpiresAt)
	})
	if err != nil && !errors.Is(err, ErrNotFound) {
		return Tokens{}, fmt.Errorf("refresh a session: %w", err)
	}
	if err != nil || !good {
		return Tokens{}, apierr.New(apierr.AuthenticationRequired,
			"The refresh token is invalid, has expired or was already used. Please log in again.")
	}
	return s.tokens(session, next, now)
}

// Logout ends the session of a refresh token. It ignores unknown tokens.
func (s *Service) Logout(ctx context.Context, refreshToken string) error {
	err := s.Store.InTx(ctx, func(tx Tx) error {
		session, err := tx.LockSessionByToken(ctx, refreshHash(refreshToken))
		if err != nil {
			return err
		}
		if err := tx.DeleteSession(ctx, session.AccountID, session.ID); err != nil {
			return err
		}
		return tx.Record(ctx, own(session.AccountID, session.ID, audit.SessionEnded, session.ID))
	})
	if err != nil && !errors.Is(err, ErrNotFound) {
		return fmt.Errorf("end a session: %w", err)
	}
	return nil
}

func (s *Service) tokens(session Session, refresh string, now time.Time) (Tokens, error) {
	id, err := s.issue(session, now)
	if err != nil {
		return Tokens{}, err
	}
	return Tokens{IDToken: id, ExpiresIn: s.IDTokenTTL, RefreshToken: refresh}, nil
}

// rehash stores the password's hash with the current parameters. If it fails, the
// next login tries again.
func (s *Service) rehash(ctx context.Context, a Account, password string) {
	hash, err := s.passwords.hash(ctx, password)
	if err == nil {
		err = s.Store.InTx(ctx, func(tx Tx) error {
			locked, err := tx.LockAccount(ctx, a.ID)
			if err != nil || locked.PasswordGeneration != a.PasswordGeneration {
				return err
			}
			locked.PasswordHash = hash
			return tx.UpdateAccount(ctx, locked)
		})
	}
	if err != nil && !errors.Is(err, ErrNotFound) {
		s.Logger.LogAttrs(ctx, slog.LevelWarn, "failed to update an outdated password hash", telemetry.Err(err))
	}
}

// refreshHash returns the stored form of a refresh token. Tokens have 260 random
// bits, so an unsalted hash suffices.
func refreshHash(refreshToken string) []byte {
	h := sha256.Sum256([]byte(refreshToken))
	return h[:]
}

// encode writes binary data as unpadded base64url.
func encode(b []byte) string { return base64.RawURLEncoding.EncodeToString(b) }
