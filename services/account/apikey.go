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
)

// An API key is
//
//	wl_live_<lookup, 13><secret, 52><checksum, 7>
//
// in base 32. The lookup part finds the row, the secret (260 bits) proves the
// key, the checksum (CRC-32) lets scanners and typing errors be told without a
// query. Only a hash of the whole is stored.
type apiKey string

const (
	apiKeyPrefix = "wl_live_"
	lookupLen    = 13
	secretLen    = 52
	checksumLen  = 7
	apiKeyLen    = len(apiKeyPrefix) + lookupLen + secretLen + checksumLen
)

// APIKeyRecord is what is stored of an API key.
type APIKeyRecord struct {
	// Lookup is unique.
	Lookup string
	// Hash is SHA-256 of the key.
	Hash []byte
}

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

// parseAPIKey reports whether s has the form of a key.
func parseAPIKey(s string) (apiKey, bool) {
	if len(s) != apiKeyLen || !strings.HasPrefix(s, apiKeyPrefix) {
		return "", false
	}
	body := s[:apiKeyLen-checksumLen]
	return apiKey(s), s[apiKeyLen-checksumLen:] == checksum(body)
}

// actorByAPIKey returns the actor of a key, or ErrNotFound.
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
	actor.APIKey = true
	return actor, nil
}

// RegenerateAPIKey gives an account another API key; the old one stops working
// at once. FORBIDDEN to a caller that used an API key: who stole one must not
// be able to take the account over.
func (s *Service) RegenerateAPIKey(ctx context.Context, actor access.Actor) (string, error) {
	if actor.APIKey {
		return "", apierr.New(apierr.Forbidden, "An API key can't regenerate itself. Please use an ID token.")
	}
	key := newAPIKey()
	err := s.Store.SetAPIKey(ctx, actor.AccountID, key.record())
	if errors.Is(err, ErrNotFound) {
		return "", errCredentials()
	}
	if err != nil {
		return "", fmt.Errorf("store an API key: %w", err)
	}
	return string(key), nil
}
