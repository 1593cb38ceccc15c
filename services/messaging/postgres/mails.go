// Package postgres stores the mail queue, blasts, templates, sending domains and suppressed addresses.
// A query's comment "By …" names the indexes that it uses.
package postgres

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"waitlist.internal/libs/work"
	"waitlist.internal/services/messaging/mails"
	"waitlist.internal/services/messaging/postgres/db"
)

//go:embed migrations/*.sql
var files embed.FS

// Migrations returns the goose migrations of the service's schema.
func Migrations() (fs.FS, error) { return fs.Sub(files, "migrations") }

// pruneRows limits one deletion.
const pruneRows = 10_000

// Mails implements mails.Queue and mails.Suppressions, and takes the requests of events in.
type Mails struct {
	pool *pgxpool.Pool
	db   *db.Queries
}

// NewMails returns Mails over a pool whose search path is the service's schema.
func NewMails(pool *pgxpool.Pool) *Mails { return &Mails{pool, db.New(pool)} }

// null returns nil for the zero value.
func null[T comparable](v T) *T {
	if v == *new(T) {
		return nil
	}
	return &v
}

// Queue adds a request within tx, the transaction of its event. It does nothing if the request exists, or if its
// account or waitlist is deleted.
func (*Mails) Queue(ctx context.Context, tx pgx.Tx, r mails.Request) error {
	err := db.New(tx).QueueMail(ctx, db.QueueMailParams{
		EventID: r.EventID, Kind: string(r.Kind), Recipient: r.Recipient, AccountID: null(r.AccountID), Generation: r.Generation,
		OwnerEmail: r.OwnerEmail, Role: r.Role, WaitlistID: null(r.WaitlistID), WaitlistName: r.WaitlistName, Number: r.Number,
		ExpiresAt: null(r.ExpiresAt), RequestedAt: r.RequestedAt, Traceparent: r.Traceparent, FirstName: r.FirstName, LastName: r.LastName,
		Milestone: r.Milestone,
	})
	if err != nil {
		return fmt.Errorf("queue mail: %w", err)
	}
	return nil
}

// Forget stops all mails of a deleted account or waitlist: none is queued or claimed any more, and the purge deletes
// the existing ones.
func (*Mails) Forget(ctx context.Context, tx pgx.Tx, id string) error {
	if err := db.New(tx).MarkGone(ctx, id); err != nil {
		return fmt.Errorf("mark an account or waitlist as deleted: %w", err)
	}
	return nil
}

// Notified reports whether a signup got a mail or text message of that kind within the last hour, or has one queued.
func (*Mails) Notified(ctx context.Context, tx pgx.Tx, waitlistID string, number int64, kind mails.Kind) (bool, error) {
	notified, err := db.New(tx).MailNotified(ctx, db.MailNotifiedParams{WaitlistID: waitlistID, Number: number, Kind: string(kind)})
	if err != nil {
		return false, fmt.Errorf("look for notifications of a referrer: %w", err)
	}
	return notified, nil
}

// ClaimMails implements mails.Queue. Mails about accounts come first, because somebody waits for
// them, and because a single waitlist can queue more mails than all accounts.
func (m *Mails) ClaimMails(ctx context.Context, limit int, lease time.Duration) ([]mails.Claimed, error) {
	accounts, err := m.db.ClaimAccountMails(ctx, lease, int64(limit))
	if err != nil {
		return nil, fmt.Errorf("claim mails about accounts: %w", err)
	}
	out := make([]mails.Claimed, 0, limit)
	for _, row := range accounts {
		out = append(out, claimed(db.ClaimMailsRow(row)))
	}
	if len(out) == limit {
		return out, nil
	}
	rows, err := m.db.ClaimMails(ctx, lease, int64(limit-len(out)))
	if err != nil && len(out) == 0 { // otherwise some are claimed and have to be sent
		return nil, fmt.Errorf("claim mails: %w", err)
	}
	for _, row := range rows {
		out = append(out, claimed(row))
	}
	return out, nil
}

// ClaimTexts implements mails.Queue.
func (m *Mails) ClaimTexts(ctx context.Context, limit int, lease time.Duration) ([]mails.Claimed, error) {
	rows, err := m.db.ClaimTexts(ctx, lease, int64(limit))
	if err != nil {
		return nil, fmt.Errorf("claim text messages: %w", err)
	}
	out := make([]mails.Claimed, len(rows))
	for i, row := range rows {
		out[i] = claimed(db.ClaimMailsRow(row))
	}
	return out, nil
}

func claimed(r db.ClaimMailsRow) mails.Claimed {
	return mails.Claimed{
		Request: mails.Request{
			EventID: r.EventID, Kind: r.Kind, Recipient: r.Recipient, AccountID: string(r.AccountID), Generation: r.Generation,
			OwnerEmail: r.OwnerEmail, Role: r.Role, WaitlistID: string(r.WaitlistID), WaitlistName: r.WaitlistName, Number: r.Number,
			FirstName: r.FirstName, LastName: r.LastName, Milestone: r.Milestone, ExpiresAt: time.Time(r.ExpiresAt),
			RequestedAt: r.RequestedAt, Traceparent: r.Traceparent,
		},
		Claim: r.Claim, Deferrals: r.Deferrals,
	}
}

// keys returns the ids of claimed requests, and their claims.
func keys(claimed []mails.Claimed) (ids, claims []string) {
	for _, c := range claimed {
		ids, claims = append(ids, c.EventID), append(claims, c.Claim)
	}
	return ids, claims
}

// Renew implements mails.Queue.
func (m *Mails) Renew(ctx context.Context, lease time.Duration, claimed []mails.Claimed) ([]bool, error) {
	ids, claims := keys(claimed)
	held, err := m.db.RenewMails(ctx, db.RenewMailsParams{Lease: lease, EventIDs: ids, Claims: claims})
	if err != nil {
		return nil, fmt.Errorf("renew the claims of mails: %w", err)
	}
	holds := make([]bool, len(claims))
	for i, claim := range claims {
		holds[i] = slices.Contains(held, claim)
	}
	return holds, nil
}

func (m *Mails) end(ctx context.Context, c mails.Claimed, state, reason string) error {
	n, err := m.db.EndMail(ctx, db.EndMailParams{EventID: c.EventID, Claim: c.Claim, State: state, Reason: reason})
	return decided(n, err, "record a "+state+" mail")
}

// decided is the error of a statement about claimed work that changed n rows: work.ErrLost without any.
func decided(n int64, err error, what string) error {
	if err == nil && n == 0 {
		err = work.ErrLost
	}
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}

// Sent implements mails.Queue.
func (m *Mails) Sent(ctx context.Context, c mails.Claimed) error {
	return m.end(ctx, c, "sent", "")
}

// Failed implements mails.Queue.
func (m *Mails) Failed(ctx context.Context, c mails.Claimed, reason string) error {
	return m.end(ctx, c, "failed", reason)
}

// Canceled implements mails.Queue.
func (m *Mails) Canceled(ctx context.Context, c mails.Claimed, reason string) error {
	return m.end(ctx, c, "canceled", reason)
}

// Defer implements mails.Queue.
func (m *Mails) Defer(ctx context.Context, c mails.Claimed, pause time.Duration, reason string) error {
	n, err := m.db.DeferMail(ctx, db.DeferMailParams{EventID: c.EventID, Claim: c.Claim, Pause: pause, Reason: reason})
	return decided(n, err, "defer a mail")
}

// Return implements mails.Queue.
func (m *Mails) Return(ctx context.Context, pause time.Duration, claimed []mails.Claimed) error {
	ids, claims := keys(claimed)
	if err := m.db.ReturnMails(ctx, db.ReturnMailsParams{Pause: pause, EventIDs: ids, Claims: claims}); err != nil {
		return fmt.Errorf("return mails: %w", err)
	}
	return nil
}

// Prune implements mails.Queue.
func (m *Mails) Prune(ctx context.Context, before time.Time) (int64, error) {
	n, err := m.db.PruneMails(ctx, before, pruneRows)
	if err != nil {
		return 0, fmt.Errorf("prune mail queue: %w", err)
	}
	uses, err := m.db.PruneQuotaUses(ctx, time.Now().Add(-mails.QuotaWindow-time.Hour), pruneRows)
	if err != nil {
		return n, fmt.Errorf("prune the uses of quotas: %w", err)
	}
	return n + uses, nil
}

// oldestOf bounds the mails among which Oldest looks.
const oldestOf = 1000

// Oldest returns when the oldest waiting mail was requested, and when the oldest unfinished
// blast was created; the zero time means that there is none. It looks only at the thousand
// mails and the thousand text messages that are due first.
func (m *Mails) Oldest(ctx context.Context) (mail, blast time.Time, err error) {
	mail, err = m.db.OldestMail(ctx, oldestOf)
	if err == nil || errors.Is(err, pgx.ErrNoRows) {
		blast, err = m.db.OldestBlast(ctx)
	}
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return time.Time{}, time.Time{}, fmt.Errorf("look for the oldest mail and blast: %w", err)
	}
	return mail, blast, nil
}
