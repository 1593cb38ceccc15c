package join

import (
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strings"
	"time"

	"waitlist.internal/libs/apierr"
	"waitlist.internal/libs/body"
	"waitlist.internal/libs/emailaddr"
	"waitlist.internal/services/signup/queue"
	"waitlist.internal/services/signup/waitlist"
)

// Bounds of a signup's fields in code points.
const (
	maxUTM      = 255
	maxTimezone = 64
)

// maxElapsed is the longest time between a form and its signup, in milliseconds: JSON
// numbers are exact up to it.
const maxElapsed = 1 << 53

// revalidate is validate for a request body that was parsed before.
func (s *Service) revalidate(w *waitlist.Waitlist, raw []byte, h Header) (*queue.Join, error) {
	form, err := body.Parse(raw)
	if err != nil {
		return nil, err
	}
	return s.validate(w, form, h)
}

// validate checks a form against a waitlist's settings. It reports all field
// errors at once, and checks the email domain after that.
func (s *Service) validate(w *waitlist.Waitlist, form *body.Object, h Header) (*queue.Join, error) {
	eff := s.Effective(w)
	if eff.Status == waitlist.Closed {
		return nil, errClosed()
	}
	j := &queue.Join{Waitlist: w, Token: queue.NewToken(), CreatedAt: s.timestamp(), Device: deviceType(h.UserAgent)}
	j.Email = readEmail(form)
	j.FirstName = readText(form, "first_name", queue.MaxName, eff.NameField)
	j.LastName = readText(form, "last_name", queue.MaxName, eff.NameField)
	j.Phone = readText(form, "phone", queue.MaxPhone, eff.PhoneField)
	if zone, ok := form.String("timezone", maxTimezone); ok && zone != "" {
		if knownZone(zone) {
			j.Timezone = zone
		} else {
			form.Fail("timezone", "Enter an IANA time zone name, such as Europe/Berlin.")
		}
	}
	for name, to := range map[string]*string{
		"utm_source": &j.UTMSource, "utm_medium": &j.UTMMedium, "utm_campaign": &j.UTMCampaign,
		"utm_term": &j.UTMTerm, "utm_content": &j.UTMContent,
	} {
		*to, _ = form.String(name, maxUTM)
	}
	if ref, ok := form.String("referred_by_token", 0); ok {
		j.ReferredBy, j.HasReferrer = queue.ParseToken(strings.ToLower(strings.TrimSpace(ref)))
	}
	elapsed, timed := form.IntIn("elapsed_ms", 0, maxElapsed)
	j.Answers = readAnswers(form, eff.CustomQuestions)
	consent, _ := form.Bool("consent")
	if consent {
		j.ConsentAt = j.CreatedAt
		j.ConsentVersion = consentVersion(eff.ConsentText)
		j.PolicyVersion = s.cfg.PrivacyPolicyVersion
	} else if eff.RequireConsent && !form.Failed("consent") {
		form.Fail("consent", body.Required)
	}
	if err := form.Err(); err != nil {
		return nil, err
	}
	domain := j.Email[strings.LastIndexByte(j.Email, '@')+1:]
	if len(eff.AllowedEmailDomains) > 0 && !slices.Contains(eff.AllowedEmailDomains, domain) {
		return nil, apierr.New(apierr.DomainRestricted, "Addresses of this email domain cannot sign up here.")
	}
	if eff.ExcludePersonalEmails && emailaddr.Personal(domain) {
		return nil, apierr.New(apierr.DomainRestricted, "Use your work email address.").WithKind(apierr.Invalid)
	}
	if j.HasReferrer && eff.ReferralGuard.On() {
		j.Evidence = queue.Evidence{
			Disposable: emailaddr.Disposable(emailaddr.Domain(j.Email)), Network: s.network(w.ID, h.ClientIP),
			Person:  s.person(w.ID, j.Email),
			TooFast: timed && time.Duration(elapsed)*time.Millisecond < tooFast,
		}
	}
	return j, nil
}

func readEmail(form *body.Object) string {
	raw, ok := form.String("email", 0)
	if !ok {
		if !form.Has("email") || form.IsNull("email") {
			form.Fail("email", body.Required)
		}
		return ""
	}
	email, err := emailaddr.Parse(raw)
	if err != nil {
		form.Fail("email", "Enter a valid email address.")
	}
	return email
}

// readText reads a text field by its mode. It ignores the value of a hidden field.
func readText(form *body.Object, name string, limit int, mode waitlist.FieldMode) string {
	if mode == waitlist.FieldHidden {
		return ""
	}
	text, ok := form.String(name, limit)
	text = strings.TrimSpace(text)
	missing := !form.Has(name) || form.IsNull(name) || (ok && text == "")
	if mode == waitlist.FieldRequired && missing {
		form.Fail(name, body.Required)
	}
	return text
}

// consentVersion identifies a consent text by the first 12 hex digits of its SHA-256.
func consentVersion(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:])[:12]
}

func errClosed() error {
	return apierr.New(apierr.WaitlistClosed, "This waitlist is closed.")
}
