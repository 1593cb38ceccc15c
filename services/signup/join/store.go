package join

import (
	"context"
	"time"

	"waitlist.internal/libs/audit"
	"waitlist.internal/services/signup/queue"
	"waitlist.internal/services/signup/waitlist"
)

// Store stores waitlists and signups. Its errors are those of the API, or else
// Postgres's own.
type Store interface {
	readStore
	linkStore
	ownerStore
	// Join runs one batch of signups to a waitlist in one transaction: it takes the
	// waitlist's lock, reads what decide needs, writes what decide returns, and returns it. If it
	// fails, none of the joins was committed, apart from the case that RetryError
	// names. It returns a RowError or a RetryError where they apply.
	Join(ctx context.Context, waitlistID string, joins []*queue.Join, decide func(*queue.Locked) *queue.Batch) (*queue.Batch, error)
}

// readStore reads waitlists and signups.
type readStore interface {
	// Waitlist returns a waitlist. NOT_FOUND: it does not exist or was deleted.
	Waitlist(ctx context.Context, id string) (*waitlist.Waitlist, error)
	// Views returns, for each address, the waitlist's counters and the signup, if there is one, all of one moment. It
	// returns their ranks if at most rankUpTo signups are live.
	Views(ctx context.Context, waitlistID string, emails []string, rankUpTo int64) ([]queue.View, error)
	// Leaderboard returns the referral counts of the first limit referrers.
	Leaderboard(ctx context.Context, waitlistID string, limit int) ([]int64, error)
}

// linkStore does what the links in mails ask for.
type linkStore interface {
	// Verify marks a signup's address as verified. It returns false if it was verified
	// before. With credit it also gives the credit for the referral, if it is still owed.
	Verify(ctx context.Context, w *waitlist.Waitlist, number int64, at time.Time, credit bool) (bool, error)
	// OptOut marks a signup as opted out. A second call changes nothing.
	OptOut(ctx context.Context, w *waitlist.Waitlist, number int64, at time.Time) error
	// RequestLink asks for the mail with a signup's place and link. number is 0 for an address that is not on
	// the list: equal work hides that from whoever measures the time.
	RequestLink(ctx context.Context, w *waitlist.Waitlist, number int64) error
	// Offboarded returns the number of the signup that an address had when its removal
	// asked for an offboarding mail. NOT_FOUND: no removal did.
	Offboarded(ctx context.Context, waitlistID, email string) (number int64, err error)
	// OptOutOffboarded opts such an address out, in case it is imported again. A
	// second call changes nothing.
	OptOutOffboarded(ctx context.Context, waitlistID, email string, at time.Time) error
}

// ownerStore changes signups.
type ownerStore interface {
	// Credit gives a signup's referrer the credit unless it has the credit already.
	// NOT_FOUND: the signup was removed.
	Credit(ctx context.Context, w *waitlist.Waitlist, number int64, by audit.Entry) (queue.Credited, error)
	// Remove deletes a signup and closes its gap. NOT_FOUND: it was removed before. An
	// opt-out is remembered for a later import. by is zero for people's own requests.
	Remove(ctx context.Context, w *waitlist.Waitlist, number int64, why queue.Removal, by audit.Entry) error
	// Move moves a signup to a position, at most the last one, and returns its new
	// place.
	Move(ctx context.Context, w *waitlist.Waitlist, number, position int64, by audit.Entry) (int64, error)
}
