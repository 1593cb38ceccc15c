package messaging

// SuppressionReason is why an address is not mailed any more.
type SuppressionReason string

// The reasons.
const (
	// Bounced addresses do not exist, or take no mail for good.
	Bounced SuppressionReason = "bounce"
	// Complained is who called a mail unwanted.
	Complained SuppressionReason = "complaint"
)
