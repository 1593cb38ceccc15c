package messaging

import (
	"fmt"
	"time"
)

// QuotaWindow is the period that a quota applies to.
const QuotaWindow = 24 * time.Hour

// Quota is what is limited per subject and QuotaWindow.
type Quota string

// The quotas, and their subjects.
const (
	OwnerMails     Quota = "owner_mails"     // the id of the owner's account
	RecipientMails Quota = "recipient_mails" // the address as emailaddr.Person returns it
	RecipientAsks  Quota = "recipient_asks"  // the address as emailaddr.Person returns it
	OwnerTexts     Quota = "owner_texts"     // the id of the owner's account
	PrefixTexts    Quota = "prefix_texts"    // the phone number without its last digits
)

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
			return max(p.At.Add(QuotaWindow).Sub(now), time.Second)
		}
	}
	return QuotaWindow
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
	case RecipientAsks:
		return fmt.Sprintf("the recipient's limit of %d verifications, links and invitations in 24 hours is used up", e.Most)
	case OwnerTexts:
		return fmt.Sprintf("the owner's limit of %d text messages in 24 hours is used up", e.Most)
	case PrefixTexts:
		return fmt.Sprintf("the limit of %d text messages in 24 hours to numbers with this prefix is used up", e.Most)
	}
	return "the quota " + string(e.Quota) + " is used up"
}
