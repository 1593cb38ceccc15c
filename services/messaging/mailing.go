package messaging

import (
	"context"
	"fmt"
	stdmail "net/mail"
	"slices"
	"strings"
	"time"

	"waitlist.internal/libs/apierr"
)

// Mailing is what signup says of a waitlist, and of one signup on it, at the
// moment of a mail.
type Mailing struct {
	OwnerID      string
	WaitlistName string
	// Pro says whether the owner's plan has these mails at all; the rest of the
	// settings is empty without it.
	Pro bool
	// Templates are the ids of the assigned templates.
	Templates map[TemplateType]string
	// Milestones are the counts of referrals that have a mail.
	Milestones        []int64
	NotifyReferrer    bool
	SMSNotifyReferrer bool
	// Signup is nil where it has gone, or none was asked for.
	Signup *Person
}

// Person is a signup as mails speak of it.
type Person struct {
	Email, FirstName, LastName string
	// Phone is as the signup wrote it.
	Phone string
	// Position is the displayed one; 0 where the waitlist hides positions.
	Position      int64
	ReferralCount int64
	ReferralToken string
	OptedOut      bool
}

// Mailings answers what a mail about a signup needs; NOT_FOUND where the waitlist
// has gone. Number 0 asks for the waitlist alone.
type Mailings interface {
	Mailing(ctx context.Context, waitlistID string, number int64) (Mailing, error)
}

// TemplateReader reads templates; see TemplateStore.
type TemplateReader interface {
	Template(ctx context.Context, ownerID, id string) (Template, error)
}

// ofSignup reports whether what signup says decides about mails of a kind.
func (k Kind) ofSignup() bool {
	return k == SignupConfirmation || k == ReferralMilestone || k == Offboarding || k == ReferralNotification || k == ReferralSMS
}

// Addressed reports whether requests of a kind have a recipient. Signup is asked
// for that of the others when they are sent.
func (k Kind) Addressed() bool { return !k.ofSignup() || k == Offboarding }

// marketing reports whether people can opt out of mails of a kind.
func (k Kind) marketing() bool {
	return k == ReferralMilestone || k == ReferralNotification || k == ReferralSMS
}

// template is the type of template that a kind goes out with; empty: none.
func (k Kind) template() TemplateType {
	switch k { //nolint:exhaustive // the others have built-in texts
	case SignupConfirmation:
		return ConfirmationTemplate
	case ReferralMilestone:
		return MilestoneTemplate
	case Offboarding:
		return OffboardingTemplate
	}
	return ""
}

// refusal says why a request is not carried out after all, at the moment of m;
// empty: it is.
func (r Request) refusal(m Mailing) string {
	switch {
	case !m.Pro:
		return "the owner's plan has no such mails"
	case r.Kind != Offboarding && m.Signup == nil:
		return "the signup has gone"
	case r.Kind.marketing() && m.Signup.OptedOut:
		return "opted out"
	case r.Kind == ReferralNotification && !m.NotifyReferrer, r.Kind == ReferralSMS && !m.SMSNotifyReferrer:
		return "switched off"
	case r.Kind == ReferralMilestone && !slices.Contains(m.Milestones, r.Milestone):
		return "no milestone any more"
	case r.Kind == ReferralSMS && e164(m.Signup.Phone) == "":
		return "no international phone number"
	case r.Kind.template() != "" && m.Templates[r.Kind.template()] == "":
		return "no template is assigned"
	}
	return ""
}

// e164 is a phone number as providers take it, without what people write between
// digits; empty where it does not say its country.
func e164(phone string) string {
	const shortest, longest = 7, 15 // digits; the latter is the standard's
	// The zero in +44 (0)20 is dialled within the country only.
	number := strings.NewReplacer(" ", "", "-", "", ".", "", "(0)", "", "(", "", ")", "").Replace(phone)
	digits, ok := strings.CutPrefix(number, "+")
	if !ok || len(digits) < shortest || len(digits) > longest || digits[0] == '0' || strings.Trim(digits, "0123456789") != "" {
		return ""
	}
	return number
}

// canceledError says that a mail is not wanted any more.
type canceledError struct{ reason string }

func (e *canceledError) Error() string { return "mail canceled: " + e.reason }

// sourceError says that what a mail needs could not be learned.
type sourceError struct{ err error }

func (e *sourceError) Error() string { return "what the mail needs is not known: " + e.err.Error() }
func (e *sourceError) Unwrap() error { return e.err }

// prepare decides, at this moment, whether a request is carried out, and returns
// what sends it. The error is a *canceledError, a *sourceError, or says that the
// mail cannot be written.
func (s *Sender) prepare(ctx context.Context, r Request, now time.Time) (send func(context.Context) error, to string, err error) {
	if !r.Kind.ofSignup() {
		m, err := s.Composer.Compose(r, now)
		if err == nil && r.WaitlistID != "" {
			err = s.from(ctx, &m, r.AccountID, r.WaitlistName)
		}
		return func(ctx context.Context) error { return s.Provider.Send(ctx, m) }, m.To, err
	}
	number := r.Number
	if r.Kind == Offboarding {
		number = 0
	}
	about, err := s.Mailings.Mailing(ctx, r.WaitlistID, number)
	if apierr.Is(err, apierr.NotFound) {
		return nil, "", &canceledError{"the waitlist has gone"}
	}
	if err != nil {
		return nil, "", &sourceError{err}
	}
	if reason := r.refusal(about); reason != "" {
		return nil, "", &canceledError{reason}
	}
	if r.Kind == ReferralSMS {
		if s.SMS == nil {
			return nil, "", &canceledError{"there is no provider of text messages"}
		}
		text, err := s.Composer.ComposeSMS(r, about)
		return func(ctx context.Context) error { return s.SMS.SendSMS(ctx, text) }, text.To, err
	}
	if !r.Kind.Addressed() {
		r.Recipient = about.Signup.Email
	}
	if err := s.wanted(ctx, r); err != nil {
		return nil, "", err
	}
	m, err := s.compose(ctx, r, about, now)
	if err == nil {
		err = s.from(ctx, &m, about.OwnerID, about.WaitlistName)
	}
	return func(ctx context.Context) error { return s.Provider.Send(ctx, m) }, m.To, err
}

// wanted cancels marketing mails to suppressed addresses.
func (s *Sender) wanted(ctx context.Context, r Request) error {
	if s.Suppressions == nil || !r.Kind.marketing() {
		return nil
	}
	suppressed, err := s.Suppressions.Suppressed(ctx, []string{r.Recipient})
	if err != nil {
		return &sourceError{fmt.Errorf("suppressed addresses: %w", err)}
	}
	if suppressed[r.Recipient] {
		return &canceledError{"the address is suppressed"}
	}
	return nil
}

// compose writes a mail about a signup, with the assigned template if its kind
// has one.
func (s *Sender) compose(ctx context.Context, r Request, about Mailing, now time.Time) (Mail, error) {
	if r.Kind.template() == "" {
		return s.Composer.ComposeReferral(r, about, now)
	}
	id := about.Templates[r.Kind.template()]
	if !canonical(id) {
		return Mail{}, &canceledError{"no template has the assigned id"}
	}
	t, err := s.Templates.Template(ctx, about.OwnerID, id)
	switch {
	case apierr.Is(err, apierr.NotFound):
		return Mail{}, &canceledError{"the template has gone"}
	case err != nil:
		return Mail{}, &sourceError{fmt.Errorf("template: %w", err)}
	case t.Type != r.Kind.template():
		return Mail{}, &canceledError{"the template is for other mails"}
	}
	return s.Composer.ComposeTemplate(r, about, t, now)
}

// from makes an owner's domain the sender of a mail to people, if there is one.
func (s *Sender) from(ctx context.Context, m *Mail, ownerID, waitlistName string) error {
	if s.Senders == nil || ownerID == "" {
		return nil
	}
	from, dkim, err := s.Senders.Sender(ctx, ownerID)
	if err != nil {
		return &sourceError{fmt.Errorf("sender: %w", err)}
	}
	m.From, m.DKIM = named(from, waitlistName), dkim
	return nil
}

// named gives an owner's sender the name of the waitlist; the default sender has
// a name of its own.
func named(from stdmail.Address, waitlistName string) stdmail.Address {
	if from.Address != "" && from.Name == "" {
		// An encoded word in it would be decoded by some.
		from.Name = strings.ReplaceAll(printable(waitlistName), "=?", "= ?")
	}
	return from
}
