// Package notifier sends owners a message about signups on the channels they set
// up: a webhook, Slack, Discord. Each message is attempted at most once. A message
// that fails is lost, and a failure never affects the signup.
//
//	event ─► kafka ─► a delivery row ─► Dispatcher ─► Source: URL, signup
//	                   per channel         │ a lane per endpoint
//	                   (queued, holder)    ├─► Deliveries.Claim  commits first
//	                                       ├─► Poster.Post       the one attempt
//	                                       └─► Deliveries.End    its result
//
// The Dispatcher claims a delivery in the database before its attempt, so a crash
// causes no second attempt: another process that finds an attempt of a dead process
// ends it as unknown. Rows hold neither addresses nor URLs; the Dispatcher asks the
// signup service for them when it builds a message.
//
//	kafka/ postgres/ grpc/ http/   adapters
//	app/                           wires the service
//	cmd/notifier/                  its process
package notifier

import (
	"context"
	"errors"
	"time"
)

// Name is the service's name in identities, logs and metrics, and the name of its
// schema and consumer group.
const Name = "notifier"

// Channel is a way to reach an owner.
type Channel string

// The channels.
const (
	Webhook Channel = "webhook"
	Slack   Channel = "slack"
	Discord Channel = "discord"
)

// Event is the kind of event that a message is about, with its name in the API.
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

// Delivery is one message to send, without the personal data in its text.
type Delivery struct {
	Key
	Event      Event
	WaitlistID string
	OwnerID    string
	// Number is the number of the signup that the message is about.
	Number int64
	// Position is the displayed position right after the signup. It is set for
	// SignupCreated only.
	Position int64
	// ReferralCount is the count after the credit. It is set for ReferralCredited only.
	ReferralCount int64
	OccurredAt    time.Time
	// Traceparent is the event's W3C trace context.
	Traceparent string
}

// Outcome is how a delivery ended.
type Outcome string

// The outcomes. An attempt ends with one of the first six, or with Failed.
const (
	// Delivered: the endpoint answered with 2xx.
	Delivered Outcome = "delivered"
	// Rejected: the endpoint answered with another status, redirects included.
	Rejected Outcome = "rejected"
	// TimedOut: no answer within Timeout.
	TimedOut Outcome = "timeout"
	// Unreachable: there was no connection, or it broke before the answer.
	Unreachable Outcome = "unreachable"
	// Blocked: the endpoint's URL is invalid or its address is not public.
	Blocked Outcome = "blocked"
	// Unknown: the process died between the claim and the recorded result.
	Unknown Outcome = "unknown"
	// Skipped: the owner has switched the channel or the event off.
	Skipped Outcome = "skipped"
	// Dropped: the queue of the endpoint, the owner or the process was full.
	Dropped Outcome = "dropped"
	// Expired: the event was older than MaxAge when its turn came.
	Expired Outcome = "expired"
	// Failed: an error in this service; the log has its cause.
	Failed Outcome = "failed"
	// Gone: the waitlist or the signup was deleted. No row is kept.
	Gone Outcome = "gone"
)

const (
	// Timeout bounds an attempt: name lookup, connection, request, response header.
	Timeout = 5 * time.Second
	// MaxAge is the age of an event, delayed by an outage here, after which its
	// message is no longer sent.
	MaxAge = 24 * time.Hour
)

// Result is how a delivery ended, as support sees it.
type Result struct {
	Outcome Outcome
	// Reason is one word from a small set, or "".
	Reason string
	// Attempted is set if the delivery was claimed.
	Attempted bool
	// Host is the endpoint's host without port, the only part of its URL that is kept.
	Host string
	// Status is the response's HTTP status; 0: there was no response.
	Status int
	// Took is the attempt's duration.
	Took time.Duration
}

// Ended is a delivery with its result.
type Ended struct {
	Delivery
	Result
}

// Deliveries stores the deliveries of one holder, which is one run of a process.
// *postgres.Deliveries implements it.
type Deliveries interface {
	// Claim records that attempts begin at at. It returns the deliveries that were
	// queued with this holder; the caller may attempt each of them once. A second
	// call with the same at returns the same.
	Claim(ctx context.Context, at time.Time, keys []Key) (map[Key]bool, error)
	// End records results. A delivery that was not attempted is left alone if it has
	// another holder by now. A failed call may be repeated.
	End(ctx context.Context, ended []Ended) error
	// Beat records that the holder is alive.
	Beat(ctx context.Context) error
	// Adopt takes over up to limit queued deliveries of dead holders. It ends those
	// holders' attempts as Unknown and returns how many there were.
	Adopt(ctx context.Context, limit int) (queued []Delivery, unknown int64, err error)
	// Leave lets others adopt the holder's queued deliveries at once.
	Leave(ctx context.Context) error
	// Trim deletes all but the newest ended deliveries of each waitlist.
	Trim(ctx context.Context, waitlistIDs []string) error
	// Prune deletes some deliveries that ended before a time and returns how many.
	Prune(ctx context.Context, before time.Time) (int64, error)
}

// ErrGone says that the waitlist or the signup was deleted.
var ErrGone = errors.New("waitlist or signup was deleted")

// Notice is what a message about a signup says, and where it goes.
type Notice struct {
	// URLs has the endpoint of each channel. A channel without one is off.
	URLs map[Channel]string
	// WebhookEvents are the events that the webhook receives.
	WebhookEvents []Event
	Email         string
	FirstName     string
	LastName      string
	ReferralToken string
	// Position is the present position, if the caller asked for it.
	Position int64
}

// Source reads present settings and signups. *grpc.Source implements it.
type Source interface {
	// Notice returns ErrGone, an outage (outage.Is) or another error.
	Notice(ctx context.Context, waitlistID string, number int64, withPosition bool) (Notice, error)
}

// Poster makes attempts. *http.Poster implements it.
type Poster interface {
	// Post sends body once. It returns the outcome, its reason and the HTTP status.
	Post(ctx context.Context, url string, body []byte) (o Outcome, reason string, status int)
}
