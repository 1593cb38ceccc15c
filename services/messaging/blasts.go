package messaging

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/google/uuid"

	"waitlist.internal/libs/access"
	"waitlist.internal/libs/apierr"
	"waitlist.internal/libs/body"
	"waitlist.internal/libs/loop"
	"waitlist.internal/libs/telemetry"
)

const (
	// TrialWindow is the time that a trial's cap on mails is about.
	TrialWindow = 24 * time.Hour
	// BlastWait is how long Create waits for the end of a blast.
	BlastWait = 5 * time.Second
	// A blast that is waited for is looked at after blastLook, then after twice that
	// and so on, up to blastLookMax.
	blastLook, blastLookMax = 10 * time.Millisecond, 200 * time.Millisecond
	// blastSlow is how much longer the last look may take.
	blastSlow = time.Second
)

// BlastState is where a blast is.
type BlastState string

// The states, in the contract's words.
const (
	BlastQueued  BlastState = "queued"
	BlastSending BlastState = "sending"
	BlastSent    BlastState = "sent"
	// BlastFailed has no recipient that got it, or no waitlist any more.
	BlastFailed BlastState = "failed"
)

// Blast is one mail to everybody on a waitlist.
type Blast struct {
	ID      string
	Subject string
	State   BlastState
	// At is when it was sent, or asked for where it is under way.
	At time.Time
	// Recipients counts those whose mail has gone out or failed, Failed the latter.
	Recipients, Failed int64
}

// BlastContent is what every recipient gets.
type BlastContent struct {
	Subject string
	// One of the two may be empty.
	HTML, Text string
}

// NewBlast is a request for a blast.
type NewBlast struct {
	BlastContent
	ID         string
	WaitlistID string
	OwnerID    string
	CreatedAt  time.Time
	// Reserve is how many mails it counts for a trial; TrialCap is how many there may
	// be in TrialWindow, 0: any number.
	Reserve, TrialCap int64
	// AccountID is the caller's, whose idempotency keys these are.
	AccountID string
	// Key is the Idempotency-Key, or empty. Content is what the request consists of.
	Key     string
	Content []byte
}

// BlastStore keeps blasts for their owners.
type BlastStore interface {
	// Create inserts a blast, or returns the id of the one that an earlier request
	// with the same key made, with replayed set; first is then the answer that it
	// got, zero where it has got none yet. Beyond TrialCap it is RATE_LIMITED.
	Create(ctx context.Context, b NewBlast) (id string, replayed bool, first Blast, err error)
	// Answered keeps what the request with b's key was answered, for those that
	// repeat it.
	Answered(ctx context.Context, b NewBlast, answer Blast) error
	// Blast returns one blast; failed where its waitlist has gone.
	Blast(ctx context.Context, id string) (Blast, error)
	// Blasts returns those of a waitlist, the newest first.
	Blasts(ctx context.Context, waitlistID string) ([]Blast, error)
}

// Recipient is somebody who gets a blast.
type Recipient struct {
	Number int64
	Email  string
}

// Audience is whom a part of a blast goes to, all of one moment.
type Audience struct {
	WaitlistName string
	// Pro says whether the owner's plan has blasts.
	Pro        bool
	Recipients []Recipient
}

// Lists is what is known of waitlists and who is on them. NOT_FOUND where the
// waitlist has gone.
type Lists interface {
	// Owner returns the id of a waitlist's owner.
	Owner(ctx context.Context, waitlistID string) (string, error)
	// Numbers returns up to limit numbers above after of live signups that have not
	// opted out, ascending. Fewer: there are no more.
	Numbers(ctx context.Context, waitlistID string, after int64, limit int) ([]int64, error)
	// Recipients returns those of some signups that are live and have not opted out
	// at this moment.
	Recipients(ctx context.Context, waitlistID string, numbers []int64) (Audience, error)
}

// Blasts is the owners' side of blasts. Its methods decide in the contract's
// order: the waitlist exists and is the actor's, the owner's subscription, the
// role, the body, the tier.
type Blasts struct {
	BlastsConfig
}

// BlastsConfig is what Blasts works with.
type BlastsConfig struct {
	Store BlastStore
	Lists Lists
	// EnforceVerification asks for a verified address.
	EnforceVerification bool
	// TrialCap bounds the mails of an owner's blasts in TrialWindow while trialing;
	// 0: it does not.
	TrialCap int64
	// Wake says that a blast was made.
	Wake func()
	Log  *slog.Logger
	Now  func() time.Time
	// Wait replaces BlastWait in tests.
	Wait time.Duration
}

// NewBlasts returns the owners' side.
func NewBlasts(cfg BlastsConfig) *Blasts {
	cfg.Wait = cmp.Or(cfg.Wait, BlastWait)
	return &Blasts{cfg}
}

// Create makes a blast and returns it when it has ended, or after a few seconds
// as it is then. raw is the request's body, key its Idempotency-Key. replayed is
// set where an earlier request with that key made the blast: the answer is then
// that one's.
func (b *Blasts) Create(ctx context.Context, actor access.Actor, waitlistID string, raw []byte, key string) (_ Blast, replayed bool, err error) {
	grant, err := b.authorize(ctx, actor, waitlistID, b.EnforceVerification)
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
		BlastContent: content, ID: id.String(), WaitlistID: waitlistID, OwnerID: grant.OwnerID, CreatedAt: b.Now().UTC().Truncate(time.Millisecond),
		AccountID: actor.AccountID, Key: key, Content: append([]byte(waitlistID+"\n"), raw...),
	}
	if b.TrialCap > 0 && grant.Entitlement.At(b.Now()).Status == access.Trialing {
		n.TrialCap = b.TrialCap
		if n.Reserve, err = b.count(ctx, waitlistID); err != nil {
			return Blast{}, false, err
		}
	}
	made, replayed, first, err := b.Store.Create(ctx, n)
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
		// It goes out all the same: an error would have it asked for once more.
		b.Log.WarnContext(ctx, "blast answered without its state", slog.String("blast_id", made), telemetry.Err(err))
		out = Blast{ID: made, Subject: n.Subject, State: BlastQueued, At: n.CreatedAt}
	}
	if key != "" {
		if err := b.Store.Answered(ctx, n, out); err != nil {
			// Who repeats the request gets the state of that moment.
			b.Log.WarnContext(ctx, "answer to a blast not kept", slog.String("blast_id", made), telemetry.Err(err))
		}
	}
	return out, replayed, nil
}

// List returns the blasts of a waitlist, the newest first.
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

// authorize returns what the actor is to the owner of a waitlist.
func (b *Blasts) authorize(ctx context.Context, actor access.Actor, waitlistID string, verified bool) (access.Grant, error) {
	owner, err := b.Lists.Owner(ctx, waitlistID)
	if err != nil {
		return access.Grant{}, err
	}
	grant, ok := actor.Grant(owner)
	if !ok {
		return access.Grant{}, apierr.New(apierr.Forbidden, "This waitlist belongs to somebody else.")
	}
	if verified && !actor.EmailVerified {
		return access.Grant{}, apierr.New(apierr.EmailNotVerified, "Please verify your e-mail address first.")
	}
	return grant, actor.MemberGate(grant, b.Now())
}

// readBlast reads a request's body.
func readBlast(raw []byte) (BlastContent, error) {
	in, err := body.Parse(raw)
	if err != nil {
		return BlastContent{}, err
	}
	c := BlastContent{Subject: in.RequiredString("subject", maxSubject)}
	switch {
	case in.Failed("subject"):
	case strings.TrimSpace(c.Subject) == "":
		in.Fail("subject", "is required")
	case c.Subject != printable(c.Subject):
		in.Fail("subject", "must not contain line breaks or other control characters")
	}
	for _, part := range []struct {
		name string
		to   *string
	}{{"html_body", &c.HTML}, {"text_body", &c.Text}} {
		if *part.to, _ = in.String(part.name, 0); len(*part.to) > maxMailBody {
			in.Fail(part.name, fmt.Sprintf("must have at most %d bytes", maxMailBody))
		}
	}
	if c.HTML == "" && c.Text == "" && !in.Failed("html_body") && !in.Failed("text_body") {
		in.Fail("html_body", "is required where there is no text_body")
	}
	return c, in.Err()
}

// count counts the recipients that there are, as far as the cap of a trial has to
// know.
func (b *Blasts) count(ctx context.Context, waitlistID string) (n int64, err error) {
	for after := int64(0); n <= b.TrialCap; {
		limit := int(min(b.TrialCap+1-n, recipientPage))
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

// await looks at a blast until it has ended or the time is over.
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
