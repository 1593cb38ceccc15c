package signup

import (
	"context"
	"fmt"
	"math"

	"waitlist.internal/libs/access"
	"waitlist.internal/libs/apierr"
)

// Bounds of what is asked about the recipients of a mail to many.
const (
	maxRecipientsListed = 10_000
	maxRecipientsRead   = 1_000
)

// Mailing is what the mails about one signup need, all of one moment.
type Mailing struct {
	Waitlist *Waitlist
	// Settings are the effective ones.
	Settings Settings
	// Pro says whether the owner's plan has the mails that settings ask for.
	Pro bool
	// Signup is nil where it has gone, and where none was asked for.
	Signup *Signup
	// Position is the displayed one; 0 without a signup, and where the waitlist
	// hides positions from signups.
	Position int64
}

// Recipient is a signup that a mail to many goes to.
type Recipient struct {
	Number int64
	Email  string
}

// Audience is whom a mail to many goes to, all of one moment.
type Audience struct {
	WaitlistName string
	// Pro says whether the owner's plan has such mails.
	Pro        bool
	Recipients []Recipient
}

// RecipientStore finds the signups that have not opted out. Both answers come
// from one statement; they are NOT_FOUND where the waitlist has gone.
type RecipientStore interface {
	// OptedIn returns the first limit numbers above after, ascending.
	OptedIn(ctx context.Context, waitlistID string, after int64, limit int) ([]int64, error)
	// Recipients returns those of some numbers that are there and have not opted
	// out, ascending, with the waitlist's name and its owner's entitlement.
	Recipients(ctx context.Context, waitlistID string, numbers []int64) (waitlistName string, owner access.Entitlement, _ []Recipient, err error)
}

// Mailing returns what the mails about a signup need at this moment; number 0
// asks for the waitlist alone. NOT_FOUND where the waitlist has gone.
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

// OptedIn returns the numbers of live signups that have not opted out: those
// above after, ascending, at most limit, which is 1 to 10,000. Fewer than that
// are the last ones.
func (s *Service) OptedIn(ctx context.Context, waitlistID string, after int64, limit int) ([]int64, error) {
	if limit < 1 || limit > maxRecipientsListed {
		return nil, outOfBounds("limit", fmt.Sprintf("must be an integer from 1 to %d", maxRecipientsListed))
	}
	return s.store.OptedIn(ctx, waitlistID, after, limit)
}

// Recipients returns those of at most 1,000 signups that are live and have not
// opted out at this moment, ascending.
func (s *Service) Recipients(ctx context.Context, waitlistID string, numbers []int64) (Audience, error) {
	if len(numbers) > maxRecipientsRead {
		return Audience{}, outOfBounds("numbers", fmt.Sprintf("must have at most %d entries", maxRecipientsRead))
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
