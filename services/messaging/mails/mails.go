// Package mails sends the mails and text messages that events ask for. Each becomes a row of the
// queue in the transaction that consumes its event, and the Sender works through the queue:
//
//	event ─► kafka ─► queued row ─► Sender ─► Provider
//	                     └─ keyed by event id  └─ sent, failed, or later again
//
// A redelivered event finds its row. An outage of the mail provider delays mails, never events.
// Tokens are minted when a mail is composed; no event and no table contains one.
package mails

import (
	"context"
	stdmail "net/mail"
	"time"

	"waitlist.internal/services/messaging/domains"
	"waitlist.internal/services/messaging/templates"
)

// Kind is the purpose of a mail.
type Kind string

// The kinds.
const (
	AccountVerification Kind = "account_verification"
	PasswordReset       Kind = "password_reset"
	PasswordChanged     Kind = "password_changed"
	PasswordRecovered   Kind = "password_recovered"
	APIKeyChanged       Kind = "api_key_changed"
	SignupVerification  Kind = "signup_verification"
	TeamInvite          Kind = "team_invite"
	TrialEnding         Kind = "trial_ending"
	// Whether the following are sent is decided again at the time of sending; see Mailing.
	// ReferralSMS is a text message.
	SignupConfirmation   Kind = "signup_confirmation"
	ReferralMilestone    Kind = "referral_milestone"
	Offboarding          Kind = "offboarding"
	ReferralNotification Kind = "referral_notification"
	ReferralSMS          Kind = "sms"
	SignupLink           Kind = "signup_link"
)

// traits is what sets the mails of a kind apart.
type traits struct {
	// needsMailing: they depend on a Mailing. findsRecipient: their recipient comes from it; requests of the other kinds
	// contain the recipient.
	needsMailing, findsRecipient bool
	// asked: recipients ask for them, by a request of their own or by signing up. Suppressed addresses get no others.
	asked bool
	// marketing: recipients can opt out of them.
	marketing bool
	// template is the type of template that they use, or "" for built-in texts.
	template templates.Type
}

var kinds = map[Kind]traits{
	AccountVerification:  {asked: true},
	PasswordReset:        {asked: true},
	PasswordChanged:      {},
	PasswordRecovered:    {},
	APIKeyChanged:        {},
	SignupVerification:   {asked: true},
	TeamInvite:           {},
	TrialEnding:          {},
	SignupConfirmation:   {needsMailing: true, findsRecipient: true, asked: true, template: templates.Confirmation},
	ReferralMilestone:    {needsMailing: true, findsRecipient: true, marketing: true, template: templates.Milestone},
	Offboarding:          {needsMailing: true, template: templates.Offboarding},
	ReferralNotification: {needsMailing: true, findsRecipient: true, marketing: true},
	ReferralSMS:          {needsMailing: true, findsRecipient: true, marketing: true},
	SignupLink:           {needsMailing: true, findsRecipient: true, asked: true},
}

// Addressed reports whether requests of a kind contain the recipient.
func (k Kind) Addressed() bool { return !kinds[k].findsRecipient }

// Request is a mail that an event asks for. Fields that its kind does not need are empty.
type Request struct {
	// EventID identifies the mail. It is the id of the event, or is derived from it if the
	// event asks for several mails.
	EventID string
	Kind    Kind
	// Recipient is a normalised address, or empty if the Sender asks signup for it.
	Recipient string
	// AccountID and Generation are bound into the token of an account mail. In other mails,
	// AccountID is the owner on whose behalf the mail is sent.
	AccountID  string
	Generation int64
	// OwnerEmail is the address of the inviting owner; Role is admin or viewer.
	OwnerEmail string
	Role       string
	// WaitlistID and Number are bound into the token of a signup's mail.
	WaitlistID   string
	WaitlistName string
	Number       int64
	// FirstName and LastName are the names of a removed signup.
	FirstName, LastName string
	// Milestone is the number of referrals that was reached.
	Milestone int64
	// ExpiresAt is when the mail becomes useless; it is not sent later. Zero means never.
	ExpiresAt time.Time
	// DefaultSender keeps the mail off the owner's sending domain. It is known, and not stored,
	// when the mail is sent.
	DefaultSender bool
	// RequestedAt is when the event occurred.
	RequestedAt time.Time
	// Traceparent is the trace context of the event.
	Traceparent string
}

// Claimed is a request that this process has claimed for sending.
type Claimed struct {
	Request
	// Claim identifies this claim; earlier and later claims of the request have other values.
	Claim string
	// Deferrals counts how often the provider deferred the mail.
	Deferrals int
}

// Mail is the content of one outgoing mail, independent of its format.
type Mail struct {
	// ID determines the Message-ID; it stays the same when the mail is sent again.
	ID      string
	To      string
	Subject string
	// Either Text or HTML may be empty.
	Text string
	HTML string
	Date time.Time
	// From is the sender; zero means the provider's default sender.
	From stdmail.Address
	// Unsubscribe is the URL for a one-click POST (RFC 8058), for the mail's headers; it may be
	// empty.
	Unsubscribe string
	// DKIM is the key with which providers that send raw messages sign the mail; nil means no
	// signature.
	DKIM *domains.DKIM
}

// Senders knows the senders of owners' mails.
type Senders interface {
	// Sender returns the sender and key of the owner's newest verified domain, or zero values
	// for the default sender.
	Sender(ctx context.Context, ownerID string) (stdmail.Address, *domains.DKIM, error)
}

// Provider delivers mails. It is safe for concurrent use.
type Provider interface {
	// Send returns when the provider has accepted the mail. A *RefusedError or *DeferredError
	// concerns this mail only, a *DoubtfulError this mail or all of them. Any other error means that
	// the provider is away; it may nevertheless have accepted the mail.
	Send(ctx context.Context, m Mail) error
	Close() error
}

// MaxBatch is the maximum number of mails in one call of SendBatch.
const MaxBatch = 100

// BatchProvider is a Provider that also accepts several mails at once.
type BatchProvider interface {
	Provider
	// SendBatch sends up to MaxBatch mails and returns one error per mail, as Send does. The
	// provider does not send again what it accepted under the same key within the last 24
	// hours, so a call can be repeated until it gets an answer. A repeated call may leave out
	// mails of the first call, but must not contain others.
	SendBatch(ctx context.Context, key string, mails []Mail) []error
}

// SMS is one text message.
type SMS struct {
	ID string
	// To is an E.164 number.
	To   string
	Text string
}

// SMSProvider delivers text messages. It is safe for concurrent use.
type SMSProvider interface {
	// SendSMS returns the same kinds of errors as Provider.Send.
	SendSMS(ctx context.Context, m SMS) error
}

// DoubtfulError means that the provider refused the mail, for a reason that lies in the mail or in us: our
// name, our login, our quota, its rules.
type DoubtfulError struct{ Reason string }

func (e *DoubtfulError) Error() string { return "mail refused, perhaps as all others: " + e.Reason }

// RefusedError means that the provider will never accept this mail.
type RefusedError struct{ Reason string }

func (e *RefusedError) Error() string { return "mail refused: " + e.Reason }

// DeferredError means that the provider may accept this mail later.
type DeferredError struct{ Reason string }

func (e *DeferredError) Error() string { return "mail deferred: " + e.Reason }

// Queue stores the requests for mails, and their outcomes. What concerns a claimed request does
// nothing if the claim no longer holds: because the request was canceled, or another process has
// claimed it since. What decides about one request then returns work.ErrLost.
type Queue interface {
	// ClaimMails claims up to limit due requests for mails, mails about accounts and those that are due longest
	// first. A request that is neither ended nor returned is due again when its lease expires.
	ClaimMails(ctx context.Context, limit int, lease time.Duration) ([]Claimed, error)
	// ClaimTexts claims requests for text messages.
	ClaimTexts(ctx context.Context, limit int, lease time.Duration) ([]Claimed, error)
	// Renew restarts the leases of claimed requests. It reports for each whether the claim still holds.
	Renew(ctx context.Context, lease time.Duration, claimed []Claimed) ([]bool, error)
	// Sent ends a request and erases the address.
	Sent(ctx context.Context, c Claimed) error
	// Failed ends a request that cannot be sent, and erases the address.
	Failed(ctx context.Context, c Claimed, reason string) error
	// Canceled ends a request that is no longer wanted, and erases the address.
	Canceled(ctx context.Context, c Claimed, reason string) error
	// Defer makes a claimed request due after a pause and increments its deferrals.
	Defer(ctx context.Context, c Claimed, pause time.Duration, reason string) error
	// Return makes claimed requests due after a pause without counting a deferral.
	Return(ctx context.Context, pause time.Duration, claimed []Claimed) error
	// Charge counts a claimed request towards quotas, once, however often it is tried. A *QuotaError
	// means that it would exceed one; then it counts towards none.
	Charge(ctx context.Context, eventID string, at time.Time, uses []Use) error
	// Prune deletes some requests that ended before a time, and uses of quotas that no longer count. It
	// returns how many.
	Prune(ctx context.Context, before time.Time) (int64, error)
}
