package waitlist

import (
	"encoding/json"
	"fmt"
	"slices"

	"waitlist.internal/libs/access"
	eventv1 "waitlist.internal/proto/gen/waitlist/event/v1"
)

// FieldMode says how the signup form treats a field.
type FieldMode string

// The field modes.
const (
	FieldOptional FieldMode = "optional"
	FieldRequired FieldMode = "required"
	FieldHidden   FieldMode = "hidden"
)

// Status says whether a waitlist takes signups.
type Status string

// The statuses of a waitlist.
const (
	Open   Status = "open"
	Closed Status = "closed"
)

// GuardMode says what happens to a referral that looks invented.
type GuardMode string

// The modes of the referral guard.
const (
	// GuardOff looks at nothing.
	GuardOff GuardMode = "off"
	// GuardFlag tells the owner.
	GuardFlag GuardMode = "flag"
	// GuardWithhold tells the owner and withholds the credit.
	GuardWithhold GuardMode = "withhold"
)

// On reports whether the guard looks at referrals.
func (m GuardMode) On() bool { return m == GuardFlag || m == GuardWithhold }

// The events that webhook_events may name.
const (
	EventSignupCreated    = "signup.created"
	EventReferralCredited = "referral.credited"
)

// Settings holds all settings of a waitlist, with defaults filled in. Its JSON form is
// that of the API. Slices are never nil. Settings that the API shows only while they are
// stored are omitted at their zero values, which no owner can store.
type Settings struct {
	Headline              string     `json:"headline"`
	Subheadline           string     `json:"subheadline"`
	HeroImageURL          string     `json:"hero_image_url"`
	NameField             FieldMode  `json:"name_field"`
	PhoneField            FieldMode  `json:"phone_field"`
	CustomQuestions       []Question `json:"custom_questions"`
	RedirectURL           string     `json:"redirect_url"`
	HideBranding          bool       `json:"hide_branding"`
	HidePosition          bool       `json:"hide_position"`
	ExcludePersonalEmails bool       `json:"exclude_personal_emails"`
	AllowedEmailDomains   []string   `json:"allowed_email_domains"`
	// The channel URLs are secrets and sealed here; see OpenChannel.
	WebhookURL               string         `json:"webhook_url"`
	WebhookEvents            []string       `json:"webhook_events"`
	SlackWebhookURL          string         `json:"slack_webhook_url"`
	DiscordWebhookURL        string         `json:"discord_webhook_url"`
	Status                   Status         `json:"status"`
	ShowSocialProof          bool           `json:"show_social_proof"`
	RequireConsent           bool           `json:"require_consent"`
	ConsentText              string         `json:"consent_text"`
	ReferralBoost            int            `json:"referral_boost"`
	PositionOffset           int64          `json:"position_offset"`
	NotifyReferrer           bool           `json:"notify_referrer"`
	SMSNotifyReferrer        bool           `json:"sms_notify_referrer"`
	RequireEmailVerification bool           `json:"require_email_verification"`
	ReferralMilestones       []int          `json:"referral_milestones"`
	EmailTemplates           EmailTemplates `json:"email_templates"`
	ReferralGuard            GuardMode      `json:"referral_guard,omitempty"`
	// CreditAfterVerification has an effect only with RequireEmailVerification.
	CreditAfterVerification *bool       `json:"credit_after_verification,omitempty"`
	Appearance              *Appearance `json:"appearance,omitempty"`
}

// Appearance says how the form looks; an empty field means the default.
type Appearance struct {
	// Accent is the colour of buttons and links, as #rrggbb in lower case.
	Accent  string `json:"accent,omitempty"`
	LogoURL string `json:"logo_url,omitempty"`
	// ButtonText is the text of the button that signs up.
	ButtonText string `json:"button_text,omitempty"`
	// Locale is the language of the form's own texts: en, de, or empty for the visitor's.
	Locale string `json:"locale,omitempty"`
}

// EmailTemplates holds the template ids of the mails, "" for no template.
type EmailTemplates struct {
	SignupConfirmation string `json:"signup_confirmation,omitempty"`
	ReferralMilestone  string `json:"referral_milestone,omitempty"`
	Offboarding        string `json:"offboarding,omitempty"`
}

// Assignment is a mail and its template.
type Assignment struct {
	// Mail is the key in email_templates and the type of the template.
	Mail       string
	TemplateID string
}

// Fields returns the keys of the mails with their ids, in the order of the API.
func (t *EmailTemplates) Fields() []struct {
	Mail string
	ID   *string
} {
	return []struct {
		Mail string
		ID   *string
	}{
		{"signup_confirmation", &t.SignupConfirmation},
		{"referral_milestone", &t.ReferralMilestone},
		{"offboarding", &t.Offboarding},
	}
}

// Has reports whether t makes that assignment.
func (t EmailTemplates) Has(a Assignment) bool {
	for _, f := range t.Fields() {
		if f.Mail == a.Mail {
			return *f.ID == a.TemplateID
		}
	}
	return false
}

// Without returns t without a template, for all mails.
func (t EmailTemplates) Without(templateID string) EmailTemplates {
	for _, f := range t.Fields() {
		if *f.ID == templateID {
			*f.ID = ""
		}
	}
	return t
}

// DefaultSettings returns the settings of a new waitlist.
func DefaultSettings() Settings {
	return Settings{
		NameField:           FieldOptional,
		PhoneField:          FieldHidden,
		CustomQuestions:     []Question{},
		AllowedEmailDomains: []string{},
		WebhookEvents:       []string{EventSignupCreated, EventReferralCredited},
		Status:              Open,
		ShowSocialProof:     true,
		ReferralBoost:       1,
		ReferralMilestones:  []int{},
	}
}

// DecodeSettings reads the stored form: a JSON object of the settings that differ from
// their defaults.
func DecodeSettings(stored []byte) (Settings, error) {
	s := DefaultSettings()
	// Unmarshal would decode into the default slice and keep its elements.
	s.WebhookEvents = nil
	if err := json.Unmarshal(stored, &s); err != nil {
		return Settings{}, fmt.Errorf("decode settings: %w", err)
	}
	if s.WebhookEvents == nil {
		s.WebhookEvents = DefaultSettings().WebhookEvents
	}
	return s, nil
}

// Effective returns s with everything above tier t switched off. These settings apply;
// the owner's choices stay stored.
func (s Settings) Effective(t access.Tier) Settings {
	d := DefaultSettings()
	if !t.AtLeast(access.Advanced) {
		s.RedirectURL = d.RedirectURL
		s.HideBranding = d.HideBranding
		s.HidePosition = d.HidePosition
		s.ExcludePersonalEmails = d.ExcludePersonalEmails
		s.AllowedEmailDomains = d.AllowedEmailDomains
		s.PositionOffset = d.PositionOffset
	}
	if !t.AtLeast(access.Pro) {
		s.WebhookURL, s.SlackWebhookURL, s.DiscordWebhookURL = "", "", ""
		s.WebhookEvents = d.WebhookEvents
		s.NotifyReferrer = d.NotifyReferrer
		s.SMSNotifyReferrer = d.SMSNotifyReferrer
		s.RequireEmailVerification = d.RequireEmailVerification
		s.ReferralMilestones = d.ReferralMilestones
		s.EmailTemplates = d.EmailTemplates
	}
	if !s.RequireEmailVerification {
		s.CreditAfterVerification = nil
	}
	return s
}

// Channels returns the channels that receive an event. s must be effective.
// Slack and Discord receive new signups only.
func (s *Settings) Channels(event string) (out []eventv1.Channel) {
	created := event == EventSignupCreated
	if s.WebhookURL != "" && slices.Contains(s.WebhookEvents, event) {
		out = append(out, eventv1.Channel_CHANNEL_WEBHOOK)
	}
	if created && s.SlackWebhookURL != "" {
		out = append(out, eventv1.Channel_CHANNEL_SLACK)
	}
	if created && s.DiscordWebhookURL != "" {
		out = append(out, eventv1.Channel_CHANNEL_DISCORD)
	}
	return out
}

// Milestone returns count if it is a milestone whose mail a referrer gets on
// reaching it, else 0. s must be effective.
func (s *Settings) Milestone(count int64) int64 {
	if s.EmailTemplates.ReferralMilestone == "" || !slices.Contains(s.ReferralMilestones, int(count)) {
		return 0
	}
	return count
}

// Displayed returns the position that people see for a rank. s must be effective.
func (s *Settings) Displayed(rank int64) int64 { return rank + s.PositionOffset }
