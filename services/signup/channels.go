package signup

import (
	"context"
	"math"
)

// Notice is a message about one signup to the channels of the waitlist's owner.
type Notice struct {
	Waitlist *Waitlist
	Signup   *Signup
	// The URLs are secrets. They are "" without a channel, and below Pro.
	WebhookURL, SlackURL, DiscordURL string
	// Events are the events that the webhook receives.
	Events []string
	// Position is the displayed position, even if the waitlist hides positions; 0 if
	// it was not asked for.
	Position int64
}

// NoticeStore reads signups by their numbers.
type NoticeStore interface {
	// Numbered is View for a signup by number.
	Numbered(ctx context.Context, waitlistID string, number, rankUpTo int64) (View, error)
}

// Notices tells the notifier what a message says and where it goes.
type Notices struct {
	svc     *Service
	store   NoticeStore
	secrets Secrets
}

// NewNotices returns the Notices of svc's waitlists.
func NewNotices(svc *Service, store NoticeStore, secrets Secrets) *Notices {
	return &Notices{svc: svc, store: store, secrets: secrets}
}

// Get returns the notice about a signup. NOT_FOUND: the waitlist or the signup was
// removed.
func (n *Notices) Get(ctx context.Context, waitlistID string, number int64, withPosition bool) (Notice, error) {
	rankUpTo := int64(noRank)
	if withPosition {
		rankUpTo = math.MaxInt64
	}
	v, err := n.store.Numbered(ctx, waitlistID, number, rankUpTo)
	if err != nil {
		return Notice{}, err
	}
	if v.Signup == nil {
		return Notice{}, errNoSignup()
	}
	w, err := n.svc.current(ctx, waitlistID, v)
	if err != nil {
		return Notice{}, err
	}
	eff := n.svc.effective(w)
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
		if *c.url, err = OpenChannel(c.sealed, w.ID, c.name, n.secrets); err != nil {
			return Notice{}, err
		}
	}
	return out, nil
}
