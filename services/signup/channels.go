package signup

import (
	"context"
	"math"
)

// Notice is what is said about one signup to the channels of its waitlist's
// owner, and where.
type Notice struct {
	Waitlist *Waitlist
	Signup   *Signup
	// The channels' URLs are secrets; "" where there is none, and below Pro.
	WebhookURL, SlackURL, DiscordURL string
	// Events are those that the webhook is told of.
	Events []string
	// Position is the displayed one, also where it is hidden from signups; 0 when
	// it was not asked for.
	Position int64
}

// NoticeStore reads signups by their numbers.
type NoticeStore interface {
	// Numbered is View for a known signup.
	Numbered(ctx context.Context, waitlistID string, number, rankUpTo int64) (View, error)
}

// Notices gives the notifier what it needs at the moment of a message.
type Notices struct {
	svc     *Service
	store   NoticeStore
	secrets Secrets
}

// NewNotices returns the Notices of a service's waitlists.
func NewNotices(svc *Service, store NoticeStore, secrets Secrets) *Notices {
	return &Notices{svc: svc, store: store, secrets: secrets}
}

// Get returns the notice about a signup. NOT_FOUND where the waitlist or the
// signup has gone.
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
