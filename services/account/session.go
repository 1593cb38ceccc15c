package account

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"

	"waitlist.internal/libs/access"
	"waitlist.internal/libs/apierr"
	"waitlist.internal/libs/audit"
)

const (
	// MaxSession is the longest time that a session lasts, however often it is
	// refreshed.
	MaxSession = 90 * 24 * time.Hour
	// MaxUserAgent is the longest user agent that a session keeps, in bytes.
	MaxUserAgent = 256
	// listedSessions bounds the sessions that Sessions returns.
	listedSessions = 100
)

// sessionStore lists sessions.
type sessionStore interface {
	// Sessions returns an account's newest sessions that have not expired at now, at
	// most limit.
	Sessions(ctx context.Context, accountID string, now time.Time, limit int) ([]Session, error)
}

// sessionTx reads and writes sessions and their refresh tokens.
type sessionTx interface {
	// InsertSession returns ErrNotFound if the account's password generation is no
	// longer the given one.
	InsertSession(ctx context.Context, s Session, generation int64) error
	// InsertRefreshToken adds the newest token of a session.
	InsertRefreshToken(ctx context.Context, sessionID string, hash []byte, at, expires time.Time) error
	// LockSessionByToken locks and returns the session that owns a refresh token,
	// which may be spent.
	LockSessionByToken(ctx context.Context, tokenHash []byte) (Session, error)
	// SpendRefreshToken marks a token as spent and reports whether it was valid at
	// now.
	SpendRefreshToken(ctx context.Context, now time.Time, hash []byte) (bool, error)
	// ExtendSession records that a locked session was used at now.
	ExtendSession(ctx context.Context, now, expires time.Time, sessionID string) error
	// HasSession reports whether an account has a session.
	HasSession(ctx context.Context, accountID, sessionID string) (bool, error)
	DeleteSession(ctx context.Context, accountID, sessionID string) error
	// DeleteSessions deletes every session of an account but keep, which may be empty.
	DeleteSessions(ctx context.Context, accountID, keep string) error
}

// Client is where a login comes from.
type Client struct{ IP, UserAgent string }

// userAgent returns the part of a header that a session keeps.
func userAgent(header string) string {
	header = strings.ToValidUTF8(header[:min(len(header), MaxUserAgent)], "")
	return strings.ReplaceAll(header, "\x00", "")
}

// expiry returns when a session that is used at now ends.
func (s *Service) expiry(session Session, now time.Time) time.Time {
	end := now.Add(s.RefreshTokenTTL)
	if last := session.CreatedAt.Add(MaxSession); end.After(last) {
		return last
	}
	return end
}

// Sessions returns the actor's newest sessions, at most 100.
func (s *Service) Sessions(ctx context.Context, actor access.Actor) ([]Session, error) {
	sessions, err := s.Store.Sessions(ctx, actor.AccountID, s.now(), listedSessions)
	if err != nil {
		return nil, fmt.Errorf("list sessions: %w", err)
	}
	return sessions, nil
}

// EndSession ends one of the actor's sessions at once. It returns NOT_FOUND if the
// actor has no such session.
func (s *Service) EndSession(ctx context.Context, actor access.Actor, sessionID string) error {
	unknown := apierr.NotFoundf("There is no such session.")
	// uuid also takes forms that Postgres does not.
	if id, err := uuid.Parse(sessionID); err != nil || id.String() != sessionID {
		return unknown
	}
	err := s.Store.InTx(ctx, func(tx Tx) error {
		if err := tx.DeleteSession(ctx, actor.AccountID, sessionID); err != nil {
			return err
		}
		return tx.Record(ctx, audit.By(actor, actor.AccountID, audit.SessionEnded, sessionID))
	})
	if errors.Is(err, ErrNotFound) {
		return unknown
	}
	if err != nil {
		return fmt.Errorf("end a session: %w", err)
	}
	return nil
}

// ChangePassword stores a new password. It ends every other session of the account,
// invalidates its reset tokens and tells its owner by mail, at a verified address. Errors: VALIDATION_ERROR on
// password, or on current_password if that is wrong; RATE_LIMITED after too many wrong
// attempts.
func (s *Service) ChangePassword(ctx context.Context, actor access.Actor, current, password, clientIP string) error {
	if fields := s.CheckPassword(password, actor.Email); len(fields) > 0 {
		return apierr.Validation(fields...)
	}
	a, err := s.checkPassword(ctx, actor, actor.Email, current, clientIP)
	if apierr.Is(err, apierr.AuthenticationRequired) {
		return apierr.Validation(apierr.Field{Field: "current_password", Message: "This is not your password."})
	}
	if err != nil {
		return err
	}
	hash, err := s.passwords.hash(ctx, password)
	if err != nil {
		return err
	}
	keep := actor.CredentialID
	if actor.APIKey {
		keep = ""
	}
	err = s.Store.InTx(ctx, func(tx Tx) error {
		locked, err := tx.LockAccount(ctx, a.ID)
		if err != nil {
			return err
		}
		if locked.PasswordGeneration != a.PasswordGeneration { // reset or changed meanwhile
			return ErrNotFound
		}
		if err := tx.UpdateAccount(ctx, locked.withPassword(hash)); err != nil {
			return err
		}
		if err := tx.DeleteSessions(ctx, a.ID, keep); err != nil {
			return err
		}
		if err := notify(ctx, tx, locked, passwordChanged, s.now()); err != nil {
			return err
		}
		return tx.Record(ctx, audit.By(actor, a.ID, audit.PasswordChanged, ""))
	})
	if errors.Is(err, ErrNotFound) {
		return errCredentials()
	}
	if err != nil {
		return fmt.Errorf("change a password: %w", err)
	}
	return nil
}
