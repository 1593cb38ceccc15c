// Package token mints and verifies the HMAC tokens in mail links. A token is valid
// for one purpose and one subject only:
//
//	v1.<key id>.<purpose>.<expiry, Unix seconds or 0>.<mac, base64url>
//
// The MAC covers the subject, which is not in the token but beside it in the URL
// or body. Each purpose has its own key, derived by HKDF from the key of the ring.
package token

import (
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"waitlist.internal/libs/keyring"
)

// Purpose is what a token authorizes.
type Purpose string

// The purposes in use.
const (
	VerifySignup  Purpose = "verify"
	Unsubscribe   Purpose = "unsub"
	DeleteData    Purpose = "delete"
	VerifyAccount Purpose = "account"
	ResetPassword Purpose = "reset"
	// Departed and Network are the purposes of hashes, not of tokens; see Hasher.
	Departed Purpose = "departed"
	// logged is the purpose of pseudonyms.
	logged  Purpose = "log"
	Network Purpose = "network"
)

const (
	version = "v1"
	// maxLen bounds the length of a token, in bytes; a real one has about 90.
	maxLen = 256
	keyLen = 32
)

// ErrInvalid means that a token is not valid, for whatever reason.
var ErrInvalid = errors.New("token: invalid or expired")

// Ring signs with its first key and accepts all keys, so that a rotation does not
// break links in mails already sent.
type Ring struct{ keys []keyring.Key }

// ParseRing parses a ring in the format of package keyring; each key has at least
// 32 bytes.
func ParseRing(s string) (*Ring, error) {
	keys, err := keyring.Parse(s, keyLen, 0)
	if err != nil {
		return nil, fmt.Errorf("token keys: %w", err)
	}
	return &Ring{keys}, nil
}

// Mint returns a token for subject that is valid until expires; the zero time
// means forever.
func (r *Ring) Mint(p Purpose, subject string, expires time.Time) string {
	var exp int64
	if !expires.IsZero() {
		exp = expires.Unix()
	}
	head := strings.Join([]string{version, r.keys[0].ID, string(p), strconv.FormatInt(exp, 10)}, ".")
	return head + "." + base64.RawURLEncoding.EncodeToString(mac(r.keys[0], p, head, subject))
}

// Verify returns nil if a key of the ring minted token for this purpose and subject
// and the token has not expired at now. It returns ErrInvalid otherwise.
func (r *Ring) Verify(p Purpose, subject, token string, now time.Time) error {
	if len(token) > maxLen {
		return ErrInvalid
	}
	parts := strings.Split(token, ".")
	if len(parts) != 5 || parts[0] != version || parts[2] != string(p) {
		return ErrInvalid
	}
	head := token[:strings.LastIndexByte(token, '.')]
	for _, k := range r.keys {
		if k.ID != parts[1] {
			continue
		}
		// As text: decoding would pass over line ends.
		if !hmac.Equal([]byte(parts[4]), []byte(base64.RawURLEncoding.EncodeToString(mac(k, p, head, subject)))) {
			return ErrInvalid
		}
		exp, err := strconv.ParseInt(parts[3], 10, 64)
		if err != nil || (exp != 0 && now.Unix() >= exp) {
			return ErrInvalid
		}
		return nil
	}
	return ErrInvalid
}

// Hasher returns a function that hashes a subject with every key of the ring, the first
// key first. Store the first hash, and look for all of them: a hash, like a token, is
// recognized as long as its key is in the ring.
func (r *Ring) Hasher(p Purpose) func(subject string) [][]byte {
	subs := make([][]byte, len(r.keys))
	for i, k := range r.keys {
		subs[i] = subkey(k, p)
	}
	return func(subject string) [][]byte {
		out := make([][]byte, len(subs))
		for i, sub := range subs {
			m := hmac.New(sha256.New, sub)
			m.Write([]byte(subject))
			out[i] = m.Sum(nil)
		}
		return out
	}
}

// Pseudonym returns what logs and spans show instead of an email address or phone number:
// the first 12 hex digits of its hash with the first key. Equal addresses have equal
// pseudonyms until a rotation. They are too short to identify an address with confidence.
func (r *Ring) Pseudonym(address string) string {
	m := hmac.New(sha256.New, subkey(r.keys[0], logged))
	m.Write([]byte(address))
	return hex.EncodeToString(m.Sum(nil)[:6])
}

func subkey(k keyring.Key, p Purpose) []byte {
	// HKDF with SHA-256 fails only above 8160 bytes of output.
	sub, err := hkdf.Key(sha256.New, k.Secret, nil, "waitlist link token "+string(p), keyLen)
	if err != nil {
		panic(err)
	}
	return sub
}

func mac(k keyring.Key, p Purpose, head, subject string) []byte {
	m := hmac.New(sha256.New, subkey(k, p))
	m.Write([]byte(head))
	m.Write([]byte{0})
	m.Write([]byte(subject))
	return m.Sum(nil)
}

// SignupSubject names one signup by its waitlist and its number there.
func SignupSubject(waitlistID string, number int64) string {
	return waitlistID + ":" + strconv.FormatInt(number, 10)
}

// AccountSubject names one verification cycle, or one password generation, of an
// account. Its tokens are no longer valid in the next one.
func AccountSubject(accountID string, generation int64) string {
	return accountID + ":" + strconv.FormatInt(generation, 10)
}
