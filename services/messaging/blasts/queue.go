package blasts

import (
	"context"
	"time"
)

// Plan is a claim on the planning of one blast: the listing of its recipients.
type Plan struct {
	BlastID, WaitlistID string
	// To is the highest number that is planned so far, 0 before the first page.
	To int64
	// Left is how many more recipients the plan may have.
	Left int64
}

// Batch is a part of a blast that this process has claimed.
type Batch struct {
	BlastID string
	// Number is 0 for the first batch of the blast.
	Number int64
	// Claim identifies this claim; earlier and later claims of the batch have other values.
	Claim               string
	WaitlistID, OwnerID string
	// First and Last bound the numbers of the batch's recipients, inclusively.
	First, Last int64
	// Deferrals counts how often the batch was given back because mails of it were deferred.
	Deferrals int
	// CreatedAt is the time of the request for the blast, Traceparent its trace context.
	CreatedAt   time.Time
	Traceparent string
}

// Pending is the work that remains of a batch.
type Pending struct {
	Content
	// Numbers are the recipients without an outcome, ascending. Ended counts the other
	// recipients of the batch.
	Numbers []int64
	Ended   int64
}

// Outcome is the final state of one recipient's mail.
type Outcome string

// The outcomes. A skipped recipient opted out or left the waitlist after the blast was planned.
const (
	MailSent    Outcome = "sent"
	MailFailed  Outcome = "failed"
	MailSkipped Outcome = "skipped"
)

// Result is the outcome of one recipient's mail.
type Result struct {
	BlastID string
	Number  int64
	Outcome Outcome
}

// Queue stores the plans, batches and recipients of blasts.
type Queue interface {
	// ClaimPlan claims the plan that has waited longest, for the duration of lease. ok is
	// false if no plan is due.
	ClaimPlan(ctx context.Context, lease time.Duration) (p Plan, ok bool, err error)
	// Extend adds a page of recipients to a plan, divides them into batches, and releases the
	// claim, in one transaction. last completes the plan. If another process has extended the
	// plan since it was claimed, Extend does nothing.
	Extend(ctx context.Context, p Plan, numbers []int64, last bool) error
	// PausePlan releases a plan; it is due again after pause.
	PausePlan(ctx context.Context, p Plan, pause time.Duration) error
	// Gone ends all blasts of a deleted waitlist.
	Gone(ctx context.Context, waitlistID string) error

	// Claim claims up to limit due batches for the duration of lease: one of each blast
	// whose id is above after, ordered by blast id.
	Claim(ctx context.Context, after string, limit int, claim string, lease time.Duration) ([]Batch, error)
	// Renew restarts the leases of batches. For each batch it reports whether the claim
	// still holds and the blast has not ended.
	Renew(ctx context.Context, lease time.Duration, batches []Batch) ([]bool, error)
	// Pending returns the work that remains of a batch, none if the blast has ended.
	Pending(ctx context.Context, b Batch) (Pending, error)
	// Charge counts one mail towards the quota of each recipient in to. A quota allows most mails;
	// Charge records the mails beyond it as failed and returns their numbers. A repeated call for a
	// batch changes nothing and returns none.
	Charge(ctx context.Context, b Batch, most int64, to []Recipient) (over []int64, err error)
	// Record stores outcomes. They survive a crash of this process after Record returns; a
	// crash of Postgres may lose the outcomes of the last half second.
	Record(ctx context.Context, results []Result) error
	// End ends a batch that has nothing pending, and the blast with its last batch.
	End(ctx context.Context, b Batch) error
	// Return releases a batch; it is due again after pause. deferred increments Deferrals.
	Return(ctx context.Context, b Batch, pause time.Duration, deferred bool) error
	// Pace reserves n consecutive places in the stream of rate mails per second that all
	// processes share. It returns the wait until the first place.
	Pace(ctx context.Context, n int, rate float64) (time.Duration, error)
	// PruneBlasts deletes the recipients and batches of one blast that ended before a time.
	// It returns the number of changed rows, 0 without such a blast.
	PruneBlasts(ctx context.Context, before time.Time) (int64, error)
}
