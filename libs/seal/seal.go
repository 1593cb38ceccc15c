// Package seal encrypts secrets that are stored: AES-256-GCM with a random
// nonce, under a ring of keys of which the first encrypts.
//
//	s1.<key id>.<nonce and ciphertext, base64url>
package seal

import (
	"crypto/aes"
	"crypto/cipher"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"
)

const version = "s1"

// ErrCorrupt is returned for a value that no key of the ring opens.
var ErrCorrupt = errors.New("seal: value cannot be opened")

type key struct {
	id   string
	aead cipher.AEAD
}

// Ring encrypts with its first key and decrypts with any of them.
type Ring struct{ keys []key }

// ParseRing reads "id:base64,id:base64" with keys of exactly 32 bytes.
func ParseRing(s string) (*Ring, error) {
	var r Ring
	seen := map[string]bool{}
	for part := range strings.SplitSeq(s, ",") {
		id, b64, ok := strings.Cut(strings.TrimSpace(part), ":")
		if !ok || id == "" || strings.ContainsAny(id, ". ") || seen[id] {
			return nil, errors.New("seal keys: want distinct id:base64 pairs separated by commas")
		}
		secret, err := base64.StdEncoding.DecodeString(b64)
		if err != nil {
			return nil, fmt.Errorf("seal key %q: %w", id, err)
		}
		if len(secret) != 32 {
			return nil, fmt.Errorf("seal key %q: %d bytes, want 32", id, len(secret))
		}
		block, err := aes.NewCipher(secret)
		if err != nil {
			return nil, fmt.Errorf("seal key %q: %w", id, err)
		}
		aead, err := cipher.NewGCMWithRandomNonce(block)
		if err != nil {
			return nil, fmt.Errorf("seal key %q: %w", id, err)
		}
		seen[id] = true
		r.keys = append(r.keys, key{id: id, aead: aead})
	}
	return &r, nil
}

// Seal encrypts plain. aad names the place where the value is kept, so that it
// opens nowhere else.
func (r *Ring) Seal(plain []byte, aad string) string {
	k := r.keys[0]
	return strings.Join([]string{
		version, k.id, base64.RawURLEncoding.EncodeToString(k.aead.Seal(nil, nil, plain, []byte(aad))),
	}, ".")
}

// Open returns what Seal encrypted for the same aad, or ErrCorrupt.
func (r *Ring) Open(sealed, aad string) ([]byte, error) {
	parts := strings.Split(sealed, ".")
	if len(parts) != 3 || parts[0] != version {
		return nil, ErrCorrupt
	}
	box, err := base64.RawURLEncoding.DecodeString(parts[2])
	if err != nil {
		return nil, ErrCorrupt
	}
	for _, k := range r.keys {
		if k.id != parts[1] {
			continue
		}
		plain, err := k.aead.Open(nil, nil, box, []byte(aad))
		if err != nil {
			return nil, ErrCorrupt
		}
		return plain, nil
	}
	return nil, ErrCorrupt
}
