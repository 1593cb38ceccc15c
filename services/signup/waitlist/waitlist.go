// Package waitlist has a waitlist with its settings: their defaults and bounds, which plan
// each needs, and how they are changed, stored and shown. It does no I/O.
package waitlist

import (
	"time"

	"github.com/google/uuid"

	"waitlist.internal/libs/access"
	"waitlist.internal/libs/apierr"
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

// ParseID returns the canonical form of a waitlist's id; ok is false if s is not a
// UUID in its usual form.
func ParseID(s string) (id string, ok bool) {
	parsed, err := uuid.Parse(s)
	// uuid.Parse accepts other forms, too.
	if err != nil || len(s) != len(uuid.Nil.String()) {
		return "", false
	}
	return parsed.String(), true
}

// ErrNotFound returns NOT_FOUND for a waitlist.
func ErrNotFound() error { return apierr.NotFoundf("There is no such waitlist.") }
