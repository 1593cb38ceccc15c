package mails

import (
	"context"
	"errors"
	"fmt"
	stdmail "net/mail"
	"slices"
	"strings"
	"time"

	"waitlist.internal/libs/apierr"
	"waitlist.internal/libs/mailtext"
	"waitlist.internal/services/messaging/templates"
)

// Mailing is what signup knows about a waitlist and one of its signups when a mail is sent.
type Mailing struct {
	OwnerID      string
	WaitlistName string
	// Pro reports whether the owner's plan includes these mails. Without it, the other settings
	// are empty.
	Pro bool
	// Templates are the ids of the assigned templates.
	Templates map[templates.Type]string
	// Milestones are the numbers of referrals at which the referrer gets a mail.
	Milestones        []int64
	NotifyReferrer    bool
	SMSNotifyReferrer bool
	// Signup is nil if it was removed, or if only the waitlist was asked for.
	Signup *Person
}

// Person is the data of a signup that mails show.
type Person struct {
	Email, FirstName, LastName string
	// Phone is the number as entered.
	Phone string
	// Position is the displayed position, 0 if the waitlist hides positions.
	Position      int64
	ReferralCount int64
	ReferralToken string
	OptedOut      bool
}

// Mailings looks up the data for mails about signups. The error is NOT_FOUND if the waitlist is
// deleted. Number 0 asks for the waitlist only.
type Mailings interface {
	Mailing(ctx context.Context, waitlistID string, number int64) (Mailing, error)
}

// Facts knows what is true of the mails whose recipients events name. Whoever can write to
// Kafka can write any address into an event.
type Facts interface {
	// Ask returns a request with its recipient and contents as they are now. The error is
	// NOT_FOUND if nothing asks for the mail.
	Ask(ctx context.Context, r Request) (Request, error)
}

// TemplateReader reads templates; see templates.Store.
type TemplateReader interface {
	Template(ctx context.Context, ownerID, id string) (templates.Template, error)
}

// refusal returns why the mail is no longer wanted according to m, or "" if it is.
func (r Request) refusal(m Mailing) string {
	switch {
	case !m.Pro && r.Kind != SignupLink: // people need their place whatever the owner pays
		return "the owner's plan does not include these mails"
	case r.Kind != Offboarding && m.Signup == nil:
		return "the signup was removed"
	case kinds[r.Kind].marketing && m.Signup.OptedOut:
		return "the signup opted out"
	case r.Kind == ReferralNotification && !m.NotifyReferrer, r.Kind == ReferralSMS && !m.SMSNotifyReferrer:
		return "the waitlist does not send these notifications"
	case r.Kind == ReferralMilestone && !slices.Contains(m.Milestones, r.Milestone):
		return "the milestone was removed"
	case r.Kind == ReferralMilestone && r.Milestone > m.Signup.ReferralCount:
		return "the milestone was not reached"
	case r.Kind == ReferralSMS && e164(m.Signup.Phone) == "":
		return "the phone number is not in international format"
	case kinds[r.Kind].template != "" && m.Templates[kinds[r.Kind].template] == "":
		return "no template is assigned"
	}
	return ""
}

// e164 returns a phone number in E.164, the form that providers accept: without the characters that
// people write between digits. It returns "" if the number has no country code.
func e164(phone string) string {
	const shortest, longest = 7, 15 // digits; E.164 sets the upper limit
	// The zero in +44 (0)20 is only dialed within the country.
	number := strings.NewReplacer(" ", "", "-", "", ".", "", "(0)", "", "(", "", ")", "").Replace(phone)
	digits, ok := strings.CutPrefix(number, "+")
	if !ok || len(digits) < shortest || len(digits) > longest || digits[0] == '0' || strings.Trim(digits, "0123456789") != "" {
		return ""
	}
	return number
}

// canceledError means that a mail is no longer wanted.
type canceledError struct{ reason string }

func (e *canceledError) Error() string { return "mail canceled: " + e.reason }

// sourceError means that the data for a mail could not be read.
type sourceError struct{ err error }

func (e *sourceError) Error() string { return "read the data for the mail: " + e.err.Error() }
func (e *sourceError) Unwrap() error { return e.err }

// prepare decides whether a request is still wanted, and composes its mail or text message. It
// returns the function that sends it. The error is a *canceledError, a *sourceError, or, if the
// mail cannot be composed, any other.
func (s *Sender) prepare(ctx context.Context, r Request, now time.Time) (send func(context.Context) error, to string, err error) {
	if s.Facts != nil && r.Kind.Addressed() {
		if r, err = s.Facts.Ask(ctx, r); apierr.Is(err, apierr.NotFound) {
			return nil, "", &canceledError{"nothing asks for this mail"}
		}
		if err != nil {
			return nil, "", &sourceError{err}
		}
	}
	if !kinds[r.Kind].needsMailing {
		if err := s.wanted(ctx, r); err != nil {
			return nil, "", err
		}
		m, err := s.Composer.Compose(r, now)
		if err == nil && r.WaitlistID != "" && !r.DefaultSender {
			err = s.from(ctx, &m, r.AccountID, r.WaitlistName)
		}
		if err == nil {
			uses, refused := s.Limits.PlatformMail(ctx, r, m.To)
			err = s.charge(ctx, r.EventID, now, uses, refused)
		}
		return func(ctx context.Context) error { return s.Provider.Send(ctx, m) }, m.To, err
	}
	number := r.Number
	if r.Kind == Offboarding {
		number = 0
	}
	about, err := s.Mailings.Mailing(ctx, r.WaitlistID, number)
	if apierr.Is(err, apierr.NotFound) {
		return nil, "", &canceledError{"the waitlist was deleted"}
	}
	if err != nil {
		return nil, "", &sourceError{err}
	}
	if reason := r.refusal(about); reason != "" {
		return nil, "", &canceledError{reason}
	}
	if r.Kind == ReferralSMS {
		if s.SMS == nil {
			return nil, "", &canceledError{"no provider of text messages is configured"}
		}
		text, err := s.Composer.ComposeSMS(r, about)
		if err == nil {
			uses, refused := s.Limits.Text(ctx, about.OwnerID, text.To)
			err = s.charge(ctx, r.EventID, now, uses, refused)
		}
		return func(ctx context.Context) error { return s.SMS.SendSMS(ctx, text) }, text.To, err
	}
	if kinds[r.Kind].findsRecipient {
		r.Recipient = about.Signup.Email
	}
	if err := s.wanted(ctx, r); err != nil {
		return nil, "", err
	}
	m, err := s.compose(ctx, r, about, now)
	if err == nil && about.Pro {
		err = s.from(ctx, &m, about.OwnerID, about.WaitlistName)
	}
	if err == nil {
		var uses []Use
		var refused error
		if r.Kind == SignupLink { // a stranger may have asked: this does not use up what the owner may send
			uses, refused = s.Limits.PlatformMail(ctx, r, m.To)
		} else {
			uses, refused = s.Limits.OwnerMail(ctx, r.Kind, about.OwnerID, m.To)
		}
		err = s.charge(ctx, r.EventID, now, uses, refused)
	}
	return func(ctx context.Context) error { return s.Provider.Send(ctx, m) }, m.To, err
}

// charge counts a request towards what Limits returned, or cancels it.
func (s *Sender) charge(ctx context.Context, eventID string, now time.Time, uses []Use, err error) error {
	if err == nil && len(uses) > 0 {
		err = s.Queue.Charge(ctx, eventID, now, uses)
	}
	if over, ok := errors.AsType[*QuotaError](err); ok {
		return &canceledError{over.Error()}
	}
	if _, ok := errors.AsType[*canceledError](err); ok || err == nil {
		return err
	}
	return &sourceError{err}
}

// wanted cancels mails to suppressed addresses that their recipients did not ask for.
func (s *Sender) wanted(ctx context.Context, r Request) error {
	if s.Suppressions == nil || kinds[r.Kind].asked {
		return nil
	}
	suppressed, err := s.Suppressions.Suppressed(ctx, []string{r.Recipient})
	if err != nil {
		return &sourceError{fmt.Errorf("look up the suppressed addresses: %w", err)}
	}
	if suppressed[r.Recipient] {
		return &canceledError{"the address is suppressed"}
	}
	return nil
}

// compose composes a mail about a signup, from the assigned template if its kind uses one.
func (s *Sender) compose(ctx context.Context, r Request, about Mailing, now time.Time) (Mail, error) {
	if kinds[r.Kind].template == "" {
		return s.Composer.ComposeForSignup(r, about, now)
	}
	id := about.Templates[kinds[r.Kind].template]
	if !templates.Canonical(id) {
		return Mail{}, &canceledError{"the assigned template does not exist"}
	}
	t, err := s.Templates.Template(ctx, about.OwnerID, id)
	switch {
	case apierr.Is(err, apierr.NotFound):
		return Mail{}, &canceledError{"the template was deleted"}
	case err != nil:
		return Mail{}, &sourceError{fmt.Errorf("read the template: %w", err)}
	case t.Type != kinds[r.Kind].template:
		return Mail{}, &canceledError{"the template has another type"}
	}
	return s.Composer.ComposeTemplate(r, about, t, now)
}

// from sets the sender of a mail to the owner's verified domain, if there is one.
func (s *Sender) from(ctx context.Context, m *Mail, ownerID, waitlistName string) error {
	if s.Senders == nil || ownerID == "" {
		return nil
	}
	from, dkim, err := s.Senders.Sender(ctx, ownerID)
	if err != nil {
		return &sourceError{fmt.Errorf("find the sender: %w", err)}
	}
	m.From, m.DKIM = named(from, waitlistName), dkim
	return nil
}

// named sets the display name of an owner's sender to the waitlist's name. The default sender keeps
// its own.
func named(from stdmail.Address, waitlistName string) stdmail.Address {
	if from.Address != "" && from.Name == "" {
		// Some mail programs would decode an encoded word in the name.
		from.Name = strings.ReplaceAll(mailtext.OneLine(waitlistName), "=?", "= ?")
	}
	return from
}
