package account

import (
	"context"
	"errors"
	"fmt"
	"time"

	"waitlist.internal/libs/access"
	"waitlist.internal/libs/apierr"
)

// actorStore finds whom a credential belongs to.
type actorStore interface {
	// ActorBySession returns the actor of an account's session that has not
	// expired at now.
	ActorBySession(ctx context.Context, sessionID, accountID string, now time.Time) (access.Actor, error)
	// ActorByAPIKey finds an actor by the lookup part of an API key. It also
	// returns the stored hash of the key.
	ActorByAPIKey(ctx context.Context, lookup string) (access.Actor, []byte, error)
}

// Authorize returns the actor of a credential, with one query. If both credentials
// are given, only the ID token counts. It returns AUTHENTICATION_REQUIRED if the
// credential is missing, unknown, expired or revoked.
func (s *Service) Authorize(ctx context.Context, idToken, apiKey string) (access.Actor, error) {
	return s.authorize(ctx, idToken, apiKey, 0)
}

// AuthorizeUnderWay is Authorize for a long request that was authorized before. An ID
// token then counts for an hour after its expiry, as long as its session exists.
func (s *Service) AuthorizeUnderWay(ctx context.Context, idToken, apiKey string) (access.Actor, error) {
	return s.authorize(ctx, idToken, apiKey, time.Hour)
}

func (s *Service) authorize(ctx context.Context, idToken, apiKey string, leeway time.Duration) (access.Actor, error) {
	var actor access.Actor
	var err error
	switch {
	case idToken != "":
		accountID, sessionID, parseErr := s.parseIDToken(idToken, leeway)
		if parseErr != nil {
			return access.Actor{}, errCredentials().WithCause(parseErr)
		}
		actor, err = s.Store.ActorBySession(ctx, sessionID, accountID, s.now())
		actor.CredentialID = sessionID
	case apiKey != "":
		actor, err = s.actorByAPIKey(ctx, apiKey)
	default:
		return access.Actor{}, errCredentials()
	}
	if errors.Is(err, ErrNotFound) {
		return access.Actor{}, errCredentials()
	}
	if err != nil {
		return access.Actor{}, fmt.Errorf("authorize: %w", err)
	}
	return actor, nil
}

// lockCaller locks the caller's account and returns it, if the call's credential is still
// valid. A call that was authorized before a reset and acts after it must not give its
// caller a new way in.
func lockCaller(ctx context.Context, tx Tx, actor access.Actor) (Account, error) {
	a, err := tx.LockAccount(ctx, actor.AccountID)
	if err != nil {
		return Account{}, err
	}
	valid := a.APIKey.Valid() && a.APIKey.Lookup == actor.CredentialID
	if !actor.APIKey {
		if valid, err = tx.HasSession(ctx, a.ID, actor.CredentialID); err != nil {
			return Account{}, err
		}
	}
	if !valid {
		return Account{}, errCredentials()
	}
	return a, nil
}

func errCredentials() *apierr.Error {
	return apierr.New(apierr.AuthenticationRequired, "Credentials are missing or invalid.")
}
