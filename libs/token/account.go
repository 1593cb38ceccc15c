package token

import (
	"strconv"
	"strings"
	"time"
)

// MintAccount returns the token of an account mail's link. It says itself whose
// it is, since the request that brings it names no account:
//
//	<account id>.<generation>.<token for AccountSubject>
//
// p is VerifyAccount or ResetPassword.
func (r *Ring) MintAccount(p Purpose, accountID string, generation int64, expires time.Time) string {
	return accountID + "." + strconv.FormatInt(generation, 10) + "." + r.Mint(p, AccountSubject(accountID, generation), expires)
}

// ParseAccount splits what MintAccount made. It checks nothing but the form:
// what it returns is to be trusted after Verify of inner for
// AccountSubject(accountID, generation).
func ParseAccount(token string) (accountID string, generation int64, inner string, err error) {
	accountID, rest, ok := strings.Cut(token, ".")
	number, inner, ok2 := strings.Cut(rest, ".")
	if !ok || !ok2 || len(token) > 2*maxLen || accountID == "" {
		return "", 0, "", ErrInvalid
	}
	generation, err = strconv.ParseInt(number, 10, 64)
	// One spelling for each number: a token has no second form.
	if err != nil || strconv.FormatInt(generation, 10) != number {
		return "", 0, "", ErrInvalid
	}
	return accountID, generation, inner, nil
}
