package token_test

import (
	"encoding/base64"
	"errors"
	"strconv"
	"strings"
	"testing"
	"time"

	"waitlist.internal/libs/token"
	"waitlist.internal/libs/token/tokentest"
)

const accountID = "0197f0c4-6d0e-7cc1-a2a3-0123456789ab"

func accountRing(t *testing.T) *token.Ring {
	t.Helper()
	r, err := token.ParseRing("k1:" + base64.StdEncoding.EncodeToString([]byte(strings.Repeat("s", 32))))
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// verifyAccount verifies a token as the receiver of a link does.
func verifyAccount(r *token.Ring, p token.Purpose, tok string, now time.Time) (string, int64, error) {
	id, generation, inner, err := token.ParseAccount(tok)
	if err != nil {
		return "", 0, err
	}
	return id, generation, r.Verify(p, token.AccountSubject(id, generation), inner, now)
}

func TestAccountTokenCarriesItsAccount(t *testing.T) {
	r, now := accountRing(t), time.Unix(1_800_000_000, 0)
	tok := r.MintAccount(token.ResetPassword, accountID, 7, now.Add(time.Hour))
	id, generation, err := verifyAccount(r, token.ResetPassword, tok, now)
	if err != nil || id != accountID || generation != 7 {
		t.Fatalf("got %q, %d, %v", id, generation, err)
	}
	if _, _, err := verifyAccount(r, token.VerifyAccount, tok, now); !errors.Is(err, token.ErrInvalid) {
		t.Fatalf("for another purpose: %v", err)
	}
	if _, _, err := verifyAccount(r, token.ResetPassword, tok, now.Add(time.Hour)); !errors.Is(err, token.ErrInvalid) {
		t.Fatalf("expired: %v", err)
	}
}

func TestAccountTokenTampered(t *testing.T) {
	r, now, tried := accountRing(t), time.Unix(1_800_000_000, 0), 0
	for _, kind := range []token.Purpose{token.VerifyAccount, token.ResetPassword} {
		tok := r.MintAccount(kind, accountID, 3, now.Add(time.Hour))
		for bad := range tokentest.Tampered(tok, tokentest.Bytes()) {
			if _, _, err := verifyAccount(r, kind, bad, now); !errors.Is(err, token.ErrInvalid) {
				t.Fatalf("%s: %q for %q: %v", kind, bad, tok, err)
			}
			tried++
		}
	}
	t.Logf("%d refused", tried)
	for _, bad := range []string{"", ".", "..", "a.1", "a.+1.x", "a.01.x", ".1.x", "a.x.y", strings.Repeat("a", 1000) + ".1.x"} {
		if _, _, _, err := token.ParseAccount(bad); !errors.Is(err, token.ErrInvalid) {
			t.Fatalf("%q: %v", bad, err)
		}
	}
}

func FuzzParseAccount(f *testing.F) {
	f.Add(accountID + ".3.v1.k1.account.0.AAAA")
	f.Add("..")
	f.Fuzz(func(t *testing.T, s string) {
		id, generation, inner, err := token.ParseAccount(s)
		if err == nil && id+"."+strconv.FormatInt(generation, 10)+"."+inner != s {
			t.Fatalf("%q has a second form", s)
		}
	})
}
