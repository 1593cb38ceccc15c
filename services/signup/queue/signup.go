package queue

import (
	"crypto/rand"
	"encoding/hex"
	"time"

	"waitlist.internal/libs/apierr"
)

// Token is a referral token of 16 random bytes. People see it as 32 hex digits.
type Token [16]byte

// String returns the token as people see it.
func (t Token) String() string { return hex.EncodeToString(t[:]) }

// ParseToken reads the form that String returns; ok is false for anything else.
func ParseToken(s string) (t Token, ok bool) {
	if len(s) != 2*len(t) {
		return t, false
	}
	_, err := hex.Decode(t[:], []byte(s))
	return t, err == nil
}

// NewToken returns a random token.
func NewToken() Token {
	var t Token
	_, _ = rand.Read(t[:]) // never fails
	return t
}

// Signup is one live signup.
type Signup struct {
	Number          int64
	QueueKey        int64
	Email           string
	FirstName       string
	LastName        string
	Phone           string
	Token           Token
	ReferralCount   int64
	CreatedAt       time.Time
	EmailVerifiedAt time.Time
	EmailOptOutAt   time.Time
	// Uncredited says that it came by a referral for which nobody has the credit yet.
	Uncredited bool
}

// View describes a waitlist and one of its signups at one moment.
type View struct {
	// SettingsVersion and OwnerVersion tell whether a cached Waitlist is current.
	SettingsVersion int64
	OwnerVersion    int64
	// Change is the number of the waitlist's newest change, Nonce its nonce.
	Change int64
	Nonce  int64
	// Live is the number of live signups, Total the displayed counter.
	Live  int64
	Total int64
	// Signup is nil if the address is not on the list.
	Signup *Signup
	// Rank is the signup's place, 0 if the list is longer than the caller asked for.
	Rank int64
}

// Credited is the result of a request to give a credit.
type Credited int

// The answers to a request to give a credit.
const (
	// CreditGiven: the referrer has it now.
	CreditGiven Credited = iota + 1
	// CreditBefore: the referrer had it before.
	CreditBefore
	// CreditNobody: no referrer is on the list.
	CreditNobody
)

// Removal says why a signup is removed.
type Removal int

// The reasons for a removal. Only OwnRequest lowers the displayed counter.
const (
	OwnRequest Removal = iota + 1
	ByAdmin
)

// ErrNoSignup returns NOT_FOUND for a signup.
func ErrNoSignup() error { return apierr.New(apierr.NotFound, "There is no such signup.") }
