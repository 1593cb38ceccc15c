package waitlist

import (
	"context"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

// NewSignup is what a person submits to sign up. Only Email is always needed; the
// waitlist's settings decide about the rest.
type NewSignup struct {
	Email     string `json:"email"`
	FirstName string `json:"first_name,omitempty"`
	LastName  string `json:"last_name,omitempty"`
	Phone     string `json:"phone,omitempty"`
	// ReferredBy is the referral token of the referrer.
	ReferredBy string `json:"referred_by_token,omitempty"`
	Consent    bool   `json:"consent,omitempty"`
	// Timezone is an IANA name.
	Timezone    string `json:"timezone,omitempty"`
	UTMSource   string `json:"utm_source,omitempty"`
	UTMMedium   string `json:"utm_medium,omitempty"`
	UTMCampaign string `json:"utm_campaign,omitempty"`
	UTMTerm     string `json:"utm_term,omitempty"`
	UTMContent  string `json:"utm_content,omitempty"`
	// Answers are keyed by the id of the custom question: a string, or a bool for a checkbox.
	Answers map[string]any `json:"custom_answers,omitempty"`
}

// Place is where somebody stands.
type Place struct {
	Email     string `json:"email"`
	FirstName string `json:"first_name"`
	LastName  string `json:"last_name"`
	// ReferralToken is "" in answers to Client.Place, which anybody may ask.
	ReferralToken string `json:"referral_token"`
	// Position and Total are 0 on a waitlist that hides them.
	Position      int64     `json:"position"`
	Total         int64     `json:"total_signups"`
	ReferralCount int64     `json:"referral_count"`
	CreatedAt     time.Time `json:"created_at"`
	RedirectURL   string    `json:"redirect_url"`
}

// Form is how a waitlist's public form looks.
type Form struct {
	WaitlistID   string `json:"waitlist_id"`
	Name         string `json:"name"`
	Headline     string `json:"headline"`
	Subheadline  string `json:"subheadline"`
	HeroImageURL string `json:"hero_image_url"`
	// NameField and PhoneField are optional, required or hidden.
	NameField  string `json:"name_field"`
	PhoneField string `json:"phone_field"`
	// SignupCount is nil while it is not shown.
	SignupCount              *int64     `json:"signup_count"`
	Questions                []Question `json:"custom_questions"`
	Status                   string     `json:"status"`
	ShowSocialProof          bool       `json:"show_social_proof"`
	RequireConsent           bool       `json:"require_consent"`
	ConsentText              string     `json:"consent_text"`
	ReferralBoost            int64      `json:"referral_boost"`
	PositionOffset           int64      `json:"position_offset"`
	HideBranding             bool       `json:"hide_branding"`
	HidePosition             bool       `json:"hide_position"`
	RequireEmailVerification bool       `json:"require_email_verification"`
	Appearance               Appearance `json:"appearance"`
}

// Appearance is how a form looks; empty fields mean the default.
type Appearance struct {
	// Accent is a colour as #rrggbb.
	Accent     string `json:"accent,omitempty"`
	LogoURL    string `json:"logo_url,omitempty"`
	ButtonText string `json:"button_text,omitempty"`
	// Locale is en or de.
	Locale string `json:"locale,omitempty"`
}

// Question is a custom question of a form.
type Question struct {
	ID    string `json:"id"`
	Label string `json:"label"`
	// Type is text, dropdown or checkbox.
	Type     string   `json:"type"`
	Required bool     `json:"required"`
	Options  []string `json:"options,omitempty"`
}

// Leader is a row of the leaderboard.
type Leader struct {
	Rank          int64 `json:"rank"`
	ReferralCount int64 `json:"referral_count"`
}

// SignUp adds somebody to a waitlist. Somebody who is on it already gets their present place.
func (c *Client) SignUp(ctx context.Context, list string, s NewSignup) (Place, error) {
	return do[Place](ctx, c, request{method: http.MethodPost, path: path("public", "waitlists", list, "signups"), body: s, again: true})
}

// Place returns where somebody stands.
func (c *Client) Place(ctx context.Context, list, email string) (Place, error) {
	return get[Place](ctx, c, path("public", "waitlists", list, "signups", email), nil)
}

// Verify verifies the address of a signup by the token of its verification mail.
func (c *Client) Verify(ctx context.Context, list, email, token string) error {
	return c.call(ctx, request{
		method: http.MethodPost, path: path("public", "waitlists", list, "signups", email, "verify"),
		body: map[string]string{"token": token}, again: true,
	}, nil)
}

// MailLink has somebody's place and link mailed to them. It succeeds whether or not they are on the list.
func (c *Client) MailLink(ctx context.Context, list, email string) error {
	return c.call(ctx, request{
		method: http.MethodPost, path: path("public", "waitlists", list, "link"), body: map[string]string{"email": email}, again: true,
	}, nil)
}

// Form returns a waitlist's form. Each call counts as a view of the form.
func (c *Client) Form(ctx context.Context, list string) (Form, error) {
	return get[Form](ctx, c, path("public", "waitlists", list, "config"), nil)
}

// Count returns the displayed number of signups; shown is false while there are 10 or
// fewer, or if the waitlist hides it.
func (c *Client) Count(ctx context.Context, list string) (n int64, shown bool, err error) {
	out, err := get[struct {
		Count *int64 `json:"count"`
	}](ctx, c, path("public", "waitlists", list, "count"), nil)
	if err != nil || out.Count == nil {
		return 0, false, err
	}
	return *out.Count, true, nil
}

// Leaderboard returns the most successful referrers, at most limit (1 to 50).
func (c *Client) Leaderboard(ctx context.Context, list string, limit int) ([]Leader, error) {
	out, err := get[struct {
		Leaderboard []Leader `json:"leaderboard"`
	}](ctx, c, path("public", "waitlists", list, "leaderboard"), url.Values{"limit": {strconv.Itoa(limit)}})
	return out.Leaderboard, err
}

// Unsubscribe opts somebody out by the token in the footer of their mails. deleteToken
// lets them delete their data, too.
func (c *Client) Unsubscribe(ctx context.Context, list, email, token string) (deleteToken string, err error) {
	var out struct {
		DeleteToken string `json:"delete_token"`
	}
	err = c.call(ctx, request{
		method: http.MethodPost, path: path("public", "waitlists", list, "unsubscribe"),
		body: map[string]string{"email": email, "token": token}, again: true,
	}, &out)
	return out.DeleteToken, err
}

// DeleteMyData removes somebody by the token that Unsubscribe returned.
// It is not sent again after a lost answer: once they are removed, the answer is NOT_FOUND.
func (c *Client) DeleteMyData(ctx context.Context, list, email, deleteToken string) error {
	return c.call(ctx, request{
		method: http.MethodPost, path: path("public", "waitlists", list, "delete-my-data"),
		body: map[string]string{"email": email, "token": deleteToken},
	}, nil)
}
