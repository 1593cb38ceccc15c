package postgres

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"waitlist.internal/libs/telemetry"
)

const (
	// purgeRows bounds one deletion: tens of milliseconds.
	purgeRows = 5000
	// tombstoneKept is longer than any event can come again: dead letters are
	// kept for 30 days.
	tombstoneKept = 35 * 24 * time.Hour
)

// Purge deletes the mails of accounts and waitlists that have gone. A mail that
// is being sent at that moment goes out; what became of it is then recorded
// nowhere. A purge that stopped midway goes on where it was, and replicas may
// run it together.
type Purge struct {
	Pool *pgxpool.Pool
	// Every is how often the purge looks for work. Nothing is sent for what has
	// gone in the meantime.
	Every time.Duration
	Log   *slog.Logger
}

// Run purges until ctx is done. Failures are logged and tried again.
func (p *Purge) Run(ctx context.Context) error {
	tick := time.NewTicker(p.Every)
	defer tick.Stop()
	for {
		if err := p.Once(ctx); err != nil && ctx.Err() == nil {
			p.Log.ErrorContext(ctx, "purge failed", telemetry.Err(err))
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// Once deletes all there is to delete.
func (p *Purge) Once(ctx context.Context) error {
	for {
		var id string
		// By gone_gone_at.
		err := p.Pool.QueryRow(ctx, "SELECT id FROM gone ORDER BY gone_at LIMIT 1").Scan(&id)
		if errors.Is(err, pgx.ErrNoRows) {
			break
		}
		if err != nil {
			return fmt.Errorf("look for deleted accounts and waitlists: %w", err)
		}
		if err := p.mails(ctx, id); err != nil {
			return fmt.Errorf("purge mails: %w", err)
		}
	}
	// By tombstone_created_at.
	if err := p.chunks(ctx, `
		DELETE FROM tombstone WHERE hash = ANY (ARRAY(
			SELECT hash FROM tombstone WHERE created_at < now() - $1::interval ORDER BY created_at LIMIT $2))`, tombstoneKept); err != nil {
		return fmt.Errorf("purge tombstones: %w", err)
	}
	return nil
}

// mails deletes every mail of one account or waitlist, and then all of it but
// the hash of its id. By sent_mail_account and sent_mail_signup.
func (p *Purge) mails(ctx context.Context, id string) error {
	for _, column := range []string{"account_id", "waitlist_id"} {
		if err := p.chunks(ctx, `
			DELETE FROM sent_mail WHERE event_id = ANY (ARRAY(
				SELECT event_id FROM sent_mail WHERE `+column+` = $1 LIMIT $2))`, id); err != nil {
			return err
		}
	}
	_, err := p.Pool.Exec(ctx, `
		WITH buried AS (DELETE FROM gone WHERE id = $1 RETURNING id)
		INSERT INTO tombstone (hash) SELECT sha256(uuid_send(id)) FROM buried ON CONFLICT DO NOTHING`, id)
	return err
}

// chunks repeats a deletion of at most $2 rows until there are none left.
func (p *Purge) chunks(ctx context.Context, sql string, arg any) error {
	for {
		tag, err := p.Pool.Exec(ctx, sql, arg, purgeRows)
		if err != nil || tag.RowsAffected() < purgeRows {
			return err
		}
	}
}
