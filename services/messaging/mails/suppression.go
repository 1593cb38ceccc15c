package mails

import "context"

// Suppressions are the addresses that get only mails that they asked for.
type Suppressions interface {
	// Suppressed returns which of emails are suppressed.
	Suppressed(ctx context.Context, emails []string) (map[string]bool, error)
}

// SuppressionReason is why an address is suppressed.
type SuppressionReason string

// The reasons.
const (
	// Bounced addresses do not exist or permanently refuse mail.
	Bounced SuppressionReason = "bounce"
	// Complained addresses belong to people who reported a mail as spam.
	Complained SuppressionReason = "complaint"
)
