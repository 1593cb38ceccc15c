package join

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"waitlist.internal/libs/emailaddr"
	"waitlist.internal/services/signup/index"
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
	w, v, rank, err := s.place(ctx, waitlistID, normalised(email))
	if err != nil {
		return Standing{}, err
	}
	eff := s.Effective(w)
	return Standing{
		Email: v.Signup.Email, FirstName: v.Signup.FirstName, LastName: v.Signup.LastName,
		ShowPosition: !eff.HidePosition, Position: eff.Displayed(rank), Total: v.Total,
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

// place returns a signup with its exact place: on a small list from Postgres, else
// from the index, and if that cannot answer from the buckets in Postgres. Now and then it
// takes the place from there anyway and compares the index with it.
func (s *Service) place(ctx context.Context, waitlistID, email string) (*waitlist.Waitlist, queue.View, int64, error) {
	most := s.cfg.SmallList
	due := s.index != nil && s.index.CheckDue(waitlistID, s.now())
	if due {
		most = math.MaxInt64
	}
	w, v, err := s.find(ctx, waitlistID, email, most)
	if err != nil {
		return nil, v, 0, err
	}
	if v.Rank != 0 {
		if due && v.Live > s.cfg.SmallList {
			s.index.Compare(ctx, waitlistID, v)
		}
		return w, v, v.Rank, nil
	}
	at, err := s.index.Rank(ctx, waitlistID, v)
	if err == nil {
		// The index may be ahead of v. Show the counter that belongs to the place.
		v.Total = at.Mark.Total
		return w, v, at.Rank, nil
	}
	if !errors.Is(err, index.ErrUnusable) {
		return nil, v, 0, err
	}
	if w, v, err = s.find(ctx, waitlistID, email, math.MaxInt64); err != nil {
		return nil, v, 0, err
	}
	return w, v, v.Rank, nil
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
	w, v, err := s.view(ctx, waitlistID, "", NoRank)
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
	if _, err := s.reads.read(ctx, waitlistID); err != nil {
		return nil, err
	}
	return s.store.Leaderboard(ctx, waitlistID, limit)
}

// Exists returns NOT_FOUND if there is no such waitlist.
func (s *Service) Exists(ctx context.Context, waitlistID string) error {
	_, err := s.reads.read(ctx, waitlistID)
	return err
}
