// Package messaging sends every mail of the suite. Events ask for mails; each
// becomes one row of a ledger in the transaction that takes the event, and the
// Sender works the ledger off:
//
//	event ─► kafka ─► ledger row (queued) ─► Sender ─► Provider
//	                     └─ by event id         └─ sent, failed, or again later
//
// A redelivered event finds its row. A mail provider that is away delays mails,
// never events. Tokens are minted when a mail is composed: they stand in no
// event and in no table.
package messaging

import (
	"context"
	"crypto/rsa"
	stdmail "net/mail"
	"time"
)

// Service is the service's name.
const Service = "messaging"

// Kind says what a mail is for.
type Kind string

// The kinds.
const (
	AccountVerification Kind = "account_verification"
	PasswordReset       Kind = "password_reset"
	SignupVerification  Kind = "signup_verification"
	TeamInvite          Kind = "team_invite"
	TrialEnding         Kind = "trial_ending"
	// Those about signups are decided upon once more when they are sent; see
	// Mailing. ReferralSMS is a text message.
	SignupConfirmation   Kind = "signup_confirmation"
	ReferralMilestone    Kind = "referral_milestone"
	Offboarding          Kind = "offboarding"
	ReferralNotification Kind = "referral_notification"
	ReferralSMS          Kind = "sms"
)

// Request is a mail that an event asks for. What is not needed for its kind is
// empty.
type Request struct {
	// EventID identifies the mail. It is the event's id, or derived from what asks
	// for it where an event asks for several.
	EventID string
	Kind    Kind
	// Recipient is a normalised address; empty where signup is asked for it when the
	// mail is sent.
	Recipient string
	// AccountID and Generation are what the token of an account mail is bound to.
	// Mails without such a token have the AccountID of the owner in whose name they
	// are.
	AccountID  string
	Generation int64
	// OwnerEmail invites; Role is admin or viewer.
	OwnerEmail string
	Role       string
	// WaitlistID and Number are what the token of a signup's mail is bound to.
	WaitlistID   string
	WaitlistName string
	Number       int64
	// FirstName and LastName are those of a signup that has gone.
	FirstName, LastName string
	// Milestone is the count of referrals that was reached.
	Milestone int64
	// ExpiresAt ends the mail's use; it is not sent after that. Zero: never.
	ExpiresAt time.Time
	// RequestedAt is when the event occurred.
	RequestedAt time.Time
	// Traceparent is the trace context of the event.
	Traceparent string
}

// Claimed is a request that this process is to send now.
type Claimed struct {
	Request
	// Deferrals counts how often the provider put it off.
	Deferrals int
}

// Mail is one mail as it goes out, the format aside.
type Mail struct {
	// ID makes its Message-ID, and so stays the same when it is sent again.
	ID      string
	To      string
	Subject string
	// One of Text and HTML may be empty.
	Text string
	HTML string
	Date time.Time
	// From is whom it comes from; zero: the provider's default sender.
	From stdmail.Address
	// Unsubscribe is the URL of a one-click POST (RFC 8058) that the mail's headers
	// name; empty: none.
	Unsubscribe string
	// DKIM signs the mail, by providers that send it as it is; nil: it is not signed.
	DKIM *DKIM
}

// DKIM is a key that signs mails from a domain (RFC 6376).
type DKIM struct {
	Domain, Selector string
	Key              *rsa.PrivateKey
}

// Senders knows in whose name an owner's mails go out.
type Senders interface {
	// Sender returns the sender of an owner's mails to people and what signs them:
	// the newest verified domain's, or zero values for the default sender.
	Sender(ctx context.Context, ownerID string) (stdmail.Address, *DKIM, error)
}

// Provider takes mails. It is safe for concurrent use.
type Provider interface {
	// Send returns when the provider has taken the mail. A *RefusedError or
	// *DeferredError is about this mail; every other error says that the provider is
	// away. After such an error the mail may have been taken all the same.
	Send(ctx context.Context, m Mail) error
	Close() error
}

// MaxBatch is how many mails a BatchProvider takes at a time.
const MaxBatch = 100

// BatchProvider is a Provider that also takes several mails at once.
type BatchProvider interface {
	Provider
	// SendBatch sends up to MaxBatch mails; the errors are per mail, as Send's. What
	// was taken under a key within the last 24 hours is not sent again, so a call may be
	// repeated until it is answered. A repeated call may miss mails of the first, not
	// have others.
	SendBatch(ctx context.Context, key string, mails []Mail) []error
}

// SMS is one text message.
type SMS struct {
	ID string
	// To is an E.164 number.
	To   string
	Text string
}

// SMSProvider takes text messages. It is safe for concurrent use.
type SMSProvider interface {
	// SendSMS has the errors of Provider.Send.
	SendSMS(ctx context.Context, m SMS) error
}

// RefusedError says that the provider will never take this mail.
type RefusedError struct{ Reason string }

func (e *RefusedError) Error() string { return "mail refused: " + e.Reason }

// DeferredError says that the provider may take this mail later.
type DeferredError struct{ Reason string }

func (e *DeferredError) Error() string { return "mail deferred: " + e.Reason }

// Ledger keeps what is to be sent and what was.
type Ledger interface {
	// Claim takes up to limit requests that are due, the longest due first. Each is this
	// process's alone for the time of lease, and due again after it.
	Claim(ctx context.Context, limit int, lease time.Duration) ([]Claimed, error)
	// Sent ends a request, and forgets the address.
	Sent(ctx context.Context, eventID string) error
	// Failed ends a request that will not be sent, and forgets the address.
	Failed(ctx context.Context, eventID, reason string) error
	// Canceled ends a request that is not wanted any more, and forgets the address.
	Canceled(ctx context.Context, eventID, reason string) error
	// Defer makes a claimed request due after a pause and counts that.
	Defer(ctx context.Context, eventID string, pause time.Duration, reason string) error
	// Return makes claimed requests that were not tried, or could not be, due after a
	// pause.
	Return(ctx context.Context, pause time.Duration, eventIDs ...string) error
	// Prune deletes some rows that ended before a time and returns how many.
	Prune(ctx context.Context, before time.Time) (int64, error)
}
