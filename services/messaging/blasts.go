package messaging

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
)

const (
	// BlastWait is how long Create waits for the end of a blast.
	BlastWait = 5 * time.Second
	// Create first reads the state of its blast after blastLook, then after pauses that double
	// up to blastLookMax.
	blastLook, blastLookMax = 10 * time.Millisecond, 200 * time.Millisecond
	// blastSlow is how much longer than BlastWait the last read may take.
	blastSlow = time.Second
)

// BlastState is the state of a blast, in the words of the API.
type BlastState string

// The states.
const (
	BlastQueued  BlastState = "queued"
	BlastSending BlastState = "sending"
	BlastSent    BlastState = "sent"
	// BlastFailed means that no recipient was reached, or that the waitlist was deleted.
	BlastFailed BlastState = "failed"
)

// Blast is one mail to everybody on a waitlist.
type Blast struct {
	ID      string
	Subject string
	State   BlastState
	// At is when the blast ended, or was requested if it has not ended.
	At time.Time
	// Recipients counts the people whose mail was sent or failed, Failed only the failures.
	Recipients, Failed int64
}

// BlastContent is what every recipient gets. Either HTML or Text may be empty.
type BlastContent struct {
	Subject    string
	HTML, Text string
}

// BlastRequest is a valid request for a blast by an account that may send it.
type BlastRequest struct {
	BlastContent
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
	BlastRequest
	ID        string
	CreatedAt time.Time
	// Use is what the blast counts towards. The plan then has at most Use.N recipients. If Use.Most is
	// 0, there is no limit.
	Use Use
	// MaxBlasts bounds the blasts of the owner's waitlists, ended ones included; 0 means no bound.
	MaxBlasts int64
	// By is the entry of the audit trail.
	By audit.Entry
}

// ErrTooManyBlasts is the error for an owner whose number of blasts has reached most.
func ErrTooManyBlasts(most int64) error {
	return apierr.New(apierr.Conflict,
		fmt.Sprintf("An account can have at most %d blasts. First delete a waitlist that you no longer need.", most))
}

// BlastStore stores blasts for their owners.
type BlastStore interface {
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

// Blasts creates and lists blasts for callers that signup has authorized.
type Blasts struct {
	BlastsConfig
}

// BlastsConfig configures Blasts.
type BlastsConfig struct {
	Store  BlastStore
	Lists  Lists
	Limits Limits
	// MaxBlasts bounds an owner's blasts; 0 means no bound.
	MaxBlasts int64
	// Wake is called when a blast was created.
	Wake func()
	Log  *slog.Logger
	Now  func() time.Time
	// Wait replaces BlastWait in tests.
	Wait time.Duration
}

// NewBlasts returns Blasts.
func NewBlasts(cfg BlastsConfig) *Blasts {
	cfg.Wait = cmp.Or(cfg.Wait, BlastWait)
	return &Blasts{cfg}
}

// Create creates a blast and returns it when it has ended, or its state after BlastWait. replayed is set if an
// earlier request with its key created the blast; the result is then the answer to that request. The error is
// RATE_LIMITED beyond the mails that the owner may send, and CONFLICT beyond MaxBlasts.
func (b *Blasts) Create(ctx context.Context, r BlastRequest) (_ Blast, replayed bool, err error) {
	id, err := uuid.NewV7()
	if err != nil {
		return Blast{}, false, fmt.Errorf("new blast id: %w", err)
	}
	n := NewBlast{
		BlastRequest: r, ID: id.String(), CreatedAt: b.Now().UTC().Truncate(time.Millisecond), MaxBlasts: b.MaxBlasts,
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
	if over, ok := errors.AsType[*QuotaError](err); ok {
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
		out = Blast{ID: made, Subject: n.Subject, State: BlastQueued, At: n.CreatedAt}
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
func (b *Blasts) List(ctx context.Context, waitlistID string) ([]Blast, error) {
	return b.Store.Blasts(ctx, waitlistID)
}

// count counts the recipients of a waitlist, up to one more than most.
func (b *Blasts) count(ctx context.Context, waitlistID string, most int64) (n int64, err error) {
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
func (b *Blasts) await(ctx context.Context, id string) (Blast, error) {
	over := time.Now().Add(b.Wait)
	ctx, cancel := context.WithDeadline(ctx, over.Add(blastSlow))
	defer cancel()
	for look := (loop.Backoff{Min: blastLook, Max: blastLookMax}); ; {
		out, err := b.Store.Blast(ctx, id)
		if err != nil || out.State == BlastSent || out.State == BlastFailed {
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
