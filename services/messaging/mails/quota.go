package mails

import (
	"fmt"
	"time"
)

// QuotaWindow is the period that a quota applies to, but for those of password resets.
const QuotaWindow = 24 * time.Hour

// Quota is what is limited per subject and Window.
type Quota string

// The quotas, and their subjects. The mails that no owner writes have one for each Kind, and the address as
// emailaddr.Person returns it.
const (
	OwnerMails     Quota = "owner_mails"     // the id of the owner's account
	RecipientMails Quota = "recipient_mails" // the address as emailaddr.Person returns it
	OwnerTexts     Quota = "owner_texts"     // the id of the owner's account
	PrefixTexts    Quota = "prefix_texts"    // the phone number without its last digits
	// SpellingResets is that of password resets to spellings that nobody verified: the address as emailaddr.Person
	// returns it.
	SpellingResets Quota = "spelling_resets"
)

// Window is the period that the quota applies to. It ends with an hour of the clock.
func (q Quota) Window() time.Duration {
	if q == Quota(PasswordReset) || q == SpellingResets {
		return time.Hour
	}
	return QuotaWindow
}

// Use counts N mails or messages of a subject towards a quota that allows Most.
type Use struct {
	Quota   Quota
	Subject string
	N, Most int64
}

// PastUse counts the uses within the hour that begins at At.
type PastUse struct {
	At   time.Time
	Used int64
}

// Wait returns how long after now the use is within its quota, given the past uses in order of time;
// 0 means that it is within it now. A use with N above Most never is; its wait is the whole window.
func (u Use) Wait(past []PastUse, now time.Time) time.Duration {
	total := u.N
	for _, p := range past {
		total += p.Used
	}
	if total <= u.Most {
		return 0
	}
	for _, p := range past {
		if total -= p.Used; total <= u.Most {
			return max(p.At.Add(u.Quota.Window()).Sub(now), time.Second)
		}
	}
	return u.Quota.Window()
}

// QuotaError means that a use is beyond its quota. Wait is how long it stays so.
type QuotaError struct {
	Use
	Wait time.Duration
}

func (e *QuotaError) Error() string {
	switch e.Quota {
	case OwnerMails:
		return fmt.Sprintf("the owner's limit of %d mails in 24 hours is used up", e.Most)
	case RecipientMails:
		return fmt.Sprintf("the recipient's limit of %d mails in 24 hours is used up", e.Most)
	case OwnerTexts:
		return fmt.Sprintf("the owner's limit of %d text messages in 24 hours is used up", e.Most)
	case PrefixTexts:
		return fmt.Sprintf("the limit of %d text messages in 24 hours to numbers with this prefix is used up", e.Most)
	}
	return fmt.Sprintf("the recipient's limit of %d mails of this kind in %.0f hours is used up", e.Most, e.Quota.Window().Hours())
}
