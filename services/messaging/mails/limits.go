package mails

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/nyaruka/phonenumbers"

	"waitlist.internal/libs/apierr"
	"waitlist.internal/libs/emailaddr"
)

// Account is the part of an account that limits depend on.
type Account struct {
	// Verified reports whether the account's address is verified, Trial whether it is on trial.
	Verified, Trial bool
}

// Accounts looks up owners.
type Accounts interface {
	// Account returns an account as it is now, or NOT_FOUND if it does not exist.
	Account(ctx context.Context, id string) (Account, error)
}

// These limits hold whatever the settings.
const (
	// NoticesPerDay limits the notices of each kind to one person per QuotaWindow: of another password or API key, and
	// of a trial's end.
	NoticesPerDay = 10
	// ResetsPerHour limits the password resets to an address. Whoever is beyond it has a mail with a token that still
	// works: a token lasts an hour, and no other mail voids it.
	ResetsPerHour = 5
)

// Limits decides whether mails and text messages may go out, and towards which quotas they count.
// Its zero value limits only what is limited whatever the settings.
type Limits struct {
	Accounts Accounts
	// EnforceVerification requires owners to verify their address before mails from their templates go out.
	EnforceVerification bool
	// MailsPerOwner limits the blasts and mails about signups of an owner per QuotaWindow, MailsOnTrial
	// those of an owner on trial. MailsPerRecipient limits the mails to one person, from all owners. 0
	// means no limit.
	MailsPerOwner, MailsOnTrial, MailsPerRecipient int64
	// AsksPerRecipient limits the verifications of accounts, those of signups, the links and the invitations to one
	// person per QuotaWindow. Anybody who knows the address can cause these. 0 means no limit.
	AsksPerRecipient int64
	// Texts limits text messages; nil means no limit.
	Texts *TextLimits
}

// TextLimits keeps owners from earning with text messages to numbers that pay them.
type TextLimits struct {
	// Countries are the codes of the countries to which text messages go, ISO 3166-1. No messages go to
	// other countries.
	Countries []string
	// OnTrial allows text messages of owners on trial.
	OnTrial bool
	// PerOwner limits the messages of an owner per QuotaWindow, PerPrefix the messages to numbers that
	// differ only in their last prefixRest digits. 0 means no limit.
	PerOwner, PerPrefix int64
}

// prefixRest is how many digits a prefix leaves out. Operators get blocks of ten thousand numbers.
const prefixRest = 4

// mails returns the limit of an owner's mails; 0 means none.
func (l Limits) mails(trial bool) int64 {
	if trial {
		return cmp.Or(l.MailsOnTrial, l.MailsPerOwner)
	}
	return l.MailsPerOwner
}

// Blast returns what a blast counts towards, without N. Most is 0 if the owner has no limit.
func (l Limits) Blast(ownerID string, trial bool) Use {
	return Use{Quota: OwnerMails, Subject: ownerID, Most: l.mails(trial)}
}

// OwnerMail returns what a mail about a signup counts towards. The error is a *canceledError if the mail must not
// go out.
func (l Limits) OwnerMail(ctx context.Context, k Kind, ownerID, recipient string) ([]Use, error) {
	ownWords := kinds[k].template != "" && l.EnforceVerification
	var owner Account
	if ownWords || l.MailsPerOwner > 0 || l.MailsOnTrial > 0 {
		var err error
		if owner, err = l.owner(ctx, ownerID); err != nil {
			return nil, err
		}
	}
	if ownWords && !owner.Verified {
		return nil, &canceledError{"the owner's address is not verified"}
	}
	return limited(
		Use{Quota: OwnerMails, Subject: ownerID, N: 1, Most: l.mails(owner.Trial)},
		Use{Quota: RecipientMails, Subject: emailaddr.Person(recipient), N: 1, Most: l.MailsPerRecipient},
	), nil
}

// PlatformMail returns what a mail counts towards that no owner writes: each kind to each person has a quota of its own, so
// that a flood of one kind keeps no other away.
func (l Limits) PlatformMail(ctx context.Context, r Request, recipient string) ([]Use, error) {
	u := Use{Quota: Quota(r.Kind), Subject: emailaddr.Person(recipient), N: 1}
	switch r.Kind { // owners write the others; see Mail and Text
	case AccountVerification, SignupVerification, TeamInvite, SignupLink:
		u.Most = l.AsksPerRecipient
	case PasswordChanged, PasswordRecovered, APIKeyChanged, TrialEnding:
		u.Most = NoticesPerDay
	case PasswordReset:
		u.Most = ResetsPerHour
		if u.Subject == recipient {
			break
		}
		// Strangers can register any number of spellings of an address and ask for resets of them. These have one
		// quota together; what its owner has verified has one of its own, as has the address that is spelled plainly.
		account, err := l.owner(ctx, r.AccountID)
		if err != nil {
			return nil, err
		}
		if account.Verified {
			u.Subject = recipient
		} else {
			u.Quota = SpellingResets
		}
	}
	return limited(u), nil
}

// Text is Mail for a text message to an E.164 number.
func (l Limits) Text(ctx context.Context, ownerID, number string) ([]Use, error) {
	if l.Texts == nil {
		return nil, nil
	}
	to, err := phonenumbers.Parse(number, "")
	if err != nil {
		return nil, &canceledError{"the phone number does not exist"}
	}
	if !slices.Contains(l.Texts.Countries, phonenumbers.GetRegionCodeForNumber(to)) {
		return nil, &canceledError{"no text messages go to the country of the phone number"}
	}
	if kind := phonenumbers.GetNumberType(to); kind == phonenumbers.PREMIUM_RATE || kind == phonenumbers.SHARED_COST {
		return nil, &canceledError{"the phone number costs more than an ordinary one"}
	}
	if !l.Texts.OnTrial {
		owner, err := l.owner(ctx, ownerID)
		if err != nil {
			return nil, err
		}
		if owner.Trial {
			return nil, &canceledError{"a trial does not include text messages"}
		}
	}
	return limited(
		Use{Quota: OwnerTexts, Subject: ownerID, N: 1, Most: l.Texts.PerOwner},
		Use{Quota: PrefixTexts, Subject: number[:len(number)-prefixRest], N: 1, Most: l.Texts.PerPrefix},
	), nil
}

// owner looks up an owner for whom a mail or text message goes out.
func (l Limits) owner(ctx context.Context, id string) (Account, error) {
	owner, err := l.Accounts.Account(ctx, id)
	if apierr.Is(err, apierr.NotFound) {
		return Account{}, &canceledError{"the owner's account was deleted"}
	}
	if err != nil {
		return Account{}, fmt.Errorf("read the owner's account: %w", err)
	}
	return owner, nil
}

// limited returns the uses that have a limit.
func limited(uses ...Use) []Use {
	return slices.DeleteFunc(uses, func(u Use) bool { return u.Most == 0 })
}
