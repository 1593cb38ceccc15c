// Package notifier tells owners of signups on the channels that they have set:
// a webhook, a team chat, a community chat. Nothing is ever repeated; what
// fails is lost, and nothing of it reaches the signup.
//
//	event ─► kafka ─► delivery row a channel ─► Dispatcher ─► Source: URL, signup
//	                   (queued, its holder)        │ a lane an endpoint
//	                                               ├─► Ledger.Claim  commits before
//	                                               ├─► Poster.Post   the one attempt
//	                                               └─► Ledger.End    what came of it
//
// A delivery is claimed in the database before its attempt, so that no crash
// makes a second one: whoever finds an attempt whose process died ends it as
// unknown. Rows hold neither addresses nor URLs; what a message says is asked
// for when it is built.
//
//	kafka/ postgres/ grpc/ http/   what it stands on
//	app/                           wires the service
//	cmd/notifier/                  its process
package notifier

import (
	"context"
	"errors"
	"time"
)

// Service is the service's name: in identities, logs and metrics.
const Service = "notifier"

// Channel is one of the ways in which owners are told.
type Channel string

// The channels.
const (
	Webhook Channel = "webhook"
	Slack   Channel = "slack"
	Discord Channel = "discord"
)

// Event is what owners are told of, as the contract names it.
type Event string

// The events.
const (
	SignupCreated    Event = "signup.created"
	ReferralCredited Event = "referral.credited"
)

// Key identifies a delivery.
type Key struct {
	// EventID is a UUID.
	EventID string
	Channel Channel
}

// Delivery is one message that is to be sent, without what the message says of
// people.
type Delivery struct {
	Key
	Event      Event
	WaitlistID string
	OwnerID    string
	// Number is that of the signup that the message is about.
	Number int64
	// Position is the displayed one at the moment of a signup. Only for
	// SignupCreated.
	Position int64
	// ReferralCount is the one that the credit made. Only for ReferralCredited.
	ReferralCount int64
	OccurredAt    time.Time
	// Traceparent is the trace context of the event.
	Traceparent string
}

// Outcome is how a delivery ended.
type Outcome string

// The outcomes. The first five are those of an attempt.
const (
	// Delivered: answered with 2xx.
	Delivered Outcome = "delivered"
	// Rejected: answered with anything else, redirects included.
	Rejected Outcome = "rejected"
	// TimedOut: no answer within Timeout.
	TimedOut Outcome = "timeout"
	// Unreachable: no connection, or one that broke before the answer.
	Unreachable Outcome = "unreachable"
	// Blocked: the address is not public.
	Blocked Outcome = "blocked"
	// Unknown: the process died between the claim and the record.
	Unknown Outcome = "unknown"
	// Skipped: the owner does not want it any more, or may not have it.
	Skipped Outcome = "skipped"
	// Dropped: too many others were waiting for the same endpoint or owner.
	Dropped Outcome = "dropped"
	// Expired: older than MaxAge when its turn came.
	Expired Outcome = "expired"
	// Failed: something of ours, which the log tells of.
	Failed Outcome = "failed"
	// Gone: the waitlist or the signup was deleted; such a delivery leaves no row.
	Gone Outcome = "gone"
)

const (
	// Timeout bounds an attempt: lookup, connection, request and the answer's head.
	Timeout = 5 * time.Second
	// MaxAge is the age beyond which an event, held up by an outage of ours, is no
	// news any more.
	MaxAge = 24 * time.Hour
)

// Result is how a delivery ended, and what support may see of it.
type Result struct {
	Outcome Outcome
	// Reason is one of a few words; "" where the outcome says all.
	Reason string
	// Attempted is set when the claim had been made.
	Attempted bool
	// Host is the endpoint's, without port; of its URL nothing else is kept.
	Host string
	// Status is the answer's; 0: none.
	Status int
	// Took is the attempt's duration.
	Took time.Duration
}

// Ended is a delivery with its result.
type Ended struct {
	Delivery
	Result
}

// Ledger keeps deliveries for one holder, which is one run of a process.
// *postgres.Ledger is one.
type Ledger interface {
	// Claim records that attempts are made now, and returns which of the deliveries
	// were queued with this holder: those may be attempted, once. Calling it again
	// with the same at returns the same.
	Claim(ctx context.Context, at time.Time, keys []Key) (map[Key]bool, error)
	// End records results. What was not attempted must still be this holder's.
	End(ctx context.Context, ended []Ended) error
	// Beat says that the holder lives.
	Beat(ctx context.Context) error
	// Adopt takes over up to limit queued deliveries of holders that are dead, and
	// ends their attempts as unknown; it returns how many of those there were.
	Adopt(ctx context.Context, limit int) (queued []Delivery, unknown int64, err error)
	// Leave makes what the holder leaves queued free for others at once.
	Leave(ctx context.Context) error
	// Trim leaves each waitlist its newest rows.
	Trim(ctx context.Context, waitlistIDs []string) error
	// Prune deletes some rows that ended before a time and returns how many.
	Prune(ctx context.Context, before time.Time) (int64, error)
}

// ErrGone is returned for a waitlist or signup that is not there any more.
var ErrGone = errors.New("waitlist or signup has gone")

// Notice is what is said of a signup, and where.
type Notice struct {
	// URLs by channel; a channel without one is off.
	URLs map[Channel]string
	// WebhookEvents are those that the webhook is told of.
	WebhookEvents []Event
	Email         string
	FirstName     string
	LastName      string
	ReferralToken string
	// Position is the present one, where it was asked for.
	Position int64
}

// Source knows the present settings and signups. *grpc.Source is one.
type Source interface {
	// Notice returns ErrGone, an outage (outage.Is), or what is wrong.
	Notice(ctx context.Context, waitlistID string, number int64, withPosition bool) (Notice, error)
}

// Poster makes attempts. *http.Poster is one.
type Poster interface {
	// Post sends body once and returns the outcome of the attempt, its reason and
	// the status.
	Post(ctx context.Context, url string, body []byte) (o Outcome, reason string, status int)
}
