package signup

import (
	"context"
	"fmt"
	"math"

	"waitlist.internal/libs/access"
	"waitlist.internal/libs/apierr"
)

// Bounds of the requests about the recipients of a blast.
const (
	maxRecipientsListed = 10_000
	maxRecipientsRead   = 1_000
)

// Mailing is what the mails about one signup need, read at one moment.
type Mailing struct {
	Waitlist *Waitlist
	// Settings are the effective ones.
	Settings Settings
	// Pro says whether the owner's plan includes the mails.
	Pro bool
	// Signup is nil if it was removed or not asked for.
	Signup *Signup
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

// RecipientStore finds the signups that have not opted out. Each answer comes from
// one statement. Both methods return NOT_FOUND for a deleted waitlist.
type RecipientStore interface {
	// OptedIn returns the first limit numbers above after, ascending.
	OptedIn(ctx context.Context, waitlistID string, after int64, limit int) ([]int64, error)
	// Recipients returns the signups among numbers that are live and have not opted
	// out, ascending, with the waitlist's name and its owner's entitlement.
	Recipients(ctx context.Context, waitlistID string, numbers []int64) (
		waitlistName string, owner access.Entitlement, _ []Recipient, err error)
}

// Mailing returns what the mails about a signup need. Number 0 asks for the waitlist
// alone. It returns NOT_FOUND for a deleted waitlist.
func (s *Service) Mailing(ctx context.Context, waitlistID string, number int64) (Mailing, error) {
	v, err := s.store.Numbered(ctx, waitlistID, number, math.MaxInt64)
	if err != nil {
		return Mailing{}, err
	}
	w, err := s.current(ctx, waitlistID, v)
	if err != nil {
		return Mailing{}, err
	}
	tier := w.Owner.EffectiveTier(s.now())
	m := Mailing{Waitlist: w, Settings: w.Settings.Effective(tier), Pro: tier.AtLeast(access.Pro), Signup: v.Signup}
	if m.Signup != nil && !m.Settings.HidePosition {
		m.Position = m.Settings.Displayed(v.Rank)
	}
	return m, nil
}

// Offboarded reports whether the removed signup with that number had the address, and its
// removal asked for an offboarding mail.
func (s *Service) Offboarded(ctx context.Context, waitlistID string, number int64, email string) (bool, error) {
	was, err := s.store.Offboarded(ctx, waitlistID, normalised(email))
	if apierr.Is(err, apierr.NotFound) {
		return false, nil
	}
	return err == nil && was == number, err
}

// OptedIn returns the numbers above after of live signups that have not opted out,
// ascending. limit is 1 to 10,000; fewer numbers mean that there are no more.
func (s *Service) OptedIn(ctx context.Context, waitlistID string, after int64, limit int) ([]int64, error) {
	if limit < 1 || limit > maxRecipientsListed {
		return nil, outOfBounds("limit", fmt.Sprintf("This must be an integer from 1 to %d.", maxRecipientsListed))
	}
	return s.store.OptedIn(ctx, waitlistID, after, limit)
}

// Recipients returns the signups among at most 1,000 numbers that are live and have
// not opted out, ascending.
func (s *Service) Recipients(ctx context.Context, waitlistID string, numbers []int64) (Audience, error) {
	if len(numbers) > maxRecipientsRead {
		return Audience{}, outOfBounds("numbers", fmt.Sprintf("This must have at most %d entries.", maxRecipientsRead))
	}
	name, owner, recipients, err := s.store.Recipients(ctx, waitlistID, numbers)
	if err != nil {
		return Audience{}, err
	}
	return Audience{WaitlistName: name, Pro: owner.EffectiveTier(s.now()).AtLeast(access.Pro), Recipients: recipients}, nil
}

func outOfBounds(field, message string) error {
	return apierr.Validation(apierr.Field{Field: field, Message: message})
}
