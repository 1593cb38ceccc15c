// Package keyring parses rings of secret keys, configured as
// "id:base64,id:base64". The first key signs or encrypts; the others are still
// accepted, so that a rotation breaks nothing that was issued before.
package keyring

import (
	"encoding/base64"
	"errors"
	"fmt"
	"strings"
)

// Key is a secret and its public id, which has no dots or spaces.
type Key struct {
	ID     string
	Secret []byte
}

// ErrFormat means that the text is not a list of distinct id:base64 pairs.
var ErrFormat = errors.New("write keys as id:base64 pairs with distinct ids, separated by commas")

// Parse parses a ring of at least one key. Each secret must have from minBytes to
// maxBytes bytes (0: no upper bound).
func Parse(s string, minBytes, maxBytes int) ([]Key, error) {
	var keys []Key
	seen := map[string]bool{}
	for part := range strings.SplitSeq(s, ",") {
		id, b64, ok := strings.Cut(strings.TrimSpace(part), ":")
		if !ok || id == "" || strings.ContainsAny(id, ". ") || seen[id] {
			return nil, ErrFormat
		}
		secret, err := base64.StdEncoding.DecodeString(b64)
		if err != nil {
			return nil, fmt.Errorf("key %q: %w", id, err)
		}
		switch {
		case len(secret) < minBytes:
			return nil, fmt.Errorf("key %q has %d bytes, want at least %d", id, len(secret), minBytes)
		case maxBytes > 0 && len(secret) > maxBytes:
			return nil, fmt.Errorf("key %q has %d bytes, want at most %d", id, len(secret), maxBytes)
		}
		seen[id] = true
		keys = append(keys, Key{ID: id, Secret: secret})
	}
	return keys, nil
}
