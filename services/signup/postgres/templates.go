package postgres

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"waitlist.internal/services/signup/postgres/db"
	"waitlist.internal/services/signup/waitlist"
)

// RemoveTemplate removes a deleted template from the settings of its owner's waitlists,
// within tx.
func (s *Waitlists) RemoveTemplate(ctx context.Context, tx pgx.Tx, ownerID, templateID string) error {
	q := s.db.WithTx(tx)
	// This waits for transactions that are assigning templates of this owner. Later ones
	// see the new count.
	if err := q.CountDeletedTemplate(ctx, ownerID); err != nil {
		return fmt.Errorf("count deleted template: %w", err)
	}
	lists, err := q.ListAssigned(ctx, ownerID, templateID)
	if err != nil {
		return fmt.Errorf("find template: %w", err)
	}
	var updates []db.UpdateSettingsParams
	for _, w := range lists {
		settings, err := waitlist.DecodeSettings(w.Settings)
		if err != nil {
			return fmt.Errorf("waitlist %s: %w", w.ID, err)
		}
		settings.EmailTemplates = settings.EmailTemplates.Without(templateID)
		stored, err := settings.Stored()
		if err != nil {
			return fmt.Errorf("waitlist %s: %w", w.ID, err)
		}
		updates = append(updates, db.UpdateSettingsParams{ID: w.ID, Settings: stored})
	}
	q.UpdateSettings(ctx, updates).Exec(func(_ int, e error) { err = cmp.Or(err, e) })
	if err != nil {
		return fmt.Errorf("remove template: %w", err)
	}
	return nil
}

// TemplatesDeleted implements owners.WaitlistStore.
func (s *Waitlists) TemplatesDeleted(ctx context.Context, ownerID string) (int64, error) {
	return templatesDeleted(ctx, s.db, ownerID)
}

func templatesDeleted(ctx context.Context, q *db.Queries, ownerID string) (int64, error) {
	n, err := q.TemplatesDeleted(ctx, ownerID)
	if errors.Is(err, pgx.ErrNoRows) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("read owner: %w", err)
	}
	return n, nil
}
