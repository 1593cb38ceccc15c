package signup

import (
	"time"

	"waitlist.internal/libs/access"
)

// Waitlist is a waitlist as it is stored.
type Waitlist struct {
	// ID and OwnerID are UUIDs.
	ID      string
	OwnerID string
	Name    string
	// Settings are as the owner chose them; Settings.Effective says what of it
	// the owner's tier allows.
	Settings Settings
	// Version counts the changes of name and settings.
	Version int64
	// Owner is the projection of the owner's entitlement.
	Owner access.Entitlement
	// SignupCount is the counter that the contract calls signup_count.
	SignupCount int64
	CreatedAt   time.Time
	// Deleted is set from the moment of deletion until the rows are purged.
	Deleted bool
}
