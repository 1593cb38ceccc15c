package account

import (
	"context"
	"crypto/rand"
	_ "embed"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/alexedwards/argon2id"
	"golang.org/x/text/unicode/norm"

	"waitlist.internal/libs/apierr"
)

// hashParams are OWASP's minimum for argon2id: 19 MiB, two passes, one lane.
var hashParams = argon2id.Params{Memory: 19456, Iterations: 2, Parallelism: 1, SaltLength: 16, KeyLength: 32}

// The bounds on a password, in bytes.
const (
	MinPassword = 8
	MaxPassword = 1024
)

// passwords hashes and compares passwords with bounded concurrency.
type passwords struct {
	slots chan struct{}
	// patience bounds how long a request waits for a slot.
	patience time.Duration
	// dummy is the hash to compare with if there is no account, so that the
	// response takes as long.
	dummy string
}

func newPasswords(concurrency int, patience time.Duration) *passwords {
	// The key is random, so nobody knows a password for it. Hashing one would take 19 MiB,
	// which an idle process keeps for minutes, until its next garbage collection.
	salt, key := make([]byte, hashParams.SaltLength), make([]byte, hashParams.KeyLength)
	_, _ = rand.Read(salt) // never fails
	_, _ = rand.Read(key)
	b64 := base64.RawStdEncoding.EncodeToString
	dummy := fmt.Sprintf("$argon2id$v=19$m=%d,t=%d,p=%d$%s$%s",
		hashParams.Memory, hashParams.Iterations, hashParams.Parallelism, b64(salt), b64(key))
	return &passwords{slots: make(chan struct{}, max(concurrency, 1)), patience: patience, dummy: dummy}
}

// withPassword returns the account with the hash of a new password. Every reset token ends, and
// nothing asks for a reset mail any more.
func (a Account) withPassword(hash string) Account {
	a.PasswordHash, a.ResetSentAt = hash, time.Time{}
	a.PasswordGeneration++
	return a
}

// turn calls fn once a slot is free. It returns RATE_LIMITED if that takes too long.
func (p *passwords) turn(ctx context.Context, fn func() error) error {
	busy := apierr.New(apierr.RateLimited, "Too many logins at the moment. Please try again.").WithRetryAfter(time.Second)
	t := time.NewTimer(p.patience)
	defer t.Stop()
	select {
	case p.slots <- struct{}{}: // a free slot wins over an expired timeout
	default:
		select {
		case p.slots <- struct{}{}:
		case <-ctx.Done():
			if errors.Is(ctx.Err(), context.Canceled) {
				return ctx.Err()
			}
			return busy
		case <-t.C:
			return busy
		}
	}
	defer func() { <-p.slots }()
	return fn()
}

// hash returns the PHC string of a password in NFC: keyboards differ in how they compose a character.
func (p *passwords) hash(ctx context.Context, password string) (phc string, err error) {
	err = p.turn(ctx, func() error {
		phc, err = argon2id.CreateHash(norm.NFC.String(password), &hashParams)
		return err
	})
	return phc, err
}

// compare reports whether a password matches a hash and whether the hash uses
// outdated parameters. Call it within turn. An empty hash matches no password and
// takes the same time.
func (p *passwords) compare(password, phc string) (match, outdated bool, err error) {
	known := phc != ""
	if !known {
		phc = p.dummy
	}
	match, params, err := argon2id.CheckHash(norm.NFC.String(password), phc)
	if err != nil {
		return false, false, err
	}
	return match && known, *params != hashParams, nil
}

// CheckPassword returns the field error of a new password that is too short or too
// long, or, with RefuseCommonPasswords, that is common or the address itself. The
// address may be empty.
func (s *Service) CheckPassword(password, address string) []apierr.Field {
	wrong := func(message string) []apierr.Field { return []apierr.Field{{Field: "password", Message: message}} }
	switch n := len(password); {
	case n < MinPassword:
		return wrong("This must have at least 8 characters.")
	case n > MaxPassword:
		return wrong("This must have at most 1024 bytes.")
	case !s.RefuseCommonPasswords:
		return nil
	case strings.EqualFold(password, address):
		return wrong("Do not use your email address as your password.")
	case commonPasswords()[strings.ToLower(password)]:
		return wrong("Many people use this password. Choose another one.")
	}
	return nil
}

// commonText holds the 10,000 most common passwords, without those shorter than
// MinPassword, one per line: from the npm package @zxcvbn-ts/language-common (MIT, see
// LICENSE.common-passwords). update.sh fetches the newest list.
//
//go:embed common_passwords.txt
var commonText string

var commonPasswords = sync.OnceValue(func() map[string]bool {
	common := map[string]bool{}
	for line := range strings.Lines(commonText) {
		common[strings.TrimSuffix(line, "\n")] = true
	}
	return common
})
