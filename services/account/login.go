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

	"waitlist.internal/libs/apierr"
	"waitlist.internal/libs/telemetry"
)

// Tokens are what a login or a refresh hands out.
type Tokens struct {
	IDToken   string
	ExpiresIn time.Duration
	// RefreshToken is good for one refresh.
	RefreshToken string
}

// recordTimeout bounds the writes that happen though the client has gone.
const recordTimeout = 3 * time.Second

// Login exchanges an address and its password for tokens.
// AUTHENTICATION_REQUIRED for a wrong pair, after the same time and with the
// same words whether the account exists or not; RATE_LIMITED after too many
// failures.
func (s *Service) Login(ctx context.Context, email, password, clientIP string) (Tokens, error) {
	address, fields := parseEmail(email)
	if len(password) > MaxPassword {
		fields = append(fields, CheckPassword(password)...)
	}
	if len(fields) > 0 {
		return Tokens{}, apierr.Validation(fields...)
	}
	attempt := s.attempt(address, clientIP)
	slow, err := s.admit(ctx, attempt)
	if err != nil {
		return Tokens{}, err
	}
	if !s.Wait(ctx, slow) {
		return Tokens{}, ctx.Err()
	}
	var a Account
	var match, outdated bool
	err = s.passwords.turn(ctx, func() error {
		// Once more, for those that failed while this one waited: a burst of
		// guesses gets no further than a sequence of them.
		if _, err := s.admit(ctx, attempt); err != nil {
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
		// Hanging up does not make a failure undone.
		record, cancel := context.WithTimeout(context.WithoutCancel(ctx), recordTimeout)
		defer cancel()
		if err := s.Store.AddLoginFailure(record, attempt, s.now()); err != nil {
			return fmt.Errorf("record a login failure: %w", err)
		}
		return nil
	})
	if err != nil {
		return Tokens{}, err
	}
	wrong := apierr.New(apierr.AuthenticationRequired, "The e-mail address or the password is wrong.")
	if !match {
		return Tokens{}, wrong
	}
	if outdated {
		s.rehash(ctx, a, password)
	}
	sid, err := uuid.NewV7()
	if err != nil {
		return Tokens{}, fmt.Errorf("make a session id: %w", err)
	}
	now := s.now()
	session := Session{ID: sid.String(), AccountID: a.ID, ExpiresAt: now.Add(s.RefreshTokenTTL)}
	refresh := rand.Text() + rand.Text()
	err = s.Store.InTx(ctx, func(tx Tx) error {
		if err := tx.InsertSession(ctx, session, a.PasswordGeneration, now); err != nil {
			return err
		}
		return tx.InsertRefreshToken(ctx, session.ID, refreshHash(refresh), now, session.ExpiresAt)
	})
	if errors.Is(err, ErrNotFound) { // deleted, or its password reset, meanwhile
		return Tokens{}, wrong
	}
	if err != nil {
		return Tokens{}, fmt.Errorf("begin a session: %w", err)
	}
	return s.tokens(session, refresh, now)
}

// Refresh exchanges a refresh token for new tokens. Using one a second time
// means that somebody has a copy, so it ends the session. It is
// AUTHENTICATION_REQUIRED for every token that is not the newest of a session.
func (s *Service) Refresh(ctx context.Context, refreshToken string) (Tokens, error) {
	now := s.now()
	hash := refreshHash(refreshToken)
	next := rand.Text() + rand.Text()
	var session Session
	var good bool
	err := s.Store.InTx(ctx, func(tx Tx) (err error) {
		// The session's lock comes first, as where sessions are deleted.
		if session, err = tx.LockSessionByToken(ctx, hash); err != nil {
			return err
		}
		if good, err = tx.SpendRefreshToken(ctx, hash, now); err != nil {
			return err
		}
		if !good {
			return tx.DeleteSession(ctx, session.ID)
		}
		session.ExpiresAt = now.Add(s.RefreshTokenTTL)
		if err := tx.ExtendSession(ctx, session.ID, session.ExpiresAt); err != nil {
			return err
		}
		return tx.InsertRefreshToken(ctx, session.ID, refreshHash(next), now, session.ExpiresAt)
	})
	if err != nil && !errors.Is(err, ErrNotFound) {
		return Tokens{}, fmt.Errorf("refresh a session: %w", err)
	}
	if err != nil || !good {
		return Tokens{}, apierr.New(apierr.AuthenticationRequired, "The refresh token is invalid, spent or expired. Please log in again.")
	}
	return s.tokens(session, next, now)
}

// Logout ends the session of a refresh token. An unknown token is fine.
func (s *Service) Logout(ctx context.Context, refreshToken string) error {
	err := s.Store.DeleteSessionByToken(ctx, refreshHash(refreshToken))
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

// rehash stores the password under today's parameters. Where that fails the
// next login does it.
func (s *Service) rehash(ctx context.Context, a Account, password string) {
	hash, err := s.passwords.hash(ctx, password)
	if err == nil {
		err = s.Store.SetPasswordHash(ctx, a.ID, a.PasswordGeneration, hash)
	}
	if err != nil && !errors.Is(err, ErrNotFound) {
		s.Logger.LogAttrs(ctx, slog.LevelWarn, "a password keeps its old hash", telemetry.Err(err))
	}
}

// refreshHash is what is stored of a refresh token. Tokens have 260 random
// bits, so that a plain hash is enough.
func refreshHash(refreshToken string) []byte {
	h := sha256.Sum256([]byte(refreshToken))
	return h[:]
}

// encode is how binary parts stand in tokens and keys.
func encode(b []byte) string { return base64.RawURLEncoding.EncodeToString(b) }
