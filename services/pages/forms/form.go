package forms

import "regexp"

// Form is a waitlist's public configuration.
type Form struct {
	ID              string     `json:"waitlist_id"`
	Name            string     `json:"name"`
	Headline        string     `json:"headline"`
	Subheadline     string     `json:"subheadline"`
	HeroImageURL    string     `json:"hero_image_url"`
	NameField       string     `json:"name_field"`
	PhoneField      string     `json:"phone_field"`
	Questions       []Question `json:"custom_questions"`
	Status          string     `json:"status"`
	ShowSocialProof bool       `json:"show_social_proof"`
	RequireConsent  bool       `json:"require_consent"`
	ConsentText     string     `json:"consent_text"`
	ReferralBoost   int64      `json:"referral_boost"`
	HideBranding    bool       `json:"hide_branding"`
	Verify          bool       `json:"require_email_verification"`
	Appearance      Appearance `json:"appearance"`
	// Count is nil if the public may not see it.
	Count *int64 `json:"-"`
}

// Appearance says how a form looks; an empty field means the default.
type Appearance struct {
	Accent     string `json:"accent"`
	LogoURL    string `json:"logo_url"`
	ButtonText string `json:"button_text"`
	Locale     string `json:"locale"`
}

// Question is one of a waitlist's own questions.
type Question struct {
	ID       string   `json:"id"`
	Label    string   `json:"label"`
	Type     string   `json:"type"`
	Required bool     `json:"required"`
	Options  []string `json:"options"`
}

// Heading returns the heading of the form.
func (f *Form) Heading() string {
	if f.Headline != "" {
		return f.Headline
	}
	return f.Name
}

// Piece is a part of a consent text: a link if URL is set.
type Piece struct{ Text, URL string }

var markdownLink = regexp.MustCompile(`\[([^\[\]]+)\]\(((?:https?://|mailto:)[^\s()<>"]+)\)`)

// Consent returns the consent text in pieces. Only Markdown links to pages and mailboxes
// become links.
func (f *Form) Consent() (out []Piece) {
	rest := f.ConsentText
	for {
		m := markdownLink.FindStringSubmatchIndex(rest)
		if m == nil {
			break
		}
		if m[0] > 0 {
			out = append(out, Piece{Text: rest[:m[0]]})
		}
		out = append(out, Piece{rest[m[2]:m[3]], rest[m[4]:m[5]]})
		rest = rest[m[1]:]
	}
	if rest != "" {
		out = append(out, Piece{Text: rest})
	}
	return out
}
