package account

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"hash/crc32"
	"strings"

	"waitlist.internal/libs/access"
	"waitlist.internal/libs/apierr"
	"waitlist.internal/libs/audit"
)

// apiKey is an API key, in base 32:
//
//	wl_live_<lookup, 13><secret, 52><checksum, 7>
//
// The lookup part finds the row and the secret (260 bits) authenticates. The
// checksum (CRC-32) rejects typing errors and guesses without a query. The store
// has only a hash of the key.
type apiKey string

const (
	apiKeyPrefix = "wl_live_"
	lookupLen    = 13
	secretLen    = 52
	checksumLen  = 7
	apiKeyLen    = len(apiKeyPrefix) + lookupLen + secretLen + checksumLen
)

// APIKeyRecord is the stored form of an API key.
type APIKeyRecord struct {
	// Lookup is unique.
	Lookup string
	// Hash is the SHA-256 of the key. It is empty, and not nil, if the key was revoked.
	Hash []byte
}

// Valid reports whether there is a key.
func (r APIKeyRecord) Valid() bool { return len(r.Hash) > 0 }

func newAPIKey() apiKey {
	body := apiKeyPrefix + rand.Text()[:lookupLen] + rand.Text() + rand.Text()
	return apiKey(body + checksum(body))
}

func checksum(body string) string {
	const alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"
	sum := crc32.ChecksumIEEE([]byte(body))
	out := make([]byte, checksumLen)
	for i := range out {
		out[i] = alphabet[sum%32]
		sum /= 32
	}
	return string(out)
}

func (k apiKey) record() APIKeyRecord {
	h := sha256.Sum256([]byte(k))
	return APIKeyRecord{Lookup: string(k[len(apiKeyPrefix) : len(apiKeyPrefix)+lookupLen]), Hash: h[:]}
}

// parseAPIKey checks the format and the checksum of a key.
func parseAPIKey(s string) (apiKey, bool) {
	if len(s) != apiKeyLen || !strings.HasPrefix(s, apiKeyPrefix) {
		return "", false
	}
	body := s[:apiKeyLen-checksumLen]
	return apiKey(s), s[apiKeyLen-checksumLen:] == checksum(body)
}

// actorByAPIKey returns the actor of a key or ErrNotFound.
func (s *Service) actorByAPIKey(ctx context.Context, raw string) (access.Actor, error) {
	key, ok := parseAPIKey(raw)
	if !ok {
		return access.Actor{}, ErrNotFound
	}
	want := key.record()
	actor, hash, err := s.Store.ActorByAPIKey(ctx, want.Lookup)
	if err != nil {
		return access.Actor{}, err
	}
	if subtle.ConstantTimeCompare(hash, want.Hash) != 1 {
		return access.Actor{}, ErrNotFound
	}
	actor.APIKey, actor.CredentialID = true, want.Lookup
	return actor, nil
}

// RegenerateAPIKey replaces an account's API key and tells its owner by mail, at a verified
// address. The old key stops working at once. It returns FORBIDDEN if the caller used an API key, so that a stolen key
// cannot take over the account.
func (s *Service) RegenerateAPIKey(ctx context.Context, actor access.Actor) (string, error) {
	if actor.APIKey {
		return "", apierr.New(apierr.Forbidden, "You cannot regenerate an API key with an API key. Please use an ID token.")
	}
	key := newAPIKey()
	err := s.Store.InTx(ctx, func(tx Tx) error {
		a, err := lockCaller(ctx, tx, actor)
		if err != nil {
			return err
		}
		a.APIKey = key.record()
		if err := tx.UpdateAccount(ctx, a); err != nil {
			return err
		}
		if err := notify(ctx, tx, a, keyChanged, s.now()); err != nil {
			return err
		}
		return tx.Record(ctx, audit.By(actor, actor.AccountID, audit.APIKeyRotated, a.APIKey.Lookup))
	})
	if errors.Is(err, ErrNotFound) {
		return "", errCredentials()
	}
	if err != nil {
		return "", fmt.Errorf("store an API key: %w", err)
	}
	return string(key), nil
}
