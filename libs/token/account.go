package token

import (
	"strconv"
	"strings"
	"time"
)

// MintAccount returns a token for a link in an account mail. The token names its
// account, since the request with the token does not:
//
//	<account id>.<generation>.<token for AccountSubject>
//
// p is VerifyAccount or ResetPassword.
func (r *Ring) MintAccount(p Purpose, accountID string, generation int64, expires time.Time) string {
	return accountID + "." + strconv.FormatInt(generation, 10) + "." + r.Mint(p, AccountSubject(accountID, generation), expires)
}

// ParseAccount splits a token from MintAccount. It checks only the form: trust the
// results after Verify of inner for AccountSubject(accountID, generation).
func ParseAccount(token string) (accountID string, generation int64, inner string, err error) {
	accountID, rest, ok := strings.Cut(token, ".")
	number, inner, ok2 := strings.Cut(rest, ".")
	if !ok || !ok2 || len(token) > 2*maxLen || accountID == "" {
		return "", 0, "", ErrInvalid
	}
	generation, err = strconv.ParseInt(number, 10, 64)
	// Accept one spelling of each number, so that a token has no second form.
	if err != nil || strconv.FormatInt(generation, 10) != number {
		return "", 0, "", ErrInvalid
	}
	return accountID, generation, inner, nil
}
