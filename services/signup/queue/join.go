package queue

import (
	"time"

	"waitlist.internal/services/signup/waitlist"
)

// Bounds of a person's names and phone number in code points.
const (
	MaxName  = 100
	MaxPhone = 32
)

// Join is one validated signup, ready to be stored.
type Join struct {
	// Traceparent is the trace context of the request if its trace is sampled, else "".
	Traceparent string
	// Waitlist is the state of the waitlist that it was validated against.
	Waitlist    *waitlist.Waitlist
	Email       string
	FirstName   string
	LastName    string
	Phone       string
	Timezone    string
	Device      string
	UTMSource   string
	UTMMedium   string
	UTMCampaign string
	UTMTerm     string
	UTMContent  string
	Answers     []byte // JSON object, nil: none
	ReferredBy  Token
	HasReferrer bool
	// Evidence is set if there is a referral token and the referral guard is on.
	Evidence       Evidence
	ConsentAt      time.Time // zero: none given
	ConsentVersion string
	PolicyVersion  string
	Token          Token
	CreatedAt      time.Time
}

// From returns the key by which the guard looks up j's referral.
func (j *Join) From() ReferralFrom {
	return ReferralFrom{Referrer: j.ReferredBy, Network: j.Evidence.Network, Person: j.Evidence.Person}
}

// Outcome is the result of a Join.
type Outcome struct {
	// Err says why the join stays out. The other fields are then empty.
	Err error
	// Existing says that the address was on the list before.
	Existing bool
	// Number, Position and Total describe a new signup as of its transaction.
	// Position is 0 if a repeated attempt found its own row, whose place has to be
	// looked up.
	Number   int64
	Position int64
	Total    int64
}

// Network identifies the network of a client to one waitlist, as a part of a keyed hash.
// The zero value is an unknown network.
type Network [16]byte

// Person identifies an address to one waitlist, without what its provider ignores, as a
// part of a keyed hash. The zero value is unknown.
type Person [16]byte

// Evidence is what a signup form says about its referral.
type Evidence struct {
	// Disposable: the address is at a provider of throwaway addresses.
	Disposable bool
	// TooFast: the form was sent right after it was shown.
	TooFast bool
	Network Network
	Person  Person
}

// ReferralFrom is a referrer and somebody whom it referred.
type ReferralFrom struct {
	Referrer Token
	Network  Network
	Person   Person
}
