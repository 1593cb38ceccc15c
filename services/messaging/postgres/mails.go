// Package postgres stores the mail queue, blasts, templates, sending domains and suppressed addresses.
// A comment "By …" names the indexes that a method uses.
package postgres

import (
	"context"
	"embed"
	"fmt"
	"io/fs"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype/zeronull"
	"github.com/jackc/pgx/v5/pgxpool"

	"waitlist.internal/services/messaging"
)

//go:embed migrations/*.sql
var files embed.FS

// Migrations returns the goose migrations of the service's schema.
func Migrations() (fs.FS, error) { return fs.Sub(files, "migrations") }

// pruneRows limits one deletion.
const pruneRows = 10_000

// Mails implements messaging.MailQueue, messaging.Suppressions and kafka.Intake.
type Mails struct{ pool *pgxpool.Pool }

// NewMails returns Mails over a pool whose search path is the service's schema.
func NewMails(pool *pgxpool.Pool) *Mails { return &Mails{pool} }

// Queue implements kafka.Intake. By sent_mail_pkey, gone_pkey and tombstone_pkey.
func (*Mails) Queue(ctx context.Context, tx pgx.Tx, r messaging.Request) error {
	_, err := tx.Exec(ctx, `
		INSERT INTO sent_mail (event_id, kind, recipient, account_id, generation, owner_email, role, waitlist_id, waitlist_name,
			number, expires_at, requested_at, traceparent, first_name, last_name, milestone)
		SELECT $1::uuid, $2::text, $3::text, $4::uuid, $5::bigint, $6::text, $7::text, $8::uuid, $9::text,
			$10::bigint, $11::timestamptz, $12::timestamptz, $13::text, $14::text, $15::text, $16::bigint
		WHERE NOT EXISTS (SELECT FROM gone WHERE id = ANY (ARRAY[$4::uuid, $8::uuid]))
		AND NOT EXISTS (SELECT FROM tombstone WHERE hash = ANY (ARRAY[sha256(uuid_send($4)), sha256(uuid_send($8))]))
		ON CONFLICT (event_id) DO NOTHING`,
		r.EventID, r.Kind, r.Recipient, zeronull.Text(r.AccountID), r.Generation, r.OwnerEmail, r.Role, zeronull.Text(r.WaitlistID),
		r.WaitlistName, r.Number, zeronull.Timestamptz(r.ExpiresAt), r.RequestedAt, r.Traceparent, r.FirstName, r.LastName, r.Milestone)
	if err != nil {
		return fmt.Errorf("queue mail: %w", err)
	}
	return nil
}

// Forget implements kafka.Intake: no mail of the account or waitlist is queued or claimed any more, and
// the purge deletes the existing ones.
func (*Mails) Forget(ctx context.Context, tx pgx.Tx, id string) error {
	if _, err := tx.Exec(ctx, "INSERT INTO gone (id) VALUES ($1) ON CONFLICT (id) DO NOTHING", id); err != nil {
		return fmt.Errorf("mark an account or waitlist as deleted: %w", err)
	}
	return nil
}

// Notified implements kafka.Intake. By sent_mail_told.
func (*Mails) Notified(ctx context.Context, tx pgx.Tx, waitlistID string, number int64, kind messaging.Kind) (notified bool, err error) {
	const those = `SELECT FROM sent_mail WHERE waitlist_id = $1 AND number = $2 AND kind = $3
		AND kind IN ('referral_notification', 'sms') AND state IN ('queued', 'sent') AND `
	if err := tx.QueryRow(ctx, "SELECT EXISTS ("+those+"ended_at IS NULL) OR EXISTS ("+those+"ended_at > now() - interval '1 hour')",
		waitlistID, number, kind).Scan(&notified); err != nil {
		return false, fmt.Errorf("look for notifications of a referrer: %w", err)
	}
	return notified, nil
}

const (
	// waiting means state = 'queued', in a form that the index sent_mail_due cannot serve: a plan
	// made while the table was small could otherwise scan all queued rows for a single one.
	waiting = "state || '' = 'queued'"
	emptied = "recipient = '', waitlist_name = '', owner_email = '', first_name = '', last_name = ''"
	cancel  = "UPDATE sent_mail SET state = 'canceled', ended_at = now(), " + emptied + " WHERE " + waiting + " AND "
)

// CancelSignup implements kafka.Intake. By sent_mail_signup.
func (*Mails) CancelSignup(ctx context.Context, tx pgx.Tx, waitlistID string, number int64, kind messaging.Kind) error {
	if _, err := tx.Exec(ctx, cancel+"waitlist_id = $1 AND number = $2 AND kind = coalesce($3, kind)",
		waitlistID, number, zeronull.Text(kind)); err != nil {
		return fmt.Errorf("cancel a signup's mails: %w", err)
	}
	return nil
}

// CancelAccount implements kafka.Intake. By sent_mail_account.
func (*Mails) CancelAccount(ctx context.Context, tx pgx.Tx, accountID string, kind messaging.Kind) error {
	if _, err := tx.Exec(ctx, cancel+"account_id = $1 AND kind = $2", accountID, kind); err != nil {
		return fmt.Errorf("cancel an account's mails: %w", err)
	}
	return nil
}

// Claim implements messaging.MailQueue. Mails about accounts come first, because somebody waits for
// them, and because a single waitlist can queue more mails than all accounts.
func (m *Mails) Claim(ctx context.Context, limit int, lease time.Duration) ([]messaging.Claimed, error) {
	out, err := m.claim(ctx, "AND waitlist_id IS NULL", limit, lease)
	if err != nil || len(out) == limit {
		return out, err
	}
	rest, err := m.claim(ctx, "", limit-len(out), lease)
	if err != nil && len(out) > 0 {
		return out, nil // these are claimed and have to be sent
	}
	return append(out, rest...), err
}

// claim claims mails that satisfy a condition. By sent_mail_due_account or sent_mail_due, and gone_pkey.
func (m *Mails) claim(ctx context.Context, where string, limit int, lease time.Duration) ([]messaging.Claimed, error) {
	rows, err := m.pool.Query(ctx, `
		UPDATE sent_mail m SET due_at = now() + $2
		FROM (
			SELECT event_id FROM sent_mail s
			WHERE state = 'queued' AND due_at <= now() `+where+`
			AND NOT EXISTS (SELECT FROM gone g WHERE g.id = ANY (ARRAY[s.account_id, s.waitlist_id]))
			ORDER BY due_at LIMIT $1 FOR UPDATE OF s SKIP LOCKED) due
		WHERE m.event_id = due.event_id
		RETURNING m.event_id, kind, recipient, account_id, generation, owner_email, role, waitlist_id, waitlist_name, number,
			expires_at, requested_at, traceparent, first_name, last_name, milestone, deferrals`, limit, lease)
	if err != nil {
		return nil, fmt.Errorf("claim mails: %w", err)
	}
	out, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (messaging.Claimed, error) {
		var c messaging.Claimed
		err := row.Scan(&c.EventID, &c.Kind, &c.Recipient, (*zeronull.Text)(&c.AccountID), &c.Generation, &c.OwnerEmail, &c.Role,
			(*zeronull.Text)(&c.WaitlistID), &c.WaitlistName, &c.Number, (*zeronull.Timestamptz)(&c.ExpiresAt), &c.RequestedAt,
			&c.Traceparent, &c.FirstName, &c.LastName, &c.Milestone, &c.Deferrals)
		return c, err //nolint:wrapcheck // wrapped below
	})
	if err != nil {
		return nil, fmt.Errorf("claim mails: %w", err)
	}
	return out, nil
}

// end ends one mail. By sent_mail_pkey.
func (m *Mails) end(ctx context.Context, eventID, state, reason string) error {
	const sql = "UPDATE sent_mail SET state = $2, error = $3, ended_at = now(), " + emptied + " WHERE event_id = $1 AND " + waiting
	if _, err := m.pool.Exec(ctx, sql, eventID, state, reason); err != nil {
		return fmt.Errorf("record a %s mail: %w", state, err)
	}
	return nil
}

// Sent implements messaging.MailQueue.
func (m *Mails) Sent(ctx context.Context, eventID string) error {
	return m.end(ctx, eventID, "sent", "")
}

// Failed implements messaging.MailQueue.
func (m *Mails) Failed(ctx context.Context, eventID, reason string) error {
	return m.end(ctx, eventID, "failed", reason)
}

// Canceled implements messaging.MailQueue.
func (m *Mails) Canceled(ctx context.Context, eventID, reason string) error {
	return m.end(ctx, eventID, "canceled", reason)
}

// Defer implements messaging.MailQueue. By sent_mail_pkey.
func (m *Mails) Defer(ctx context.Context, eventID string, pause time.Duration, reason string) error {
	const sql = "UPDATE sent_mail SET due_at = now() + $2, deferrals = deferrals + 1, error = $3 WHERE event_id = $1 AND " + waiting
	if _, err := m.pool.Exec(ctx, sql, eventID, pause, reason); err != nil {
		return fmt.Errorf("defer mail: %w", err)
	}
	return nil
}

// Return implements messaging.MailQueue. By sent_mail_pkey.
func (m *Mails) Return(ctx context.Context, pause time.Duration, eventIDs ...string) error {
	if _, err := m.pool.Exec(ctx, "UPDATE sent_mail SET due_at = now() + $2 WHERE event_id = ANY($1::uuid[]) AND "+waiting,
		eventIDs, pause); err != nil {
		return fmt.Errorf("return mails: %w", err)
	}
	return nil
}

// Prune implements messaging.MailQueue. By sent_mail_ended and sent_mail_pkey.
func (m *Mails) Prune(ctx context.Context, before time.Time) (int64, error) {
	tag, err := m.pool.Exec(ctx, "DELETE FROM sent_mail WHERE event_id IN (SELECT event_id FROM sent_mail WHERE ended_at < $1 LIMIT $2)",
		before, pruneRows)
	if err != nil {
		return 0, fmt.Errorf("prune mail queue: %w", err)
	}
	return tag.RowsAffected(), nil
}
