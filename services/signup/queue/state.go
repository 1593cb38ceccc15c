package queue

import (
	"time"

	eventv1 "waitlist.internal/proto/gen/waitlist/event/v1"
	"waitlist.internal/services/signup/waitlist"
)

// keySpacing is the distance between the queue keys of consecutive signups. A
// gap can be halved 20 times before the queue needs respacing. Redis scores are
// exact up to 2^53, which is enough for 8.6 billion signups.
const keySpacing = 1 << 20

// State holds the counters of a waitlist after its newest change. It is zero
// before the first change.
type State struct {
	// Change is the number of that change.
	Change int64
	// Live is the number of live signups, Total the displayed counter.
	Live, Total int64
	// Credited is the number of live signups with a credited referrer.
	Credited int64
	// LastNumber is the number of the newest signup, live or not.
	LastNumber int64
}

// Locked is what the store reads for a batch while it holds the waitlist's lock.
type Locked struct {
	// SettingsVersion and OwnerVersion are the stored versions.
	SettingsVersion, OwnerVersion int64
	// Waitlist is the stored waitlist. It is nil unless Outdated holds for a join.
	Waitlist *waitlist.Waitlist
	State    State
	// LastKey is the highest queue key, 0 in an empty queue.
	LastKey int64
	// Present maps each address of the batch that is on the list to its signup.
	Present map[string]PresentRow
	// Referrers maps the tokens that the batch names to the live signups they
	// belong to.
	Referrers map[Token]ReferrerRow
	// Seen has what the referral guard knows, for each referrer and network of the batch.
	// It is empty where the guard is off.
	Seen map[ReferralFrom]Seen
}

// PresentRow identifies a signup that is on the list.
type PresentRow struct {
	Token  Token
	Number int64
}

// ReferrerRow is a referrer as stored, without the credits of the batch.
type ReferrerRow struct {
	Number, Count int64
	Email         string
	// Key is its queue key. Ahead has the keys of the signups directly ahead of it, the
	// nearest first, at most as many as KeysNeeded says. Front says that there are no others ahead.
	Key   int64
	Ahead []int64
	Front bool
}

// Outdated reports whether j was validated against settings or an entitlement
// that are no longer the stored ones.
func (l *Locked) Outdated(j *Join) bool {
	return j.Waitlist.Version != l.SettingsVersion || j.Waitlist.Owner.Version != l.OwnerVersion
}

// Batch is the decision about a batch of joins. The store writes all of it in one
// transaction, or nothing if there are no Inserts.
type Batch struct {
	// Outcomes are in the order of the joins.
	Outcomes []Outcome
	Inserts  []Insert
	// Credits are in the order of the signups that gave them, and must be applied one after
	// the other: then each signup with its credit is one step, as if it had come alone. It
	// makes no difference that all signups are inserted before, because a credit moves past
	// people who stand ahead, and whoever signs up later stands behind.
	Credits []Credit
	// Moves is the combined effect of the credits, in the order of the new keys. It is
	// nil if the keys that were read do not show it; the store then applies Credits.
	Moves []Move
	// CreditedAt is when the referrers reach their new counts.
	CreditedAt time.Time
	Events     []*eventv1.Event
	// Traceparents has the trace context of each event's request. It is nil if no trace of
	// the batch is sampled.
	Traceparents []string
	// State is what the change log records after the batch.
	State State
}

// Insert is a new signup.
type Insert struct {
	*Join
	Number, Key int64
	// Referred says that ReferredBy is on the list, credited or not.
	Referred bool
	// ReferrerNumber is the credited referrer's, 0 without one.
	ReferrerNumber int64
	// Guarded says that the referral guard looked at the referral. Flagged names what it
	// found, "" if that is below the threshold.
	Guarded bool
	Flagged string
}

// Credit is what one referrer gains by one signup, or by several in a row.
type Credit struct {
	Number int64
	// Count is the number of new referrals, Places how far they move the referrer up.
	Count  int32
	Places int64
}

// Move is the combined effect of a batch's credits on one referrer.
type Move struct {
	Number int64
	// From and To are its old and its new queue key, which may be equal.
	From, To int64
	// Count is the number of new referrals.
	Count int32
}

// Seen counts, among a referrer's last referrals, the ones from one network and the
// ones of the last 10 minutes.
type Seen struct {
	FromNetwork, Lately int
	// Again says that the referrer has referred this person before, even if the person has
	// left since.
	Again bool
}
