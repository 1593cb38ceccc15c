package owners

import (
	"context"
	"fmt"
	"math"
	"time"

	"waitlist.internal/libs/access"
	"waitlist.internal/libs/apierr"
	"waitlist.internal/libs/emailaddr"
	"waitlist.internal/libs/seal"
	"waitlist.internal/services/signup/join"
	"waitlist.internal/services/signup/queue"
	"waitlist.internal/services/signup/waitlist"
)

// Bounds of the requests about the recipients of a blast.
const (
	maxRecipientsListed = 10_000
	maxRecipientsRead   = 1_000
)

// Mailing is what the mails about one signup need, read at one moment.
type Mailing struct {
	Waitlist *waitlist.Waitlist
	// Settings are the effective ones.
	Settings waitlist.Settings
	// Pro says whether the owner's plan includes the mails.
	Pro bool
	// Signup is nil if it was removed or not asked for.
	Signup *queue.Signup
	// Position is the displayed position; 0 without a signup, and if the waitlist
	// hides positions.
	Position int64
}

// Recipient is a signup that receives a blast.
type Recipient struct {
	Number int64
	Email  string
}

// Audience holds the recipients of a blast, read at one moment.
type Audience struct {
	WaitlistName string
	// Pro says whether the owner's plan includes blasts.
	Pro        bool
	Recipients []Recipient
}

// Notice is a message about one signup to the channels of the waitlist's owner.
type Notice struct {
	Waitlist *waitlist.Waitlist
	Signup   *queue.Signup
	// The URLs are secrets. They are "" without a channel, and below Pro.
	WebhookURL, SlackURL, DiscordURL string
	// Events are the events that the webhook receives.
	Events []string
	// Position is the displayed position, even if the waitlist hides positions; 0 if
	// it was not asked for.
	Position int64
}

// MessageStore reads what messages say and who gets them. Each answer comes from one statement. Its methods return
// NOT_FOUND for a deleted waitlist.
type MessageStore interface {
	// Numbered is View for a signup by number.
	Numbered(ctx context.Context, waitlistID string, number, rankUpTo int64) (queue.View, error)
	// OptedIn returns the first limit numbers above after, ascending.
	OptedIn(ctx context.Context, waitlistID string, after int64, limit int) ([]int64, error)
	// Recipients returns the signups among numbers that are live and have not opted
	// out, ascending, with the waitlist's name and its owner's entitlement.
	Recipients(ctx context.Context, waitlistID string, numbers []int64) (
		waitlistName string, owner access.Entitlement, _ []Recipient, err error)
	// Offboarded returns the number of the signup that an address had when its removal
	// asked for an offboarding mail. NOT_FOUND: no removal did.
	Offboarded(ctx context.Context, waitlistID, email string) (number int64, err error)
}

// Messages tells messaging and the notifier what their messages say and where they go.
type Messages struct {
	signups *join.Service
	store   MessageStore
	secrets *seal.Ring
	now     func() time.Time
}

// NewMessages returns the Messages about signups. secrets opens the channel URLs.
func NewMessages(signups *join.Service, store MessageStore, secrets *seal.Ring, now func() time.Time) *Messages {
	return &Messages{signups: signups, store: store, secrets: secrets, now: now}
}

// Mailing returns what the mails about a signup need. Number 0 asks for the waitlist
// alone. It returns NOT_FOUND for a deleted waitlist.
func (m *Messages) Mailing(ctx context.Context, waitlistID string, number int64) (Mailing, error) {
	v, err := m.store.Numbered(ctx, waitlistID, number, math.MaxInt64)
	if err != nil {
		return Mailing{}, err
	}
	w, err := m.signups.Current(ctx, waitlistID, v)
	if err != nil {
		return Mailing{}, err
	}
	tier := w.Owner.EffectiveTier(m.now())
	out := Mailing{Waitlist: w, Settings: w.Settings.Effective(tier), Pro: tier.AtLeast(access.Pro), Signup: v.Signup}
	if out.Signup != nil && !out.Settings.HidePosition {
		out.Position = out.Settings.Displayed(v.Rank)
	}
	return out, nil
}

// Offboarded reports whether the removed signup with that number had the address, and its
// removal asked for an offboarding mail.
func (m *Messages) Offboarded(ctx context.Context, waitlistID string, number int64, email string) (bool, error) {
	address, err := emailaddr.Parse(email)
	if err != nil {
		return false, nil //nolint:nilerr // an invalid address was on no list
	}
	was, err := m.store.Offboarded(ctx, waitlistID, address)
	if apierr.Is(err, apierr.NotFound) {
		return false, nil
	}
	return err == nil && was == number, err
}

// OptedIn returns the numbers above after of live signups that have not opted out,
// ascending. limit is 1 to 10,000; fewer numbers mean that there are no more.
func (m *Messages) OptedIn(ctx context.Context, waitlistID string, after int64, limit int) ([]int64, error) {
	if limit < 1 || limit > maxRecipientsListed {
		return nil, outOfBounds("limit", fmt.Sprintf("This must be an integer from 1 to %d.", maxRecipientsListed))
	}
	return m.store.OptedIn(ctx, waitlistID, after, limit)
}

// Recipients returns the signups among at most 1,000 numbers that are live and have
// not opted out, ascending.
func (m *Messages) Recipients(ctx context.Context, waitlistID string, numbers []int64) (Audience, error) {
	if len(numbers) > maxRecipientsRead {
		return Audience{}, outOfBounds("numbers", fmt.Sprintf("This must have at most %d entries.", maxRecipientsRead))
	}
	name, owner, recipients, err := m.store.Recipients(ctx, waitlistID, numbers)
	if err != nil {
		return Audience{}, err
	}
	return Audience{WaitlistName: name, Pro: owner.EffectiveTier(m.now()).AtLeast(access.Pro), Recipients: recipients}, nil
}

func outOfBounds(field, message string) error {
	return apierr.Validation(apierr.Field{Field: field, Message: message})
}

// Notice returns the notice about a signup. NOT_FOUND: the waitlist or the signup was
// removed.
func (m *Messages) Notice(ctx context.Context, waitlistID string, number int64, withPosition bool) (Notice, error) {
	rankUpTo := int64(join.NoRank)
	if withPosition {
		rankUpTo = math.MaxInt64
	}
	v, err := m.store.Numbered(ctx, waitlistID, number, rankUpTo)
	if err != nil {
		return Notice{}, err
	}
	if v.Signup == nil {
		return Notice{}, queue.ErrNoSignup()
	}
	w, err := m.signups.Current(ctx, waitlistID, v)
	if err != nil {
		return Notice{}, err
	}
	eff := m.signups.Effective(w)
	out := Notice{Waitlist: w, Signup: v.Signup, Events: eff.WebhookEvents}
	if withPosition {
		out.Position = eff.Displayed(v.Rank)
	}
	for _, c := range []struct {
		url          *string
		sealed, name string
	}{
		{&out.WebhookURL, eff.WebhookURL, "webhook_url"},
		{&out.SlackURL, eff.SlackWebhookURL, "slack_webhook_url"},
		{&out.DiscordURL, eff.DiscordWebhookURL, "discord_webhook_url"},
	} {
		if *c.url, err = waitlist.OpenChannel(c.sealed, w.ID, c.name, m.secrets); err != nil {
			return Notice{}, err
		}
	}
	return out, nil
}
