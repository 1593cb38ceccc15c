package join

import (
	"context"
	"fmt"
	"math"
	"time"

	"waitlist.internal/libs/emailaddr"
	"waitlist.internal/services/signup/queue"
	"waitlist.internal/services/signup/waitlist"
)

// publicCountAbove is the signup count up to which the public sees no count.
const publicCountAbove = 10

// Standing is the public answer about one signup.
type Standing struct {
	Email         string
	FirstName     string
	LastName      string
	ShowPosition  bool
	Position      int64
	Total         int64
	ReferralCount int64
	CreatedAt     time.Time
}

// Status returns where a signup stands. NOT_FOUND: there is no such waitlist, or no
// such address on it.
func (s *Service) Status(ctx context.Context, waitlistID, email string) (Standing, error) {
	w, v, err := s.place(ctx, waitlistID, normalised(email))
	if err != nil {
		return Standing{}, err
	}
	eff := s.Effective(w)
	return Standing{
		Email: v.Signup.Email, FirstName: v.Signup.FirstName, LastName: v.Signup.LastName,
		ShowPosition: !eff.HidePosition, Position: eff.Displayed(v.Rank), Total: v.Total,
		ReferralCount: v.Signup.ReferralCount, CreatedAt: v.Signup.CreatedAt,
	}, nil
}

// normalised returns the stored form of an address. For an invalid address it returns
// "", which is on no list.
func normalised(email string) string {
	parsed, err := emailaddr.Parse(email)
	if err != nil {
		return ""
	}
	return parsed
}

// standingView is a signup, if there is one, with the waitlist at that time. Its rank is 0 if neither the query nor the
// index knows it.
type standingView struct {
	w *waitlist.Waitlist
	queue.View
}

// place returns a signup with its exact place: on a small list from Postgres, else
// from the index, and if that cannot answer from the buckets in Postgres. Now and then it
// takes the place from there anyway and compares the index with it.
func (s *Service) place(ctx context.Context, waitlistID, email string) (*waitlist.Waitlist, queue.View, error) {
	due := s.index != nil && s.index.CheckDue(waitlistID, s.now())
	if !due {
		at, err := s.places.ask(ctx, waitlistID, email)
		switch {
		case err != nil:
			return nil, at.View, err
		case at.Signup == nil:
			return nil, at.View, queue.ErrNoSignup()
		case at.Rank != 0:
			return at.w, at.View, nil
		}
	}
	all, err := s.look(ctx, waitlistID, []string{email}, math.MaxInt64)
	if err != nil {
		return nil, queue.View{}, err
	}
	at := all[0]
	if at.Signup == nil {
		return nil, at.View, queue.ErrNoSignup()
	}
	if due && at.Live > s.cfg.SmallList {
		s.index.Compare(ctx, waitlistID, at.View)
	}
	return at.w, at.View, nil
}

// readPlaces reads the signups of some addresses and their places, all of one moment.
func (s *Service) readPlaces(ctx context.Context, waitlistID string, emails []string) ([]standingView, error) {
	all, err := s.look(ctx, waitlistID, emails, s.cfg.SmallList)
	if err != nil {
		return nil, err
	}
	var unranked []int
	var who []*queue.Signup
	for i, v := range all {
		if v.Signup != nil && v.Rank == 0 {
			unranked, who = append(unranked, i), append(who, v.Signup)
		}
	}
	if who == nil {
		return all, nil
	}
	if at, err := s.index.Rank(ctx, waitlistID, all[0].View, who); err == nil {
		for j, i := range unranked {
			// The index may be ahead of the view. Show the counter that belongs to the place.
			all[i].Rank, all[i].Total = at.Ranks[j], at.Mark.Total
		}
	}
	return all, nil
}

// Form is what a signup form needs to know.
type Form struct {
	Waitlist *waitlist.Waitlist
	// Settings are effective.
	Settings waitlist.Settings
	// Advanced and Pro say whether the owner has at least that plan.
	Advanced, Pro bool
	// Count is nil if the public may not see it.
	Count *int64
	// Version changes with everything but Count.
	Version string
}

// FormConfig is the public configuration of a form, as the API writes it.
type FormConfig struct {
	WaitlistID               string              `json:"waitlist_id"`
	Name                     string              `json:"name"`
	Headline                 string              `json:"headline"`
	Subheadline              string              `json:"subheadline"`
	HeroImageURL             string              `json:"hero_image_url"`
	NameField                waitlist.FieldMode  `json:"name_field"`
	PhoneField               waitlist.FieldMode  `json:"phone_field"`
	SignupCount              *int64              `json:"signup_count"`
	CustomQuestions          []waitlist.Question `json:"custom_questions"`
	Status                   waitlist.Status     `json:"status"`
	ShowSocialProof          bool                `json:"show_social_proof"`
	RequireConsent           bool                `json:"require_consent"`
	ConsentText              string              `json:"consent_text"`
	ReferralBoost            int                 `json:"referral_boost"`
	PositionOffset           int64               `json:"position_offset"`
	HideBranding             *bool               `json:"hide_branding,omitempty"`
	HidePosition             *bool               `json:"hide_position,omitempty"`
	RequireEmailVerification *bool               `json:"require_email_verification,omitempty"`
	// Appearance is nil if the owner has not set it.
	Appearance *waitlist.Appearance `json:"appearance,omitempty"`
}

// Config returns f as the API writes it.
func (f Form) Config() FormConfig {
	s := f.Settings
	doc := FormConfig{
		WaitlistID: f.Waitlist.ID, Name: f.Waitlist.Name, Headline: s.Headline, Subheadline: s.Subheadline,
		HeroImageURL: s.HeroImageURL, NameField: s.NameField, PhoneField: s.PhoneField, SignupCount: f.Count,
		CustomQuestions: s.CustomQuestions, Status: s.Status, ShowSocialProof: s.ShowSocialProof,
		RequireConsent: s.RequireConsent, ConsentText: s.ConsentText, ReferralBoost: s.ReferralBoost,
		PositionOffset: s.PositionOffset, Appearance: s.Appearance,
	}
	if f.Advanced {
		doc.HideBranding, doc.HidePosition = &s.HideBranding, &s.HidePosition
	}
	if f.Pro {
		doc.RequireEmailVerification = &s.RequireEmailVerification
	}
	return doc
}

// Form returns a waitlist's public configuration.
func (s *Service) Form(ctx context.Context, waitlistID string) (Form, error) {
	w, v, err := s.view(ctx, waitlistID, "")
	if err != nil {
		return Form{}, err
	}
	tier := w.Owner.EffectiveTier(s.now())
	f := Form{
		Waitlist: w, Settings: w.Settings.Effective(tier),
		Advanced: tier.AtLeast("advanced"), Pro: tier.AtLeast("pro"),
		// When a trial ends, only the tier changes.
		Version: fmt.Sprintf("%d.%d.%s", w.Version, w.Owner.Version, tier),
	}
	if v.Total > publicCountAbove && !f.Settings.HidePosition {
		f.Count = &v.Total
	}
	return f, nil
}

// Leaderboard returns the referral counts of the top referrers, highest first.
func (s *Service) Leaderboard(ctx context.Context, waitlistID string, limit int) ([]int64, error) {
	if err := s.Exists(ctx, waitlistID); err != nil {
		return nil, err
	}
	return s.store.Leaderboard(ctx, waitlistID, limit)
}

// Exists returns NOT_FOUND if there is no such waitlist.
func (s *Service) Exists(ctx context.Context, waitlistID string) error {
	_, err := s.views.ask(ctx, waitlistID, "")
	return err
}
