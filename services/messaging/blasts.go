package messaging

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/google/uuid"

	"waitlist.internal/libs/access"
	"waitlist.internal/libs/apierr"
	"waitlist.internal/libs/audit"
	"waitlist.internal/libs/body"
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

// NewBlast is a request for a blast.
type NewBlast struct {
	BlastContent
	ID         string
	WaitlistID string
	OwnerID    string
	CreatedAt  time.Time
	// Use is what the blast counts towards. The plan then has at most Use.N recipients. If Use.Most is
	// 0, there is no limit.
	Use Use
	// MaxBlasts bounds the blasts of the owner's waitlists, ended ones included; 0 means no bound.
	MaxBlasts int64
	// By is the entry of the audit trail.
	By audit.Entry
	// AccountID is the caller, to whom the idempotency key belongs.
	AccountID string
	// Key is the Idempotency-Key, or empty. Content identifies the request.
	Key     string
	Content []byte
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
	// Owner returns the account id of a waitlist's owner.
	Owner(ctx context.Context, waitlistID string) (string, error)
	// Numbers returns up to limit numbers above after, ascending, of live signups that have
	// not opted out. Fewer than limit means that there are no more.
	Numbers(ctx context.Context, waitlistID string, after int64, limit int) ([]int64, error)
	// Recipients returns the given signups that are live and have not opted out.
	Recipients(ctx context.Context, waitlistID string, numbers []int64) (Audience, error)
}

// Blasts serves the owners of blasts. Its methods check in this order: the waitlist exists and
// the actor has access to it, the owner's subscription, the role, the body, the tier.
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

// Create creates a blast and returns it when it has ended, or its state after BlastWait. raw is
// the body of the request, key its Idempotency-Key. replayed is set if an earlier request with
// that key created the blast; the result is then the answer to that request.
func (b *Blasts) Create(
	ctx context.Context, actor access.Actor, waitlistID string, raw []byte, key string,
) (_ Blast, replayed bool, err error) {
	grant, err := b.authorize(ctx, actor, waitlistID, true)
	if err != nil {
		return Blast{}, false, err
	}
	if err := grant.RequireWrite(); err != nil {
		return Blast{}, false, err
	}
	content, err := readBlast(raw)
	if err != nil {
		return Blast{}, false, err
	}
	if err := access.RequireTier(grant.Entitlement, access.Pro, "Sending blasts"); err != nil {
		return Blast{}, false, err
	}
	id, err := uuid.NewV7()
	if err != nil {
		return Blast{}, false, fmt.Errorf("new blast id: %w", err)
	}
	n := NewBlast{
		BlastContent: content, ID: id.String(), WaitlistID: waitlistID, OwnerID: grant.OwnerID,
		CreatedAt: b.Now().UTC().Truncate(time.Millisecond),
		AccountID: actor.AccountID, Key: key, Content: append([]byte(waitlistID+"\n"), raw...),
		MaxBlasts: b.MaxBlasts, By: audit.By(actor, grant.OwnerID, audit.BlastCreated, id.String()),
	}
	trial := grant.Entitlement.At(b.Now()).Status == access.Trialing
	if n.Use = b.Limits.Blast(grant.OwnerID, trial); n.Use.Most > 0 {
		if n.Use.N, err = b.count(ctx, waitlistID, n.Use.Most); err != nil {
			return Blast{}, false, err
		}
	}
	made, replayed, first, err := b.Store.Create(ctx, n)
	if over, ok := errors.AsType[*QuotaError](err); ok {
		when := "At most"
		if trial {
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
	if key != "" {
		if err := b.Store.Answered(ctx, n, out); err != nil {
			// A repeated request then gets the state at the time of the repetition.
			b.Log.WarnContext(ctx, "answer to a blast request not stored for repetitions", slog.String("blast_id", made), telemetry.Err(err))
		}
	}
	return out, replayed, nil
}

// List returns the blasts of a waitlist, newest first.
func (b *Blasts) List(ctx context.Context, actor access.Actor, waitlistID string) ([]Blast, error) {
	grant, err := b.authorize(ctx, actor, waitlistID, false)
	if err != nil {
		return nil, err
	}
	if err := access.RequireTier(grant.Entitlement, access.Pro, "Sending blasts"); err != nil {
		return nil, err
	}
	return b.Store.Blasts(ctx, waitlistID)
}

// authorize returns the actor's grant for the owner of a waitlist.
func (b *Blasts) authorize(ctx context.Context, actor access.Actor, waitlistID string, sending bool) (access.Grant, error) {
	owner, err := b.Lists.Owner(ctx, waitlistID)
	if err != nil {
		return access.Grant{}, err
	}
	grant, ok := actor.Grant(owner)
	if !ok {
		return access.Grant{}, apierr.New(apierr.Forbidden, "This waitlist belongs to somebody else.")
	}
	if sending {
		if err := b.Limits.Verified(ctx, actor, owner); err != nil {
			return access.Grant{}, err
		}
	}
	return grant, actor.MemberGate(grant, b.Now())
}

// readBlast reads the body of a request for a blast.
func readBlast(raw []byte) (BlastContent, error) {
	in, err := body.Parse(raw)
	if err != nil {
		return BlastContent{}, err
	}
	// Whoever sends these means something else than a mail to everybody at once.
	for _, name := range []string{"send_at", "segment", "filter", "test", "test_to", "draft"} {
		if in.Has(name) && !in.IsNull(name) {
			in.Fail(name, "This is not supported. A blast goes to the whole list at once.")
		}
	}
	c := BlastContent{Subject: in.RequiredString("subject", maxSubject)}
	switch {
	case in.Failed("subject"):
	case strings.TrimSpace(c.Subject) == "":
		in.Fail("subject", "This field is required.")
	case c.Subject != printable(c.Subject):
		in.Fail("subject", noControls)
	}
	for _, part := range []struct {
		name string
		to   *string
	}{{"html_body", &c.HTML}, {"text_body", &c.Text}} {
		if *part.to, _ = in.String(part.name, 0); len(*part.to) > maxMailBody {
			in.Fail(part.name, bodyTooLong)
		}
	}
	if c.HTML == "" && c.Text == "" && !in.Failed("html_body") && !in.Failed("text_body") {
		in.Fail("html_body", "Set html_body, text_body or both.")
	}
	return c, in.Err()
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
