// Package seal encrypts stored secrets: AES-256-GCM with a random nonce, under the
// first key of a ring.
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

	"waitlist.internal/libs/keyring"
)

const (
	version = "s1"
	keyLen  = 32 // AES-256
)

// ErrCorrupt means that no key of the ring opens a value.
var ErrCorrupt = errors.New("seal: no key opens the value")

type key struct {
	id   string
	aead cipher.AEAD
}

// Ring encrypts with its first key and decrypts with any of them.
type Ring struct{ keys []key }

// ParseRing parses a ring in the format of package keyring; each key has exactly
// 32 bytes.
func ParseRing(s string) (*Ring, error) {
	keys, err := keyring.Parse(s, keyLen, keyLen)
	if err != nil {
		return nil, fmt.Errorf("seal keys: %w", err)
	}
	var r Ring
	for _, k := range keys {
		block, err := aes.NewCipher(k.Secret)
		if err != nil {
			return nil, fmt.Errorf("seal key %q: %w", k.ID, err)
		}
		aead, err := cipher.NewGCMWithRandomNonce(block)
		if err != nil {
			return nil, fmt.Errorf("seal key %q: %w", k.ID, err)
		}
		r.keys = append(r.keys, key{id: k.ID, aead: aead})
	}
	return &r, nil
}

// Seal encrypts plain. aad names the place of the value, so that it opens nowhere
// else.
func (r *Ring) Seal(plain []byte, aad string) string {
	k := r.keys[0]
	return strings.Join([]string{
		version, k.id, base64.RawURLEncoding.EncodeToString(k.aead.Seal(nil, nil, plain, []byte(aad))),
	}, ".")
}

// Renew seals a value again with the first key and the same aad, or returns ErrCorrupt. It
// returns a value of the first key as it is.
func (r *Ring) Renew(sealed, aad string) (string, error) {
	if strings.HasPrefix(sealed, version+"."+r.keys[0].id+".") {
		return sealed, nil
	}
	plain, err := r.Open(sealed, aad)
	if err != nil {
		return "", err
	}
	return r.Seal(plain, aad), nil
}

// Open decrypts what Seal encrypted with the same aad, or returns ErrCorrupt.
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
