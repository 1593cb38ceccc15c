package postgres

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"waitlist.internal/services/signup"
)

// By waitlist_owner. In one order, so that two of an owner's deletions do not
// wait for each other; locked, so that a change of settings goes before or after.
const assignedSQL = `
SELECT id, settings FROM waitlist
WHERE owner_id = $1 AND deleted_at IS NULL AND $2 IN (
    settings #>> '{email_templates,signup_confirmation}',
    settings #>> '{email_templates,referral_milestone}',
    settings #>> '{email_templates,offboarding}')
ORDER BY id
FOR NO KEY UPDATE`

// RemoveTemplate takes a deleted template out of the settings of its owner's
// waitlists, within tx.
func (s *Waitlists) RemoveTemplate(ctx context.Context, tx pgx.Tx, ownerID, templateID string) error {
	// Waits for whoever is assigning templates of this owner, and is seen by whoever
	// comes after.
	if _, err := tx.Exec(ctx, `UPDATE owner SET templates_deleted = templates_deleted + 1 WHERE id = $1`, ownerID); err != nil {
		return fmt.Errorf("count a deleted template: %w", err)
	}
	rows, err := tx.Query(ctx, assignedSQL, ownerID, templateID)
	if err != nil {
		return fmt.Errorf("look for a template: %w", err)
	}
	type assigned struct {
		ID       string
		Settings []byte
	}
	lists, err := pgx.CollectRows(rows, pgx.RowToStructByPos[assigned])
	if err != nil {
		return fmt.Errorf("look for a template: %w", err)
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
		return fmt.Errorf("remove a template: %w", err)
	}
	return nil
}

// TemplatesDeleted implements signup.WaitlistStore.
func (s *Waitlists) TemplatesDeleted(ctx context.Context, ownerID string) (int64, error) {
	return templatesDeleted(ctx, s.pool, ownerID)
}

// templatesDeleted reads the count, by owner_pkey.
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
