package account

import (
	"context"
	"errors"
	"fmt"

	"waitlist.internal/libs/access"
	"waitlist.internal/libs/apierr"
)

// Authorize returns the actor of a credential, with one query. If both credentials
// are given, only the ID token counts. It returns AUTHENTICATION_REQUIRED if the
// credential is missing, unknown, expired or revoked.
func (s *Service) Authorize(ctx context.Context, idToken, apiKey string) (access.Actor, error) {
	var actor access.Actor
	var err error
	switch {
	case idToken != "":
		accountID, sessionID, parseErr := s.parseIDToken(idToken)
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

func errCredentials() *apierr.Error {
	return apierr.New(apierr.AuthenticationRequired, "Credentials are missing or invalid.")
}
