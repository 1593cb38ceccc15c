// Package blasts sends the mails to everybody on a waitlist: owners ask the Service for one, and the Blaster sends it.
package blasts

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/google/uuid"

	"waitlist.internal/libs/access"
	"waitlist.internal/libs/apierr"
	"waitlist.internal/libs/audit"
	"waitlist.internal/libs/loop"
	"waitlist.internal/libs/telemetry"
	"waitlist.internal/services/messaging/mails"
)

const (
	// Wait is how long Create waits for the end of a blast.
	Wait = 5 * time.Second
	// Create first reads the state of its blast after firstLook, then after pauses that double
	// up to lookMax.
	firstLook, lookMax = 10 * time.Millisecond, 200 * time.Millisecond
	// slow is how much longer than Wait the last read may take.
	slow = time.Second
)

// State is the state of a blast, in the words of the API.
type State string

// The states.
const (
	Queued  State = "queued"
	Sending State = "sending"
	Sent    State = "sent"
	// Failed means that no recipient was reached, or that the waitlist was deleted.
	Failed State = "failed"
)

// Blast is one mail to everybody on a waitlist.
type Blast struct {
	ID      string
	Subject string
	State   State
	// At is when the blast ended, or was requested if it has not ended.
	At time.Time
	// Recipients counts the people whose mail was sent or failed, Failed only the failures.
	Recipients, Failed int64
}

// Content is what every recipient gets. Either HTML or Text may be empty.
type Content struct {
	Subject    string
	HTML, Text string
}

// Request is a valid request for a blast by an account that may send it.
type Request struct {
	Content
	WaitlistID string
	OwnerID    string
	// Trial reports whether the owner is on trial.
	Trial bool
	// AccountID is the caller, to whom the idempotency key belongs. CredentialID and Role are those of the entry in
	// the audit trail.
	AccountID    string
	CredentialID string
	Role         access.Role
	// Key is the Idempotency-Key, or empty. Fingerprint distinguishes the content of the request from others.
	Key         string
	Fingerprint []byte
}

// NewBlast is a blast to be created.
type NewBlast struct {
	Request
	ID        string
	CreatedAt time.Time
	// Use is what the blast counts towards. The plan then has at most Use.N recipients. If Use.Most is
	// 0, there is no limit.
	Use mails.Use
	// MaxBlasts bounds the blasts of the owner's waitlists, ended ones included; 0 means no bound.
	MaxBlasts int64
	// By is the entry of the audit trail.
	By audit.Entry
}

// ErrTooMany is the error for an owner whose number of blasts has reached most.
func ErrTooMany(most int64) error {
	return apierr.New(apierr.Conflict,
		fmt.Sprintf("An account can have at most %d blasts. First delete a waitlist that you no longer need.", most))
}

// Store stores blasts for their owners.
type Store interface {
	// Create inserts a blast, or returns a *QuotaError, or CONFLICT beyond MaxBlasts. If an earlier request with the same key
	// created one, Create returns its id with replayed set; first is then the answer to that
	// request, or zero if it has none yet.
	Create(ctx context.Context, b NewBlast) (id string, replayed bool, first Blast, err error)
	// Answered stores the answer to the request with b's key, for its repetitions.
	Answered(ctx context.Context, b NewBlast, answer Blast) error
	// Blast returns a blast. A blast of a deleted waitlist has failed.
	Blast(ctx context.Context, id string) (Blast, error)
	// Blasts returns the blasts of a waitlist, newest first.
	Blasts(ctx context.Context, waitlistID string) ([]Blast, error)
}

// Recipient is a signup that gets a blast.
type Recipient struct {
	Number int64
	Email  string
}

// Audience is a consistent snapshot of the recipients of a batch.
type Audience struct {
	WaitlistName string
	// Pro reports whether the owner's plan includes blasts.
	Pro        bool
	Recipients []Recipient
}

// Lists looks up waitlists and their signups. The error is NOT_FOUND if the waitlist is deleted.
type Lists interface {
	// Numbers returns up to limit numbers above after, ascending, of live signups that have
	// not opted out. Fewer than limit means that there are no more.
	Numbers(ctx context.Context, waitlistID string, after int64, limit int) ([]int64, error)
	// Recipients returns the given signups that are live and have not opted out.
	Recipients(ctx context.Context, waitlistID string, numbers []int64) (Audience, error)
}

// Service creates and lists blasts for callers that signup has authorized.
type Service struct {
	Config
}

// Config configures a Service.
type Config struct {
	Store  Store
	Lists  Lists
	Limits mails.Limits
	// MaxBlasts bounds an owner's blasts; 0 means no bound.
	MaxBlasts int64
	// Wake is called when a blast was created.
	Wake func()
	Log  *slog.Logger
	Now  func() time.Time
	// Wait replaces the constant in tests.
	Wait time.Duration
}

// New returns a Service.
func New(cfg Config) *Service {
	cfg.Wait = cmp.Or(cfg.Wait, Wait)
	return &Service{cfg}
}

// Create creates a blast and returns it when it has ended, or its state after Wait. replayed is set if an
// earlier request with its key created the blast; the result is then the answer to that request. The error is
// RATE_LIMITED beyond the mails that the owner may send, and CONFLICT beyond MaxBlasts.
func (b *Service) Create(ctx context.Context, r Request) (_ Blast, replayed bool, err error) {
	id, err := uuid.NewV7()
	if err != nil {
		return Blast{}, false, fmt.Errorf("new blast id: %w", err)
	}
	n := NewBlast{
		Request: r, ID: id.String(), CreatedAt: b.Now().UTC().Truncate(time.Millisecond), MaxBlasts: b.MaxBlasts,
		Use: b.Limits.Blast(r.OwnerID, r.Trial),
		By: audit.Entry{
			OwnerID: r.OwnerID, Actor: r.AccountID, Credential: r.CredentialID, Role: r.Role, Action: audit.BlastCreated, Target: id.String(),
		},
	}
	if n.Use.Most > 0 {
		if n.Use.N, err = b.count(ctx, r.WaitlistID, n.Use.Most); err != nil {
			return Blast{}, false, err
		}
	}
	made, replayed, first, err := b.Store.Create(ctx, n)
	if over, ok := errors.AsType[*mails.QuotaError](err); ok {
		when := "At most"
		if r.Trial {
			when = "During the trial, at most"
		}
		return Blast{}, false, apierr.New(apierr.RateLimited, fmt.Sprintf("%s %d mails may be sent in 24 hours.", when, over.Most)).
			WithRetryAfter(over.Wait)
	}
	if err != nil {
		return Blast{}, false, err
	}
	if first.ID != "" {
		return first, replayed, nil
	}
	if !replayed {
		b.Wake()
	}
	out, err := b.await(ctx, made)
	switch {
	case err != nil && replayed:
		return Blast{}, false, err
	case err != nil:
		// The blast is sent anyway; an error would make the caller request it again.
		b.Log.WarnContext(ctx, "state of a blast not read; answering that it is queued", slog.String("blast_id", made), telemetry.Err(err))
		out = Blast{ID: made, Subject: n.Subject, State: Queued, At: n.CreatedAt}
	}
	if r.Key != "" {
		if err := b.Store.Answered(ctx, n, out); err != nil {
			// A repeated request then gets the state at the time of the repetition.
			b.Log.WarnContext(ctx, "answer to a blast request not stored for repetitions", slog.String("blast_id", made), telemetry.Err(err))
		}
	}
	return out, replayed, nil
}

// List returns the blasts of a waitlist, newest first.
func (b *Service) List(ctx context.Context, waitlistID string) ([]Blast, error) {
	return b.Store.Blasts(ctx, waitlistID)
}

// count counts the recipients of a waitlist, up to one more than most.
func (b *Service) count(ctx context.Context, waitlistID string, most int64) (n int64, err error) {
	for after := int64(0); n <= most; {
		limit := int(min(most+1-n, recipientPage))
		page, err := b.Lists.Numbers(ctx, waitlistID, after, limit)
		if err != nil {
			return 0, err
		}
		n += int64(len(page))
		if len(page) < limit {
			break
		}
		after = page[len(page)-1]
	}
	return n, nil
}

// await reads a blast until it has ended or Wait is over.
func (b *Service) await(ctx context.Context, id string) (Blast, error) {
	over := time.Now().Add(b.Wait)
	ctx, cancel := context.WithDeadline(ctx, over.Add(slow))
	defer cancel()
	for look := (loop.Backoff{Min: firstLook, Max: lookMax}); ; {
		out, err := b.Store.Blast(ctx, id)
		if err != nil || out.State == Sent || out.State == Failed {
			return out, err
		}
		left := time.Until(over)
		if left <= 0 {
			return out, nil
		}
		if !loop.Wait(ctx, min(look.Next(), left)) {
			return Blast{}, fmt.Errorf("wait for a blast: %w", ctx.Err())
		}
	}
}
