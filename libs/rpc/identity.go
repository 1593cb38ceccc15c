// Package rpc lets services call each other: gRPC with service identities.
//
// Each service has an Ed25519 key. A call carries a short-lived EdDSA JWT that the
// caller signed for the callee (iss = caller, aud = callee). The callee verifies it
// with the caller's public key and requires the caller to be in the method's option
// waitlist.options.v1.callers. Nobody can call a method without callers. Health
// checks need no credentials.
//
// Errors of the REST contract cross unchanged: the server puts an apierr.Error into
// the details of the status, and the client takes it out. Any other error arrives
// as INTERNAL_ERROR; its cause is only in the server's log.
package rpc

import (
	"context"
	"crypto/ed25519"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/golang-jwt/jwt/v5"
)

const (
	// tokenLife is how long a token is valid. The caller signs a new one when less
	// than tokenSpare is left, so that it uses each for about a minute.
	tokenLife  = 90 * time.Second
	tokenSpare = 30 * time.Second
	// leeway is the tolerated difference between two machines' clocks.
	leeway = 30 * time.Second
	// maxVerified bounds the tokens that a server remembers. This is plenty: a handful of
	// replicas each sign a few tokens a minute.
	maxVerified = 4096
	// maxToken bounds the length of a token, in bytes; a real one has about 250.
	maxToken = 1024
)

// Keys holds the public keys of all services, by name. A service may have several, so
// that its key can be replaced without a stop.
type Keys map[string][]ed25519.PublicKey

// ParseKeys parses "name:base64,name:base64". A name may occur several times.
func ParseKeys(s string) (Keys, error) {
	keys := Keys{}
	for part := range strings.SplitSeq(s, ",") {
		name, b64, ok := strings.Cut(strings.TrimSpace(part), ":")
		if !ok || name == "" {
			return nil, errors.New("write keys as name:base64 pairs, separated by commas")
		}
		raw, err := base64.StdEncoding.DecodeString(b64)
		if err != nil {
			return nil, fmt.Errorf("service key of %q: %w", name, err)
		}
		if len(raw) != ed25519.PublicKeySize {
			return nil, fmt.Errorf("service key of %q: %d bytes, want %d", name, len(raw), ed25519.PublicKeySize)
		}
		keys[name] = append(keys[name], raw)
	}
	return keys, nil
}

// String is the inverse of ParseKeys.
func (k Keys) String() string {
	parts := make([]string, 0, len(k))
	for name, keys := range k {
		for _, key := range keys {
			parts = append(parts, name+":"+base64.StdEncoding.EncodeToString(key))
		}
	}
	return strings.Join(parts, ",")
}

// ParseSeed decodes the 32-byte seed of a key from base64.
func ParseSeed(s string) ([]byte, error) {
	seed, err := base64.StdEncoding.DecodeString(s)
	if err != nil {
		return nil, fmt.Errorf("service key: %w", err)
	}
	if len(seed) != ed25519.SeedSize {
		return nil, fmt.Errorf("service key: %d bytes, want %d", len(seed), ed25519.SeedSize)
	}
	return seed, nil
}

// Identity signs a service's calls. It is safe for concurrent use.
type Identity struct {
	service string
	key     ed25519.PrivateKey
	now     func() time.Time

	mu     sync.Mutex
	tokens map[string]signed
}

type signed struct {
	token   string
	expires time.Time
}

// NewIdentity returns the identity of service with the key of seed.
func NewIdentity(service string, seed []byte) (*Identity, error) {
	if len(seed) != ed25519.SeedSize {
		return nil, fmt.Errorf("identity of %s: seed has %d bytes, want %d", service, len(seed), ed25519.SeedSize)
	}
	return &Identity{
		service: service, key: ed25519.NewKeyFromSeed(seed), now: time.Now, tokens: map[string]signed{},
	}, nil
}

// Service returns the name of the service.
func (id *Identity) Service() string { return id.service }

// Public returns the identity's public key.
func (id *Identity) Public() ed25519.PublicKey {
	return ed25519.PublicKey(id.key[ed25519.SeedSize:])
}

// token returns a token for callee that stays valid for at least tokenSpare.
func (id *Identity) token(callee string) (string, error) {
	now := id.now()
	id.mu.Lock()
	defer id.mu.Unlock()
	if t := id.tokens[callee]; t.expires.Sub(now) > tokenSpare {
		return t.token, nil
	}
	expires := now.Add(tokenLife)
	token, err := jwt.NewWithClaims(jwt.SigningMethodEdDSA, jwt.RegisteredClaims{
		Issuer: id.service, Audience: jwt.ClaimStrings{callee},
		IssuedAt: jwt.NewNumericDate(now), ExpiresAt: jwt.NewNumericDate(expires),
	}).SignedString(id.key)
	if err != nil {
		return "", fmt.Errorf("sign service token: %w", err)
	}
	id.tokens[callee] = signed{token, expires}
	return token, nil
}

// credentials adds the token for callee to each call.
type credentials struct {
	id     *Identity
	callee string
}

// GetRequestMetadata implements credentials.PerRPCCredentials.
func (c credentials) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	t, err := c.id.token(c.callee)
	if err != nil {
		return nil, err
	}
	return map[string]string{"authorization": "Bearer " + t}, nil
}

// RequireTransportSecurity implements credentials.PerRPCCredentials. Within a
// cluster, the mesh or the network policy protects the connection.
func (credentials) RequireTransportSecurity() bool { return false }

// verifier verifies callers' tokens. It remembers valid ones until they expire,
// since an Ed25519 verification costs as much as many small calls.
type verifier struct {
	keys   Keys
	parser *jwt.Parser
	now    func() time.Time

	mu       sync.RWMutex
	verified map[string]caller
}

type caller struct {
	service string
	expires time.Time
}

func newVerifier(service string, keys Keys, now func() time.Time) *verifier {
	return &verifier{
		keys: keys, now: now, verified: map[string]caller{},
		parser: jwt.NewParser(jwt.WithValidMethods([]string{jwt.SigningMethodEdDSA.Alg()}), jwt.WithAudience(service),
			jwt.WithExpirationRequired(), jwt.WithIssuedAt(), jwt.WithLeeway(leeway), jwt.WithTimeFunc(now), jwt.WithStrictDecoding()),
	}
}

// caller returns the service that signed token.
func (v *verifier) caller(token string) (string, error) {
	if len(token) > maxToken {
		return "", errors.New("service token is too long")
	}
	now := v.now()
	v.mu.RLock()
	c, ok := v.verified[token]
	v.mu.RUnlock()
	if ok && now.Before(c.expires) {
		return c.service, nil
	}
	var claims jwt.RegisteredClaims
	_, err := v.parser.ParseWithClaims(token, &claims, func(*jwt.Token) (any, error) {
		keys, ok := v.keys[claims.Issuer]
		if !ok {
			return nil, errors.New("unknown service")
		}
		var set jwt.VerificationKeySet
		for _, key := range keys {
			set.Keys = append(set.Keys, key)
		}
		return set, nil
	})
	if err != nil {
		return "", fmt.Errorf("service token: %w", err)
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if len(v.verified) >= maxVerified {
		clear(v.verified)
	}
	v.verified[token] = caller{claims.Issuer, claims.ExpiresAt.Time}
	return claims.Issuer, nil
}
