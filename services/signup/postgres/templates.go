package postgres

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"waitlist.internal/services/signup"
)

// assignedSQL uses waitlist_owner. It locks in the order of ids, so that two deletions
// of one owner do not deadlock. The lock orders the removal and changes of settings.
const assignedSQL = `
SELECT id, settings FROM waitlist
WHERE owner_id = $1 AND deleted_at IS NULL AND $2 IN (
    settings #>> '{email_templates,signup_confirmation}',
    settings #>> '{email_templates,referral_milestone}',
    settings #>> '{email_templates,offboarding}')
ORDER BY id
FOR NO KEY UPDATE`

// RemoveTemplate removes a deleted template from the settings of its owner's waitlists,
// within tx.
func (s *Waitlists) RemoveTemplate(ctx context.Context, tx pgx.Tx, ownerID, templateID string) error {
	// This waits for transactions that are assigning templates of this owner. Later ones
	// see the new count.
	if _, err := tx.Exec(ctx, `UPDATE owner SET templates_deleted = templates_deleted + 1 WHERE id = $1`, ownerID); err != nil {
		return fmt.Errorf("count deleted template: %w", err)
	}
	rows, err := tx.Query(ctx, assignedSQL, ownerID, templateID)
	if err != nil {
		return fmt.Errorf("find template: %w", err)
	}
	type assigned struct {
		ID       string
		Settings []byte
	}
	lists, err := pgx.CollectRows(rows, pgx.RowToStructByPos[assigned])
	if err != nil {
		return fmt.Errorf("find template: %w", err)
	}
	var b pgx.Batch
	for _, w := range lists {
		settings, err := signup.DecodeSettings(w.Settings)
		if err != nil {
			return fmt.Errorf("waitlist %s: %w", w.ID, err)
		}
		settings.EmailTemplates = settings.EmailTemplates.Without(templateID)
		stored, err := settings.Stored()
		if err != nil {
			return fmt.Errorf("waitlist %s: %w", w.ID, err)
		}
		b.Queue(`UPDATE waitlist SET settings = $2, version = version + 1 WHERE id = $1`, w.ID, stored)
	}
	if err := tx.SendBatch(ctx, &b).Close(); err != nil {
		return fmt.Errorf("remove template: %w", err)
	}
	return nil
}

// TemplatesDeleted implements signup.WaitlistStore.
func (s *Waitlists) TemplatesDeleted(ctx context.Context, ownerID string) (int64, error) {
	return templatesDeleted(ctx, s.pool, ownerID)
}

// templatesDeleted uses owner_pkey.
func templatesDeleted(ctx context.Context, db interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}, ownerID string,
) (n int64, err error) {
	err = db.QueryRow(ctx, `SELECT templates_deleted FROM owner WHERE id = $1`, ownerID).Scan(&n)
	if errors.Is(err, pgx.ErrNoRows) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("read owner: %w", err)
	}
	return n, nil
}
