package postgres

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"waitlist.internal/libs/audit"
	"waitlist.internal/libs/idempotency"
	"waitlist.internal/libs/loop"
	"waitlist.internal/services/messaging/postgres/db"
)

const (
	// purgeRows limits one deletion, to tens of milliseconds.
	purgeRows = 5000
	// purgeTexts limits a deletion of rows of up to a megabyte.
	purgeTexts = 50
	// tombstoneKept exceeds the time in which an event can be redelivered: dead letters are
	// kept for 30 days.
	tombstoneKept = 35 * 24 * time.Hour
)

// Purge deletes the data of deleted accounts and waitlists, and expired idempotency keys. A mail in
// flight at that moment is sent, but its outcome is not recorded. An interrupted purge continues where
// it stopped, and replicas may purge at the same time.
type Purge struct {
	Pool *pgxpool.Pool
	// Every is how often the purge looks for work. Mails of deleted accounts and waitlists are
	// not sent, even before the purge.
	Every time.Duration
	Log   *slog.Logger
}

// Run purges until ctx is done. It logs errors and tries again at the next time.
func (p *Purge) Run(ctx context.Context) error {
	return loop.Job{Name: "purge", Every: p.Every, Log: p.Log, Do: loop.Whole(p.Once)}.Run(ctx)
}

// Once deletes everything that is due for deletion.
func (p *Purge) Once(ctx context.Context) error {
	for {
		var id string
		// By gone_gone_at.
		err := p.Pool.QueryRow(ctx, "SELECT id FROM gone ORDER BY gone_at LIMIT 1").Scan(&id)
		if errors.Is(err, pgx.ErrNoRows) {
			break
		}
		if err != nil {
			return fmt.Errorf("find deleted accounts and waitlists: %w", err)
		}
		if err := p.rows(ctx, id); err != nil {
			return fmt.Errorf("purge an account or waitlist: %w", err)
		}
	}
	// By tombstone_created_at.
	if err := p.chunks(ctx, `
		DELETE FROM tombstone WHERE hash = ANY (ARRAY(
			SELECT hash FROM tombstone WHERE created_at < now() - $1::interval ORDER BY created_at LIMIT $2))`,
		tombstoneKept, purgeRows); err != nil {
		return fmt.Errorf("purge tombstones: %w", err)
	}
	// By notification_received_at.
	if err := p.chunks(ctx, `
		DELETE FROM notification WHERE id = ANY (ARRAY(
			SELECT id FROM notification WHERE received_at < now() - $1::interval ORDER BY received_at LIMIT $2))`,
		notificationKept, purgeRows); err != nil {
		return fmt.Errorf("purge notifications: %w", err)
	}
	if _, err := idempotency.Prune(ctx, p.Pool); err != nil {
		return fmt.Errorf("purge idempotency keys: %w", err)
	}
	return nil
}

// rows deletes everything of one account or waitlist, and replaces its id by a tombstone. By
// sent_mail_account, sent_mail_signup and template_owner.
func (p *Purge) rows(ctx context.Context, id string) error {
	// Wait for writers that have not yet seen the deletion; see holdOff.
	if _, err := p.Pool.Exec(ctx, "SELECT pg_advisory_xact_lock(hashtextextended('purge/' || $1, 0))", id); err != nil {
		return err
	}
	for _, d := range []struct {
		most int
		sql  string
	}{
		{purgeRows, "DELETE FROM sent_mail WHERE event_id = ANY (ARRAY(SELECT event_id FROM sent_mail WHERE account_id = $1 LIMIT $2))"},
		{purgeRows, "DELETE FROM sent_mail WHERE event_id = ANY (ARRAY(SELECT event_id FROM sent_mail WHERE waitlist_id = $1 LIMIT $2))"},
		{purgeTexts, "DELETE FROM template WHERE id = ANY (ARRAY(SELECT id FROM template WHERE owner_id = $1 LIMIT $2))"},
	} {
		if err := p.chunks(ctx, d.sql, id, d.most); err != nil {
			return err
		}
	}
	if err := purgeBlasts(ctx, db.New(p.Pool), id); err != nil {
		return err
	}
	if err := purgeDomains(ctx, p.Pool, id); err != nil {
		return err
	}
	// Last: writers of entries lock or insert rows of the above, so no entry follows.
	if err := (&audit.Table{Pool: p.Pool}).Forget(ctx, id); err != nil {
		return err
	}
	_, err := p.Pool.Exec(ctx, `
		WITH buried AS (DELETE FROM gone WHERE id = $1 RETURNING id)
		INSERT INTO tombstone (hash) SELECT sha256(uuid_send(id)) FROM buried ON CONFLICT DO NOTHING`, id)
	return err
}

// chunks repeats a deletion of at most $2 rows until no rows are left.
func (p *Purge) chunks(ctx context.Context, sql string, arg any, most int) error {
	for {
		tag, err := p.Pool.Exec(ctx, sql, arg, most)
		if err != nil || tag.RowsAffected() < int64(most) {
			return err
		}
	}
}
