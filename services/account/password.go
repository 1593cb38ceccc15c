package account

import (
	"context"
	"crypto/rand"
	"errors"
	"time"

	"github.com/alexedwards/argon2id"

	"waitlist.internal/libs/apierr"
)

// hashParams is OWASP's minimum for argon2id: 19 MiB, two passes, one lane.
var hashParams = argon2id.Params{Memory: 19456, Iterations: 2, Parallelism: 1, SaltLength: 16, KeyLength: 32}

// The bounds of a password, in bytes.
const (
	MinPassword = 8
	MaxPassword = 1024
)

// passwords hashes and compares, a bounded number at once.
type passwords struct {
	slots chan struct{}
	// patience is how long a request waits for its turn.
	patience time.Duration
	// dummy is compared with where there is no account, so that the answer
	// takes as long.
	dummy string
}

func newPasswords(concurrency int, patience time.Duration) (*passwords, error) {
	dummy, err := argon2id.CreateHash(rand.Text(), &hashParams)
	if err != nil {
		return nil, err
	}
	return &passwords{slots: make(chan struct{}, max(concurrency, 1)), patience: patience, dummy: dummy}, nil
}

// turn calls fn when it is this request's turn to hash. RATE_LIMITED where
// that takes too long.
func (p *passwords) turn(ctx context.Context, fn func() error) error {
	busy := apierr.New(apierr.RateLimited, "Too many logins at the moment. Please try again.").WithRetryAfter(time.Second)
	t := time.NewTimer(p.patience)
	defer t.Stop()
	select {
	case p.slots <- struct{}{}: // a free turn goes before a time-out that is due too
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

// hash returns the PHC string of password.
func (p *passwords) hash(ctx context.Context, password string) (phc string, err error) {
	err = p.turn(ctx, func() error {
		phc, err = argon2id.CreateHash(password, &hashParams)
		return err
	})
	return phc, err
}

// compare reports whether password has the given hash, and whether the hash
// was made with other parameters than today's. It needs a turn. An empty hash
// fits no password and takes as long.
func (p *passwords) compare(password, phc string) (match, outdated bool, err error) {
	known := phc != ""
	if !known {
		phc = p.dummy
	}
	match, params, err := argon2id.CheckHash(password, phc)
	if err != nil {
		return false, false, err
	}
	return match && known, *params != hashParams, nil
}

// CheckPassword returns the field error of a password that can't be chosen.
func CheckPassword(password string) []apierr.Field {
	switch n := len(password); {
	case n < MinPassword:
		return []apierr.Field{{Field: "password", Message: "must have at least 8 characters"}}
	case n > MaxPassword:
		return []apierr.Field{{Field: "password", Message: "must have at most 1024 bytes"}}
	default:
		return nil
	}
}

