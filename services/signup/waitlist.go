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
	// Settings are the owner's choices. Settings.Effective limits them to the tier.
	Settings Settings
	// Version counts the changes of name and settings.
	Version int64
	// Owner is the owner's entitlement as last heard from account.
	Owner access.Entitlement
	// SignupCount is the displayed counter, signup_count in the API.
	SignupCount int64
	CreatedAt   time.Time
}
