package messaging

import (
	"strings"
	"time"

	"waitlist.internal/libs/access"
	"waitlist.internal/libs/apierr"
	"waitlist.internal/libs/emailaddr"
)

// workFor returns the actor's grant as choose does, and checks the owner's subscription.
func workFor(actor access.Actor, accountEmail string, now time.Time) (access.Grant, error) {
	grant, err := choose(actor, accountEmail)
	if err == nil {
		err = actor.MemberGate(grant, now)
	}
	return grant, err
}

// choose returns the actor's grant for the account that the header X-Account-Email selects, which
// is the actor's own if the header is empty. The error is FORBIDDEN outside the owner's team.
func choose(actor access.Actor, accountEmail string) (access.Grant, error) {
	if parsed, err := emailaddr.Parse(accountEmail); err == nil {
		accountEmail = parsed
	}
	grant, ok := actor.GrantByEmail(strings.TrimSpace(accountEmail))
	if !ok {
		return access.Grant{}, apierr.New(apierr.Forbidden, "You are not a member of this account's team.")
	}
	return grant, nil
}
